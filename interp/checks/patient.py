"""What the checks share: the model, texts of it, one recorded pass, and how far values may be apart.

Deviations of activations are relative to the norm of the row that they stand in (the first token's norm may be a hundred
times that of the others, so no absolute bound fits both); those of logits are relative to the largest logit's size.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks.report import Check
from interp.model import ActivationCache, HookedTransformer
from interp.model.inputs import Logits
from interp.tokens import Tokens

TEXT = (
    "The small harbour town wakes early. Fishermen carry their nets down to the water while the bakery on the corner "
    "opens its doors, and the smell of fresh bread drifts along the street. By noon the market is full of people who "
    "buy fruit, flowers and cheese, and the children run home from school to have their lunch with their families. "
    "In the evening everybody meets at the square, where an old man plays the violin until the sun has gone down."
)
"""A plain English paragraph that any language model finds easy."""

ROUNDING = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How far one layer's values may be from exact ones, by the precision that they are made in: three to ten times what is
measured on SmolLM2-135M. A wrong formula is off by 0.1 and more."""
DRIFT = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""How far two ways through 30 layers may end up apart, relative to the largest logit; 1e-5 and 0.04 are measured."""
LONGEST = 600
"""Tokens that a check of windows or of rotations by length may need; longer ones are left to the definitions."""
WIDEST = 24
"""Tokens in the texts of most checks: enough for every mechanism, few enough for fp64."""


@dataclass(frozen=True, eq=False)
class Patient:
    """A model under examination, with the texts that the checks run on."""

    model: HookedTransformer
    folder: Path | None = None
    """The checkpoint's folder, where it is known."""
    transformers: bool = True
    """Compare with transformers where it can be imported."""
    seed: int = 0
    """Of random ids and directions."""

    @functools.cached_property
    def width(self) -> int:
        """Tokens of the longest text, which leaves room for generated ones."""
        n_ctx = self.model.cfg.n_ctx
        return min(WIDEST, n_ctx - 8 if n_ctx > 16 else n_ctx)

    @functools.cached_property
    def ids(self) -> Int[Tensor, "pos"]:
        """A text of `width` tokens: the paragraph where there is a tokenizer, else random ids."""
        if self.model.tokenizer is not None:
            ids = self.model.tokenizer.encode(TEXT)
            if len(ids) >= self.width:
                return torch.tensor(ids[: self.width], device=self.model.device)
        return self.random_ids(self.width)

    def random_ids(self, n: int, stream: int = 0) -> Int[Tensor, "pos"]:
        """n ids that no tokenizer's rule gave a meaning, each drawn evenly from the vocabulary."""
        generator = torch.Generator().manual_seed(1000 * self.seed + stream)
        return torch.randint(0, self.model.cfg.d_vocab, (n,), generator=generator).to(self.model.device)

    @functools.cached_property
    def rows(self) -> list[Int[Tensor, "_"]]:
        """Three texts of unequal length: the paragraph's beginning, and random ids; where rotations depend on the length,
        one on either side of the length where they begin to change as well."""
        lengths = [min(n, self.model.cfg.n_ctx) for n in (max(3, self.width // 2), max(2, self.width // 3))]
        limit = self.turning_point
        lengths += [] if limit is None or self.unreached else [limit + 4, max(1, limit - 2)]
        return [self.ids, *(self.random_ids(n, stream) for stream, n in enumerate(lengths, 1))]

    @property
    def turning_point(self) -> int | None:
        """Tokens up to which rotations are those of a short text, None where they never depend on the length."""
        rope = self.model.rope
        return rope.scaling.original_n_ctx if rope is not None and rope.scaling is not None and rope.by_length else None

    @property
    def unreached(self) -> str:
        """Why no text goes beyond the turning point; empty where one does, or where there is none."""
        limit, most = self.turning_point, min(self.model.cfg.n_ctx, LONGEST)
        if limit is None or limit + 4 <= most:
            return ""
        what = f"a text over the {limit} tokens from which rotations change"
        if limit + 4 > self.model.cfg.n_ctx:
            return f"{what} does not fit n_ctx={self.model.cfg.n_ctx}"
        return f"{what} is too long for a quick check, so none was made"

    def padded(self, rows: Sequence[Int[Tensor, "_"]], side: str, fill: int = 0) -> Tokens:
        """Texts as one batch, padded on one side with `fill`."""
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), fill, device=self.model.device)
        mask = torch.zeros(len(rows), width, dtype=torch.bool, device=self.model.device)
        for index, row in enumerate(rows):
            place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
            ids[index, place], mask[index, place] = row, True
        return Tokens(ids, mask)

    @functools.cached_property
    def recorded(self) -> tuple[Float[Tensor, "1 pos d_vocab"], ActivationCache]:
        """Logits and every site of one text."""
        with torch.no_grad():
            logits, cache = self.model.run_with_cache(self.ids[None], sites=self.model.site_names)
        assert isinstance(logits, Logits)
        return logits.as_subclass(Tensor), cache

    @property
    def cache(self) -> ActivationCache:
        """Every site of one text."""
        return self.recorded[1]

    @property
    def logits(self) -> Float[Tensor, "1 pos d_vocab"]:
        """Logits of the same text."""
        return self.recorded[0]

    def run(self, x: Tensor | Tokens) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits without gradients, as a plain tensor."""
        with torch.no_grad():
            return self.model(x).as_subclass(Tensor)

    def has(self, site: str) -> bool:
        """Whether the model has a site of this full name."""
        return site in self.model.hook_dict

    @property
    def rounding(self) -> float:
        """How far one layer's values may be from exact ones."""
        return ROUNDING[self.precision]

    @property
    def drift(self) -> float:
        """How far two ways through the whole model may end up apart: rounding adds up over the layers."""
        return DRIFT[self.precision] * math.sqrt(max(1.0, self.model.cfg.n_layers / 30))

    @property
    def nats(self) -> float:
        """The same for log-probabilities, which are as far off as the logits; they are reported in fp32."""
        return max(self.drift, 2e-6) * max(1.0, float(self.logits.float().abs().max()))

    @property
    def precision(self) -> torch.dtype:
        """Of the products: those with int8 weights round to bf16."""
        integer = any(not weight.is_floating_point() for weight in self.model.parameters())
        return torch.bfloat16 if integer else self.model.dtype

    @property
    def layers(self) -> list[int]:
        """Layers for the checks that cost time by the layer: all of a small model, else first, middle and last, and one
        of each kind (window, experts) besides."""
        cfg = self.model.cfg
        if cfg.n_layers <= 6:
            return list(range(cfg.n_layers))
        chosen = {0, 1, cfg.n_layers // 2, cfg.n_layers - 1}
        for kind in (cfg.has_window, cfg.has_experts):
            for answer in (True, False):
                chosen |= set([layer for layer in range(cfg.n_layers) if kind(layer) is answer][:1])
        return sorted(chosen)


# ---------------------------------------------------------------------------------------------------- making checks


def bounded(name: str, compared: str, figure: float, bound: float, note: str = "") -> Check:
    """ok if the figure is at most the bound; NaN is not."""
    return Check(name, compared, "ok" if figure <= bound else "FAILED", float(figure), float(bound), note)


def judged(name: str, compared: str, wrong: Sequence[str], note: str = "") -> Check:
    """ok if nothing is wrong; the figure counts what is, and the note names the first of it."""
    shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return Check(name, compared, "FAILED" if wrong else "ok", float(len(wrong)), 0.0, shown or note)


def skipped(name: str, compared: str, why: str) -> Check:
    """Not done, and why."""
    return Check(name, compared, "skipped", note=why)


# -------------------------------------------------------------------------------------------------------- deviations


def row_error(found: Tensor, expected: Tensor) -> float:
    """Largest deviation of a row from the expected one, relative to that row's norm; inf for NaN or another shape."""
    if found.shape != expected.shape:
        return math.inf
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())  # -inf against -inf is no deviation
    apart = torch.where(same, 0.0, found - expected).norm(dim=-1)
    size = torch.where(expected.isfinite(), expected, 0.0).norm(dim=-1)
    # A row of zeros (an attention output without bias, ablated) has no size of its own; then the deviation is absolute.
    error = (apart / torch.where(size > 0, size, 1.0)).max()
    return math.inf if bool(error.isnan()) else float(error)


def logit_error(found: Tensor, expected: Tensor) -> float:
    """Largest deviation of a logit, relative to the largest expected one; inf for NaN or another shape."""
    if found.shape != expected.shape:
        return math.inf
    error = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)
    return math.inf if bool(error.isnan()) else float(error)
