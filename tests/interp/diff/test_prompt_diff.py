"""Two prompts side by side: the same one differs by nothing, and the figures are those of scipy and of the logit lens."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from tiny import tiny_model

import interp
from interp.diff import prompt_diff
from interp.model import HookedTransformer


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model("llama", n_layers=3, n_heads=4, n_kv_heads=2)


def test_a_prompt_and_itself_differ_by_nothing(model: HookedTransformer) -> None:
    found = prompt_diff(model, "abcab", "abcab")
    assert found.tokens["same"].all()
    assert found.layers[["kl_ab", "kl_ba", "js", "tv", "residual"]].to_numpy() == pytest.approx(0.0, abs=1e-12)
    assert (found.layers["cosine"] == 1).all()
    assert (found.heads["output"] == 0).all()
    assert found.following["difference"].to_numpy() == pytest.approx(0.0, abs=1e-12)


def test_distances_are_those_of_scipy(model: HookedTransformer) -> None:
    a, b = "hello wide world", "other words, longer"
    found = prompt_diff(model, a, b, pos_a=3)
    p = model(a)[0, 3].double().softmax(-1).detach().numpy()
    q = model(b)[0, -1].double().softmax(-1).detach().numpy()
    last = found.layers.iloc[-1]
    assert found.card["pos_a"] == 3
    assert last["kl_ab"] == pytest.approx(entropy(p, q), rel=1e-5)
    assert last["kl_ba"] == pytest.approx(entropy(q, p), rel=1e-5)
    assert last["js"] == pytest.approx(jensenshannon(p, q) ** 2, rel=1e-5)
    assert last["tv"] == pytest.approx(0.5 * np.abs(p - q).sum(), rel=1e-5)
    assert found.card["js"] == last["js"] <= math.log(2)
    first = found.following.iloc[0]
    assert max(first["p_a"], first["p_b"]) == pytest.approx(max(p.max(), q.max()), rel=1e-5)
    assert first["difference"] == pytest.approx(first["p_b"] - first["p_a"])


def test_layers_agree_with_the_logit_lens_and_heads_with_hook_result(model: HookedTransformer) -> None:
    a, b = "abcab", "abdab"
    found = prompt_diff(model, a, b)
    for side, text in (("a", a), ("b", b)):
        lens = interp.logit_lens(model, text).to_frame().query("pos == 4").sort_values("layer")
        assert found.layers[f"p_{side}"].to_numpy() == pytest.approx(lens["p_top1"].to_numpy(), rel=1e-5)
        assert list(found.layers[f"top_{side}"]) == list(lens["top1"])
    results = [model.run_with_cache(text, sites="result:1")[1]["result:1"][0, -1].double() for text in (a, b)]
    expected = ((results[0] - results[1]).norm(dim=-1) / results[0].norm(dim=-1)).numpy()
    assert found.heads.query("layer == 1")["output"].to_numpy() == pytest.approx(expected, rel=1e-5)


def test_an_insertion_does_not_shift_what_follows(model: HookedTransformer) -> None:
    found = prompt_diff(model, "abcdef", "abXcdef").tokens
    assert list(found["token_b"]) == list("abXcdef")
    assert found["pos_a"].tolist()[:2] == [0, 1]
    assert found["pos_a"].isna().tolist() == [False, False, True, False, False, False, False]
    assert found["same"].tolist() == [True, True, False, True, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"a": "", "b": "x"}, "a must be one text|empty"),
        ({"a": "x", "b": "abc", "pos_b": 3}, "pos_b = 3 lies outside the prompt, which has 3 tokens"),
        ({"a": "x", "b": "abc", "k": 0}, "k must be a whole number"),
        ({"a": "x", "b": ["one", "two"]}, "b must be one text"),
    ],
)
def test_bad_calls_are_refused(model: HookedTransformer, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prompt_diff(model, **arguments)


def test_nan_weights_are_refused(model: HookedTransformer) -> None:
    broken = tiny_model("llama", n_layers=2)
    with torch.no_grad():
        broken.get_parameter("blocks.1.attn.o.weight").fill_(torch.nan)
    with pytest.raises(ValueError, match=r"NaN|finite"):
        prompt_diff(broken, "abc", "abd")


def test_on_the_real_model_the_two_cities_part_late(smollm: HookedTransformer) -> None:
    found = prompt_diff(smollm, "The Eiffel Tower is located in the city of", "The Colosseum is located in the city of")
    last = found.layers.iloc[-1]
    assert (last["top_a"], last["top_b"]) == ("·Paris", "·Rome")
    assert found.layers["js"].iloc[:10].max() < 0.35 < last["js"]
    assert "JS" in found.summary()
