"""Composition of heads against dense products, TransformerLens, random rotations, and planted pairs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp import plot
from interp.heads import folded
from interp.heads.composition import head_composition, load_composition, permuted_heads, rotation_moments
from interp.heads.scores import head_scores
from interp.model import HookedTransformer
from tests.support.tiny import shaken_model, tiny_model

close = torch.testing.assert_close
norm = torch.linalg.matrix_norm


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gemma3", "olmo2", "neox", "falcon", "bare"])
def test_scores_equal_dense_products(family: str) -> None:
    model = (
        shaken_model(family, n_layers=3, window_layers=None) if "gemma" in family else shaken_model(family, n_layers=3)
    )
    found = head_composition(model)
    outs = torch.cat([folded.ov_circuits(model, layer).AB for layer in range(3)]).double()
    qk = torch.cat([folded.qk_circuits(model, layer).AB for layer in range(3)]).double()
    for mode, inputs in (("V", outs), ("Q", qk), ("K", qk.mT)):
        for earlier, later in ((0, 4), (3, 11), (6, 9)):
            expected = norm(outs[earlier] @ inputs[later]) / norm(outs[earlier]) / norm(inputs[later])
            assert float(found.scores[mode][earlier, later]) == pytest.approx(float(expected), rel=1e-4)
        assert not found.scores[mode][4:, :8].any()
        shares = torch.linalg.svdvals(inputs[9]) ** 2
        concentration = (shares / shares.sum()).pow(2).sum()
        assert float(found.concentration[mode][9]) == pytest.approx(float(concentration), rel=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_scores_equal_transformer_lens_on_folded_weights(family: str) -> None:
    """TransformerLens' own scores of the same folded weights (it counts rotary models at offset 0, as here)."""
    from tests.support.lens_twin import lens_twin

    ours = shaken_model(family)
    plain = ours.processed(fold_ln=True, center_writing=False, center_unembed=False, fold_value_biases=False)
    lens = lens_twin(ours)
    with torch.no_grad():
        for layer, block in enumerate(lens.blocks):
            attn = block.attn
            hidden = "_" if hasattr(attn, "_W_K") else ""
            for letter, mark in (("Q", ""), ("K", hidden), ("V", hidden)):
                getattr(attn, f"{mark}W_{letter}").copy_(getattr(plain, f"W_{letter}")[layer])
    found = head_composition(ours)
    for mode in "QKV":
        close(found.scores[mode], lens.all_composition_scores(mode).flatten(0, 1).flatten(1), rtol=1e-4, atol=1e-5)


def test_an_offset_turns_the_scores_of_rotary_models() -> None:
    model = shaken_model("llama")
    near, far = (head_composition(model, "K", offset=offset) for offset in (0, 5))
    ov, qk = folded.ov_circuits(model, 0).AB[1], folded.qk_circuits(model, 1, 5).AB[2].T
    assert float(far.scores["K"][1, 6]) == pytest.approx(float(norm(ov @ qk) / norm(ov) / norm(qk)), rel=1e-4)
    assert not torch.allclose(near.scores["K"], far.scores["K"], atol=1e-3)
    with pytest.raises(ValueError, match="without rotary"):
        head_composition(shaken_model("gpt2"), offset=1)


def test_moments_of_random_rotations_are_exact() -> None:
    """Monte Carlo over Haar-random rotations of two spectra."""
    generator, d = np.random.default_rng(0), 8
    a, b = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.1, 0.1])
    draws = []
    for _ in range(20_000):
        q, r = np.linalg.qr(generator.normal(size=(d, d)))
        q *= np.sign(np.diag(r))
        draws.append(a @ (q[:3, :4] ** 2) @ b)
    mean, deviation = rotation_moments(np.sum(a**2), np.sum(b**2), d)
    assert np.mean(draws) == pytest.approx(mean, rel=0.01)
    assert np.std(draws) == pytest.approx(float(deviation), rel=0.02)


def test_random_heads_score_as_random_rotations_do() -> None:
    frame = head_composition(tiny_model("bare", n_layers=4, d_model=64)).to_frame()
    assert frame["z_random"].abs().mean() == pytest.approx(0.8, abs=0.15)  # of a normal deviate
    assert (frame["score"] ** 2).mean() == pytest.approx(1 / 64, rel=0.03)
    assert (frame["random"] == 1 / 8).all()
    assert (frame["p"] > 0.03).mean() > 0.9


def test_permuted_heads_are_the_pairs_that_share_a_head() -> None:
    """Oracle: loops."""
    scores = np.random.default_rng(1).random((6, 6))
    valid = np.arange(6)[:, None] // 2 < np.arange(6)[None] // 2
    baseline, p, n = permuted_heads(scores, valid)
    for i, j in zip(*np.nonzero(valid)):
        row = [scores[i, k] for k in range(6) if valid[i, k] and k != j]
        column = [scores[k, j] for k in range(6) if valid[k, j] and k != i]
        pool = row + column
        assert baseline[i, j] == pytest.approx((np.mean(row) + np.mean(column)) / 2)
        assert n[i, j] == len(pool)
        assert p[i, j] == pytest.approx((1 + sum(value >= scores[i, j] for value in pool)) / (1 + len(pool)))


