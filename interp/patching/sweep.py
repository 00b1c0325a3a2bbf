"""Activation patching: which values carry the answer (Meng et al. 2022; Heimersheim and Nanda 2024, arXiv 2404.15255).

1. Run both prompts once. `denoise` puts clean values into the corrupted run, and asks where the answer comes back;
   `noise` puts corrupted values into the clean run, and asks where it is lost.
2. Each patch replaces one site of one layer, at one position, in one head, or both. It starts at its layer, from the stream
   that the run without patches had there, and many patches share a batch.
3. A patch whose two values are the same in every pair changes nothing, and is not run: so it is, for one, before the
   first token that differs.
4. Read the metric of every pair; 0 is the corrupted run and 1 the clean one, in both modes.

Inside `with model.splice(saes):` the latents of SAEs can be swept too, as `resid_post.sae_acts_post`; the SAE's error stays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.model import HookedTransformer
from interp.patching.result import PatchResult, shared_labels
from interp.rerun import base_run
from interp.task import PairMetric, PromptPairs, pair_metric, prompt_pairs

STREAM = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
BY_HEAD = ("q", "k", "v", "z", "pattern")
LATENTS = tuple(kind for kind in site_names.SAE_KINDS if kind.endswith(".sae_acts_post"))
MODES = ("denoise", "noise")
Progress = Callable[[int, int], None]


def patch_sweep(
    model: HookedTransformer,
    pairs: PromptPairs | None = None,
    *,
    clean: Any = None,
    corrupted: Any = None,
    answer: Any = None,
    against: Any = None,
    site: str | Any = "resid_pre",
    metric: Any = "logit_diff",
    mode: str | Any = "denoise",
    by: str | Any = None,
    layers: Iterable[int] | None = None,
    positions: Sequence[int] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> PatchResult:
    """The effect of every patch of one kind.

    Args:
        model: any loaded model that predicts the next token.
        pairs: the prompts; or give the four arguments that follow.
        clean, corrupted, answer, against: as `prompt_pairs` takes them.
        site: what is replaced: resid_pre, resid_mid, resid_post, attn_out, mlp_out, or of a head q, k, v, z, pattern (k and
            v count kv heads; by position, a pattern counts its query); or latents of spliced SAEs, `resid_post.sae_acts_post`.
        metric: a name of `METRICS`, or fn(logits [pair pos d_vocab]) -> [pair].
        mode: "denoise" or "noise".
        by: "pos", "head", "head_pos" (each head at each position), "latent" (at all positions) or "layer" (all of it). None:
            by position in the stream, by head or latent elsewhere.
        layers: some layers; negatives count from the end, None for all (of latents: those with an SAE).
        positions: some positions, in the same way.
        batch_size: patches run at once; None for what suits a CPU.
        seed: of the bootstrap over pairs.
        progress: fn(patches done, patches in all).

    Raises:
        ValueError: prompts that do not align, an unknown site, a gap between clean and corrupted too small to divide by, or
            positions of prompts of unequal length, which are not the same places.
    """
    pairs = given_pairs(model, pairs, clean, corrupted, answer, against)
    kind, by = check_call(model, site, mode, by)
    measured = pair_metric(model, pairs, metric)
    _ = measured.gap
    places = sweep_places(model, pairs, kind, by, layers, positions)
    raw = run_patches(model, measured, kind, places, mode, batch_size, progress)
    card = sweep_card(model, measured, site=kind, mode=mode, by=by, method="exact", seed=seed)
    labels = shared_labels([pairs.labels(i) for i in range(len(pairs))]) if "pos" in places else ()
    return PatchResult(places, raw, measured.clean.cpu(), measured.corrupted.cpu(), labels, card)


def given_pairs(
    model: HookedTransformer, pairs: PromptPairs | None, clean: Any, corrupted: Any, answer: Any, against: Any
) -> PromptPairs:
    """The pairs, from whichever of the two ways the caller chose."""
    apart = {"clean": clean, "corrupted": corrupted, "answer": answer}
    missing = [name for name, value in apart.items() if value is None]
    if pairs is not None:
        if len(missing) < len(apart) or against is not None:
            raise ValueError("give either pairs, or clean=, corrupted=, answer= and against=")
        return pairs
    if missing:
        raise ValueError(f"{missing[0]}= is missing: a sweep needs pairs, or clean=, corrupted= and answer=")
    return prompt_pairs(model, clean, corrupted, answer, against)


def sweep_card(model: HookedTransformer, measured: PairMetric, **settings: Any) -> dict[str, Any]:
    """Provenance of a sweep."""
    pairs = measured.pairs
    return artifact.provenance(
        analysis="patching", model=model.cfg.name, fingerprint=model.fingerprint, task=pairs.name, n_pairs=len(pairs),
        metric=measured.name, n_reversed=measured.n_reversed, example=pairs.to_frame().iloc[0].to_dict(), **settings,
    )  # fmt: skip


def run_patches(
    model: HookedTransformer,
    measured: PairMetric,
    kind: str,
    places: pd.DataFrame,
    mode: str,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, "place pair"]:
    """The metric of each patch and pair, fp64 on the CPU."""
    pairs = measured.pairs
    base_side, source_side = (pairs.corrupted, pairs.clean) if mode == "denoise" else (pairs.clean, pairs.corrupted)
    wanted = sorted(set(places["layer"].tolist()))
    base = base_run(model, base_side, wanted)
    unpatched = measured.corrupted if mode == "denoise" else measured.clean
    raw = unpatched.cpu().repeat(len(places), 1)
    rows = base.copies_at_once(batch_size)
    names = {layer: site_names.full_name(f"{kind}:{layer}") for layer in wanted}
    with torch.no_grad():
        old_values, new_values = (
            model.run_with_cache(side, list(names.values()), stop_at_layer=max(wanted) + 1)[1]
            for side in (base_side, source_side)
        )
    done, held = 0, places.to_dict("records")
    for layer in wanted:
        name = names[layer]
        old, new = old_values[name], new_values[name]
        mine = places.index[places["layer"] == layer].tolist()
        indices = {number: _index(kind, held[number]) for number in mine}
        live = [number for number in mine if not torch.equal(old[indices[number]], new[indices[number]])]
        for chunk in (live[start : start + rows] for start in range(0, len(live), rows)):
            patch = _Patches([indices[number] for number in chunk], new)
            stream = base.stream(layer, {name: patch.apply}, copies=len(chunk))
            raw[chunk] = measured.of_streams(base, stream)
            done += len(chunk)
            if progress is not None:
                progress(done, len(places))
        done += len(mine) - len(live)
    if progress is not None:
        progress(len(places), len(places))
    return raw


@dataclass(frozen=True, eq=False)
class _Patches:
    """Patches of one site that run side by side."""

    indices: list[tuple[Any, ...]]
    """What each one replaces, of a value [pair ...]."""
    new: Tensor
    """The value of the other run."""

    def apply(self, value: Tensor, ctx: object) -> Tensor:
        """Each patch in rows of its own."""
        del ctx
        copies = value.unflatten(0, (len(self.indices), -1))
        for copy, index in zip(copies, self.indices, strict=True):
            copy[index] = self.new[index]
        return value


def _index(kind: str, place: dict[Any, int]) -> tuple[Any, ...]:
    """Which part of a value [pair pos (head or latent) ...], or [pair head query key], a place is."""
    pos, part = (place.get(axis, slice(None)) for axis in ("pos", "latent" if kind in LATENTS else "head"))
    if kind in STREAM:
        return (slice(None), pos)
    return (slice(None), part, pos) if kind == "pattern" else (slice(None), pos, part)


def check_call(model: HookedTransformer, site: Any, mode: Any, by: Any) -> tuple[str, str]:
    """The kind of site, and by what it is parted."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; choose from {', '.join(MODES)}")
    if site not in (*STREAM, *BY_HEAD, *LATENTS):
        kind, _, where = site.partition(":") if isinstance(site, str) else ("", "", "")
        if kind in (*STREAM, *BY_HEAD, *LATENTS):
            layer = f": site={kind!r}, layers=[{where.split('.')[0]}]" if where.split(".")[0].isdigit() else ""
            raise ValueError(f"site={site!r} names a layer, but a sweep takes the kind, and its layers apart{layer}")
        raise ValueError(
            f"site={site!r} cannot be swept; choose from {', '.join((*STREAM, *BY_HEAD))}, or latents of a spliced SAE, such as "
            "resid_post.sae_acts_post"
        )
    layer = min(_latent_sizes(model, site), default=0) if site in LATENTS else 0
    why = model.missing_site(f"{site}:{layer}")
    if why is not None:
        raise ValueError(f"{model.cfg.name} has no {site}: {why}")
    ways = ("pos", "layer") if site in STREAM else ("head", "head_pos", "pos", "layer")
    ways = ("latent", "pos", "layer") if site in LATENTS else ways
    if by is not None and by not in ways:
        raise ValueError(f"by={by!r} does not go with {site}; choose from {', '.join(ways)}")
    return site, by or ways[0]


