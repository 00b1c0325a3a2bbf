"""Calibration of the run: next tokens on documents, questions, and what a temperature does to them."""

from typing import Any

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.uncertainty import smooth_reliability, temperature_curve
from ui import controls, figure, frame, services, states, text
from ui.services import uncertainty

STATES = {"before": "as it is", "after": "after temperature scaling"}
TITLES = {"before": "ECE as it is", "after": "ECE after temperature scaling"}
BINS = {"width": "Equal width", "mass": "Equal mass"}
NAMES = {
    "ece": "ECE",
    "ece_mass": "ECE, equal mass",
    "smooth_ece": "smooth ECE",
    "brier": "Brier score",
    "auroc": "AUROC",
}
NUMBERS = {
    name: st.column_config.NumberColumn(title, format="%.3f")
    for name, title in {
        "value": "value", "low": "95 % from", "high": "to", "null_low": "null band from", "null_high": "to ",
    }.items()
}  # fmt: skip
BEFORE_AFTER = """
import json
import pandas as pd
from interp import plot

found = json.load(open("runs/demo/calibration.json"))
states = {"before": "as it is", "after": "after temperature scaling"}
bins = pd.concat([pd.DataFrame(found[key]["bins"]).assign(state=name) for key, name in states.items()])
chart = plot.reliability(bins, state="state")
print(pd.Series(found["before"]["intervals"]), pd.Series(found["before"]["null_bands"]))
"""


def show() -> None:
    """What calibration.json of the run says, and the temperatures that can be read live."""
    if services.run() is None:
        states.empty("No run is open", "The calibration of a run comes from the demo.", "interp demo")
        _temperatures(None)
        return
    found = uncertainty.of_the_run()
    _metrics(found)
    _next_token(found)
    _temperatures(float(found["temperature"]))
    if found.get("questions"):
        _questions(found)


def _metrics(found: dict[str, Any]) -> None:
    """ECE with its null band, before and after, and the temperature."""
    *columns, last = st.columns(3)
    for column, (name, title) in zip(columns, TITLES.items()):
        report = found[name]
        low, high = report["null_bands"]["ece"]
        interval = report.get("intervals", {}).get("ece")
        with column.container(border=True, height="stretch"):
            st.metric(title, f"{report['ece']:.3f}")
            st.caption(
                (f"95 %: {interval[0]:.3f} to {interval[1]:.3f} · " if interval else "")
                + f"n = {report['n']:,} · a calibrated source shows {low:.3f} to {high:.3f}"
            )
    with last.container(border=True, height="stretch"):
        temperature = float(found["temperature"])
        fit = found.get("temperature_fit") or {}
        st.metric("Temperature", f"{temperature:.2f}")
        ends = fit.get("interval")
        st.caption(
            (f"95 %: {ends[0]:.2f} to {ends[1]:.2f}, n = {fit['n']:,} · " if ends and fit.get("n") else "")
            + ("Above 1: the model is too sure of itself." if temperature > 1 else "Below 1: it is not sure enough.")
        )


def _next_token(found: dict[str, Any]) -> None:
    bins = pd.concat(
        [pd.DataFrame(found[key]["bins"]).assign(state=name) for key, name in STATES.items()], ignore_index=True
    )
    what = (
        "On the dashed diagonal, stated and observed agree; below it the model is too sure. The bars underneath say how many "
        "predictions a point stands for: a point with few of them means little. Bins are of equal width: the run kept no rows "
        "to make others of."
    )
    with figure.card("reliability", "Next-token predictions", what) as card:
        band = found["before"]["null_bands"].get("ece")
        card.chart(
            plot.reliability(bins, state="state", null_band=None if band is None else (band[0], band[1])),
            bins,
            code=BEFORE_AFTER,
            caption="Probability of the most probable next token against how often it is right; vertical lines are 95 % "
            "intervals of each bin.",
            width="content",
        )
    _figure_table(found)


def _figure_table(found: dict[str, Any]) -> None:
    table = pd.concat(
        [uncertainty.figures(found[key]).assign(state=name) for key, name in STATES.items()], ignore_index=True
    )
    what = (
        "Each error beside its sampling noise. The **null band** is where the error of a perfectly calibrated source with these "
        "probabilities and this n lies in 95 % of samples: inside it there is no sign of miscalibration. The **smooth ECE** has "
        "no bins."
    )
    with figure.card("uncertainty_figures", "Figures", what) as card:
        card.table(
            table.assign(figure=[NAMES.get(name, name) for name in table["figure"]]).loc[
                :, ["figure", "state", "value", "low", "high", "null_low", "null_high"]
            ],
            code=BEFORE_AFTER,
            caption=f"n = {found['before']['n']:,} tokens of {found['before'].get('n_groups', found['before']['n']):,} documents",
            columns=NUMBERS,
        )


