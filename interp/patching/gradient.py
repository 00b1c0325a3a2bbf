"""Attribution patching: every patch of a sweep estimated from three passes, however many patches there are (Nanda 2023;
Syed et al. 2023, arXiv 2310.10348).

1. Run both prompts up to the last site and keep the values: two forward passes without gradients.
2. Run the side that patches would go into once more, forward and backward: the gradient of the metric at those sites.
3. A patch's effect is about (new value - old value) . gradient: right as far as the metric is linear in the value.
4. So check it: the strongest estimates and as many others are patched, and the rank agreement is printed with them.

Estimates of early layers and of the first token are the worst: large changes through many norms are not linear. Latents of
spliced SAEs are estimated too; splice several with `error_grad=True`, since a patch also changes what later ones leave out.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import sites as site_names
from interp.model import HookedTransformer
from interp.patching.result import PatchResult, rank_agreement, shared_labels
from interp.patching.sweep import LATENTS, STREAM, check_call, given_pairs, run_patches, sweep_card, sweep_places
from interp.task import PairMetric, PromptPairs, mean_effect, pair_metric


def attribution_patch(
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
    check: int = 10,
    seed: int = 0,
) -> PatchResult:
    """Estimates of what `patch_sweep` measures.

    Args:
        model, pairs, clean, corrupted, answer, against, site, metric, mode, by, layers, positions: as in `patch_sweep`.
        check: how many of the strongest places, and of the others, are patched as well. `.checked` has both figures and
            `.card["rank_agreement"]` Spearman's correlation over them; 0 checks none.
        seed: of the others, and of the bootstrap.

    Raises:
        ValueError: as in `patch_sweep`; a metric without slope: `rank`, or `kl` in the clean run, where it is least.
    """
    pairs = given_pairs(model, pairs, clean, corrupted, answer, against)
    kind, by = check_call(model, site, mode, by)
    measured = pair_metric(model, pairs, metric)
    _ = measured.gap
    if measured.name == "rank" or (measured.name == "kl" and mode == "noise"):
        raise ValueError(
            f"{measured.name} has no slope in the run that mode={mode!r} patches; take logit_diff or probability"
        )
    places = sweep_places(model, pairs, kind, by, layers, positions)
    raw = _estimates(model, measured, kind, places, mode)
    card = sweep_card(model, measured, site=kind, mode=mode, by=by, method="gradient", seed=seed)
    checked = _checked(model, measured, kind, places, raw, mode, check, seed) if check else None
    if checked is not None and len(checked) > 2:
        card["rank_agreement"] = rank_agreement(checked["estimate"], checked["exact"])
    labels = shared_labels([pairs.labels(i) for i in range(len(pairs))]) if "pos" in places else ()
    return PatchResult(places, raw, measured.clean.cpu(), measured.corrupted.cpu(), labels, card, checked)


def _estimates(
    model: HookedTransformer, measured: PairMetric, kind: str, places: pd.DataFrame, mode: str
) -> Float[Tensor, "place pair"]:
    """The unpatched metric and the estimated change of each place."""
    pairs = measured.pairs
    base, other = (pairs.corrupted, pairs.clean) if mode == "denoise" else (pairs.clean, pairs.corrupted)
    names = {layer: site_names.full_name(f"{kind}:{layer}") for layer in sorted(set(places["layer"].tolist()))}
    rows = torch.arange(len(pairs), device=base.ids.device)

    def total(logits: Tensor) -> Tensor:
        return measured.raw(logits if measured.needs_all_logits else logits[rows, base.last]).sum()

    _, slope = model.grad(total, base, list(names.values()))
    with torch.no_grad():
        old, new = (
            model.run_with_cache(s, list(names.values()), stop_at_layer=max(names) + 1)[1] for s in (base, other)
        )
    unpatched = (measured.corrupted if mode == "denoise" else measured.clean).cpu()
    raw = torch.zeros(len(places), len(pairs), dtype=torch.float64)
    for layer, name in names.items():
        change = (new[name] - old[name]).double() * slope[name].double()
        change = (change if kind in LATENTS else change.sum(-1)).cpu()
        if kind == "pattern":  # [pair head query]
            change = change.transpose(1, 2)
        by_place = change if kind in STREAM else change.permute(1, 2, 0)  # [pos head pair]
        by_place = by_place.permute(1, 0)[:, None] if kind in STREAM else by_place
        columns = ("pos", "latent" if kind in LATENTS else "head")
        axes = [axis for axis, column in enumerate(columns) if column not in places]
        by_place = by_place.sum(axes, keepdim=True) if axes else by_place
        mine = places.loc[places["layer"] == layer]
        index = [torch.tensor(mine[c].tolist()) if c in mine else torch.zeros(len(mine)).long() for c in columns]
        raw[mine.index.tolist()] = unpatched + by_place[index[0], index[1]]
    return raw


def _checked(
    model: HookedTransformer,
    measured: PairMetric,
    kind: str,
    places: pd.DataFrame,
    raw: Float[Tensor, "place pair"],
    mode: str,
    check: int,
    seed: int,
) -> pd.DataFrame:
    """The strongest estimates and as many others, with their exact effects."""
    start = 0.0 if mode == "denoise" else 1.0

    def effects(values: Tensor) -> np.ndarray:
        return mean_effect(values, measured.clean.cpu(), measured.corrupted.cpu(), measured.gap, seed).mean

    order = np.argsort(-np.abs(effects(raw) - start), kind="stable")
    rest = np.random.default_rng(seed).permutation(order[check:])[:check]
    chosen = [*order[:check].tolist(), *rest.tolist()]
    some = places.loc[chosen].reset_index(drop=True)
    exact = run_patches(model, measured, kind, some, mode)
    return some.assign(
        estimate=effects(raw[chosen]),
        exact=effects(exact),
        strongest=[True] * min(check, len(order)) + [False] * len(rest),
    )
