"""Two prompts in one model, side by side: where the tokens differ, what is predicted, and from which layer on.

1. The tokens are aligned by the longest common runs (difflib), so that an insertion does not shift everything after it.
2. Each prompt is read at one place, the last token by default: the final distribution there, and what the logit lens says
   after every layer.
3. Distances of two distributions: KL in both directions and Jensen-Shannon in nats (JS is at most ln 2), and total
   variation, 0 to 1. Of two streams: the norm of their difference over the norm of the first, and the cosine.
4. Heads: |a - b| / |a| of what each writes at the two places.
"""

import difflib
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.lens.read import log_probabilities
from interp.model import HookedTransformer
from interp.model.inputs import refuse_not_finite
from interp.model.named_weights import head_output

LAST = -1


@dataclass(frozen=True, eq=False)
class PromptDiff:
    """What one model does differently with two prompts."""

    tokens: pd.DataFrame
    """Aligned tokens: pos_a, token_a, pos_b, token_b (NA where the other prompt has none there), same."""
    following: pd.DataFrame
    """The most probable next tokens of either: token, token_id, p_a, p_b, difference (b - a); the largest of the two first."""
    layers: pd.DataFrame
    """layer (-1 is the embedding), kl_ab, kl_ba, js (nats), tv, residual, cosine, top_a, p_a, top_b, p_b (logit lens)."""
    heads: pd.DataFrame
    """layer, head, output: |a - b| / |a| of what the head writes at the two places."""
    card: dict[str, Any]
    """Model, the two places, and the final distances: kl_ab, kl_ba, js, tv."""

    @property
    def n_differing(self) -> int:
        """Aligned places where the tokens are not the same."""
        return sum(not same for same in self.tokens["same"].tolist())

    def summary(self) -> str:
        """One line."""
        far = self.card
        return (
            f"next token: JS {far['js']:.3f} nats (at most 0.693), total variation {far['tv']:.3f}, KL(a‖b) {far['kl_ab']:.3f}, "
            f"KL(b‖a) {far['kl_ba']:.3f} nats; {self.n_differing} of {len(self.tokens)} aligned places differ"
        )


@torch.inference_mode()
def prompt_diff(
    model: HookedTransformer, a: str | Any, b: str | Any, *, pos_a: int = LAST, pos_b: int = LAST, k: int | Any = 10
) -> PromptDiff:
    """Compare what a model makes of two prompts.

    Args:
        model: any loaded model.
        a: a text, or token ids.
        b: another one.
        pos_a: the place that is read in the first; negative counts from the end.
        pos_b: the place in the second.
        k: most probable next tokens of each that are listed.

    Returns:
        The tables.

    Raises:
        ValueError: an empty prompt, a place outside its prompt, or k below 1.
    """
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a whole number of 1 or more, got {k!r}")
    sides = [_Side.read(model, x, pos, name) for x, pos, name in ((a, pos_a, "a"), (b, pos_b, "b"))]
    rows, last = [], {}
    for layer in range(-1, model.cfg.n_layers):
        first, second = (side.streams[layer + 1] for side in sides)
        logp, logq = (log_probabilities(model, stream[None])[0].double() for stream in (first, second))
        last = _distances(logp, logq) | {"logp": logp, "logq": logq}
        shown = {name: value for name, value in last.items() if isinstance(value, float)}
        gap = {"residual": _ratio(first, second), "cosine": _cosine(first, second)}
        tops = [found for side, each in (("a", logp), ("b", logq)) for found in _top(model, each, side)]
        rows.append({"layer": layer, **shown, **gap, **dict(tops)})
    logp, logq = last.pop("logp"), last.pop("logq")
    card = {"model": model.cfg.name, "pos_a": sides[0].pos, "pos_b": sides[1].pos, **last}
    heads = [
        {"layer": layer, "head": head, "output": _ratio(x, y)}
        for layer, (of_a, of_b) in enumerate(zip(*(side.heads for side in sides)))
        for head, (x, y) in enumerate(zip(of_a, of_b))
    ]
    return PromptDiff(
        _aligned(model, *sides), _following(model, logp, logq, k), pd.DataFrame(rows), pd.DataFrame(heads), card
    )


