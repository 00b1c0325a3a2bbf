"""Charts: right numbers in the right places, fixed scales, readable labels, and nothing that a token can break."""

import functools
import json
import math
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from interp import plot
from interp.plot import curves, style

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\u202eevil",
    "\x00",
    "$\\frac{1}{0}$",
    "[x](javascript:alert(1))",
    "{{7*7}}",
    "' + alert(1) + '",
    "👩‍👩‍👧",
    "\u200b",
    "مرحبا",
    "x" * 10_000,
)


def lens_frame(tokens: list[str], n_layers: int = 30, settle: int = 20) -> pd.DataFrame:
    rows = [
        {
            "layer": layer,
            "pos": pos,
            "token": token,
            "top1": " Paris" if layer >= settle else tokens[(pos + layer) % len(tokens)],
            "p_top1": (layer + 2) / (n_layers + 2),
            "entropy": 10.0 * (n_layers - layer) / n_layers,
            "kl": float(n_layers - 1 - layer),
            "rank": 0 if layer >= settle else 10 * (settle - layer),
            "settle_layer": settle,
        }
        for pos, token in enumerate(tokens)
        for layer in range(-1, n_layers)
    ]
    return pd.DataFrame(rows)


def head_frame() -> pd.DataFrame:
    frame = pd.DataFrame([(layer, head) for layer in range(6) for head in range(4)], columns=["layer", "head"])
    frame["induction"] = np.linspace(0, 0.9, len(frame))
    frame["induction_low"], frame["induction_high"] = frame["induction"] - 0.02, frame["induction"] + 0.02
    frame["attention_entropy"] = np.linspace(0, 4.2, len(frame))
    frame["n"] = 512
    return frame


def sweep_frame() -> pd.DataFrame:
    rows = [(layer, kind, 0.5 + layer / 100) for kind in ("logistic", "mass_mean") for layer in range(30)]
    frame = pd.DataFrame(rows, columns=["layer", "kind", "auroc"])
    return frame.assign(low=frame["auroc"] - 0.01, high=frame["auroc"] + 0.01, n=100, n_groups=50)


def bins_frame(state: str) -> pd.DataFrame:
    edges = np.linspace(0, 1, 6)
    frame = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "n": [10, 0, 30, 20, 5]})
    frame["confidence"] = frame["accuracy"] = (frame["low"] + frame["high"]) / 2
    return frame.assign(accuracy_low=frame["accuracy"] - 0.05, accuracy_high=frame["accuracy"] + 0.05, state=state)


def effects_frame() -> pd.DataFrame:
    vector = [
        {"direction": "vector", "strength": s, "effect": 10 * s, "low": 9 * s, "high": 11 * s} for s in (-0.1, 0, 0.1)
    ]
    random = [{"direction": f"random {i}", "strength": 0.1, "effect": 0.1 * i} for i in range(4)]
    return pd.DataFrame(vector + random)


PLAIN = ("The", " Tower", " is", "\n")
NAMES = (
    *("head_grid", "head_grid_entropy", "lens_grid", "lens_grid_rank", "lens_grid_kl", "attention_matrix"),
    *(
        "next_token_bars",
        "token_bars",
        "layer_curve",
        "layer_curve_tokens",
        "reliability",
        "fvu_curve",
        "steering_effect",
    ),
)


@functools.cache
def every_chart(tokens: tuple[str, ...]) -> dict[str, plot.Chart]:
    n = len(tokens)
    weights = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    lens = lens_frame(list(tokens))
    per_token = pd.DataFrame({"pos": range(n), "token": tokens, "entropy": np.linspace(0, 5, n)})
    bins = pd.concat([bins_frame("before"), bins_frame("after")])
    lines = lens[lens["pos"] < 3].assign(line=lens["pos"].astype(str) + ": " + lens["token"])
    return {
        "head_grid": plot.head_grid(head_frame(), selected=(2, 1)),
        "head_grid_entropy": plot.head_grid(head_frame(), "attention_entropy"),
        "lens_grid": plot.lens_grid(lens),
        "lens_grid_rank": plot.lens_grid(lens, "rank", d_vocab=49152, selected=1),
        "lens_grid_kl": plot.lens_grid(lens, "kl"),
        "attention_matrix": plot.attention_matrix(weights, tokens),
        "next_token_bars": plot.next_token_bars(pd.DataFrame({"token": tokens, "prob": np.full(n, 1 / n)})),
        "token_bars": plot.token_bars(per_token, selected=2),
        "layer_curve": plot.layer_curve(
            sweep_frame(), "auroc", low="low", high="high", colour="kind", baselines={"chance": 0.5, tokens[0]: 0.51}
        ),
        "layer_curve_tokens": plot.layer_curve(lines, "p_top1", colour="line"),
        "reliability": plot.reliability(bins, state="state", null_band=(0.01, 0.05)),
        "fvu_curve": plot.fvu_curve(pd.DataFrame({"rank": [8, 64], "fvu": [0.7, 0.3]}), fvu=0.2, l0=32.0),
        "steering_effect": plot.steering_effect(effects_frame()),
    }


