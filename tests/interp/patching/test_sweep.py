"""Sweeps of patches against whole runs with one hook, and identities that need no oracle."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pairs import CLEAN, telling_pairs
from tiny import FAMILIES, shaken_model

from interp.model import HookedTransformer
from interp.patching import load_patch_result, patch_sweep
from interp.patching.sweep import STREAM, run_patches, sweep_places
from interp.task import PairMetric, pair_metric, prompt_pairs

CAUSAL = [name for name in FAMILIES if name != "bert"]


def whole_run(model: HookedTransformer, measured: PairMetric, site: str, index: tuple, mode: str) -> torch.Tensor:
    """The metric of one patch by one hook on a whole pass."""
    pairs = measured.pairs
    sides = (pairs.corrupted, pairs.clean) if mode == "denoise" else (pairs.clean, pairs.corrupted)
    _, cache = model.run_with_cache(sides[1], [site])

    def patch(value: torch.Tensor, ctx: object) -> None:
        value[index] = cache[site][index]

    with model.hooks({site: patch}):
        logits = model(sides[0])
    return measured.raw(logits[torch.arange(len(pairs)), sides[0].last].as_subclass(torch.Tensor))


@pytest.mark.parametrize("mode", ["denoise", "noise"])
@pytest.mark.parametrize("family", CAUSAL)
def test_every_patch_is_a_whole_run_with_one_hook(family: str, mode: str) -> None:
    model = shaken_model(family)
    measured = pair_metric(model, telling_pairs(model))
    every = slice(None)
    for kind, by, index in [
        *[(kind, "pos", lambda p: (every, p["pos"])) for kind in STREAM],
        *[(kind, "head_pos", lambda p: (every, p["pos"], p["head"])) for kind in ("q", "k", "v", "z")],
        *[(kind, "head", lambda p: (every, every, p["head"])) for kind in ("k", "z")],
        ("pattern", "head_pos", lambda p: (every, p["head"], p["pos"])),
        ("pattern", "head", lambda p: (every, p["head"])),
        ("z", "layer", lambda p: (every,)),
    ]:
        if model.missing_site(f"{kind}:0"):
            continue
        found = patch_sweep(model, measured.pairs, site=kind, by=by, mode=mode, batch_size=5)
        rows = found.places.sample(5, random_state=0) if len(found.places) > 5 else found.places
        for number, place in rows.iterrows():
            expected = whole_run(model, measured, f"{kind}:{place['layer']}", index(place), mode)
            torch.testing.assert_close(found.raw[number], expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "gemma2", "mixtral"])
def test_clean_into_clean_changes_nothing_and_the_whole_stream_gives_the_other_run(family: str) -> None:
    model = shaken_model(family)
    pairs = telling_pairs(model)
    same = pair_metric(model, prompt_pairs(model, CLEAN, CLEAN, "a", "b"))
    for kind in ("resid_pre", "z"):
        places = sweep_places(model, same.pairs, kind, "pos", None, None)
        raw = run_patches(model, same, kind, places, "denoise")
        assert torch.equal(raw, same.clean.expand_as(raw))
    for mode, end in (("denoise", 1.0), ("noise", 0.0)):
        for kind in ("resid_pre", "resid_post"):
            effect = patch_sweep(model, pairs, site=kind, by="layer", mode=mode).effect
            np.testing.assert_allclose(effect.mean, end, atol=1e-4)


def test_places_where_the_runs_agree_are_those_before_the_first_difference() -> None:
    model = shaken_model("llama")
    found = patch_sweep(model, telling_pairs(model), mode="denoise")
    first = int(telling_pairs(model).differs.any(0).nonzero()[0])
    before = found.to_frame().query("pos < @first")
    assert first > 0
    assert (before["effect"] == 0).all()
    assert found.to_frame().query("pos >= @first")["effect"].abs().max() > 0


def test_a_place_that_is_named_twice_is_one_place() -> None:
    model = shaken_model("llama")
    pairs = telling_pairs(model)
    last = pairs.clean.ids.shape[1] - 1
    places = patch_sweep(model, pairs, layers=[-1, 1], positions=[-1, 4, last]).places
    assert places.to_dict("list") == {"layer": [1, 1], "pos": [4, last]}


def test_an_own_metric_sees_all_logits_and_gives_what_the_built_in_one_does() -> None:
    model = shaken_model("gpt2")
    pairs = telling_pairs(model)
    assert pairs.against is not None

    def difference(logits: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(pairs))
        assert logits.shape[:2] == pairs.clean.ids.shape
        return logits[rows, -1, pairs.answer] - logits[rows, -1, pairs.against]

    own, known = (patch_sweep(model, pairs, metric=metric, by="pos") for metric in (difference, "logit_diff"))
    torch.testing.assert_close(own.raw, known.raw, rtol=1e-4, atol=1e-4)
    assert own.card["metric"] == "own:difference"


@pytest.mark.parametrize("metric", ["log_probability", "probability", "rank", "kl"])
def test_every_metric_is_0_corrupted_and_1_clean(metric: str) -> None:
    model = shaken_model("llama")
    pairs = telling_pairs(model)
    effect = patch_sweep(model, pairs, metric=metric, by="layer", site="resid_post").effect
    np.testing.assert_allclose(effect.mean, 1.0, atol=1e-3)


def test_a_result_is_saved_read_drawn_and_ranked(tmp_path: Path) -> None:
    model = shaken_model("llama")
    found = patch_sweep(model, telling_pairs(model), site="z", by="head_pos")
    read = load_patch_result(found.save(tmp_path / "sweep.safetensors"))
    assert read.to_frame().equals(found.to_frame())
    assert found.card.items() <= read.card.items()
    assert found.agreement(read) == pytest.approx(1.0)
    assert len(found.top(3)) == 3
    assert found.grid().shape == (2, 11 * 4)
    stream = patch_sweep(model, telling_pairs(model))
    assert stream.to_frame()["token"].iloc[0] == "…"
    assert stream.plot().to_dict()
    one = patch_sweep(model, telling_pairs(model)[0])
    assert one.to_frame()["low"].isna().all()
    assert one.to_frame()["token"].tolist()[:4] == ["t", "h", "e", "·"]


def test_intervals_cover_the_mean_and_count_the_pairs() -> None:
    model = shaken_model("llama")
    frame = patch_sweep(model, telling_pairs(model), site="mlp_out", by="layer").to_frame()
    assert ((frame["low"] <= frame["effect"] + 1e-9) & (frame["effect"] <= frame["high"] + 1e-9)).all()
    assert (frame["n"] == 2).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"site": "resid_pree"}, "cannot be swept"),
        ({"site": "resid_pre:1"}, r"site='resid_pre', layers=\[1\]"),
        ({"site": "resid_post.sae_acts_post:15.3"}, r"site='resid_post\.sae_acts_post', layers=\[15\]"),
        ({"mode": "both"}, "unknown"),
        ({"by": "head"}, "does not go with"),
        ({"layers": [7]}, "layer 7"),
        ({"positions": [99]}, "position 99"),
        ({"layers": [0, -3]}, "layer -3: there are layers 0 to 1"),
        ({"positions": []}, "no place is left"),
        ({"metric": "logits"}, "unknown"),
        ({"metric": lambda logits: logits}, "must return a tensor"),
        ({"site": "z", "positions": [1]}, "goes with by='pos'"),
    ],
)
def test_bad_calls_are_refused(change: dict, message: str) -> None:
    model = shaken_model("llama")
    with pytest.raises(ValueError, match=message):
        patch_sweep(model, telling_pairs(model), **change)


def test_prompts_that_do_not_align_and_gaps_of_nothing_are_refused() -> None:
    model = shaken_model("llama")
    with pytest.raises(ValueError, match="has 7 tokens and the corrupted one 9"):
        patch_sweep(model, clean="the cat", corrupted="the horse", answer="a", against="b")
    with pytest.raises(ValueError, match="a gap under"):
        patch_sweep(model, clean="the cat", corrupted="the cat", answer="a", against="b")
    with pytest.raises(ValueError, match="not the same place"):
        patch_sweep(model, prompt_pairs(model, ["ab", "abc"], ["xb", "xbc"], "d", "e"))
    with pytest.raises(ValueError, match="needs against="):
        patch_sweep(model, clean="the cat", corrupted="the dog", answer="a")
    with pytest.raises(ValueError, match="no resid_mid"):
        patch_sweep(shaken_model("neox"), telling_pairs(model), site="resid_mid")
    with pytest.raises(ValueError, match="encoder"):
        patch_sweep(shaken_model("bert"), prompt_pairs(shaken_model("bert"), "ab", "ac", "d", "e"))


def test_padded_pairs_of_unequal_length_are_what_each_is_alone() -> None:
    model = shaken_model("llama")
    both = telling_pairs(model, ["the cat sat", "one"], ["the dog sat", "two"])
    alone = [telling_pairs(model, c, d) for c, d in (("the cat sat", "the dog sat"), ("one", "two"))]
    found = patch_sweep(model, both, site="z")
    for i, pairs in enumerate(alone):
        expected = patch_sweep(model, pairs, site="z")
        torch.testing.assert_close(found.raw[:, i], expected.raw[:, 0], rtol=1e-4, atol=1e-4)
