"""Which tokens become rows, what the units of strength are, and every kind of data that a direction can come from."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model
from torch import Tensor

import interp
from interp.dataset import ContrastPair, Dataset, Example
from interp.model import HookedTransformer
from interp.probe.fit import fit_probe
from interp.sae.edit import LatentDirection
from interp.steering import rows as rows_module
from interp.steering.contrast import encode_contrast, read_contrast, show_tokens
from interp.steering.fit import steering_vector, steering_vectors
from interp.steering.methods import METHODS, Sides, held_out_separation
from interp.steering.rows import read_rows
from interp.steering.vector import SteeringVector

PAIRS = [
    ContrastPair(f"number {i} is", " good" + "!" * (i % 3) + str(i), f" bad{i}", group=f"g{i % 7}") for i in range(12)
]
SITE = "blocks.{}.hook_resid_post"


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model()


def values(model: HookedTransformer, text: str, layer: int) -> Tensor:
    return model.run_with_cache(text, sites=f"resid_post:{layer}")[1]["resid_post", layer][0]


def close(a: SteeringVector, b: SteeringVector) -> None:
    torch.testing.assert_close(a.direction, b.direction, atol=1e-5, rtol=1e-5)
    assert a.typical_norm == pytest.approx(b.typical_norm, rel=1e-5)
    assert a.sd == pytest.approx(b.sd, rel=1e-4)


def test_units_are_those_of_all_typical_tokens(model: HookedTransformer) -> None:
    """Median norm and standard deviation by brute force over every token but each text's first."""
    vector = steering_vector(PAIRS, model=model, site="resid_post:0")
    texts = [pair.prompt + response for pair in PAIRS for response in (pair.positive, pair.negative)]
    every = torch.cat([values(model, text, 0)[1:] for text in texts]).double()
    norms = every.norm(dim=1)
    typical = every[norms <= 10 * norms.median()]
    assert vector.typical_norm == pytest.approx(float(typical.norm(dim=1).median()), rel=1e-5)
    assert vector.sd == pytest.approx(float((typical @ vector.direction.double()).std()), rel=1e-5)
    assert (vector.card["n_typical_tokens"], vector.card["n_rows_of_sd"]) == (len(typical), len(typical))


