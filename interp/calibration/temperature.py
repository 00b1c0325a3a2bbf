"""Temperature scaling: one number T that makes softmax(logits / T) as good a forecast as it can be (Guo et al. 2017).

1. In b = 1/T the mean NLL is convex, with slope E[<z>_b - z_label] and curvature E[Var_b(z)], both under softmax(b z).
2. From the slopes at b = 0 and b = inf it is known before the search whether an optimum exists at all.
3. Newton's method inside a bracket finds it, in float64, with the rows read a chunk at a time.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact

T_LOW, T_HIGH = 0.05, 20.0
"""A temperature outside is a sign that something else is wrong with the logits."""
CHUNK = 2**21
"""Most logits in one float64 chunk."""


@dataclass(frozen=True)
class Temperature:
    """One number that divides logits; made by `fit_temperature`. It never changes which token comes first."""

    temperature: float
    """Over 1 makes the distribution flatter: the model was too sure."""
    n: int
    """Rows that it was fitted on."""
    nll_before: float
    """Nats per row at T = 1, on those rows."""
    nll_after: float
    """Nats per row at T, on those rows; a fair figure needs other rows."""
    interval: tuple[float, float]
    """95 %, sandwich estimate for independent rows."""

    def __call__(self, logits: Any) -> Any:
        """Scaled logits, logits / T, of the same kind and shape (array or tensor). Not probabilities."""
        return logits / self.temperature

    @property
    def card(self) -> dict[str, Any]:
        """JSON-ready description, without the temperature itself."""
        ends = list(self.interval)
        return {"n": self.n, "nll_before": self.nll_before, "nll_after": self.nll_after, "interval": ends}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file with a card, atomically."""
        value = torch.tensor([self.temperature], dtype=torch.float64)
        return artifact.save_artifact(path, "temperature", {"temperature": value}, self.card)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Temperature":
        """Read what `save` wrote. ValueError for a damaged file or another kind."""
        tensors, card = artifact.load_artifact(path, "temperature")
        return cls.from_card(float(tensors["temperature"][0]), card)

    @classmethod
    def from_card(cls, temperature: float, card: dict[str, Any]) -> "Temperature":
        """A temperature and its `card` -> the value."""
        low, high = card["interval"]
        return cls(temperature, card["n"], card["nll_before"], card["nll_after"], (low, high))


