"""The widgets' data: true numbers, safe JSON, sizes."""

import base64
import io
import json
import time

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from interp.widgets import Track, attention_view, lens_view, token_strip
from interp.widgets.attention import pooled, strongest, without_first
from interp.widgets.page import script_json

HOSTILE = [
    "</script><script>alert(1)</script>",
    "\ud800",
    "\0",
    "\u202eabc",
    "\u200b",
    "x" * 300,
    "👨‍👩‍👧",
    "\u2028<!--",
    "&lt;",
    '"',
]


def causal(heads: int, n: int, seed: int = 0) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=(heads, n, n)) * 3
    weights = np.tril(np.exp(scores))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def payload(page: str) -> dict:
    start = page.index('id="data">') + len('id="data">')
    return json.loads(page[start : page.index("</script>", start)])


def test_hostile_tokens_stay_data() -> None:
    n = len(HOSTILE)
    frame = pd.DataFrame(
        {"pos": range(n), "token": pd.Series(HOSTILE, dtype=object), "x": [np.nan, np.inf, *range(n - 2)]}
    )
    tokens = pd.Series(HOSTILE, dtype=object)
    lens = pd.DataFrame({"site": "resid", "pos": range(n), "token": tokens, "top1": tokens, "p_top1": 0.5})
    for view in (token_strip(frame, [Track("x", "X")]), attention_view(causal(2, n), HOSTILE), lens_view(lens)):
        page = view.to_html()
        page.encode("utf-8")
        assert payload(page) == json.loads(json.dumps(view.page_data()))
        assert page.count("<script") == 2
        assert "alert(1)</script>" not in page
        frame_html = view._repr_mimebundle_()["text/html"]
        assert frame_html.count("<") == 2
        assert 'sandbox="allow-scripts"' in frame_html
        assert "innerHTML" not in page
        assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")


def test_script_json_escapes_and_refuses_nan() -> None:
    assert not set("<>&\u2028") & set(script_json({"a": "<>&\u2028\ud800"}))
    assert json.loads(script_json(HOSTILE)) == HOSTILE
    with pytest.raises(ValueError):
        script_json(float("nan"))


def test_strongest_are_those_of_a_sort() -> None:
    matrix = causal(1, 40)[0]
    query, key, value = strongest(matrix, 5, 0.02)
    for q in range(40):
        wanted = [v for v in np.sort(matrix[q])[::-1][:5] if v >= np.float32(0.02)]
        assert value[query == q].tolist() == wanted
        assert matrix[q, key[query == q]].tolist() == wanted


def test_png_holds_the_quantised_matrix_and_hover_the_values() -> None:
    pattern = causal(3, 33)
    sent = attention_view(pattern, ["t"] * 33, head=1).data()["heads"]["1"]["full"]
    image = Image.open(io.BytesIO(base64.b64decode(sent["png"])))
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image), np.rint(pattern[1] * 255).astype(np.uint8))
    np.testing.assert_allclose(sent["v"], pattern[1][sent["q"], sent["k"]], rtol=5e-4)
    np.testing.assert_allclose(sent["row_max"], pattern[1][:, 1:].max(1), rtol=5e-4)


def test_dropping_position_0_renormalises_exactly() -> None:
    matrix = causal(1, 20)[0]
    found = without_first(matrix)
    assert (found[:, 0] == 0).all()
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1:].sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(found[5, 1:], matrix[5, 1:] / matrix[5, 1:].astype(float).sum())


def test_pooling_keeps_the_maximum_of_every_block() -> None:
    matrix = np.zeros((101, 101), np.float32)
    matrix[77, 3] = 0.9
    assert pooled(matrix, 48).shape == (48, 48)
    assert pooled(matrix, 48).max() == np.float32(0.9)


def test_sizes_and_time() -> None:
    assert len(script_json(attention_view(causal(2, 2048), ["token"] * 2048).data())) < 8_000_000
    view = attention_view(causal(8, 1024), ["t"] * 1024)
    start = time.perf_counter()
    view.data()
    assert time.perf_counter() - start < 3  # 0.3 s alone; the machine may be shared


@pytest.mark.parametrize("change", [{"head": 9}, {"scale": "x"}, {"top_k": 0}, {"threshold": 2.0}, {"end": 0.0}])
def test_bad_arguments_are_named(change: dict) -> None:
    with pytest.raises(ValueError):
        attention_view(causal(1, 3), ["a"] * 3, **change)


def test_bad_patterns_are_refused() -> None:
    for bad in (causal(1, 3) * np.nan, -causal(1, 3), causal(1, 3) * 2, causal(1, 4)):
        with pytest.raises(ValueError):
            attention_view(bad, ["a"] * 3)


def test_lens_stride_says_what_is_left_out() -> None:
    frame = pd.DataFrame({"site": [f"L{i}" for i in range(5)], "pos": 0, "token": "a", "top1": "b", "p_top1": 0.25})
    data = lens_view(frame, stride=2).data()
    assert data["sites"] == ["L0", "L2", "L4"]
    assert "3 of 5" in data["note"]
    assert data["cells"][0][1] == {"top": "b", "values": [0.25]}


def test_diverging_tracks_and_bad_scales() -> None:
    frame = pd.DataFrame({"pos": [0], "token": ["a"], "x": [-1.0]})
    assert token_strip(frame, [Track("x", "X", low=-1, mid=0, high=1)]).data()["tracks"][0]["mid"] == 0
    with pytest.raises(ValueError, match="low < high"):
        token_strip(frame, [Track("x", "X", low=1, high=1)])
