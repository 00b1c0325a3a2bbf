"""Steering vectors as values: arithmetic, units, files, and cosines beside their random band."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model
from torch import Tensor

import interp
from interp import artifact
from interp.steering.cosines import cosine_table
from interp.steering.vector import SteeringVector, load_steering_vector, refuse_other_model
from interp.steering.vectors import SteeringVectors, load_steering_vectors

SITE = "blocks.{}.hook_resid_post"


def random_vector(seed: int, layer: int = 0, d: int = 32, **fields: object) -> SteeringVector:
    direction = torch.randn(d, generator=torch.Generator().manual_seed(seed))
    return SteeringVector(direction / direction.norm(), SITE.format(layer), 5.0, **fields)  # type: ignore[arg-type]


def full(vector: SteeringVector) -> Tensor:
    return vector.direction.double() * vector.length


def test_arithmetic_is_that_of_length_times_direction() -> None:
    a, b = random_vector(0, raw_norm=2.0, sd=0.7), 3.0 * random_vector(1)
    torch.testing.assert_close(full(a - 0.5 * b), full(a) - 0.5 * full(b), atol=1e-6, rtol=0)
    assert ((2 * a).sd, (-a).sd, (2 * a).raw_norm) == (0.7, 0.7, 2.0)
    assert ((a + b).sd, (a + b).raw_norm) == (None, None)  # measured along another direction
    assert b.normalised().length == 1.0
    assert torch.equal(b.normalised().direction, b.direction)
    with pytest.raises(ValueError, match="no direction"):
        0 * a + 0 * b


def test_what_is_projected_out_is_gone_and_the_rest_is_least_squares() -> None:
    a, b, c = (random_vector(seed) for seed in range(3))
    rest = (2 * a).project_out(b, c, b)  # a repeated one changes nothing
    span = torch.stack([b.direction, c.direction], 1).double()
    expected = full(2 * a) - span @ torch.linalg.lstsq(span, full(2 * a)[:, None]).solution[:, 0]
    torch.testing.assert_close(full(rest), expected, atol=1e-6, rtol=0)
    assert abs(rest.cosine(b)) < 1e-6
    with pytest.raises(ValueError, match="span"):
        (a + b).project_out(a, b)
    with pytest.raises(ValueError, match="at least one"):
        a.project_out()
    with pytest.raises(ValueError, match="different sites"):
        a.project_out(random_vector(1, layer=1))


def test_json_and_file_are_exact(tmp_path: Path) -> None:
    vector = 0.3 * random_vector(0, raw_norm=2.5, sd=0.7, card={"method": "pca", "n_pairs": 3})
    for again in (
        SteeringVector.from_dict(json.loads(json.dumps(vector.to_dict()))),
        load_steering_vector(vector.save(tmp_path / "v.safetensors")),
    ):
        assert torch.equal(again.direction, vector.direction)
        assert again.direction.dtype == torch.float32
        for name in ("site", "typical_norm", "length", "raw_norm", "sd"):
            assert getattr(again, name) == getattr(vector, name)
        assert again.card["n_pairs"] == 3
    with pytest.raises(ValueError, match="to_dict"):
        SteeringVector.from_dict({"kind": "probe"})
    with pytest.raises(ValueError, match="lacks"):
        SteeringVector.from_dict({"kind": "steering vector", "site": SITE})


def test_files_from_before_the_standard_deviation_load(tmp_path: Path) -> None:
    card = {"site": SITE.format(3), "typical_norm": 5.0, "length": 0.5, "raw_norm": None, "method": "mean_difference"}
    path = artifact.save_artifact(tmp_path / "old.safetensors", "steering vector", {"direction": torch.ones(1)}, card)
    old = load_steering_vector(path)
    assert (old.sd, old.length, old.site) == (None, 0.5, SITE.format(3))


def test_targets_frame_and_text() -> None:
    vector = random_vector(0, layer=7, raw_norm=2.5, sd=0.7, card={"method": "pca", "n_pairs": 3})
    (target,) = (0.5 * vector).targets()
    assert (target.site, target.length, target.norm, target.sd, target.raw) == (SITE.format(7), 0.5, 5.0, 0.7, 2.5)
    assert vector.to_frame().loc[0, ["layer", "method", "n", "sd"]].tolist() == [7, "pca", 3, 0.7]
    assert "sd 0.7" in vector.card_text()
    for fields, words in (({"sd": 0.0}, "sd must be positive"), ({"sd": float("nan")}, "sd must be positive")):
        with pytest.raises(ValueError, match=words):
            random_vector(0, **fields)


def test_vectors_of_several_sites(tmp_path: Path) -> None:
    a, b = (SteeringVectors(tuple(random_vector(10 * k + i, i, sd=0.5) for i in range(3))) for k in range(2))
    both = a - 0.5 * b
    for part in both:
        torch.testing.assert_close(full(part), full(a[part.site]) - 0.5 * full(b[part.site]), atol=1e-6, rtol=0)
    assert torch.equal(a["resid_post:2"].direction, a.parts[2].direction)
    assert [target.site for target in a.targets()] == a.sites
    assert a.cosine(-a) == dict.fromkeys(a.sites, pytest.approx(-1.0))
    assert all(abs(c) < 1e-6 for c in a.project_out(b).cosine(b).values())
    for again in (
        SteeringVectors.from_dict(json.loads(json.dumps((2 * a).to_dict()))),
        load_steering_vectors((2 * a).save(tmp_path / "v.safetensors")),
    ):
        assert again.sites == a.sites
        assert all(torch.equal(x.direction, y.direction) for x, y in zip(again, a, strict=True))
        assert [(part.length, part.sd) for part in again] == [(2.0, 0.5)] * 3
    assert a.to_frame().layer.tolist() == [0, 1, 2]
    assert "resid_post:2" in a.card_text()
    with pytest.raises(ValueError, match="no vector at resid_post:9"):
        a["resid_post:9"]
    with pytest.raises(ValueError, match="two vectors at resid_post:0"):
        SteeringVectors((a.parts[0], b.parts[0]))
    with pytest.raises(ValueError, match="only one of them has resid_post:2"):
        a + SteeringVectors(b.parts[:2])
    with pytest.raises(ValueError, match="expected steering vectors, got none"):
        SteeringVectors(())


def test_combinations_remember_what_their_parts_were_fitted_on() -> None:
    a = random_vector(0, card={"pair_hashes": ["p", "q"], "fingerprint": "f"})
    b = random_vector(1, card={"pair_hashes": ["q", "r"], "group_hashes": ["g"]})
    for mixed in (a - b, a.project_out(b)):
        assert mixed.card["pair_hashes"] == ["p", "q", "r"]
        assert (mixed.card["group_hashes"], mixed.card["fingerprint"]) == (["g"], "f")


def test_cosines_stand_beside_those_of_random_directions(tmp_path: Path) -> None:
    """In a space with one wide direction random cosines are large; the band says so, against a draw of its own."""
    model = tiny_model()
    wide = torch.randn(32, generator=torch.Generator().manual_seed(3))

    def widen(value: Tensor, ctx: object) -> Tensor:
        return value + 30 * value[..., :1] * wide

    texts = [f"text number {i} with some words" for i in range(6)]
    with model.hooks({"resid_post:0": widen}):
        store = interp.record(model, texts, sites=["resid_post:0", "resid_post:1"], tokens="all", path=tmp_path / "s")
    vectors = {"a": random_vector(0), "b": random_vector(1), "c": random_vector(2, layer=1)}
    found = cosine_table(vectors, reference=store, n_random=2000).set_index(["a", "b"])
    assert list(found.index) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found.loc[("a", "b"), "cosine"] == pytest.approx(vectors["a"].cosine(vectors["b"]))
    rows = store.rows(SITE.format(0), np.flatnonzero(store.typical(SITE.format(0)))).double().numpy()
    drawn = np.random.default_rng(0).multivariate_normal(np.zeros(32), np.cov(rows.T), size=(2, 4000))
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    expected = np.quantile((drawn[0] * drawn[1]).sum(-1), [0.025, 0.975])
    np.testing.assert_allclose(found.loc[("a", "b"), ["low", "high"]].astype(float), expected, atol=0.06)
    assert found.loc[("a", "b"), "high"] > 0.6 > 2 * 32**-0.5
    assert found.loc[("a", "b"), "p"] > 0.05
    again = cosine_table(vectors, reference=store, n_random=2000).set_index(["a", "b"])
    pd.testing.assert_frame_equal(found, again)
    assert list(cosine_table([vectors["a"], vectors["b"]])) == ["a", "b", "cosine"]
    for bad, options, words in (
        ([vectors["a"]], {}, "at least two"),
        (vectors["a"], {}, "several vectors"),
        (vectors, {"reference": texts}, "needs model="),
        (vectors, {"n_random": 3}, "n_random"),
    ):
        with pytest.raises(ValueError, match=words):
            cosine_table(bad, **options)


def test_a_card_of_another_model_is_refused() -> None:
    model = tiny_model()
    for card in ({}, {"fingerprint": model.fingerprint}):
        refuse_other_model(card, model)
    with pytest.raises(ValueError, match=r"the report was measured on another model \(big, fingerprint abc\), not on"):
        refuse_other_model({"model": "big", "fingerprint": "abc"}, model, "the report was measured")
