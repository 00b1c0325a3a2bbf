"""Charts of sparse autoencoders: the right numbers, and nothing that a token can break."""

import numpy as np
import pandas as pd
import pytest

from interp import plot
from interp.plot.sae import latent_activations, latent_densities, latent_logits, sae_frontier, training_curves

HOSTILE = "</script><script>alert(1)</script>"


def drawn(chart: plot.Chart) -> list[dict]:
    """All rows that the chart draws."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_densities_are_counted_once_and_dead_latents_are_said() -> None:
    density = np.array([0.0, 0.0, 1e-4, 1.1e-4, 0.01, 0.5, 1.0])
    chart = latent_densities(density)
    bars = [row for row in drawn(chart) if "latents" in row]
    assert sum(row["latents"] for row in bars) == 5
    for row in bars:
        inside = (density > 0) & (density >= 10 ** (row["low"] - 1e-9)) & (density < 10 ** (row["high"] - 1e-9))
        assert row["latents"] == inside.sum() + (row["high"] == 0.0 and 1)  # 1.0 is in the last bin
    assert chart.to_dict()["title"]["text"] == "7 latents: 2 dead, 2 on more than 10%"
    assert plot.to_svg(chart).startswith("<svg")


def frontier() -> pd.DataFrame:
    frame = pd.DataFrame({"name": ["a", "b", HOSTILE], "l0": [16.0, 32.0, 64.0], "fvu": [0.4, 0.3, 0.2]})
    return frame.assign(fvu_low=frame["fvu"] - 0.02, fvu_high=frame["fvu"] + 0.02)


def test_the_frontier_shows_points_intervals_and_pca() -> None:
    pca = pd.DataFrame({"rank": [8, 64], "fvu": [0.6, 0.33]})
    chart = sae_frontier(frontier(), pca)
    points = {(row["l0"], row["fvu"]) for row in drawn(chart)}
    assert points == {(16.0, 0.4), (32.0, 0.3), (64.0, 0.2), (8.0, 0.6), (64.0, 0.33)}
    marks = [layer["mark"]["type"] for layer in chart.to_dict()["layer"]]
    assert marks.count("rule") == 1
    assert marks.count("line") == 1
    svg = plot.to_svg(chart)
    assert "<script>alert" not in svg
    assert "PCA" in svg
    plain = sae_frontier(frontier().drop(columns=["fvu_low", "fvu_high"]).assign(kind=["topk", "topk", "gated"]))
    assert "rule" not in [layer["mark"]["type"] for layer in plain.to_dict()["layer"]]
    assert {row["kind"] for row in drawn(plain)} == {"topk", "gated"}


def test_bars_of_a_latent_are_its_histogram() -> None:
    edges = 2.0 ** np.arange(-3, 4)
    chart = latent_activations(edges, [0, 5, 2, 0, 1, 0])
    rows = drawn(chart)
    assert [(row["low"], row["high"], row["rows"]) for row in rows] == [
        (0.25, 0.5, 5),
        (0.5, 1.0, 2),
        (1.0, 2.0, 0),
        (2.0, 4.0, 1),
    ]
    assert "fires on 8 rows" in plot.to_svg(chart)
    linear = drawn(latent_activations([0.0, 1.0, np.inf], [3, 1], log=False))
    assert [(row["low"], row["high"]) for row in linear] == [(0.0, 1.0), (1.0, 2.0)]
    open_ends = drawn(latent_activations([0.0, 1.0, 4.0, np.inf], [3, 1, 1]))
    assert [(row["low"], row["high"]) for row in open_ends] == [(0.5, 1.0), (1.0, 4.0), (4.0, 8.0)]


def test_logits_stand_in_order_with_their_sign() -> None:
    frame = pd.DataFrame({"token": [" a", "b", " a", HOSTILE, "e"], "value": [0.5, -2.0, 1.5, -0.1, 0.0]})
    chart = latent_logits(frame, top=2)
    assert [(row["name"], row["said"]) for row in drawn(chart)] == [
        ("1: ·a", "+1.50"),
        ("2: ·a", "+0.50"),
        ("3: " + plot.token_label(HOSTILE, 18), "-0.10"),
        ("4: b", "-2.00"),
    ]
    assert "<script>alert" not in plot.to_svg(chart)
    assert plot.to_svg(latent_logits(frame[frame["value"] > 0]))


def test_training_curves_show_what_was_logged() -> None:
    log = [(step, run) for run in ("k 16", "k 32") for step in (10, 20, 30)]
    frame = pd.DataFrame(log, columns=["step", "sae"]).assign(loss=0.5, l0=[16.0] * 3 + [32.0] * 3, dead_share=np.nan)
    frame.loc[0, "dead_share"] = 0.1
    chart = training_curves(frame, ("loss", "l0", "dead_share", "fvu"), colour="sae", baselines={"l0": 32})
    assert len(chart.to_dict()["vconcat"]) == 3
    assert {(row["run"], row["step"], row["l0"]) for row in drawn(chart) if "step" in row and "l0" in row} == {
        (run, step, float(run[2:])) for step, run in log
    }
    assert sum("dead_share" in row for row in drawn(chart)) == 1
    assert plot.to_svg(chart).startswith("<svg")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: latent_densities([0.0, 0.0]), "all 2 latents are dead"),
        (lambda: latent_densities([1.5]), "numbers from 0 to 1"),
        (lambda: latent_densities([]), "at least one"),
        (lambda: sae_frontier(frontier().assign(l0=0.0)), "never fire"),
        (lambda: sae_frontier(frontier().drop(columns="fvu")), "no column fvu"),
        (lambda: sae_frontier(frontier(), pd.DataFrame({"rank": [1]})), "no column fvu"),
        (lambda: latent_activations([0, 1], [1, 2]), "2 counts need 3 ascending edges"),
        (lambda: latent_activations([0, 1, 1], [1, 2]), "ascending"),
        (lambda: latent_activations([0, 1, 2], [0, 0]), "fires nowhere"),
        (lambda: latent_logits(pd.DataFrame({"token": ["a"], "value": [1.0]}), top=0), "at least 1, got 0"),
        (lambda: latent_logits(pd.DataFrame({"token": [], "value": []})), "no rows"),
        (lambda: training_curves(pd.DataFrame({"step": [1], "x": [2]})), "no column fvu, l0, dead_share"),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
