"""Charts of calibration on text: what is drawn, what is left out, and names from anywhere."""

import json
import math
from xml.etree import ElementTree

import pandas as pd
import pytest

from interp import plot
from interp.plot.token_calibration import calibration_by_layer, calibration_by_part, reliability_panels

HOSTILE = "</script><b>\u202e{{7*7}} url(x)"


def errors(n: int, **columns: object) -> pd.DataFrame:
    frame = pd.DataFrame({"layer": range(-1, n - 1), "n": 100})
    for state, size in (("before", 0.4), ("after", 0.05)):
        frame = frame.assign(
            **{f"ece_{state}": size, f"ece_{state}_low": size / 2, f"ece_{state}_high": 2 * size,
               f"null_{state}_low": 0.01, f"null_{state}_high": 0.08}
        )  # fmt: skip
    return frame.assign(temperature=2.0, temperature_low=1.5, temperature_high=2.5).assign(**columns)


def drawn(chart: plot.Chart) -> list[dict[str, object]]:
    """All rows of a chart's data sets."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_layers_are_drawn_with_band_interval_and_temperature() -> None:
    frame = errors(4)
    frame.loc[0, ["temperature", "temperature_low", "temperature_high", "ece_after", "ece_after_low"]] = math.nan
    chart = calibration_by_layer(frame)
    rows = drawn(chart)
    assert sum("ece" in row for row in rows) == 4 + 3  # the embedding has no temperature, so nothing after it
    assert {row["layer"] for row in rows if "temperature" in row} == {0, 1, 2}
    assert {(row["null_low"], row["null_high"]) for row in rows if "ece" in row} == {(0.01, 0.08)}
    ElementTree.fromstring(plot.to_svg(chart))
    nowhere = calibration_by_layer(errors(3, temperature=math.nan))
    assert len(nowhere.to_dict()["vconcat"]) == 2
    ElementTree.fromstring(plot.to_svg(calibration_by_layer(errors(1))))


def test_parts_keep_their_order_and_hostile_names_are_text() -> None:
    frame = errors(3, band=["20+", HOSTILE, "1-19"])
    chart = calibration_by_part(frame, "band")
    names = list(dict.fromkeys(row["name"] for row in drawn(chart)))
    assert [str(name).split(" (n")[0] for name in names][::2] == ["20+", "1-19"]
    assert "\u202e" not in json.dumps(chart.to_dict(), ensure_ascii=False)
    ElementTree.fromstring(plot.to_svg(chart))


def test_small_diagrams_say_how_many_tokens_they_hold() -> None:
    one = pd.DataFrame({"state": ["before", "before", "after"], "n": [3, 7, 10], "confidence": [0.2, 0.8, 0.6]})
    one = one.assign(accuracy=[0.1, 0.9, 0.6], accuracy_low=[0.0, 0.7, 0.4], accuracy_high=[0.3, 1.0, 0.8])
    bins = pd.concat([one.assign(part=name) for name in ("word", "number", "newline", HOSTILE)])
    chart = reliability_panels(bins)
    lines = chart.to_dict()["vconcat"]
    assert [len(line["hconcat"]) for line in lines] == [3, 1]
    assert '"word (n = 10)"' in json.dumps(lines[0]["hconcat"][0])
    ElementTree.fromstring(plot.to_svg(chart))


def test_frames_that_lack_something_are_refused() -> None:
    with pytest.raises(ValueError, match="null_after_high"):
        calibration_by_layer(errors(2).drop(columns="null_after_high"))
    with pytest.raises(ValueError, match="nothing to draw"):
        calibration_by_part(errors(2, band="a").iloc[:0], "band")
    with pytest.raises(ValueError, match="confidence"):
        reliability_panels(pd.DataFrame({"part": ["a"], "state": ["before"], "n": [1]}))
