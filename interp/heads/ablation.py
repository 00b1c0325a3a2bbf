"""What the second copy of repeated tokens costs when heads are taken away.

1. Run the repeated sequences once and keep the stream into every layer (`interp/rerun.py`).
2. To ablate a set of heads, replace their z, so that they add nothing of their own to the stream: by its mean over typical
   tokens, by zero, or by what the same head gave on other random tokens. The run begins at the first layer of the set,
   and several sets stand side by side in one batch.
3. The loss is the mean over tokens 2 to N of the second copy, in nats: the first one nothing predicts. Only these rows
   are unembedded, a few at a time.

A mean leaves the head's usual contribution in place, zero removes that too and moves the stream away from where it ever
is, and values of other tokens keep everything but what the head says about these ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.heads.losses import row_losses
from interp.heads.protocol import given_tokens, repeated_tokens
from interp.hooks import HookContext
from interp.intervene import reference_means
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.rerun import BaseRun, base_run
from interp.tokens import Tokens

Head = tuple[int, int]
"""(layer, head)."""
Progress = Callable[[int, int], object]
KINDS = ("mean", "zero", "resample")


@dataclass(frozen=True, eq=False)
class RepeatRun:
    """Repeated sequences that were run once, and what heads are replaced by."""

    base: BaseRun
    """The unchanged run."""
    period: int
    """Length of one copy."""
    n_bos: int
    """Places before the first copy, 0 or 1."""
    values: Mapping[int, Float[Tensor, "..."]]
    """Layer -> what takes the place of z there: a value for every head [head d_v], or for every place
    [row pos head d_v]."""
    card: dict[str, Any]
    """Period, sequences, BOS, kind and seed."""

    @property
    def n_rows(self) -> int:
        """Number of sequences."""
        return len(self.base.tokens)

    def first(self, rows: int) -> "RepeatRun":
        """The same of the first sequences only, where fewer are enough."""
        if rows < 1:
            raise ValueError(f"rows={rows}: at least one sequence is needed")
        base, tokens = self.base, self.base.tokens
        streams = {layer: stream[:rows] for layer, stream in base.streams.items()}
        some = BaseRun(base.model, Tokens(tokens.ids[:rows], tokens.mask[:rows]), streams, base.final[:rows])
        values = {layer: value[:rows] if value.ndim == 4 else value for layer, value in self.values.items()}
        card = self.card | {"n_sequences": len(some.tokens)}
        return RepeatRun(some, self.period, self.n_bos, values, card)

    def base_losses(self) -> Float[Tensor, "row"]:
        """Second-copy loss of the unchanged model by sequence, fp64."""
        return self._second_copy(self.base.final[None])[0]

    def first_losses(self) -> Float[Tensor, "row"]:
        """Loss over the first copy by sequence, fp64: what the second one would cost a model that sees no repetition."""
        return self._losses(self.base.final[None], 0, self.n_bos + self.period - 1)[0]

    def losses(self, sets: Sequence[Sequence[Head]], progress: Progress | None = None) -> Float[Tensor, "set row"]:
        """Second-copy loss of each sequence with each set of heads ablated, fp64.

        Args:
            sets: (layer, head) pairs; an empty set is the unchanged model.
            progress: called with (sets done, sets in all).
        """
        found = torch.zeros(len(sets), self.n_rows, dtype=torch.float64)
        done = 0
        for layer, members in sorted(_by_first_layer(sets).items()):
            if layer < 0:
                found[members] = self.base_losses()
            size = self.base.copies_at_once()
            for start in range(0, len(members), size) if layer >= 0 else ():
                chunk = members[start : start + size]
                hooks = self._hooks([sets[index] for index in chunk])
                found[chunk] = self._second_copy(self.base.stream(layer, hooks, len(chunk)))
                if progress is not None:
                    progress(done + start + len(chunk), len(sets))
            done += len(members)
        if not bool(torch.isfinite(found).all()):
            bad = sets[int((~torch.isfinite(found)).any(1).nonzero()[0])]
            raise ValueError(
                f"without heads {list(bad)} the loss is not finite: the replaced values do not suit the model"
            )
        return found

    def _hooks(self, sets: Sequence[Sequence[Head]]) -> dict[str, Callable[[Tensor, HookContext], Tensor]]:
        """One function for each layer that a set touches; copy i of the batch loses the heads of set i."""
        n_heads = self.base.model.cfg.n_heads
        hit: dict[int, Tensor] = {}
        for index, heads in enumerate(sets):
            for layer, head in heads:
                hit.setdefault(layer, torch.zeros(len(sets), n_heads, dtype=torch.bool))[index, head] = True

        def replacing(layer: int) -> Callable[[Tensor, HookContext], Tensor]:
            def replace(value: Tensor, ctx: HookContext) -> Tensor:  # noqa: ARG001 (hooks are called with two)
                by_copy = value.unflatten(0, (len(sets), -1))
                lost = hit[layer].to(value.device)[:, None, None, :, None]
                return torch.where(lost, self.values[layer].to(value), by_copy).flatten(0, 1)

            return replace

        return {f"blocks.{layer}.attn.hook_z": replacing(layer) for layer in hit}

    def _second_copy(self, stream: Float[Tensor, "copies row pos d_model"]) -> Float[Tensor, "copies row"]:
        return self._losses(stream, self.n_bos + self.period, self.n_bos + 2 * self.period - 1)

    def _losses(
        self, stream: Float[Tensor, "copies row pos d_model"], start: int, end: int
    ) -> Float[Tensor, "copies row"]:
        """Mean loss of the predictions made at places start to end - 1."""
        model, targets = self.base.model, self.base.tokens.ids[:, start + 1 : end + 1]
        rows = stream[:, :, start:end].flatten(0, 2)
        wanted = targets.expand(len(stream), -1, -1).flatten()
        return row_losses(model, rows, wanted).view(*stream.shape[:2], -1).mean(-1).cpu()


def repeat_run(
    model: HookedTransformer,
    tokens: object = None,
    *,
    period: int | None = None,
    bos: int | bool | None = None,
    kind: str | None = None,
    reference: Any = None,
    layers: Sequence[int] | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> RepeatRun:
    """Run repeated tokens once and make the values that ablated heads get.

    Args:
        model: any loaded causal model.
        tokens, period, bos: as in `head_scores`.
        kind: `mean`, `zero` or `resample`. None: the mean where there is a reference, else resample.
        reference: for the mean: texts, a store that holds z, or {full site name: mean}.
        layers: layers whose heads may be ablated; None for all.
        rows: only the first so many sequences.
        seed: of random tokens and of the resampled ones.

    Raises:
        ValueError: an encoder, an unknown kind, a mean without a reference, or a reference that nothing uses.
    """
    refuse_encoder(model.cfg, "a loss on repeated tokens")
    chosen = kind or ("resample" if reference is None else "mean")
    if chosen not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; choose from {', '.join(KINDS)}")
    if (chosen == "mean") != (reference is not None):
        need = (
            "needs reference=: texts, a store that holds z, or {site: mean}"
            if chosen == "mean"
            else "uses no reference"
        )
        raise ValueError(f"kind={chosen!r} {need}")
    if rows is not None and rows < 1:
        raise ValueError(f"rows={rows}: at least one sequence is needed")
    ids, n, n_bos = repeated_sequences(model, tokens, period, bos, seed)
    ids = ids[:rows]
    wanted = sorted(set(range(model.cfg.n_layers) if layers is None else layers))
    base = base_run(model, ids, wanted)
    values = _replacements(model, base.tokens.ids, n_bos, chosen, reference, wanted, seed)
    card = {
        "model": model.cfg.name, "fingerprint": model.fingerprint, "ablation": chosen, "period": n, "n_sequences": len(ids),
        "bos": int(ids[0, 0]) if n_bos else None, "seed": seed,
    }  # fmt: skip
    return RepeatRun(base, n, n_bos, values, card)


def _replacements(
    model: HookedTransformer,
    ids: Int[Tensor, "row pos"],
    n_bos: int,
    kind: str,
    reference: Any,
    layers: Sequence[int],
    seed: int,
) -> dict[int, Tensor]:
    """Layer -> new z, [head d_v] or [row pos head d_v]."""
    cfg, names = model.cfg, [f"blocks.{layer}.attn.hook_z" for layer in layers]
    if kind == "zero":
        return {layer: torch.zeros(cfg.n_heads, cfg.d_value) for layer in layers}
    if kind == "mean":
        means = reference_means(reference, names, model)
        return {layer: means[name].view(cfg.n_heads, cfg.d_value) for layer, name in zip(layers, names, strict=True)}
    # Random tokens of the same range behind the same BOS, which do not repeat.
    others = ids.clone()
    others[:, n_bos:] = random_tokens(model, ids.shape[0], ids.shape[1] - n_bos, seed + 1).to(ids.device)
    with torch.no_grad():
        _, cache = model.run_with_cache(others, names, stop_at_layer=max(layers) + 1)
    return {layer: cache[name] for layer, name in zip(layers, names, strict=True)}


def random_tokens(model: HookedTransformer, n_rows: int, length: int, seed: int) -> Int[Tensor, "row pos"]:
    """Random ids of the range that `repeated_tokens` draws from."""
    copies, n_bos = repeated_tokens(model, n_rows=n_rows, period=length, bos=False, seed=seed)
    return copies[:, n_bos : n_bos + length]


def repeated_sequences(
    model: HookedTransformer, tokens: object, period: int | None, bos: int | bool | None, seed: int
) -> tuple[Int[Tensor, "row pos"], int, int]:
    """The sequences that `head_scores` runs for these arguments, the length of a copy, and the BOS columns."""
    if tokens is None:
        ids, n_bos = repeated_tokens(model, period=period or min(64, (model.cfg.n_ctx - 1) // 2), bos=bos, seed=seed)
    else:
        ids, n_bos = given_tokens(model, torch.as_tensor(tokens), period, bos)
    return ids, (ids.shape[1] - n_bos) // 2, n_bos


def checked_heads(model: HookedTransformer, heads: Any) -> tuple[Head, ...]:
    """(layer, head) pairs that the model has, each once, in order. ValueError otherwise."""
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    pairs = list(heads)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"heads are (layer, head) pairs in a list, such as [(5, 1)], got {heads!r}")
    for layer, head in pairs:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise ValueError(
                f"there is no head {layer}.{head}: the model has layers 0-{n_layers - 1} of heads 0-{n_heads - 1}"
            )
    return tuple(sorted({(int(layer), int(head)) for layer, head in pairs}))


def _by_first_layer(sets: Sequence[Sequence[Head]]) -> dict[int, list[int]]:
    """First layer that a set touches (-1 for the empty set) -> numbers of the sets that begin there."""
    found: dict[int, list[int]] = {}
    for index, heads in enumerate(sets):
        found.setdefault(min((layer for layer, _ in heads), default=-1), []).append(index)
    return found