def fit_temperature(logits: Any, labels: Any) -> Temperature:
    """The temperature with the least NLL of softmax(logits / T).

    Args:
        logits: [row, d_vocab] array or tensor of any float type; -inf marks an impossible class.
        labels: [row] class of each row, 0 .. d_vocab - 1.

    Computed in float64, a chunk of rows at a time. Judge the result on other rows than these.

    Raises:
        ValueError: shapes that do not fit, NaN or +inf, a label outside or impossible, no optimum within 0.05 .. 20.
    """
    z, target = torch.as_tensor(logits).detach(), torch.as_tensor(labels).detach()
    if z.ndim != 2 or target.shape != z.shape[:1] or not z.numel():
        raise ValueError(
            f"expected logits [row, d_vocab] and labels [row], got {tuple(z.shape)} and {tuple(target.shape)}"
        )
    if not z.is_floating_point() or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(f"expected float logits and integer labels, got {z.dtype} and {target.dtype}")
    rows = max(1, CHUNK // z.shape[1])
    return fit_temperature_chunks(lambda: zip(z.split(rows), target.split(rows)))


def fit_temperature_chunks(
    chunks: Callable[[], Iterable[tuple[Tensor, Tensor]]], *, tolerance: float = 1e-9
) -> Temperature:
    """`fit_temperature` for logits that do not fit in memory.

    Args:
        chunks: called once for each pass (about six); gives (logits [row, d_vocab], labels [row]) pieces of the same
            data each time.
        tolerance: relative, of T.

    Newton's method on b = 1/T, in which the NLL is convex: its slope is E[<z>_b - z_label] and its curvature
    E[Var_b(z)], both under softmax(b z). A bracket keeps the steps inside.
    """
    low, high, beta = 1 / T_HIGH, 1 / T_LOW, 1.0
    before = now = _Pass.over(chunks(), beta)
    before.refuse_no_optimum()
    for iteration in range(100):
        if now.slope < 0:
            low = beta
        else:
            high = beta
        step = beta - now.slope / now.curvature if now.curvature > 0 else math.inf
        step = min(max(step, 1 / T_HIGH), 1 / T_LOW)
        if abs(step - beta) <= tolerance * beta:
            break
        # Far from the optimum Newton may crawl along an exponential tail: every fourth step halves the bracket.
        if iteration % 4 == 3 or not low <= step <= high:
            step = math.sqrt(low * high)
        beta = step
        now = _Pass.over(chunks(), beta)
    temperature = 1 / beta
    if not T_LOW * 1.0001 < temperature < T_HIGH / 1.0001:
        raise ValueError(
            f"the best temperature lies beyond {T_LOW} .. {T_HIGH} (n = {now.n}): these logits are not on the scale of "
            "log-probabilities, or the labels are nearly separable; fit on more rows"
        )
    # Delta method: d(1/b) = db / b².
    half = 1.96 * math.sqrt(now.slope_square / now.n) / now.curvature * temperature**2
    return Temperature(temperature, now.n, before.nll, now.nll, (max(temperature - half, 0.0), temperature + half))


@dataclass(frozen=True)
class _Pass:
    """What one pass over the rows at b = 1/T found; means over rows, nats."""

    n: int
    nll: float
    slope: float
    curvature: float
    slope_square: float
    gap_top: float
    """Mean distance of the label's logit under the largest one: 0 when every label is an arg max."""
    gap_mean: float
    """Mean distance of the label's logit over the mean of its row."""

    @classmethod
    def over(cls, chunks: Iterable[tuple[Tensor, Tensor]], beta: float) -> "_Pass":
        sums, n = torch.zeros(6, dtype=torch.float64), 0
        for logits, labels in chunks:
            sums += _row_terms(logits, labels, beta).sum(1).cpu()
            n += len(labels)
        if n == 0:
            raise ValueError("there are no rows to fit a temperature on")
        return cls(n, *(sums / n).tolist())

    def refuse_no_optimum(self) -> None:
        """A least value inside (0, inf) exists just where the slope is negative at b = 0 and positive at b = inf."""
        if self.gap_top <= 0:
            raise ValueError(
                f"all {self.n} labels are the arg max of their logits: the NLL falls without end as T goes to 0. "
                "Fit on rows that hold some errors"
            )
        if self.gap_mean <= 0:
            raise ValueError(
                f"the logits of the labels are not above the average of their rows (n = {self.n}): the NLL falls "
                "without end as T grows. Check that labels and logits belong together"
            )


def _row_terms(
    logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"], beta: float
) -> Float[Tensor, "term row"]:
    """NLL, slope, curvature, slope², gap to the top and over the mean, of each row, in float64."""
    z = logits.detach().to(torch.float64, copy=True)
    labels = labels.to(z.device, torch.int64)
    top = z.amax(1, keepdim=True)  # NaN wins over every number
    if bool(top.isnan().any() | (top == math.inf).any()):
        raise ValueError("the logits hold NaN or +inf: drop those rows, and look for what made them")
    if int(labels.min()) < 0 or int(labels.max()) >= z.shape[1]:
        raise ValueError(f"labels must lie in 0..{z.shape[1] - 1}, got {int(labels.min())}..{int(labels.max())}")
    if bool((z.gather(1, labels[:, None]) == -math.inf).any()):
        raise ValueError("a label has the logit -inf, so its NLL is infinite at every temperature: mend label or mask")
    z -= top
    weight = (beta * z).exp_()
    n_possible: int | Tensor = z.shape[1]
    if bool((z.amin(1) == -math.inf).any()):
        possible = z > -math.inf
        z, n_possible = z.masked_fill(~possible, 0.0), possible.sum(1)
    total = weight.sum(1)
    mean = torch.einsum("rv,rv->r", weight, z) / total
    curvature = torch.einsum("rv,rv->r", weight.mul_(z), z) / total - mean**2
    target = z.gather(1, labels[:, None])[:, 0]
    slope = mean - target
    gap_mean = target - z.sum(1) / n_possible
    return torch.stack([total.log() - beta * target, slope, curvature, slope**2, -target, gap_mean])