def test_a_bounded_sample_gives_nearly_the_same_standard_deviation(
    model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = steering_vector(PAIRS, model=model, site="resid_post:0")
    monkeypatch.setattr(rows_module, "SAMPLE", 150)
    a, b = (steering_vector(PAIRS, model=model, site="resid_post:0", batch_size=size) for size in (3, 32))
    close(a, b)  # the same rows, whatever the batches are
    assert a.card["n_rows_of_sd"] <= 150 < a.card["n_typical_tokens"]
    assert a.typical_norm == pytest.approx(whole.typical_norm, rel=1e-5)
    assert a.sd == pytest.approx(whole.sd, rel=0.25)
    assert steering_vector(PAIRS, model=model, site="resid_post:0", seed=1).sd != a.sd


@pytest.mark.parametrize("method", list(METHODS))
def test_neither_batches_nor_the_order_of_pairs_matter(model: HookedTransformer, method: str) -> None:
    vector = steering_vector(PAIRS, model=model, site="resid_post:1", method=method)
    close(steering_vector(PAIRS, model=model, site="resid_post:1", method=method, batch_size=5), vector)
    close(steering_vector(PAIRS[::-1], model=model, site="resid_post:1", method=method), vector)
    assert vector.card["method"] == method
    assert vector.card["formula"] == METHODS[method].formula
    assert vector.card["groups"] == 7
    assert 0 <= vector.card["held_out"]["auroc"] <= 1
    assert (vector.raw_norm is None) == (method in ("logistic", "lda"))


def test_several_sites_are_the_vectors_of_each(model: HookedTransformer) -> None:
    sites = ["resid_post:0", "attn_out:1", "resid_post:1"]
    several = steering_vectors(PAIRS, model=model, sites=sites, method="pca")
    assert several.sites == model.expand_sites(sites)
    for part, site in zip(several, several.sites, strict=True):
        close(steering_vector(PAIRS, model=model, site=site, method="pca"), part)
    assert steering_vectors(PAIRS, model=model, sites="resid_post:0-1").sites == [SITE.format(0), SITE.format(1)]
    assert len(steering_vectors(PAIRS, model=model)) == 2
    assert several.card["data_hash"] == several.parts[0].card["data_hash"]


def test_only_the_layers_that_are_needed_run(model: HookedTransformer) -> None:
    """A hook that never fires is an error, which says where the pass stopped."""
    with (
        pytest.raises(ValueError, match="stopped at layer 1"),
        model.hooks({"resid_post:1": lambda value, ctx: value}),
    ):
        steering_vector(PAIRS, model=model, site="resid_post:0")


def test_the_mean_leaves_special_and_first_tokens_out(model: HookedTransformer) -> None:
    pairs = [("ab<|end|>c", "xy<|end|>z"), ("de<|end|>f", "uv<|end|>w")]
    vector = steering_vector(pairs, model=model, site="resid_post:0", tokens="response_mean")
    means = [[values(model, text, 0)[[1, 3]].mean(0) for text in pair] for pair in pairs]
    expected = torch.stack([a - b for a, b in means]).mean(0)
    torch.testing.assert_close(vector.direction * vector.raw_norm, expected, atol=1e-4, rtol=1e-4)
    assert show_tokens(model, pairs, "response_mean").shown[0] == "a⟦b⟧<|end|>⟦c⟧"
    with pytest.raises(ValueError, match="no token besides its first"):
        steering_vector([("a", "b"), ("c", "d")], model=model, site="resid_post:0", tokens="response_mean")


def test_the_answers_letter_is_read(model: HookedTransformer) -> None:
    pairs = [("Which? (A) yes (B) no", " (A)", " (B)"), ("Or: (A) up (B) down", " (B)", " (A)")]
    vector = steering_vector(pairs, model=model, site="resid_post:1", tokens="answer")
    rows = [[values(model, prompt + answer, 1)[-2] for answer in answers] for prompt, *answers in pairs]
    expected = torch.stack([a - b for a, b in rows]).mean(0)
    torch.testing.assert_close(vector.direction * vector.raw_norm, expected, atol=1e-4, rtol=1e-4)
    assert vector.card["example"] == "Which? (A) yes (B) no (⟦A⟧)"
    for bad in ([*pairs, ("p", " (A)", " (AB)")], [*pairs, ("p", " (Ab)", " (Bc)")], [*pairs, ("p", " x", " x")]):
        with pytest.raises(ValueError, match=r"differ in one token.*pair 2"):
            steering_vector(bad, model=model, site="resid_post:1", tokens="answer")


def test_what_is_read_can_be_shown(model: HookedTransformer) -> None:
    shown = show_tokens(model, PAIRS[:2])
    assert shown.shown.tolist()[:3] == ["number 0 is⟦ good0⟧", "number 1 is⟦ good!1⟧", "number 0 is⟦ bad0⟧"]
    assert shown.label.tolist() == [1, 1, 0, 0]
    assert shown.n_read.tolist() == [6, 7, 5, 5]
    last = show_tokens(model, [("so nice", "so bad"), ("ab", "cd")])
    assert last.shown[0] == "so nic⟦e⟧"
    long = [ContrastPair("x" * 900, " one", " two"), ContrastPair("y", " one", " two")]
    assert len(steering_vector(long[1:] * 2, model=model).card["example"]) == len("y one") + 2
    assert steering_vector(PAIRS, model=model).card["example"] == shown.shown[0]


def test_pairs_come_in_many_forms(model: HookedTransformer) -> None:
    vector = steering_vector(PAIRS, model=model, site="resid_post:0")
    mappings = [{"prompt": p.prompt, "positive": p.positive, "negative": p.negative, "group": p.group} for p in PAIRS]
    for data in (mappings, pd.DataFrame(mappings), [(p.prompt, p.positive, p.negative) for p in PAIRS]):
        close(steering_vector(data, model=model, site="resid_post:0"), vector)
    assert steering_vector(mappings, model=model, site="resid_post:0").card["groups"] == 7
    ungrouped = steering_vector([(p.prompt, p.positive, p.negative) for p in PAIRS], model=model, site="resid_post:0")
    assert ungrouped.card["groups"] == 12
    named = steering_vector(PAIRS, model=model, site="resid_post:0", groups=[i % 3 for i in range(12)])
    assert named.card["held_out"] == {"auroc": None, "why": "not measured: 3 groups, and at least 5 are needed"}


def test_labelled_texts_are_the_difference_of_their_means(model: HookedTransformer, tmp_path: Path) -> None:
    examples = [
        Example(f"{'good' if i % 3 else 'bad'} thing {i}", int(i % 3 > 0), group=f"g{i // 2}") for i in range(18)
    ]
    data = Dataset("things", tuple(examples))
    rows = torch.stack([values(model, each.text, 1)[-1] for each in examples])
    y = torch.tensor([each.label for each in examples])
    vector = steering_vector(data, model=model, site="resid_post:1")
    torch.testing.assert_close(
        vector.direction * vector.raw_norm, rows[y == 1].mean(0) - rows[y == 0].mean(0), atol=1e-4, rtol=1e-4
    )
    assert (vector.card["n_positive"], vector.card["n_negative"], vector.card["groups"]) == (12, 6, 9)
    frame = data.to_frame()[["text", "label", "group"]]
    store = interp.record(model, data, sites=["resid_post:1"], tokens="all", path=tmp_path / "store", dtype="float32")
    for other in (examples, frame, store):
        again = steering_vector(other, model=model, site="resid_post:1")
        torch.testing.assert_close(again.direction, vector.direction, atol=1e-4, rtol=1e-4)
        assert again.sd == pytest.approx(vector.sd, rel=1e-3)
        assert again.typical_norm == pytest.approx(vector.typical_norm, rel=0.01)  # a store keeps its quantiles in bins
        assert again.card["held_out"]["n_groups"] == 9
    by_probe = fit_probe(rows, y, "lda", site=SITE.format(1))
    lda = steering_vector(store, model=model, site="resid_post:1", method="lda")
    assert float(lda.direction @ by_probe.direction / by_probe.direction.norm()) == pytest.approx(1, abs=1e-3)
    mean = steering_vector(store, model=model, site="resid_post:1", tokens="mean")
    assert mean.card["tokens"] == "mean"
    for data, options, words in (
        (examples, {"method": "pca"}, "come in none"),
        (examples, {"tokens": "answer"}, "needs pairs"),
        ([Example("a", 1), Example("b", 1)], {}, "both labels"),
        ([Example("a", 1), Example("b")], {}, "text 1 has no label"),
        (pd.DataFrame({"text": ["a"], "label": ["yes"]}), {}, "row 0"),
        (pd.DataFrame({"words": ["a"]}), {}, "columns text and label"),
        ([Example("ab", 1), Example("cd", 0)], {"method": "logistic"}, "groups"),
    ):
        with pytest.raises(ValueError, match=words):
            steering_vector(data, model=model, **{"site": "resid_post:1", **options})


def test_a_reference_gives_both_units_to_a_probe_and_to_any_direction(model: HookedTransformer) -> None:
    texts = ["all is well here", "and so it goes on", "what else is there"]
    every = torch.cat([values(model, text, 1)[1:] for text in texts]).double()
    direction = torch.randn(32, generator=torch.Generator().manual_seed(0))
    direction /= direction.norm()
    latent = LatentDirection(SITE.format(1), direction, 7.0, 2.0)
    plain = steering_vector(latent, model=model)
    assert (plain.typical_norm, plain.raw_norm, plain.sd) == (7.0, 2.0, None)
    found = steering_vector(latent, model=model, reference=texts)
    assert found.sd == pytest.approx(float((every @ direction.double()).std()), rel=1e-4)
    assert found.typical_norm == pytest.approx(float(every.norm(dim=1).median()), rel=1e-4)
    X = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    probe = fit_probe(X, np.arange(40) % 2, "mass_mean", site=SITE.format(1))
    own = steering_vector(probe, model=model, reference=texts)
    assert own.sd == pytest.approx(float((every @ own.direction.double()).std()), rel=1e-4)
    assert steering_vector(probe, model=model).sd is None
    again = steering_vector(steering_vector(PAIRS, model=model, site="resid_post:1"), model=model, reference=texts)
    assert again.card["method"] == "mean_difference"
    other = {"card": {"fingerprint": "another", "model": "m"}}
    stranger = SteeringVector(direction, SITE.format(1), 7.0, **other)
    for data, options, words in (
        (latent, {"site": "resid_post:0"}, "means nothing elsewhere"),
        (latent, {"tokens": "last"}, "fitted already: leave tokens out"),
        (probe, {"method": "pca"}, "fitted already: leave method out"),
        (stranger, {}, "another model"),
    ):
        with pytest.raises(ValueError, match=words):
            steering_vector(data, model=model, **options)
    with pytest.raises(ValueError, match="one site"):
        steering_vectors(latent, model=model)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (PAIRS, {"method": "umap"}, "available are mean_difference"),
    (PAIRS, {"site": "z:0"}, "head_vectors"),
    (PAIRS, {"C": 1.0}, "no strength"),
    (PAIRS, {"batch_size": 0}, "batch_size"),
    (PAIRS, {"groups": ["a"]}, "1 values for 12 pairs"),
    (PAIRS, {"groups": "city"}, "'rows'"),
    (PAIRS[:3], {"method": "logistic"}, "groups are too few"),
    (PAIRS, {"site": "resid_post:*"}, "steering_vectors fits them all"),
    ([("a", 1), ("b", 0)], {}, "must be texts"),
    ([("same", "same"), ("too", "too")], {"method": "pca"}, "no direction"),
    ([("a", "b"), ("c", "")], {}, "response 3 is empty"),
]