@dataclass(frozen=True, eq=False)
class _Side:
    """One prompt at one place."""

    ids: list[int]
    pos: int
    streams: Float[Tensor, "place d_model"]
    """The embedding, and the stream after each block."""
    heads: list[Float[Tensor, "head d_model"]]
    """What each head writes, by layer."""

    @classmethod
    def read(cls, model: HookedTransformer, x: Any, pos: int, name: str) -> "_Side":
        tokens = model.tokenize(x)
        if tokens.ids.shape[0] != 1 or not bool(tokens.mask.any()):
            raise ValueError(f"{name} must be one text with at least one token")
        ids = tokens.row(0)
        at = pos + len(ids) if pos < 0 else pos
        if not 0 <= at < len(ids):
            raise ValueError(f"pos_{name} = {pos} lies outside the prompt, which has {len(ids)} tokens")
        sites = ["resid_pre:0", "resid_post:*", "z:*"]
        _, cache = model.run_with_cache(list(ids), sites=sites)
        streams = [cache["resid_pre:0"], *(cache[f"resid_post:{i}"] for i in range(model.cfg.n_layers))]
        refuse_not_finite(streams[-1], tokens.to(streams[-1].device))
        blocks = list(model.iter_blocks())
        heads = [
            torch.einsum("hd,hdm->hm", cache[f"z:{i}"][0, at], head_output(blocks[i], model.cfg)).double()
            for i in range(model.cfg.n_layers)
        ]
        return cls(list(ids), at, torch.stack([stream[0, at] for stream in streams]), heads)


def _distances(logp: Float[Tensor, " v"], logq: Float[Tensor, " v"]) -> dict[str, Any]:
    p, q = logp.exp(), logq.exp()
    middle = (0.5 * (p + q)).log()
    # A token that neither gives any probability adds nothing; 0 · -inf would be NaN.
    half = [torch.where(x > 0, x * (logx - middle), 0.0).sum() for x, logx in ((p, logp), (q, logq))]
    return {
        "kl_ab": max(0.0, float((p * (logp - logq)).sum())),
        "kl_ba": max(0.0, float((q * (logq - logp)).sum())),
        "js": max(0.0, float(0.5 * (half[0] + half[1]))),
        "tv": float(0.5 * (p - q).abs().sum()),
    }


def _top(model: HookedTransformer, logp: Float[Tensor, " v"], side: str) -> list[tuple[str, Any]]:
    best = int(logp.argmax())
    return [(f"top_{side}", _label(model, best)), (f"p_{side}", float(logp[best].exp()))]


def _following(model: HookedTransformer, logp: Tensor, logq: Tensor, k: int) -> pd.DataFrame:
    p, q = logp.exp(), logq.exp()
    k = min(k, len(p))
    ids = dict.fromkeys([*p.topk(k).indices.tolist(), *q.topk(k).indices.tolist()])
    frame = pd.DataFrame(
        [(_label(model, i), i, float(p[i]), float(q[i]), float(q[i] - p[i])) for i in ids],
        columns=pd.Index(["token", "token_id", "p_a", "p_b", "difference"]),
    )
    largest = frame[["p_a", "p_b"]].max(axis=1)
    return frame.loc[largest.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def _aligned(model: HookedTransformer, a: _Side, b: _Side) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    matcher = difflib.SequenceMatcher(None, a.ids, b.ids, autojunk=False)
    for what, a0, a1, b0, b1 in matcher.get_opcodes():
        for step in range(max(a1 - a0, b1 - b0)):
            row: dict[str, Any] = {"same": what == "equal"}
            for name, ids, start, end in (("a", a.ids, a0, a1), ("b", b.ids, b0, b1)):
                at = start + step if start + step < end else None
                row[f"pos_{name}"] = at
                row[f"token_{name}"] = None if at is None else _label(model, ids[at])
            rows.append(row)
    frame = pd.DataFrame(rows, columns=pd.Index(["pos_a", "token_a", "pos_b", "token_b", "same"]))
    return frame.astype({"pos_a": "Int64", "pos_b": "Int64", "same": bool})


def _ratio(x: Tensor, y: Tensor) -> float:
    size = float(x.double().norm())
    return float((x.double() - y.double()).norm()) / size if size > 0 else float("nan")


def _cosine(x: Tensor, y: Tensor) -> float:
    return 1.0 if bool((x == y).all()) else float(torch.cosine_similarity(x.double(), y.double(), dim=0))


def _label(model: HookedTransformer, token: int) -> str:
    return model.tokenizer.views([token])[0].display if model.tokenizer is not None else str(token)
