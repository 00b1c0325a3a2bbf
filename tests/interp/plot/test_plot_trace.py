"""Charts of a trace: what they show, and what they refuse."""

import re

import numpy as np
import pandas as pd
import pytest

from interp.plot import to_png, to_svg
from interp.plot.style import INK
from interp.plot.trace import answer_layers, token_lines


def layers(n_layers: int = 30, tokens: tuple[str, ...] = (" of", " Paris", " Paris")) -> pd.DataFrame:
    rows = [
        {
            "pos": pos, "token": token, "layer": layer, "top1": token if layer > 20 else "<b>", "p_top1": 0.5,
            "p_token": layer / n_layers if layer >= 0 else 0.0, "said": layer > 20,
        }
        for pos, token in enumerate(tokens, start=3)
        for layer in range(-1, n_layers)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_layers_keep_the_last_one_and_tell_equal_tokens_apart() -> None:
    spec = answer_layers(layers(), answer_from=4).to_dict()
    data = next(iter(spec["datasets"].values()))
    assert {row["row"] for row in data} == {"3: ·of", "4: ·Paris", "5: ·Paris"}
    shown = sorted({row["layer"] for row in data})
    assert shown[0] == -1
    assert shown[-1] == 29
    assert len(shown) <= 15
    assert all(row["said"] == (row["layer"] > 20) for row in data)
    svg = to_svg(answer_layers(layers(), answer_from=4), ink=INK)
    assert "<b>" not in svg
    assert 'font-weight="bold"' in svg
    assert to_png(answer_layers(layers()))[:4] == b"\x89PNG"


def test_layers_refuse_what_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="several rows"):
        answer_layers(pd.concat([layers(), layers()]))
    with pytest.raises(ValueError, match="no column said"):
        answer_layers(layers().drop(columns="said"))
    with pytest.raises(ValueError, match="no rows"):
        answer_layers(layers().head(0))


def test_lines_leave_out_what_is_not_known() -> None:
    frame = pd.DataFrame({"pos": [0, 1, 2, 3], "token": ["a", "b", " c", " c"]})
    frame["entropy"] = [np.nan, 1.0, 2.0, 0.5]
    frame["share"] = [0.1, 0.2, 0.9, np.nan]
    chart = token_lines(frame, {"entropy": "entropy, nats", "share": "share, 0 to 1"}, answer_from=2)
    spec = chart.to_dict()
    assert len(spec["vconcat"]) == 2
    parts = [rows for rows in spec["datasets"].values() if "part" in rows[0]]
    assert sorted(len(rows) for rows in parts) == [3, 3]
    assert {row["row"]: row["part"] for row in parts[0]}["2: ·c"] == "answer"
    assert "1: b" in to_svg(chart)
    # Names with dots and brackets are names, not paths: points stand where the values are.
    low, high = (
        to_svg(token_lines(frame.assign(**{"probe a.b[0]": value}), {"probe a.b[0]": "x, 0 to 1"}))
        for value in (0.2, 0.7)
    )
    places = [re.findall(r'translate\(([^)]*)\)" d="M3', svg) for svg in (low, high)]
    assert len(places[0]) == len(places[1]) == 4
    rise = [float(one.split(",")[1]) - float(other.split(",")[1]) for one, other in zip(*places)]
    assert rise == pytest.approx([0.5 * 88] * 4)
    with pytest.raises(ValueError, match="no lines"):
        token_lines(frame, {})
    with pytest.raises(ValueError, match="81 tokens are too many"):
        token_lines(pd.DataFrame({"pos": range(81), "token": "a", "x": 1.0}), {"x": "x"})
