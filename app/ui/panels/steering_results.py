"""Panels of steering results: dose and response, damage, map of layers and strengths, texts, cosines."""

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.steering import DAMAGE, steering_damage, steering_effect
from interp.report import printable
from interp.steering import SteeringReport
from ui import figure, library, services, states, text
from ui.panels.job_status import start_button
from ui.services import jobs, steering

RUN_CODE = """
import interp
from interp import artifact

report = interp.SteeringReport.from_dict(artifact.read_json({path!r}))
"""
PANELS = {"loss_rise": "Loss", "kl_mean": "KL", "kl_last": "KL, last position", "accuracy": "Accuracy",
          "distinct_2": "Distinct pairs", "repetition": "Repetition"}  # fmt: skip
BOUND = 0.06
"""Rise of the loss (nats a token) that is accepted at the start, as in `interp steer map`."""


def chosen() -> tuple[SteeringReport, str, str, str]:
    """The report to show (of the workspace, or the run's), what was added, its site, and Python that loads it."""
    entries = {each.key: each for each in library.entries("steering report", "steering job")}
    taken = "run"
    if entries:
        taken = str(
            st.selectbox(
                "Result", ["run", *entries], key="steering_result", bind="query-params", width=320,
                format_func=lambda key: "The run" if key == "run" else printable(entries[key].title),
            )
        )  # fmt: skip
    if taken in entries:
        load = "load_steer_job_report" if entries[taken].path.is_dir() else "load_steering_report"
        code = f"import interp\n\nreport = interp.{load}({str(entries[taken].path)!r})\n"
        return (*steering.report(taken), code)
    found = services.run_json("steering")
    held = services.run()
    path = str(held.path / "steering.json") if held else "steering.json"
    return SteeringReport.from_dict(found), str(found["concept"]), str(found["site"]), RUN_CODE.format(path=path)


def dose() -> None:
    """Effect over strength of one measure at a time, and what it breaks beside it."""
    report, concept, site, code = chosen()
    harmed = [name for name in DAMAGE if report.damage[name].notna().to_numpy().any()]
    places = st.columns(2) if report.measures and harmed else [st.container(), st.container()]
    if report.measures:
        with places[0]:
            _effect(report, concept, site, code)
    if harmed:
        with places[1]:
            _damage(report, harmed, code)
    if not report.measures and not harmed:
        states.empty("Nothing was measured", "This report holds texts only: see Side by side.")


def _effect(report: SteeringReport, concept: str, site: str, code: str) -> None:
    what = (
        "The line is the vector with its 95 % interval over held-out items; grey ticks are random directions, and the grey "
        "band reaches from the least to the most of them. A dashed line is an instruction without the vector."
    )
    with figure.card("steering", "Dose and response", what) as card:
        taken = report.measures[:1]
        if len(report.measures) > 1:
            taken = [st.selectbox("Measure", report.measures, format_func=printable, key="measure", width=320)]
        effects = report.effects.loc[report.effects["measure"].isin(taken)]
        card.chart(
            steering_effect(effects),
            effects,
            code=f"{code}report.plot()\n",
            caption=f"{text.plain(concept)} at {text.plain(site)}, n = {max(effects['n'].tolist()):,.0f} held-out items",
        )


def _damage(report: SteeringReport, harmed: list[str], code: str) -> None:
    what = "What each strength costs. Random directions of the same length cost something too, and stand beside it."
    with figure.card("steering_damage", "Damage", what) as card:
        taken = harmed[0]
        if len(harmed) > 1:
            taken = str(st.selectbox("Damage", harmed, format_func=PANELS.__getitem__, key="steering_harm", width=320))
        taken = taken if taken in harmed else harmed[0]
        others = [name for name in DAMAGE if name != taken and name in report.damage]
        card.chart(
            steering_damage(report.damage.drop(columns=others)),
            report.damage,
            code=f"{code}interp.plot.steering_damage(report.damage)\n",
            caption=f"{text.plain(DAMAGE[taken])}",
        )


