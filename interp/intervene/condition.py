"""Steer only where something holds: a probe's probability or the cosine with a direction, compared with a threshold.

1. The condition reads its site in every pass, after the interventions named before it and before the one that it governs.
2. It decides for each row of a batch on its own: from the mean over the prompt's tokens, from the prompt's last token, or
   for each token from that token alone.
3. What hangs on the prompt is decided by the pass that holds the prompt, and remembered for the passes that do not: cached
   decoding, also of several continuations. So a generation with a KV cache, one pass over the whole text, and any batch and
   padding decide alike.

Conditional steering by the cosine with the mean over the prompt: Lee et al. 2024, Programming refusal with conditional
activation steering, arXiv 2409.05907.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.hooks import HookContext, Texts
from interp.intervene.targets import Direction, Directions, Target, targets_of
from interp.model import HookedTransformer

OVER = ("prompt", "last", "token")
_DECIDES = ("direction", "bias", "mean", "scale", "slope", "intercept", "tensors")
"""What a probe's probability comes from."""


@runtime_checkable
class Reader(Protocol):
    """What a condition needs of a probe; `interp.Probe` is one."""

    @property
    def site(self) -> str | None: ...
    def score(self, X: Any) -> Tensor: ...
    def __call__(self, X: Any) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Condition:
    """When to steer: `Steer(vector, 0.1, when=Condition(probe, above=0.8))`.

    Args:
        reads: a probe, whose probability of the label 1 is compared; or a steering vector, a latent's direction or a `Target`,
            with which the cosine of the activations at its site is.
        above: it holds where the figure is larger than this. None: for a probe without `below` its own threshold.
        below: it holds where the figure is smaller than this. With both, between them.
        over: "prompt", one decision for each row, from the mean of the activations over the prompt's tokens, without pads,
            the first token and special tokens, whose values are of another size; "last", from the prompt's last token;
            "token", each token decides for itself, whatever it is. A forward pass that is not told `prompt_len=` takes the
            whole text for the prompt, and one that starts from a stream without tokens knows no special ones.

    Raises:
        ValueError: what can be read by neither way, or has no site; no threshold, or one that is no finite number; nothing
            between `above` and `below`. When applied: a site that comes after the steered one, or that the pass did not
            compute; a prompt without an ordinary token; rows that hold several texts, but for over="token".
    """

    reads: Any
    above: float | Any = None
    below: float | Any = None
    over: str = "prompt"

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise ValueError(f"over={self.over!r} is unknown; choose from {', '.join(OVER)}")
        if not self.by_probe and not isinstance(self.reads, Target | Directions | Direction):
            raise ValueError(
                f"a condition reads a probe or a steering vector, got {type(self.reads).__name__}: see interp.fit_probe and "
                "interp.steering_vector"
            )
        if isinstance(self.reads, Reader) and self.reads.site is None:
            raise ValueError("this probe does not know the site that it reads: fit it with site=")
        if self.by_probe and getattr(self.reads, "reads", "row") != "row":
            raise ValueError("a condition reads one row at a time, and this probe reads whole texts: use another kind")
        if not self.by_probe and len(found := targets_of(self.reads)) != 1:
            raise ValueError(f"a condition reads one place, and this vector has {len(found)}: take one of them")
        if self.above is None and self.below is None:
            threshold = getattr(self.reads, "threshold", None) if self.by_probe else None
            if threshold is None:
                raise ValueError("a condition needs a threshold: above=0.2 or below=0.2")
            object.__setattr__(self, "above", float(threshold))
        for name, bound in (("above", self.above), ("below", self.below)):
            number = isinstance(bound, int | float) and not isinstance(bound, bool)
            if bound is not None and not (number and math.isfinite(bound)):
                raise ValueError(f"{name} must be a finite number, got {bound!r}")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"nothing is above {self.above} and below {self.below}: give one of them, or swap them")

    @property
    def by_probe(self) -> bool:
        """Whether a probability is compared; otherwise a cosine."""
        return isinstance(self.reads, Reader)

    @property
    def head(self) -> int | None:
        """The head whose part of the site is read."""
        return getattr(self.reads, "head", None) if self.by_probe else self._target.head

    @functools.cached_property
    def _target(self) -> Target:
        return targets_of(self.reads)[0]

    def site(self, model: HookedTransformer) -> str:
        """Full name of the site that is read. ValueError for one that this model lacks."""
        wanted = self.reads.site if self.by_probe else self._target.site
        names = model.expand_sites(wanted)
        if len(names) != 1 or site_names.kind_of(names[0]).component == 1:
            raise ValueError(f"a condition reads one value of single tokens, {wanted!r} is none")
        return names[0]

    def figure(self, rows: Float[Tensor, "*row d"]) -> Float[Tensor, "*row"]:
        """Probability or cosine of activations. ValueError for another width than that of what is read."""
        if self.by_probe:
            return self.reads(rows.float())
        direction = self._target.direction.to(rows.device).double()
        if rows.shape[-1] != len(direction):
            raise ValueError(
                f"the condition's vector has {len(direction)} dimensions, the activations have {rows.shape[-1]}: is it another "
                "model's?"
            )
        h = rows.double()
        return (h @ direction) / h.norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)

    def holds(self, rows: Float[Tensor, "*row d"]) -> Bool[Tensor, "*row"]:
        """Whether it holds for activations."""
        figure = self.figure(rows)
        result = torch.ones_like(figure, dtype=torch.bool)
        if self.above is not None:
            result = result & (figure > self.above)
        return result if self.below is None else result & (figure < self.below)

    def describe(self) -> dict[str, Any]:
        """The settings as JSON, for the card of a result. `hash` is of the numbers that decide, the probe's or the direction's;
        None for a reader of another kind that has neither direction nor tensors, which no card can tell from its like."""
        by_probe = self.by_probe
        return {
            "reads": "probability" if by_probe else "cosine",
            "kind": getattr(self.reads, "kind", None) if by_probe else None,
            "site": self.reads.site if by_probe else self._target.site,
            "head": self.head, "above": self.above, "below": self.below, "over": self.over, "hash": self._hash(),
        }  # fmt: skip

    def _hash(self) -> str | None:
        if not self.by_probe:
            return _hash_of({"direction": self._target.direction})
        found = {name: value for name in _DECIDES if (value := getattr(self.reads, name, None)) is not None}
        return _hash_of(found) if "direction" in found or found.get("tensors") else None


