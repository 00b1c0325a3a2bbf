"""A head on ordinary text: the tables are what numpy makes of the patterns, and the real induction head looks far back."""

import numpy as np
import pandas as pd
import pytest
from tiny import tiny_model

import interp
from interp.heads.examples import head_examples
from interp.model import HookedTransformer
from interp.plot.head_examples import attention_distances, attention_maxima

TEXTS = [
    "hello wide world",
    "abcabcabcabc",
    "x",
    "the quick brown fox",
    "aaaaaaa",
    "some more text here",
    "and yet more",
]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model("llama", n_layers=2, n_heads=4, n_kv_heads=2)


def test_maxima_are_those_of_the_pattern_without_position_0(model: HookedTransformer) -> None:
    found = head_examples(model, 1, 2, TEXTS)
    assert found.card["n_texts"] == 6  # one has no three tokens
    _, cache = model.run_with_cache(TEXTS[3], sites="pattern:1")
    pattern = cache["pattern:1"][0, 2].detach().numpy()
    own = found.maxima.query("text == 3")
    for row in own.to_dict("records"):
        line = pattern[row["query"], 1 : row["query"] + 1]
        assert row["weight"] == pytest.approx(line.max(), rel=1e-6)
        assert row["key"] == 1 + int(line.argmax())
        assert row["distance"] == row["query"] - row["key"] >= 0
        assert row["first_token"] == pytest.approx(pattern[row["query"], 0], rel=1e-6)
    assert len(own) == len(TEXTS[3]) - 1


def test_means_by_token_and_intervals(model: HookedTransformer) -> None:
    found = head_examples(model, 0, 1, TEXTS, top=2, others=1, seed=3)
    keys = found.maxima.groupby("key_token")["weight"].agg(["mean", "size"]).query("size >= 3")
    shown = found.tokens.query("role == 'key'").set_index("token")
    assert shown["mean"].to_dict() == pytest.approx(keys["mean"].to_dict())
    table = found.passages
    largest = found.maxima.groupby("text")["weight"].max()
    assert table.set_index("text")["largest"].to_dict() == pytest.approx(largest.to_dict())
    assert table.loc[table["largest"].idxmax(), "interval"] == 0
    assert table.drop_duplicates("interval")["share"].sum() == pytest.approx(1.0)
    for interval, part in table.groupby("interval"):
        assert part["shown"].sum() == min(len(part), 2 if interval == 0 else 1)
    again = head_examples(model, 0, 1, TEXTS, top=2, others=1, seed=3)
    pd.testing.assert_frame_equal(again.passages, table)
    assert list(found.examples(0)["largest"]) == sorted(found.examples(0)["largest"], reverse=True)


def test_longer_texts_are_cut_and_bad_calls_refused(model: HookedTransformer) -> None:
    assert head_examples(model, 0, 0, ["abc" * 50], max_length=10).maxima["query"].max() == 9
    with pytest.raises(ValueError, match="layers 0 to 1 and heads 0 to 3, not 2 and 0"):
        head_examples(model, 2, 0, TEXTS)
    with pytest.raises(ValueError, match="no passage has three tokens"):
        head_examples(model, 0, 0, ["ab", ""])


def test_charts_count_every_query() -> None:
    frame = pd.DataFrame({"weight": [0.0, 0.31, 0.31, 1.0], "distance": [0, 1, 5, 64]})
    bars = next(iter(attention_maxima(frame).to_dict()["datasets"].values()))
    assert sum(bar["queries"] for bar in bars) == 4
    far = next(iter(attention_distances(frame).to_dict()["datasets"].values()))
    assert {row["distance"]: row["queries"] for row in far if row["queries"]} == {"0": 1, "1": 1, "4–7": 1, "64–127": 1}


def test_the_real_induction_head_looks_past_its_neighbours(smollm: HookedTransformer) -> None:
    texts = ["one red fox and one blue hen. one red fox and one blue hen. one red fox"] * 2
    induction = head_examples(smollm, 18, 6, texts).maxima
    previous = head_examples(smollm, 16, 0, texts).maxima
    late = induction.query("query > 12 and weight > 0.3")
    assert np.median(late["distance"]) >= 7  # a period of the text, less one
    assert previous.query("weight > 0.3")["distance"].mode().iloc[0] == 1
    assert interp.plot.to_svg(attention_distances(induction)).startswith("<svg")
