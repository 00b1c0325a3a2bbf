"""Two models side by side: a model against itself, planted changes, and the definitions written out."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tiny import shaken_model, tiny_model

from interp.diff import load_model_diff, model_diff
from interp.diff.compare import _quotients
from interp.heads import head_scores
from interp.model import HookedTransformer, quantize_int8
from interp.report import render_report
from interp.tokens import Tokenizer

TEXTS = ["hello there, all of you", "a much longer walk by the sea", "third one"]
FIGURES = ["residual", "own_attention", "own_mlp"]
HEADS = ["output", "own_output", "pattern", "own_pattern"]


def changed(model: HookedTransformer) -> HookedTransformer:
    """A copy whose weights may be written."""
    return copy.deepcopy(model)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "neox", "mixtral", "deepseek", "sinusoidal"])
def test_a_model_equals_itself(family: str) -> None:
    model = shaken_model(family)
    result = model_diff(model, model, TEXTS)
    summary = result.to_frame().set_index("metric")
    assert (summary.loc[["loss_difference", "kl_ab", "kl_ba"], ["value", "low", "high"]] == 0).all(axis=None)
    assert (summary.loc["agreement", ["value", "low", "high"]] == 1).all()
    layers, heads = result.to_frame("layers"), result.to_frame("heads")
    assert (layers["cosine"] == 1).all()
    assert (layers[FIGURES].fillna(0) == 0).all(axis=None)
    assert layers["own_mlp"].iloc[1:].isna().all() == (family == "sinusoidal")
    assert (heads[HEADS] == 0).all(axis=None)
    scores = result.to_frame("scores")
    assert (scores[[c for c in scores if str(c).endswith("_difference")]] == 0).all(axis=None)


def test_a_scaled_head_shows_at_its_place() -> None:
    model = shaken_model("llama", n_layers=4)
    other = changed(model)
    other.blocks[1].attn.W_O[2] *= 1.5
    result = model_diff(model, other, TEXTS, heads=False)
    heads = result.to_frame("heads").set_index(["layer", "head"])
    own = heads["own_output"]
    assert own[(1, 2)] == pytest.approx(0.5, rel=1e-4)
    assert (own.drop((1, 2)) == 0).all()
    assert (heads["own_pattern"] == 0).all()
    assert (heads.loc[:1, "output"].drop((1, 2)) == 0).all()
    assert (heads.loc[2:, "output"] > 0).all()
    layers = result.to_frame("layers").set_index("layer")
    assert (layers["residual"] > 0).tolist() == [False, False, True, True, True]
    assert (layers["own_attention"] > 0).tolist() == [False, False, True, False, False]
    # The MLP of the changed block reads another stream, since attention before it wrote another one.
    assert (layers["own_mlp"] > 0).tolist() == [False, False, True, False, False]


def test_an_edited_mlp_shows_at_its_place() -> None:
    model = shaken_model("gpt2", n_layers=3)
    other = changed(model)
    other.blocks[1].mlp.down.weight *= 1.1
    layers = model_diff(model, other, TEXTS, heads=False).to_frame("layers").set_index("layer")
    assert (layers["own_mlp"] > 0).tolist() == [False, False, True, False]
    assert (layers["own_attention"].fillna(0) == 0).all()


def test_losses_and_divergences_equal_the_definition(tiny: HookedTransformer) -> None:
    other = tiny_model(tiny.cfg.family, seed=1)
    result = model_diff(tiny, other, TEXTS, top=7)
    texts, places = result.to_frame("texts"), []
    for t, text in enumerate(TEXTS):
        ids = torch.tensor(tiny.tokenizer.encode(text))
        p, q = (model(text)[0].log_softmax(-1)[:-1] for model in (tiny, other))
        kl = (p.exp() * (p - q)).sum(-1)
        places += [(float(value), t, pos) for pos, value in enumerate(kl)]
        assert texts.loc[t, "loss_a"] == pytest.approx(float(tiny.loss(text)), rel=1e-5)
        assert texts.loc[t, "loss_b"] == pytest.approx(float(other.loss(text)), rel=1e-5)
        assert texts.loc[t, "kl_ab"] == pytest.approx(float(kl.mean()), rel=1e-4)
        assert texts.loc[t, "kl_ba"] == pytest.approx(float((q.exp() * (q - p)).sum(-1).mean()), rel=1e-4)
        assert texts.loc[t, "agreement"] == pytest.approx(float((p.argmax(-1) == q.argmax(-1)).double().mean()))
        assert texts.loc[t, "n"] == len(ids) - 1
    tokens = result.to_frame("tokens")
    expected = sorted(places, reverse=True)[:7]
    assert list(zip(tokens["text"], tokens["pos"])) == [(t, pos) for _, t, pos in expected]
    np.testing.assert_allclose(tokens["kl"], [kl for kl, *_ in expected], rtol=1e-4)
    line = tokens.iloc[0]
    assert TEXTS[line["text"]][line["pos"]] == line["context"][-1]
    summary = result.to_frame().set_index("metric")
    mean = np.average(texts["loss_b"] - texts["loss_a"], weights=texts["n"])
    assert summary.loc["loss_difference", "value"] == pytest.approx(mean)
    assert (summary["low"] <= summary["value"]).all()
    assert (summary["value"] <= summary["high"]).all()


def test_layers_and_heads_equal_the_definition() -> None:
    model, other = shaken_model("gemma2"), shaken_model("gemma2", seed=1)
    text = "only one text here"
    result = model_diff(model, other, text, heads=False)
    sites = ["resid_post:*", "z:*", "pattern:*"]
    a, b = (each.run_with_cache(text, sites)[1] for each in (model, other))
    layers, heads = result.to_frame("layers").set_index("layer"), result.to_frame("heads").set_index(["layer", "head"])
    for layer in range(2):
        x, y = a["resid_post", layer][0, 1:], b["resid_post", layer][0, 1:]
        expected = float((x - y).norm(dim=-1).sum() / x.norm(dim=-1).sum())
        assert layers.loc[layer, "residual"] == pytest.approx(expected, rel=1e-4)
        cosine = torch.cosine_similarity(x, y, dim=-1).mean()
        assert layers.loc[layer, "cosine"] == pytest.approx(float(cosine), abs=1e-5)
        distance = 0.5 * (a["pattern", layer] - b["pattern", layer])[0].abs().sum(-1).mean(-1)
        for head in range(4):
            x = a["z", layer][0, 1:, head] @ model.blocks[layer].attn.W_O[head]
            y = b["z", layer][0, 1:, head] @ other.blocks[layer].attn.W_O[head]
            expected = float((x - y).norm(dim=-1).sum() / x.norm(dim=-1).sum())
            assert heads.loc[(layer, head), "output"] == pytest.approx(expected, rel=1e-4)
            assert heads.loc[(layer, head), "pattern"] == pytest.approx(float(distance[head]), abs=1e-5)
    assert layers["residual_low"].isna().all()


def test_a_quotient_that_is_none_has_no_ends() -> None:
    above = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    below = np.array([[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    value, low, high = _quotients(above, below, 0)
    assert value[:2].tolist() == [1.0, 0.0]
    assert low[0] < 1 < high[0]
    assert (low[1], high[1]) == (0, 0)
    assert np.isnan([value[2], low[2], high[2]]).all()


def test_head_scores_keep_the_intervals_of_both_sides() -> None:
    a, b = tiny_model(), tiny_model(seed=1)
    scores = model_diff(a, b, TEXTS[0], seed=3).to_frame("scores")
    for side, model in (("a", a), ("b", b)):
        own = head_scores(model, seed=3).to_frame()
        for end in ("", "_low", "_high"):
            np.testing.assert_array_equal(scores[f"induction_{side}{end}"], own[f"induction{end}"])
    assert not any("_null_" in str(c) and str(c).endswith(("_low", "_high")) for c in scores)


def test_texts_keep_their_numbers() -> None:
    result = model_diff(tiny_model(), tiny_model(seed=1), ["x", TEXTS[0], "y", "abc"], heads=False)
    assert result.to_frame("texts")["text"].tolist() == [1, 3]
    assert set(result.to_frame("tokens")["text"]) == {1, 3}
    assert result.card["n_too_short"] == 2


def test_int8_differs_a_little_everywhere() -> None:
    model = tiny_model("llama", scale=2.0)
    result = model_diff(model, quantize_int8(model).model, TEXTS)
    heads, summary = result.to_frame("heads"), result.to_frame().set_index("metric")
    assert heads["own_output"].between(1e-5, 0.1).all()
    assert 0 < summary.loc["kl_ab", "value"] < 0.01


def test_batches_do_not_matter(tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tiny_model(tiny.cfg.family, seed=1)
    together = model_diff(tiny, other, TEXTS, heads=False)
    monkeypatch.setattr("interp.diff.compare.BATCH_TOKENS", 1)
    single = model_diff(tiny, other, TEXTS, heads=False)
    for kind in ("summary", "texts", "layers", "heads"):
        one, two = together.to_frame(kind).select_dtypes("number"), single.to_frame(kind).select_dtypes("number")
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)


def test_other_depths_compare_predictions_alone() -> None:
    result = model_diff(tiny_model(), tiny_model(n_layers=3), TEXTS)
    assert result.to_frame().set_index("metric").loc["kl_ab", "value"] > 0
    with pytest.raises(ValueError, match="n_layers is 2 in tiny-llama and 3"):
        result.to_frame("layers")
    assert "n_layers is 2" in render_report("Difference", result.sections())


def test_it_is_saved_drawn_and_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    result = model_diff(
        tiny_model(), tiny_model(seed=1), TEXTS, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (3, 3)
    again = load_model_diff(result.save(tmp_path / "diff.json"))
    for kind in ("summary", "texts", "tokens", "layers", "heads", "scores"):
        assert again.to_frame(kind).equals(result.to_frame(kind)), kind
    assert again.card == result.card
    for kind in ("layers", "heads", "tokens", "scores"):
        assert result.plot(kind).to_dict()
    assert result.plot("heads", "pattern").to_dict()
    page = render_report("Difference", again.sections(), again.card)
    for title in ("What they predict", "Where they differ most", "Layers", "Heads", "Head scores"):
        assert title in page
    with pytest.raises(ValueError, match="kind must"):
        result.plot("summary")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a model diff"):
        load_model_diff(tmp_path / "other.json")


def test_unlike_models_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match="vocabulary of 258 and tiny-llama one of 300"):
        model_diff(model, tiny_model(d_vocab=300), TEXTS)
    with pytest.raises(ValueError, match="encoder"):
        model_diff(tiny_model("bert"), tiny_model("bert"), TEXTS)
    with pytest.raises(ValueError, match="one token each"):
        model_diff(model, model, ["a", "b"])
    with pytest.raises(ValueError, match="top must"):
        model_diff(model, model, TEXTS, top=0)


def test_tokenizers_that_differ_are_named() -> None:
    model, other = tiny_model(), tiny_model()
    other.tokenizer.backend.normalizer = tokenizers.normalizers.Lowercase()
    with pytest.raises(ValueError, match="cut text 1 differently from token 2 on"):
        model_diff(model, other, ["small", "abC"])
    assert model_diff(model, other, ["small"]).to_frame()["value"].iloc[2] == 0
    spec = json.loads(model.tokenizer.backend.to_str())
    vocab = spec["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    other.tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(spec)), pad_id=257)
    with pytest.raises(ValueError, match=f"token {vocab['b']} is 'a' in tiny-llama and 'b'"):
        model_diff(model, other, TEXTS)
