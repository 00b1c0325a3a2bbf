"""The page of probes: what it says is what the library says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hostile import HOSTILE
from page_words import words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp.model import HookedTransformer
from interp.plot.probe_scan import probe_scan, roc_curve
from interp.probe_job.result import ProbeJobReport
from ui.services import probes

Open = Callable[..., AppTest]
PART = {
    "transfer": "Transfer", "tokens": "Token scan", "scores": "Scores and threshold", "errors": "Mistakes",
    "try": "Try the probe",
}  # fmt: skip
"""Parts of the page as they stand in the URL."""
FIGURE = {"auroc": 0.8, "low": 0.7, "high": 0.9, "accuracy": 0.7, "brier": 0.2, "n": 24, "n_groups": 8}


def charts(page: AppTest) -> int:
    return len(page.get("vega_lite_chart"))


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


def probe(model: HookedTransformer, layer: int, fingerprint: str) -> interp.Probe:
    X = torch.randn(20, model.cfg.d_model, generator=torch.Generator().manual_seed(layer))
    made = interp.fit_probe(X, [0, 1] * 10, C=1.0, site=f"blocks.{layer}.hook_resid_post")
    made.card.setdefault("provenance", {})["fingerprint"] = fingerprint
    return made


def report(model: HookedTransformer) -> ProbeJobReport:
    """A job with hostile texts and names."""
    site, rng = "blocks.1.hook_resid_post", np.random.default_rng(0)
    figures = [
        {"site": f"blocks.{i}.hook_resid_post", "layer": i, "kind": "logistic", "seed": 0, **FIGURE} for i in (0, 1)
    ]
    p = rng.random(24)
    rows = {
        "kind": "logistic", "seed": 0, "row": range(24), "text": [HOSTILE[i % len(HOSTILE)] for i in range(24)],
        "label": [0, 1] * 12, "group": HOSTILE[1], "fold": 0, "site": site, "logit": np.log(p / (1 - p)), "probability": p,
        "threshold": 0.5, "says": (p > 0.5).astype(int),
    }  # fmt: skip
    names = HOSTILE[0], HOSTILE[2]
    cells = [
        {
            "by": "topic",
            "kind": "logistic",
            "train": a,
            "test": b,
            "auroc": 0.5 + 0.3 * (a == b),
            "low": 0.4,
            "high": 0.9,
        }
        for a in names
        for b in names
    ]
    return ProbeJobReport(
        job={"question": HOSTILE[0], "seeds": [0], "kinds": ["logistic"], "name": "job"}, verdict=(HOSTILE[4],),
        figures=pd.DataFrame(figures), selected=pd.DataFrame([{"seed": 0, "kind": "logistic", "site": site, **FIGURE}]),
        baselines=pd.DataFrame([{"seed": 0, "name": "bag_of_words", **FIGURE, "auroc": 0.6}]), parts=pd.DataFrame(),
        predictions=pd.DataFrame(rows), probes={}, card={}, transfer=pd.DataFrame(cells),
    )  # fmt: skip


@pytest.fixture(scope="module")
def space(model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from unittest import mock

    folder = tmp_path_factory.mktemp("probes")
    with mock.patch.object(ProbeJobReport, "write_html"):  # the page of a job has tests of its own
        report(model).save(folder / "job")
    (folder / "near").mkdir()
    for layer in (0, 2):
        probe(model, layer, model.fingerprint).save(folder / "near" / f"layer{layer}.safetensors")
    (folder / "other").mkdir()
    probe(model, 1, "0" * 32).save(folder / "other" / "probe.safetensors")
    return folder


def test_a_job_of_the_workspace_stands_beside_the_run(open_page: Open, space: Path) -> None:
    page = open_page("probes", workspace=space, query={"probes_result": "job"})
    assert not page.exception
    assert "cannot be" not in words(page).replace("This prompt cannot be analysed", "")
    assert [metric.value for metric in page.metric] == ["0.800"]
    assert charts(page) == 1


def test_the_matrix_is_the_jobs(open_page: Open, space: Path, model: HookedTransformer) -> None:
    page = open_page("probes", workspace=space, model=model, query={"probes_part": PART["transfer"]})
    assert not page.exception
    assert charts(page) == 1
    assert "cannot be" not in words(page)


def test_without_a_job_it_says_how_one_comes_about(open_page: Open, model: HookedTransformer, tmp_path: Path) -> None:
    for part, title in (
        ("transfer", "No transfer matrix yet"),
        ("scores", "No probe job yet"),
        ("errors", "No probe job"),
    ):
        page = open_page("probes", workspace=tmp_path, model=model, query={"probes_part": PART[part]})
        assert title in words(page)
        assert any("Train probes" in button.label for button in page.button)
    page = open_page("probes", workspace=tmp_path, model=model, query={"probes_part": PART["tokens"]})
    assert "No saved probe" in words(page)


def test_a_threshold_counts_as_by_hand(open_page: Open, space: Path, model: HookedTransformer) -> None:
    table = interp.load_probe_job_report(space / "job").predictions
    page = open_page("probes", workspace=space, model=model, query={"probes_part": PART["scores"]})
    assert charts(page) == 2
    page.toggle(key="probes_own").set_value(False).run()
    page.slider(key="probes_threshold").set_value(0.25).run()
    says = table["probability"] > 0.25
    assert page.metric[0].value == str(int((says & (table["label"] == 1)).sum()))
    assert page.metric[4].value == f"{(says == (table['label'] == 1)).mean():.3f}"


def test_the_curve_goes_through_every_threshold(space: Path) -> None:
    table = interp.load_probe_job_report(space / "job").predictions
    curve = probes.roc(table)
    assert list(curve.iloc[0]) == [1.0, 0.0, 0.0]
    assert list(curve.iloc[-1])[1:] == [1.0, 1.0]
    area = np.trapezoid(curve["true_positives"], curve["false_positives"])
    p, y = table["probability"].to_numpy(), table["label"].to_numpy()
    assert area == pytest.approx(np.mean(p[y == 1][:, None] > p[y == 0][None]))
    at = probes.confusion(table, float(curve["threshold"].iloc[5]) - 1e-12)
    assert at["true_positives"] == pytest.approx(curve["true_positives"].iloc[5])


def test_mistakes_are_wrong_and_the_worst_is_first(open_page: Open, space: Path, model: HookedTransformer) -> None:
    table = interp.load_probe_job_report(space / "job").predictions
    wrong = table.loc[table["says"] != table["label"]]
    found = probes.mistakes(table)
    assert len(found) == len(wrong)
    assert found["off_by"].iloc[0] == pytest.approx(wrong["logit"].abs().max())
    page = open_page("probes", workspace=space, model=model, query={"probes_part": PART["errors"]})
    assert not page.exception
    shown = page.dataframe[-1].value
    assert not set("".join(shown["text"])) & set("\u202e\u200b\x00")


def test_every_token_is_scored_as_the_library_does(open_page: Open, space: Path, model: HookedTransformer) -> None:
    query = {"probes_part": PART["tokens"], "probes_scan": "near/layer2"}
    page = open_page("probes", workspace=space, model=model, prompt="abc abd", query=query)
    assert not page.exception
    assert charts(page) == 1  # both probes of the folder
    shown = page.dataframe[-1].value
    wanted = interp.score_tokens(model, interp.load_probe(space / "near" / "layer2.safetensors"), "abc abd")
    expected = wanted["probability"].where(wanted["ordinary"])
    assert np.allclose(shown["probability"].astype(float), expected.astype(float), atol=1e-6, equal_nan=True)


def test_a_probe_of_another_model_is_refused(open_page: Open, space: Path, model: HookedTransformer) -> None:
    query = {"probes_part": PART["tokens"], "probes_scan": "other/probe (another model)"}
    assert "another model" in words(open_page("probes", workspace=space, model=model, prompt="abc", query=query))
    page = open_page(
        "probes", workspace=space, model=model, query={"probes_part": PART["try"], "probes_try": "other/probe"}
    )
    page = next(b for b in page.button if b.label == "Score").click().run()
    assert "another model" in words(page)


def test_a_damaged_job_is_said(open_page: Open, model: HookedTransformer, tmp_path: Path, space: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "report.json").write_bytes((space / "job" / "report.json").read_bytes())
    for part in ("transfer", "scores", "errors"):
        page = open_page("probes", workspace=tmp_path, model=model, query={"probes_part": PART[part]})
        assert not page.exception
        assert "is not the table that report.json tells of" in words(page)


def test_charts_mark_what_is_clipped_and_hold_hostile_tokens() -> None:
    frame = pd.DataFrame(
        [
            {"pos": i, "token": token, "probe": name, "layer": layer, "logit": 9.0 if i == 1 else -1.0}
            for i, token in enumerate(HOSTILE)
            for name, layer in (("a'b", 1), ("c", 3))
        ]
    )
    spec = probe_scan(frame, selected=1).to_dict()
    rows = next(iter(spec["datasets"].values()))
    assert [row["pos"] for row in rows if row["clipped"]] == [1, 1]
    assert "<" not in spec["layer"][0]["encoding"]["x"]["axis"]["labelExpr"]
    assert interp.plot.to_svg(probe_scan(frame)).startswith("<svg")
    with pytest.raises(ValueError, match="probe"):
        probe_scan(frame.drop(columns="probe"))
    with pytest.raises(ValueError, match="mark"):
        roc_curve(
            pd.DataFrame({"threshold": [1], "false_positives": [0], "true_positives": [0]}), at=(float("nan"), 0.0)
        )
