"""Probes: where in the model a label can be read off, what that must beat, and the saved probe on one's own words."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from interp import plot, sites
from interp.report import printable
from ui import controls, figure, frame, library, services, states, text
from ui.panels import probes_jobs, probes_text
from ui.services import probes as found_probes

WHAT = """
A **probe** is a linear reader of the residual stream: here of whether a statement is true. **AUROC** is the chance that
a true statement gets a higher score than a false one: 0.5 is guessing, 1 is perfect.

Figures are on **groups that nothing was fitted or chosen on**: a city of the training part never stands in the test
part. The layer is chosen on the training parts too, so the figure to quote is the *selected* one, not the peak of the
curve.

The dashed lines are what needs no model at all (the wording alone, the length), or no truth (random directions,
permuted labels). A probe that does not beat them shows nothing about the model.
"""
BASELINES = ("bag_of_words", "text_length", "majority")
PARTS = {
    "sweep": "By layer", "transfer": "Transfer", "tokens": "Token scan", "scores": "Scores and threshold",
    "errors": "Mistakes", "try": "Try the probe",
}  # fmt: skip
JOBS = {"transfer": probes_jobs.transfer, "scores": probes_jobs.scores, "errors": probes_jobs.errors}


def selected(facts: Mapping[str, Any]) -> None:
    """The figure to quote, for each kind of probe, with its interval, n and site; and the wording alone."""
    found, words = facts["selected"], facts["baselines"]["bag_of_words"]
    *columns, last = st.columns(len(found) + 1)
    for column, (kind, figures) in zip(columns, found.items()):
        with column.container(border=True, height="stretch"):
            st.metric(f"AUROC, {text.plain(kind.replace('_', '-'))} probe", f"{figures['auroc']:.3f}")
            st.caption(f"at {text.plain(sites.short_name(figures['site']))}  \n{interval(figures)}")
    with last.container(border=True, height="stretch"):
        st.metric("AUROC, wording alone", f"{words['auroc']:.3f}")
        st.caption(f"bag of words, no model  \n{interval(words)}")


def interval(figures: Mapping[str, Any]) -> str:
    """Interval and n, each on a line of its own."""
    return (
        f"95 % {figures['low']:.3f} to {figures['high']:.3f}  \nn = {figures['n']:,} in {figures['n_groups']:,} groups"
    )


def sweep(table: pd.DataFrame, facts: Mapping[str, Any], dataset: str) -> None:
    """AUROC over layers, with what it must beat."""
    baselines = {name: facts["baselines"][name]["auroc"] for name in BASELINES}
    baselines |= {"permuted_labels": max(found["permuted"] for found in facts["selected"].values())}
    shown = pd.concat([table, random_directions(table)]).assign(kind=lambda f: f["kind"].str.replace("_", "-"))
    marked = {kind.replace("_", "-"): sites.layer_of(found["site"]) for kind, found in facts["selected"].items()}
    floor = min([0.5, *baselines.values(), *shown["low"].dropna(), *shown["auroc"]])
    what = (
        "Bands are 95 % intervals, whole groups resampled. The large dot is the layer that most training parts chose. "
        "Dashed lines and the random directions are what a probe has to beat."
    )
    with figure.card("probe_sweep", "AUROC by layer", what) as card:
        card.chart(
            plot.layer_curve(
                shown,
                "auroc",
                low="low",
                high="high",
                colour="kind",
                baselines=baselines,
                selected={kind: layer for kind, layer in marked.items() if layer is not None},
                domain=(max(0.0, math.floor(floor * 10) / 10), 1.0),
                title="AUROC",
            ),
            shown,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
store = interp.record(model, interp.load_dataset({dataset!r}), "resid_post:*", tokens="last")
report = interp.probe_sweep(store, "resid_post:*", ["logistic", "mass_mean"])
print(report.summary())
report.plot()
""",
            caption=f"{text.plain(dataset)}, n = {table['n'].iloc[0]:,} statements in {table['n_groups'].iloc[0]:,} groups",
        )


def random_directions(table: pd.DataFrame) -> pd.DataFrame:
    """The mean AUROC of random directions at each layer, as a line of its own."""
    if "random_direction" not in table:
        return table.iloc[:0]
    first = table.loc[table["kind"] == table["kind"].iloc[0]]
    return first.loc[:, ["layer", "site", "n", "n_groups"]].assign(
        kind="random direction", auroc=first["random_direction"], low=math.nan, high=math.nan
    )


def results() -> None:
    """The run's sweep."""
    table = services.run_frame("probes").dropna(subset=["layer"]).astype({"layer": int})
    facts = services.run_json("probes").get("datasets", {})
    names = [name for name in dict.fromkeys(table["dataset"].astype(str)) if name in facts]
    if not names:
        raise ValueError("probes.json and probes.parquet have no data set in common: make the run again")
    dataset = names[0]
    if len(names) > 1:
        dataset = str(st.selectbox("Data set", names, key="dataset", bind="query-params", width=320))
    selected(facts[dataset])
    sweep(table.loc[table["dataset"] == dataset], facts[dataset], dataset)
    with st.container(border=True):
        st.header("In words", anchor=False)
        text.say(str(facts[dataset]["summary"]))


def sweeps() -> None:
    """The run's sweep, or that of a job of the workspace."""
    offered = {each.key: each for each in library.entries(*found_probes.SWEEPS)}
    keys = ["run", *offered]
    taken = "run"
    if offered:
        taken = st.selectbox(
            "Result",
            keys,
            format_func=lambda key: "The run" if key == "run" else printable(offered[key].title),
            key="probes_result",
            bind="query-params",
            width=320,
        )
    with states.guard("The probe results cannot be shown"):
        if taken in offered:
            probes_jobs.layers(offered[str(taken)])
        else:
            results()


def render() -> None:
    frame.head("Probes", WHAT)
    strip = frame.prompt_strip()
    part = controls.choice("Part", PARTS, "probes_part", visibility="collapsed")
    with states.guard("This part cannot be shown"):
        if part == "sweep":
            sweeps()
            probes_text.statements()
        elif part == "tokens" and strip is not None:
            probes_text.scan(strip[1])
        elif part == "try":
            probes_text.statements()
        elif part in JOBS:
            JOBS[part]()


render()