def planted(mode: str) -> HookedTransformer:
    """Head 1.2 reads by this input exactly what head 0.1 writes."""
    model = tiny_model("bare", d_model=64, n_kv_heads=4)
    first, second = model.blocks[0].attn, model.blocks[1].attn
    with torch.no_grad():
        getattr(second, f"W_{mode}")[2].copy_(first.W_O[1].T)
    return model


@pytest.mark.parametrize("mode", ["Q", "K", "V"])
def test_a_planted_pair_is_the_top_one(mode: str) -> None:
    found = head_composition(planted(mode))
    best = found.pairs(1).iloc[0]
    where = ["earlier_layer", "earlier_head", "later_layer", "later_head", "mode", "rank"]
    assert best[where].tolist() == [0, 1, 1, 2, mode, 1]
    assert best["z_random"] > 4
    assert best["p"] == pytest.approx(1 / (1 + best["n"]))
    assert found.between([(0, 1)], [(1, 2)], mode)["excess"].item() == best["excess"]


def test_heads_that_are_known_by_scores_are_found_among_the_pairs() -> None:
    scores = pd.DataFrame({"layer": [0, 0, 0, 0, 1, 1, 1, 1], "head": [0, 1, 2, 3, 0, 1, 2, 3]})
    scores["previous_token"] = [0.1, 0.9, 0.2, 0.0, 0.0, 0.1, 0.0, 0.0]
    scores["induction"] = [0.0, 0.0, 0.1, 0.0, 0.1, 0.2, 0.9, 0.0]
    found = head_composition(planted("K")).named(scores, n=2)
    first = found.iloc[0]
    assert (first["earlier_head"], first["later_head"], first["rank"]) == (1, 2, 1)
    assert (first["previous_token"], first["induction"]) == (0.9, 0.9)
    assert len(found) == 4
    with pytest.raises(ValueError, match="no column induction"):
        head_composition(planted("K")).named(scores.drop(columns="induction"))


def test_permuting_heads_permutes_scores() -> None:
    model, other = shaken_model("gpt2"), shaken_model("gpt2")
    order = [2, 0, 3, 1]
    with torch.no_grad():
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            getattr(other.blocks[1].attn, name).copy_(getattr(model.blocks[1].attn, name)[order].clone())
    one, two = head_composition(model), head_composition(other)
    for mode in "QKV":
        close(two.scores[mode][:4, 4:], one.scores[mode][:4, 4:][:, order])


def test_gains_count_and_the_size_of_weights_does_not() -> None:
    model, louder, gained = (shaken_model("llama") for _ in range(3))
    with torch.no_grad():
        louder.blocks[0].attn.W_O.mul_(7)
        gained.blocks[1].ln1.weight[0] += 30
    scores = [head_composition(each, "K").scores["K"] for each in (model, louder, gained)]
    close(scores[0], scores[1])
    assert not torch.allclose(scores[0], scores[2], atol=0.05)


def test_a_head_that_writes_nothing_composes_with_none() -> None:
    model = shaken_model("llama")
    with torch.no_grad():
        model.blocks[0].attn.W_O[1].zero_()
    frame = head_composition(model).to_frame()
    assert (frame[frame["earlier_head"] == 1]["score"] == 0).all()
    assert not frame.isna().any().any()


def test_composition_survives_saving_and_draws(tmp_path: Path) -> None:
    found = head_composition(shaken_model("llama", n_layers=3))
    again = load_composition(found.save(tmp_path / "composition.safetensors"))
    assert again.to_frame().equals(found.to_frame())
    assert again.modes == ("Q", "K", "V")
    for kind in ("layers", "pairs"):
        assert "<svg" in plot.to_svg(again.plot(kind=kind))
    with pytest.raises(ValueError, match="'layers' or 'pairs'"):
        found.plot(kind="arrows")


def test_what_makes_no_sense_is_refused() -> None:
    for family, why in (("bert", "encoder"), ("deepseek", "latent attention")):
        with pytest.raises(ValueError, match=why):
            head_composition(shaken_model(family))
    with pytest.raises(ValueError, match="one layer"):
        head_composition(shaken_model("llama", n_layers=1))
    with pytest.raises(ValueError, match="'Q', 'K', 'V' or 'all'"):
        head_composition(shaken_model("llama"), "O")
    found = head_composition(shaken_model("llama"), "K")
    with pytest.raises(ValueError, match="was not measured"):
        found.pairs(mode="Q")
    with pytest.raises(ValueError, match="no head"):
        found.between([(0, 4)], [(1, 0)])
    with pytest.raises(ValueError, match="nothing composes"):
        found.between([(1, 0)], [(1, 1)])


@pytest.mark.slow
def test_previous_token_heads_feed_the_induction_heads_of_the_real_model(smollm: HookedTransformer) -> None:
    """The known previous-token head, 16.0, and the induction heads of the layers behind it."""
    found = head_composition(smollm, "K").named(head_scores(smollm).to_frame(), n=5)
    best = found.iloc[:5]
    assert set(zip(best["earlier_layer"], best["earlier_head"])) == {(16, 0)}
    assert {(17, 3), (18, 6), (18, 7)} <= set(zip(best["later_layer"], best["later_head"]))
    assert best["rank"].max() <= 20