@pytest.mark.parametrize(("data", "options", "message"), BAD)
def test_bad_input(model: HookedTransformer, data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steering_vector(data, model=model, **{"site": "resid_post:0", **options})


def test_an_activation_that_is_not_finite_is_refused(model: HookedTransformer) -> None:
    with (
        model.hooks(
            {"resid_post:0": lambda value, ctx: value * torch.where(ctx.positions == 3, torch.nan, 1.0)[..., None]}
        ),
        pytest.raises(ValueError, match="NaN or infinite"),
    ):
        steering_vector(PAIRS, model=model, site="resid_post:0")


def test_on_a_real_model_all_methods_agree_and_separate_held_out_pairs(smollm: HookedTransformer) -> None:
    """Rows are read once for all methods: what is added to them is tested above."""
    pairs = [pair for pair in interp.load_pairs("sentiment") if len(pair.positive) < 40]
    contrast = read_contrast(list({pair.group: pair for pair in pairs}.values()))
    n, site = contrast.n_pairs, SITE.format(10)
    assert n >= 20
    rows = read_rows(smollm, encode_contrast(smollm, contrast, "response_mean"), [site], 32, 0)[0][site]
    sides = Sides(rows[:n], rows[n:], True, contrast.groups)
    found = {name: way.fit(sides) for name, way in METHODS.items()}
    mean = found["mean_difference"].direction
    for name, own in found.items():
        cosine = float(torch.nn.functional.cosine_similarity(own.direction, mean, dim=0))
        assert cosine > {"pca": 0.95, "mass_mean": 0.9999, "mean_difference": 0.9999}.get(name, 0.1), name
        held_out = held_out_separation(name, sides)
        assert held_out["auroc"] > 0.9, name
        assert held_out["pairs_in_order"] > 0.9, name
    assert found["pca"].facts["pairs_that_agree"] > 0.9
