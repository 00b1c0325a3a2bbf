"""Probes: where in the model a label can be read off, what that must beat, and the saved probe on one's own words."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from interp import plot, sites
from ui import figure, frame, services, state, states, text

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
EXAMPLES = "The city of Paris is in France.\nThe city of Paris is in Japan."


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
        st.subheader("In words", anchor=False)
        text.say(str(facts[dataset]["summary"]))


def statements() -> None:
    """The saved probe on statements that the user types."""
    with st.container(border=True):
        st.subheader("Try the probe", anchor=False)
        with st.form("statements_form", border=False):
            st.text_area(
                "Statements, one a line",
                value=EXAMPLES,
                key="statements",
                height=110,
                max_chars=state.MAX_CHARS,
                help=f"At most {services.MAX_STATEMENTS} lines. The probe reads the last token of each.",
            )
            if st.form_submit_button("Score", icon=":material/straighten:"):
                st.session_state["_scored"] = True
        if not st.session_state.get("_scored"):
            st.caption("The probe lies in the run; the model is loaded when you ask.")
            return
        lines = [line.strip() for line in str(st.session_state["statements"] or "").splitlines() if line.strip()]
        if not lines:
            states.empty("No statements", "Write one or more, each on its own line.")
            return
        with states.guard("The statements cannot be scored"):
            with states.busy("Scoring"):
                table, probe = services.score_statements(lines)
            st.dataframe(
                text.readable(table),
                hide_index=True,
                column_config={
                    "statement": st.column_config.TextColumn("Statement", width="large"),
                    "probability": st.column_config.ProgressColumn(
                        "P(true) by the probe", min_value=0, max_value=1, format="%.3f"
                    ),
                    "says": st.column_config.TextColumn("Says", width="small"),
                },
            )
            kind, site = str(probe["kind"]).replace("_", "-"), sites.short_name(str(probe["site"]))
            st.caption(
                f"{text.plain(kind)} probe at {text.plain(site)}, threshold {probe['threshold']:.2f}. On other kinds of "
                "statement than those it was fitted on, its probability means little."
            )


def render() -> None:
    frame.head("Probes", WHAT)
    frame.prompt_strip()
    with states.guard("The probe results cannot be shown"):
        results()
    statements()


render()
