"""Calibration: whether stated probabilities come true, before and after temperature scaling."""

from typing import Any

import pandas as pd
import streamlit as st

from interp import plot
from ui import figure, frame, services, states

WHAT = """
Answers that are given with probability 0.8 should be right in 80 of 100 cases. The **expected calibration error** (ECE)
is the mean distance from that, over 15 equal-width bins. It is never 0, even for a perfectly calibrated source: the
**null band** says what such a source would show with this n.

**Temperature scaling** divides all logits by one number, fitted on other questions. It changes how sure the model is,
and never which answer it gives.
"""
TITLES = {"before": "ECE as it is", "after": "ECE after temperature scaling"}


def figures(found: dict[str, Any]) -> None:
    """ECE with its null band, before and after, and the temperature."""
    *columns, last = st.columns(3)
    for column, (name, title) in zip(columns, TITLES.items()):
        report = found[name]
        low, high = report["null_bands"]["ece"]
        with column.container(border=True, height="stretch"):
            st.metric(title, f"{report['ece']:.3f}")
            st.caption(f"n = {report['n']:,} · a calibrated source shows {low:.3f} to {high:.3f}")
    with last.container(border=True, height="stretch"):
        temperature = float(found["temperature"])
        st.metric("Temperature", f"{temperature:.2f}")
        st.caption(
            "Above 1: the model is too sure of itself." if temperature > 1 else "Below 1: it is not sure enough."
        )


def questions(rows: list[dict[str, Any]]) -> None:
    """Multiple choice, by each way to ask."""
    what = (
        "How the options are put decides what is measured. A format whose accuracy is not above chance says nothing about "
        "the model's calibration, and is marked so."
    )
    columns = ["format", "n", "accuracy", "low", "high", "chance", "informative", "confidence", "ece"]
    table = pd.DataFrame(rows)
    with figure.card("questions", "Multiple-choice questions", what) as card:
        card.table(
            table.loc[:, [column for column in columns if column in table]],
            code="""
import interp

questions = interp.load_questions("questions")
print(interp.answer_report(interp.score_options(model, questions, format="text")).verdict)
""",
            columns={
                name: st.column_config.NumberColumn(name, format="%.3f")
                for name in ("accuracy", "low", "high", "chance", "confidence", "ece")
            },
        )


def render() -> None:
    frame.head("Calibration", WHAT)
    frame.prompt_strip()
    with states.guard("The calibration results cannot be shown"):
        found = services.run_json("calibration")
        figures(found)
        bins = pd.concat([pd.DataFrame(found[name]["bins"]).assign(state=name) for name in TITLES])
        what = (
            "On the dashed diagonal, stated and observed agree; below it the model is too sure. The bars underneath say "
            "how many predictions a point stands for: a point with few of them means little."
        )
        with figure.card("reliability", "Next-token predictions", what) as card:
            card.chart(
                plot.reliability(bins, state="state"),
                bins,
                code="""
import interp

found = interp.next_token_calibration(model, documents)
print(found.before.verdict)
print(found.after.verdict)
""",
                caption="Probability of the most probable next token against how often it is right; vertical lines are "
                "95 % intervals of each bin.",
                width="content",
            )
        if found.get("questions"):
            questions(found["questions"])


render()