def data_of(chart: plot.Chart) -> list[dict]:
    """All rows that the chart draws."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


# ------------------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" Paris", "·Paris"),
        ("\n", "↵"),
        ("a b", "a b"),
        ("", "⟨empty⟩"),
        ("\u202ex", "⟨U+202E⟩x"),
        ("\x00", "⟨U+0000⟩"),
        ("\ud800", "⟨ED⟩⟨A0⟩⟨80⟩"),
        ("<b>", "<b>"),
    ],
)
def test_label_shows_what_cannot_be_seen(text: str, label: str) -> None:
    assert plot.token_label(text) == label


@pytest.mark.parametrize("width", [2, 5, 6])
def test_a_long_label_loses_its_middle(width: int) -> None:
    label = plot.token_label("abcdefghij", width)
    assert len(label) == width
    assert "…" in label
    assert plot.token_label("abc", 3) == "abc"


def test_kept_layers_keep_the_ends_and_fit() -> None:
    for n_layers in range(1, 100):
        for columns in (1, 4, 16):
            kept = plot.kept_layers(range(-1, n_layers), columns)
            assert kept[0] == -1
            assert kept[-1] == n_layers - 1
            assert len(kept) <= columns + 1
            assert len(set(np.diff(kept[1:]))) <= 1


# ------------------------------------------------------------------------------------------------------------ charts


def test_all_charts_are_tried() -> None:
    assert tuple(every_chart(PLAIN)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_is_valid_and_has_no_background(name: str) -> None:
    chart = every_chart(PLAIN)[name]
    spec = chart.to_dict()  # Altair checks it against the Vega-Lite schema
    assert spec["background"] == "transparent"
    assert "tooltip" in json.dumps(spec)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_tokens_stay_text(name: str) -> None:
    svg = plot.to_svg(every_chart(HOSTILE)[name])
    root = ElementTree.fromstring(svg)  # well-formed, so no NUL and no lone surrogate
    tags = {element.tag.split("}")[1] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "text", "tspan", "line", "rect", "title", "defs", "clipPath"}
    assert not [key for element in root.iter() for key in element.attrib if key.startswith("on")]
    assert "\u202e" not in svg
    assert "url(" not in svg  # an address inside SVG breaks when a dashboard changes the page's own


def test_head_grid_says_rank_and_selects_by_name() -> None:
    chart = plot.head_grid(head_frame())
    best = max(data_of(chart), key=lambda row: row["induction"])
    assert best["name"] == "L5H3"
    assert best["said induction"] == "0.900 [0.880, 0.920] (1 of 24)"
    params = chart.to_dict()["params"]
    assert [p["select"]["fields"] for p in params if p["name"] == "head"] == [["layer", "head"]]
    assert "said n" not in best


def test_head_grid_scale_is_fixed_for_shares_and_whole_for_entropy() -> None:
    def domain(chart: plot.Chart) -> list[float]:
        return chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]["domain"]

    assert domain(plot.head_grid(head_frame())) == [0.0, 1.0]
    assert domain(plot.head_grid(head_frame(), "attention_entropy")) == [0.0, 5.0]


def test_head_grid_marks_nothing_unless_a_head_is_chosen() -> None:
    unmarked, marked = (
        plot.to_svg(plot.head_grid(head_frame())),
        plot.to_svg(plot.head_grid(head_frame(), selected=(0, 0))),
    )
    assert unmarked.count(style.ORANGE) == 0
    assert marked.count(style.ORANGE) == 1


def test_lens_grid_marks_the_first_shown_cell_that_is_settled() -> None:
    chart = plot.lens_grid(lens_frame(["a", "b"], settle=20), columns=6)
    settled = [(row["row"], row["layer"]) for row in data_of(chart) if row["settles"]]
    kept = plot.kept_layers(range(30), 6)
    assert settled == [("0: a", min(k for k in kept if k >= 20)), ("1: b", min(k for k in kept if k >= 20))]


@pytest.mark.parametrize("statistic", ["entropy", "kl", "rank"])
def test_lens_grid_turns_scales_round(statistic: str) -> None:
    """Full colour means near the answer, for every statistic."""
    rows = data_of(plot.lens_grid(lens_frame(["a"]), statistic, d_vocab=1000))
    by_value = sorted(rows, key=lambda row: float(row[f"said {statistic}"].replace(",", "")))
    assert by_value[0]["shade"] >= by_value[-1]["shade"]
    if statistic == "rank":
        assert by_value[0]["shade"] == pytest.approx(math.log10(1000))


def test_equal_tokens_do_not_merge() -> None:
    svg = plot.to_svg(plot.lens_grid(lens_frame(["the", "the", "the"])))
    assert all(f"{pos}: the" in svg for pos in range(3))


def test_attention_matrix_leaves_masked_cells_out() -> None:
    weights = np.eye(3)
    rows = data_of(plot.attention_matrix(weights, ["a", "b", "c"], start=7))
    assert len(rows) == 6
    assert plot.attention_matrix(np.eye(1), ["\ud800"]).to_dict()
    assert [(r["query"], r["key"]) for r in rows if r["weight"] == 1.0] == [("7: a",) * 2, ("8: b",) * 2, ("9: c",) * 2]


def test_next_token_bars_take_the_most_probable() -> None:
    frame = pd.DataFrame({"token": list("abcd"), "prob": [0.1, 0.4, 0.2, 0.3]})
    assert [row["name"] for row in data_of(plot.next_token_bars(frame, top=2))] == ["1: b", "2: d"]


def test_token_bars_take_missing_numbers() -> None:
    frame = pd.DataFrame({"pos": [0, 1], "token": ["a", "b"], "surprisal": pd.array([None, 2.0], dtype="Float64")})
    assert [row["surprisal"] for row in data_of(plot.token_bars(frame, "surprisal"))] == [None, 2.0]


def test_layer_curve_marks_each_lines_own_layer() -> None:
    chart = plot.layer_curve(sweep_frame(), "auroc", colour="kind", selected={"logistic": 12, "mass_mean": 15})
    assert [(r["line"], r["layer"]) for r in data_of(chart) if r.get("chosen")] == [("logistic", 12), ("mass_mean", 15)]


def test_baseline_names_are_spread_and_stay_inside() -> None:
    values = {"a": 0.5, "b": 0.5, "c": 0.501, "d": 0.41, "e": 0.4}
    charts = style.rules(values, (0.4, 1.0), 0, 29)
    at = sorted(row["at"] for row in charts[-1].data.to_dict("records"))
    assert min(np.diff(at)) >= 0.058 * 0.6 - 1e-9
    assert at[0] >= 0.4
    assert at[-1] <= 1.0
    assert style.rules({}, (0, 1), 0, 29) == []


def test_reliability_leaves_empty_bins_out_and_says_the_null_band() -> None:
    chart = plot.reliability(bins_frame("x"), null_band=(0.01, 0.05))
    assert sorted(row["n"] for row in data_of(chart) if "n" in row) == [5, 10, 20, 30]
    assert "0.010 to 0.050" in json.dumps(chart.to_dict())


def test_steering_effect_tells_the_vector_from_random_directions() -> None:
    kinds = [row["kind"] for row in data_of(plot.steering_effect(effects_frame())) if "kind" in row]
    assert kinds.count("vector") == 3
    assert kinds.count("random directions") == 4


# --------------------------------------------------------------------------------------------------------- bad input


def test_errors_say_what_to_mend() -> None:
    lens = lens_frame(["a", "b"])
    with pytest.raises(ValueError, match="no column induction; it has layer"):
        plot.head_grid(pd.DataFrame({"layer": [0], "head": [0]}))
    with pytest.raises(ValueError, match="statistic must be one of p_top1"):
        plot.lens_grid(lens, "surprise")
    with pytest.raises(ValueError, match="several rows for one layer and position"):
        plot.lens_grid(pd.concat([lens, lens]))
    with pytest.raises(ValueError, match="no rows"):
        plot.lens_grid(lens.iloc[:0])
    with pytest.raises(ValueError, match=r"5,120 marks are more than the 5,000"):
        plot.lens_grid(lens_frame(["a"] * 320), columns=16)
    with pytest.raises(ValueError, match="one row and one column for each of the 2 tokens"):
        plot.attention_matrix(np.eye(3), ["a", "b"])
    with pytest.raises(ValueError, match="65 tokens are too many"):
        plot.attention_matrix(np.eye(65), ["a"] * 65)
    with pytest.raises(ValueError, match="no rows"):
        plot.steering_effect(effects_frame().assign(effect=math.nan))
    with pytest.raises(ValueError, match="no rows"):
        plot.reliability(bins_frame("x").assign(n=0))


# ------------------------------------------------------------------------------------------------------------ output


def test_svg_takes_the_ink_that_is_asked_for() -> None:
    chart = plot.next_token_bars(pd.DataFrame({"token": ["a"], "prob": [0.5]}))
    assert 'color="#1f2328"' in plot.to_svg(chart)
    inline = plot.to_svg(chart, "currentColor")
    assert "#1f2328" not in inline
    assert 'fill="currentColor"' in inline


def test_svg_rounds_coordinates_and_never_text() -> None:
    svg = plot.to_svg(plot.next_token_bars(pd.DataFrame({"token": ["0.123456789"], "prob": [1 / 3]})))
    assert "0.123456789" in svg
    assert "1: 0.123456789" in "".join(ElementTree.fromstring(svg).itertext())


def test_png_is_an_opaque_picture() -> None:
    png = plot.to_png(plot.fvu_curve(pd.DataFrame({"rank": [8], "fvu": [0.5]}), fvu=0.2, l0=32.0), scale=1.0)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")


def test_html_cannot_be_left_by_a_token() -> None:
    page = plot.to_html(every_chart(HOSTILE)["next_token_bars"], "<x>")
    assert page.lower().count("</script") == 2
    assert "<title>&lt;x&gt;</title>" in page
    assert "default-src 'none'" in page
    assert "https://cdn" not in page


def test_save_chart_goes_by_the_ending(tmp_path) -> None:
    chart = plot.next_token_bars(pd.DataFrame({"token": ["a"], "prob": [0.5]}))
    for ending, start in ((".svg", b"<svg"), (".png", b"\x89PNG"), (".html", b"<!doctype html>")):
        assert plot.save_chart(chart, tmp_path / f"chart{ending}").read_bytes().startswith(start)
    with pytest.raises(ValueError, match=r"saved as \.svg, \.png or \.html"):
        plot.save_chart(chart, tmp_path / "chart.pdf")
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".html", ".png", ".svg"]


# ------------------------------------------------------------------------------------------------------------ colour


def luminance(rgb: tuple[float, float, float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("paper", "ink"), [((1.0, 1.0, 1.0), (0.12, 0.14, 0.16)), ((0.08, 0.09, 0.11), (0.9, 0.91, 0.92))]
)
def test_text_in_cells_can_be_read_on_every_shade(paper: tuple[float, ...], ink: tuple[float, ...]) -> None:
    from interp.plot.grids import _WHITE_FROM

    full = (23 / 255, 101 / 255, 173 / 255)
    for share in np.linspace(0, 1, 101):
        cell = tuple(share * f + (1 - share) * p for f, p in zip(full, paper))
        text = (1.0, 1.0, 1.0) if share > _WHITE_FROM else ink
        assert contrast(cell, text) >= 3.9, share


def test_curves_have_as_many_colours_as_lines_that_can_be_told_apart() -> None:
    assert len(set(style.CATEGORIES)) == 6
    frame = pd.concat([sweep_frame().assign(kind=f"line {i}") for i in range(8)])
    curves.layer_curve(frame, "auroc", colour="kind").to_dict()