def sweep_places(
    model: HookedTransformer,
    pairs: PromptPairs,
    kind: str,
    by: str,
    layers: Iterable[int] | None,
    positions: Sequence[int] | None,
) -> pd.DataFrame:
    """All combinations of layer, position and head or latent that are asked for."""
    n_layers, width = model.cfg.n_layers, pairs.clean.ids.shape[1]
    sizes = _latent_sizes(model, kind) if kind in LATENTS else {}
    chosen = sorted(sizes) if layers is None and sizes else within(layers, n_layers, "layer")
    bare = [layer for layer in chosen if layer not in sizes]
    if kind in LATENTS and bare:
        raise ValueError(f"layer {bare[0]} has no {kind}: SAEs stand there in layers {', '.join(map(str, sizes))}")
    axes: list[tuple[str, list[int]]] = [("layer", chosen)]
    if "pos" in by:
        if not pairs.same_length:
            raise ValueError(
                f"the prompts have {sorted(set(pairs.clean.lengths.tolist()))} tokens, so a position is not the same place in "
                "all: take pairs of one length, or by='head' or by='layer'"
            )
        axes.append(("pos", within(positions, width, "position")))
    elif positions is not None:
        raise ValueError(f"positions= goes with by='pos' and by='head_pos', not with by={by!r}")
    if "head" in by:
        heads = model.cfg.kv_heads if kind in ("k", "v") else model.cfg.n_heads
        axes.append(("head", list(range(heads))))
    if by == "latent":
        return pd.DataFrame(
            {"layer": np.repeat(chosen, [sizes[layer] for layer in chosen]),
             "latent": np.concatenate([np.arange(sizes[layer]) for layer in chosen])}
        )  # fmt: skip
    index = pd.MultiIndex.from_product([values for _, values in axes], names=[name for name, _ in axes])
    return index.to_frame(index=False)


def _latent_sizes(model: HookedTransformer, kind: str) -> dict[int, int]:
    """Layer -> latents of the SAE that stands there."""
    names = {layer: site_names.full_name(f"{kind}:{layer}") for layer in range(model.cfg.n_layers)}
    return {layer: model.hook_dict[name].sizes["latent"] for layer, name in names.items() if name in model.hook_dict}


def within(asked: Iterable[int] | None, size: int, what: str) -> list[int]:
    """The layers or positions that are asked for, each once and in order; None for all.

    Args:
        asked: numbers; negatives count from the end.
        size: how many there are.
        what: "layer" or "position", for the message.

    Raises:
        ValueError: a number that lies outside, or none at all.
    """
    if asked is None:
        return list(range(size))
    numbers = list(asked)
    outside = [number for number in numbers if not -size <= number < size]
    if outside:
        raise ValueError(f"{what} {outside[0]}: there are {what}s 0 to {size - 1}")
    if not numbers:
        raise ValueError(f"{what}s= is empty, so no place is left: None means all {what}s")
    return sorted({number % size for number in numbers})