class LiveCondition:
    """A condition at work in one `with` block: it reads in each pass, and says where it holds.

    Attributes:
        site: full name of the site that `read` stands at.
    """

    def __init__(self, condition: Condition, model: HookedTransformer) -> None:
        self.condition, self.site = condition, condition.site(model)
        special = sorted(model.tokenizer.special_ids) if model.tokenizer is not None else []
        self._special = torch.tensor(special, dtype=torch.long, device=model.device)

    def read(self, value: Tensor, ctx: HookContext) -> None:
        """Decide in this pass; changes nothing."""
        assert ctx.texts is not None
        if self.condition.over == "token":
            ctx.texts.now[self] = self.condition.holds(self._part(value))
            return
        if _holds_prompt(ctx, ctx.texts):
            ctx.texts.call[self] = self._decided(value, ctx, ctx.texts)
        rows = ctx.texts.call[self]
        copies = len(ctx.mask) // len(rows)  # continuations of each prompt
        ctx.texts.now[self] = rows.repeat_interleave(copies)[:, None].expand(ctx.mask.shape)

    def at(self, ctx: HookContext) -> Bool[Tensor, "batch pos"]:
        """Where the condition holds in the pass that is under way."""
        assert ctx.texts is not None
        if self not in ctx.texts.now:
            raise ValueError(
                f"the condition of the intervention at {ctx.name} reads {self.site}, which this pass did not compute: start it "
                "at an earlier layer"
            )
        return ctx.texts.now[self]

    def _part(self, value: Tensor) -> Tensor:
        """The activations that are read, [batch pos d]."""
        head = self.condition.head
        if head is None:
            return value.detach().flatten(2)
        if value.ndim != 4 or not 0 <= head < value.shape[2]:
            raise ValueError(f"the condition reads head {head}, but {self.site} has the shape {list(value.shape)}")
        return value.detach()[:, :, head]

    def _decided(self, value: Tensor, ctx: HookContext, texts: Texts) -> Bool[Tensor, " batch"]:
        """The decision for each row, from the prompt in this pass."""
        if texts.documents is not None or texts.parents is not None:
            raise ValueError(
                "a condition over the prompt decides for a row, and these rows hold several texts: give one a row"
            )
        values, prompt = self._part(value).double(), ctx.mask
        if ctx.prompt_len is not None:
            prompt = prompt & (ctx.positions < ctx.prompt_len[:, None])
        if self.condition.over == "last":
            last = torch.where(prompt, ctx.positions, -1).argmax(1)
            return self.condition.holds(values[torch.arange(len(values), device=values.device), last])
        ordinary = prompt & (ctx.positions > 0)
        if texts.ids is not None:
            ordinary = ordinary & ~torch.isin(texts.ids, self._special)
        count = ordinary.sum(1)
        if not bool(count.all()):
            raise ValueError(
                f"the prompt of row {int((count == 0).nonzero()[0])} has no token but its first and special ones, so there is "
                "nothing to take a mean of: use Condition(..., over='last')"
            )
        return self.condition.holds(torch.where(ordinary[..., None], values, 0.0).sum(1) / count[:, None])


def _hash_of(value: Any) -> str:
    """Of numbers and tensors, in lists and mappings; the exact bits count."""

    def plain(each: Any) -> Any:
        if isinstance(each, Tensor):
            return [str(each.dtype), each.detach().cpu().double().tolist()]
        if isinstance(each, Mapping):
            return {str(name): plain(part) for name, part in each.items()}
        return each

    return artifact.hash_json(plain(value))


def _holds_prompt(ctx: HookContext, texts: Texts) -> bool:
    """Whether all tokens so far are in this pass. A decode step with a KV cache has the new token alone, unless it had to run
    over everything again."""
    return texts.real.shape[1] == ctx.mask.shape[1]
