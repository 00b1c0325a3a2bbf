"""SAEConfig: every choice of one SAE training run, as one frozen, checked value."""

import math
import re
from dataclasses import dataclass

KINDS = ("topk",)
"""Activation rules that exist."""


@dataclass(frozen=True)
class SAEConfig:
    """How to train a sparse autoencoder. The defaults suit residual streams of small models (70M to 2B parameters)."""

    kind: str = "topk"
    """Activation rule; `topk` keeps the k largest pre-activations of a row, and of those the positive ones."""
    k: int = 32
    """Active latents per row (L0)."""
    width: int | str = "8x"
    """Number of latents: a count, or a multiple of d_model such as "8x"."""
    lr: float | None = None
    """Peak learning rate of Adam. None: 2e-4 / sqrt(width / 2^14), after Gao et al. 2024. That rule is for long runs; a
    run of a few hundred steps wants up to ten times more."""
    batch_size: int = 4096
    """Rows per step, where training draws its own batches; given batches are taken as they are."""
    epochs: int = 1
    """Passes over the rows, where training draws its own batches."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises linearly from 0, at most 1,000 steps."""
    decay: float = 0.2
    """Share of the steps, the last ones, over which the learning rate falls linearly to 0."""
    grad_clip: float = 1.0
    """Largest norm of the gradient of all parameters together."""
    aux_alpha: float = 1 / 32
    """Weight of the AuxK loss, which lets dead latents explain what the live ones leave over; 0 turns it off."""
    k_aux: int | None = None
    """Dead latents per row in the AuxK loss. None: d_model / 2."""
    dead_window: int | None = None
    """A latent is dead when it has not fired for this many rows. None: min(10M, 10 % of the rows of the run)."""
    autocast: bool = False
    """Choose the active latents by a bfloat16 matrix product. Their values, the gradients and the weights stay fp32."""
    seed: int = 0
    """Of the initial decoder and of the order of the rows."""
    checkpoint_every: int = 100
    """Steps between checkpoints, where a checkpoint path is given."""
    log_every: int = 10
    """Steps between lines of the metrics log; each line covers all steps since the last one."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"SAE kind {self.kind!r} does not exist; there is: {', '.join(KINDS)}")
        if isinstance(self.width, str) and _MULTIPLE.fullmatch(self.width) is None:
            raise ValueError(f'width is a number of latents or a multiple of d_model such as "8x", got {self.width!r}')
        for name in ("k", "batch_size", "epochs", "checkpoint_every", "log_every"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        if isinstance(self.width, int):
            _require("width", self.width, self.width >= self.k, f"at least k = {self.k}")
        for name in ("k_aux", "dead_window"):
            _require(name, getattr(self, name), getattr(self, name) is None or getattr(self, name) >= 1, "at least 1")
        _require("lr", self.lr, self.lr is None or 0 < self.lr < math.inf, "above 0")
        for name in ("warmup", "decay"):
            _require(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "a share between 0 and 1")
        _require("warmup + decay", self.warmup + self.decay, self.warmup + self.decay <= 1, "at most 1")
        _require("grad_clip", self.grad_clip, self.grad_clip > 0, "above 0")
        _require("aux_alpha", self.aux_alpha, 0 <= self.aux_alpha < math.inf, "at least 0")

    def n_latents(self, d_model: int) -> int:
        """The number of latents for activations of width d_model. ValueError where k or k_aux do not fit."""
        width = self.width if isinstance(self.width, int) else round(float(self.width[:-1]) * d_model)
        if width < max(self.k, self.k_aux or 1):
            raise ValueError(f"{width} latents cannot hold k = {self.k}, k_aux = {self.k_aux}: give a larger width")
        return width

    def peak_lr(self, n_latents: int) -> float:
        """The learning rate at the top of the schedule."""
        return self.lr if self.lr is not None else 2e-4 / math.sqrt(n_latents / 2**14)

    def lr_at(self, step: int, n_steps: int, n_latents: int) -> float:
        """The learning rate of step 0, 1 ... n_steps - 1: linear rise, plateau, linear fall towards 0."""
        rise = min(1000, round(self.warmup * n_steps))
        fall = round(self.decay * n_steps)
        factor = min(1.0, (step + 1) / (rise + 1), (n_steps - step) / (fall + 1))
        return self.peak_lr(n_latents) * factor

    def window(self, n_rows: int) -> int:
        """Rows without firing after which a latent counts as dead, in a run of n_rows rows (epochs counted)."""
        return self.dead_window if self.dead_window is not None else max(1, min(10_000_000, n_rows // 10))


_MULTIPLE = re.compile(r"\d+(\.\d+)?x")


def _require(name: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