def _temperatures(fitted: float | None) -> None:
    """The slider: documents are read once, at every temperature of a list."""
    what = (
        f"The last {uncertainty.DOCUMENTS} documents of the bundled corpus are read once, {uncertainty.DOCUMENT_TOKENS} tokens "
        "of each, and every prediction is kept at 13 temperatures; so the slider needs no model. The run drew its "
        "documents from the whole corpus, so their best temperature is a little different. The answer is the same at every T."
    )
    with (
        figure.card("uncertainty_scaled", "Temperature", what) as card,
        states.guard("The temperatures cannot be read"),
    ):
        if st.button("Read some documents", key="uncertainty_read", icon=":material/thermostat:"):
            with states.busy("Reading documents at 13 temperatures"):
                uncertainty.read_temperatures()
        rows = uncertainty.scaled()
        if rows is None:
            states.empty(
                "No documents read yet", "It takes some seconds on a small model; then a slider moves T at once."
            )
            return
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            chosen = float(
                st.select_slider(
                    "Temperature",
                    list(uncertainty.TEMPERATURES),
                    1.0,
                    format_func="{:.2f}".format,
                    key="uncertainty_scale",
                    width=320,
                )
            )
            y = controls.choice(
                "Figure", {"ece": "ECE", "smooth_ece": "Smooth ECE", "nll": "NLL"}, "uncertainty_scale_y"
            )
        table = rows.to_frame()
        bins, report = uncertainty.at_temperature(services.engine().fingerprint, chosen)
        card.chart(
            temperature_curve(table, y, fitted=fitted, chosen=chosen),
            table,
            code=uncertainty.temperatures_code(chosen),
            caption=f"n = {report['n']:,} tokens of {report['n_groups']} documents, "
            f"{text.plain(services.model_name())}, computed live",
        )
        low, high = report["null_bands"]["ece"]
        st.caption(f"At T = {chosen:.2f}: ECE {report['ece']:.3f}; a calibrated source shows {low:.3f} to {high:.3f}.")
        st.altair_chart(plot.reliability(bins, state="state"), width="content", key="uncertainty_scaled_bins")


def _questions(found: dict[str, Any]) -> None:
    """Multiple choice, by each way to ask."""
    what = (
        "How the options are put decides what is measured. A format whose accuracy is not above chance says nothing about "
        "the model's calibration, and is marked so."
    )
    columns = ["format", "n", "accuracy", "low", "high", "chance", "informative", "confidence", "ece"]
    table = pd.DataFrame(found["questions"])
    with figure.card("questions", "Multiple-choice questions", what) as card:
        card.table(
            table.loc[:, [column for column in columns if column in table]],
            code=f"""
import interp

model = interp.load({services.model_name()!r})
questions = interp.load_questions("questions")
print(interp.answer_report(interp.score_options(model, questions, format="text")).verdict)
""",
            columns={
                name: st.column_config.NumberColumn(name, format="%.3f")
                for name in ("accuracy", "low", "high", "chance", "confidence", "ece")
            },
        )
    rows = uncertainty.question_rows(found)
    if rows:
        _question_curve(found, rows)


def _question_curve(found: dict[str, Any], rows: dict[str, pd.DataFrame]) -> None:
    what = (
        "The red curve is the share of right answers beside the confidence, smoothed; it is **thick where many questions lie**. "
        "The grey band is its 95 % interval over groups of questions. Blue points are bins: of equal width, or of equal numbers "
        "of questions."
    )
    with (
        figure.card("uncertainty_smooth", "Questions, smoothed", what) as card,
        states.guard("The curve cannot be drawn"),
    ):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            style = controls.choice("Asked by", {name: name.capitalize() for name in rows}, "uncertainty_format")
            by = controls.choice("Bins", BINS, "uncertainty_bins")
            n_bins = int(
                st.slider("How many bins", 5, 20, 10, key="uncertainty_n_bins", bind="query-params", width=160)
            )
        chosen = rows[style]
        curve, bins = uncertainty.reliability(chosen, by, n_bins)
        report = next(each for each in found["questions"] if each["format"] == style)
        low, high = report.get("null_low"), report.get("null_high")
        band = "" if low is None or high is None else f"; a calibrated source shows {low:.3f} to {high:.3f}"
        card.chart(
            smooth_reliability(curve, bins, title=f"ECE {report['ece']:.3f}, n = {len(chosen):,}{band}"),
            curve,
            code=f"""
import json
import pandas as pd
from interp.calibration.curve import reliability_bins, reliability_curve
from interp.plot.uncertainty import smooth_reliability

found = json.load(open("runs/demo/calibration.json"))
rows = next(pd.DataFrame(each["choices"]) for each in found["questions"] if each["format"] == {style!r})
p, y = rows["confidence"], rows["right"].astype(int)
bins = reliability_bins(p, y, {n_bins}, {by!r})
chart = smooth_reliability(reliability_curve(p, y, groups=rows["group"]), bins)
""",
            caption=f"n = {len(chosen):,} questions, {len(bins)} bins with rows, from the run · {frame.stamp()}",
            width="content",
        )
        if not report.get("informative", True):
            st.caption(":material/warning: This way to ask is not informative: its answers are no better than chance.")