def strengths() -> None:
    """Which layer, and how strongly."""
    entry = library.pick("steering map", "Map", "steering_map")
    if entry is None:
        states.empty("No map yet", "A map fits a vector at every layer and measures it at every strength.")
        with states.guard("A job cannot be started from here"):
            with st.container(horizontal=True, vertical_alignment="bottom"):
                pairs = str(st.selectbox("Pairs", ["sentiment", "formality"], key="steering_pairs", width=180))
                name = st.text_input("Name", f"{pairs}-map", key="steering_map_name", max_chars=60, width=220)
            argv = jobs.steer_map_argv(pairs, name)
            start_button(
                "Make the map", kind="steering", argv=argv, title=f"Steering map of {pairs}", key="steering_map_start"
            )
        return
    table, measured = steering.strength_map(entry.key)
    what = (
        "The effect on pairs that the vectors were not fitted on. A crossed cell costs more than the bound. The framed cell "
        "was chosen on these pairs, so its figure is too good: measure it again on others."
    )
    with figure.card("steering_map_card", "Layer and strength", what) as card:
        bound, best = None, None
        if measured:
            bound = float(
                st.slider(
                    "Most rise of the loss (nats a token)", 0.0, 0.5, BOUND, 0.01, key="steering_bound", width=320
                )
            )
            with states.guard("No cell is within the bound"):
                best = steering.best(entry.key, bound)
        selected = (int(best["layer"]), float(best["strength"])) if best else None
        load = f"import interp\n\nfound = interp.load_strength_map({str(entry.path)!r})\n"
        note = "" if measured else "; the damage was not measured: the largest effect may be a broken text"
        if best:
            note = f"; best within the bound: layer {selected[0]}, strength {selected[1]:+g}" if selected else ""
        card.chart(
            plot.strength_map(table, bound=bound, selected=selected), table, width="content",
            code=f"{load}found.plot({'' if bound is None else f'bound={bound:g}'})\n",
            caption=f"{text.plain(entry.title)}, n = {max(table['n'].tolist()):,} pairs{note}",
        )  # fmt: skip


def texts() -> None:
    """Each prompt's continuations: the strongest push down, none, the strongest push up, and the instruction's."""
    report, _, _, _ = chosen()
    if report.generations.empty:
        states.empty("No continuations", "No steered text was saved.")
    else:
        _side_by_side(report.generations)


def _side_by_side(texts: pd.DataFrame) -> None:
    steered, told = (texts.loc[texts["direction"] == name] for name in ("vector", "instruction"))
    strengths = sorted(steered["strength"].unique())
    shown = list(dict.fromkeys([strengths[0], 0.0, strengths[-1]])) if strengths else []
    for prompt, rows in steered.groupby("prompt", sort=False):
        columns = {
            "Default" if strength == 0 else f"Steered, strength {strength:+g}": rows.loc[rows["strength"] == strength]
            for strength in shown
        }
        instructed = told.loc[told["prompt"] == prompt]
        if len(instructed):
            columns["Instructed"] = instructed
        with st.container(border=True):
            text.say(str(prompt))
            for column, (name, part) in zip(st.columns(len(columns)), columns.items()):
                with column:
                    st.caption(name)
                    for written in part["text"]:
                        text.say(str(written))


def cosines() -> None:
    """How alike the workspace's vectors are."""
    table, left = steering.cosines()
    if left:
        text.say(f"Left out, as vectors of another model: {', '.join(left)}")
    if table.empty:
        states.empty(
            "Fewer than two vectors", "A cosine needs two vectors of one model: make them on the page Runs.",
            "interp steer make --help",
        )  # fmt: skip
        return
    what = (
        "1 is the same direction, 0 none in common. Activations do not spread evenly, so two directions that mean nothing "
        "can have a cosine of 0.5: `interp.cosine_table(vectors, reference=store)` gives that band."
    )
    with figure.card("steering_cosines", "Cosines", what) as card:
        paths = {name: str(each.path) for name, each in steering.vectors().items() if name not in left}
        card.table(
            table,
            code=f"import interp\n\npaths = {paths!r}\n"
            "interp.cosine_table({name: interp.load_steering_vector(path) for name, path in paths.items()})\n",
            caption="without the band of random directions",
            columns={"cosine": st.column_config.NumberColumn("Cosine", format="%+.3f")},
        )
