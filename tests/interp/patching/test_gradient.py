"""Estimates of patches: exact where the model is linear, and checked where it is not."""

import pytest
import torch
from pairs import telling_pairs
from tiny import FAMILIES, shaken_model

from interp.model import HookedTransformer
from interp.patching import attribution_patch, patch_sweep
from interp.task import PairMetric, pair_metric

CAUSAL = [name for name in FAMILIES if name != "bert"]


def moved(model: HookedTransformer, measured: PairMetric, name: str, index: tuple, step: torch.Tensor) -> torch.Tensor:
    """The metric of the corrupted run with something added to one place."""
    side = measured.pairs.corrupted

    def move(value: torch.Tensor, ctx: object) -> None:
        value[index] += step

    with model.hooks({name: move}):
        return measured.raw(model(side)[torch.arange(len(side)), side.last].as_subclass(torch.Tensor))


@pytest.mark.parametrize("family", CAUSAL)
def test_an_estimate_is_the_slope_of_the_exact_effect(family: str) -> None:
    """The derivative of the metric along a patch, by a difference quotient in fp64."""
    model = shaken_model(family).to(torch.float64)
    pairs = telling_pairs(model)
    measured = pair_metric(model, pairs)
    for kind, by in [("resid_pre", "pos"), ("mlp_out", "pos"), ("z", "head"), ("pattern", "head_pos"), ("k", "layer")]:
        if model.missing_site(f"{kind}:0"):
            continue
        found = attribution_patch(model, pairs, site=kind, by=by, check=0)
        number = len(found.places) - 1
        place = found.places.iloc[number].to_dict()
        name = f"{kind}:{place['layer']}"
        pos, head = (place.get(axis, slice(None)) for axis in ("pos", "head"))
        index = {"resid_pre": (pos,), "mlp_out": (pos,), "pattern": (head, pos)}.get(kind, (pos, head))
        index = (slice(None), *index)
        new, old = (model.run_with_cache(side, [name])[1][name] for side in (pairs.clean, pairs.corrupted))

        step = 1e-5 * (new - old)[index]
        ends = [moved(model, measured, name, index, sign * step) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close(found.raw[number] - found.corrupted, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["bare", "llama"])
def test_patches_of_the_last_stream_are_exact_where_no_norm_follows(family: str) -> None:
    model = shaken_model(family, norm="none", final_norm=False) if family == "llama" else shaken_model(family)
    last = model.cfg.n_layers - 1
    options = {"site": "resid_post", "layers": [last], "by": "layer"}
    estimate, exact = (call(model, telling_pairs(model), **options) for call in (attribution_patch, patch_sweep))
    torch.testing.assert_close(estimate.raw, exact.raw, rtol=1e-4, atol=1e-4)


def test_the_strongest_and_others_are_patched_and_the_agreement_is_said() -> None:
    model = shaken_model("llama")
    found = attribution_patch(model, telling_pairs(model), site="resid_pre", check=4)
    checked = found.checked
    assert checked is not None
    assert checked["strongest"].tolist() == [True] * 4 + [False] * 4
    assert checked["estimate"].head(4).abs().min() >= checked["estimate"].tail(4).abs().max()
    exact = patch_sweep(model, telling_pairs(model)).to_frame()
    both = checked.merge(exact, on=["layer", "pos"])
    assert both["exact"].to_numpy() == pytest.approx(both["effect"].to_numpy(), abs=1e-4)
    assert -1.0 <= found.card["rank_agreement"] <= 1.0


def test_metrics_without_slope_are_refused() -> None:
    model = shaken_model("llama")
    with pytest.raises(ValueError, match="no slope"):
        attribution_patch(model, telling_pairs(model), metric="rank")
    with pytest.raises(ValueError, match="no slope"):
        attribution_patch(model, telling_pairs(model), metric="kl", mode="noise")
    assert attribution_patch(model, telling_pairs(model), metric="kl", mode="denoise").checked is not None
