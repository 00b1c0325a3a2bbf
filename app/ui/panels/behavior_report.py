"""A behaviour report of any kind: what it found, its charts, its tables; and what each kind shows first."""

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.uncertainty import format_accuracies
from ui import controls, figure, states, text
from ui.services import behavior

ROWS = 500
"""Rows of a table that are shown; the CSV has all of them."""
ABOUT = {
    "signals": "How well each sign of doubt tells wrong answers from right ones: 0.5 is chance, 1 perfect.",
    "risk": "The share of wrong answers among those that are given, when the most doubtful ones are withheld.",
    "reliability": "What is said with probability p against how often it comes true; on the diagonal they agree.",
    "layers": "By layer of the model: -1 is the embedding, the last one the model's own output.",
    "positions": "Calibration error by the place of the token in its document, beside a calibrated source of that n.",
    "predicted": "A small reliability diagram for each kind of predicted token.",
    "events": "A small reliability diagram for each event that may come next.",
    "shifts": "How far the option that is stated moves, in nats, beside a mere mention of it.",
    "accuracies": "How often the answer is right with the wrong or the right option stated.",
    "steering": "The same under a steering vector.",
    "errors": "Errors without evidence, with what a search finds, and with passages that say something else.",
    "abstention": "Errors when answers are withheld whose evidence is weak.",
    "curve": "Errors among the answers that the gate gives, by how many it gives.",
    "risks": "What a gate promises against what it keeps on rows that it never saw.",
    "tokens": "Numbers along the tokens: each is of the place before the token, where it was chosen.",
    "rivals": "The probability of the answer's first token by layer, beside other answers'.",
}
KNOWS = "of the wrong outputs, the inside knows better"
BLIND = "of the wrong outputs, a blind pick of another option"


Code = Callable[[str], str]
"""The last line of a snippet, which reads `report` -> the whole snippet."""


def saved_code(key: str) -> Code:
    """Python for a report of the workspace, which a reader runs in the workspace's folder."""

    def code(last: str) -> str:
        return f"""
import interp

report = interp.load_behavior_report({key!r})  # below the workspace
{last}
"""

    return code


def draw(found: Any, code: Code, name: str) -> None:
    """A report: what it says, what its kind shows first, its charts, its tables.

    Args:
        found: the report.
        code: makes Python of a last line.
        name: of it, for the names of cards.
    """
    _summary(found)
    if found.KIND == "question report":
        _questions(found, code)
    elif found.KIND == "gate report":
        _gate(found)
    first = ("signals", "risk") if found.KIND == "question report" and behavior.tasks(found) else ()
    for chart, picture in behavior.charts(found).items():
        if chart not in first:
            _chart(found, chart, picture, code, name)
    for table, frame in found.tables.items():
        _table(table, frame, code, name)


def _summary(found: Any) -> None:
    with st.container(border=True):
        st.subheader("What was found", anchor=False)
        for part in found.summary().split("\n\n"):
            text.say(part)
    if found.notes:
        with st.expander(
            f"{len(found.notes)} reason{'s' * (len(found.notes) > 1)} to be careful", icon=":material/warning:"
        ):
            for note in found.notes:
                text.say(note)


def _chart(found: Any, name: str, picture: plot.Chart | str, code: Code, kind: str) -> None:
    with figure.card(f"behavior_{kind}_{name}", name.replace("_", " ").capitalize(), ABOUT.get(name, "")) as card:
        if isinstance(picture, str):
            states.empty("Nothing to draw", picture)
            return
        # Rows of fixed height and panels beside one another keep their size; a curve fills the card.
        wide = found.KIND == "gate report" or name == "risk"
        card.chart(
            picture,
            _data(found, name),
            code=code(f"chart = report.plot({name!r})"),
            width="stretch" if wide else "content",
        )


def _data(found: Any, name: str) -> pd.DataFrame:
    """The table behind a chart: that of its name, else the one that it is drawn from."""
    behind = {
        "risk": "curves", "shifts": "wordings", "accuracies": "wordings", "reliability": "bins", "predicted": "bins",
        "events": "bins", "abstention": "abstention", "errors": "conditions",
    }  # fmt: skip
    wanted = name if name in found.tables else behind.get(name, "")
    if wanted in found.tables:
        return found.tables[wanted]
    if name == "reliability" and "calibration" in found.values:
        return pd.DataFrame(found.values["calibration"]["bins"])
    return found.to_frame()


def _table(name: str, whole: pd.DataFrame, code: Code, kind: str) -> None:
    about = f"All of it is in the CSV; at most {ROWS:,} rows are drawn."
    with figure.card(f"behavior_{kind}_table_{name}", f"Table: {name.replace('_', ' ')}", about) as card:
        if whole.empty:
            st.caption("This report has no rows here.")
            return
        shown = whole.head(ROWS)
        numbers = {
            str(each): st.column_config.NumberColumn(format="%.3f")
            for each in shown
            if pd.api.types.is_float_dtype(shown[each])
        }

        def table() -> None:
            st.dataframe(text.readable(text.map_texts(shown, _short)), hide_index=True, column_config=numbers)

        card.widget(
            table,
            whole,
            code=code(f"table = report.tables[{name!r}]"),
            caption=f"{len(whole):,} rows" if len(shown) == len(whole) else f"{len(shown):,} of {len(whole):,} rows",
        )


def _short(value: str) -> str:
    return value if len(value) <= 300 else value[:300] + "…"


# ----------------------------------------------------------------------------------------------------------- questions


def _questions(found: Any, code: Code) -> None:
    """Accuracy beside chance, the signs of doubt by task, and whether the inside knows better."""
    what = (
        "Each way to ask, with the 95 % interval of its accuracy; the red line is a blind guess. A way whose interval covers "
        "chance is grey: what its answers show says nothing."
    )
    with figure.card("behavior_formats", "How often it is right", what) as card:
        card.chart(
            format_accuracies(found.tables["formats"]),
            found.tables["formats"],
            code=code(
                "from interp.plot.uncertainty import format_accuracies\n\nchart = format_accuracies(report.tables['formats'])"
            ),
            caption=f"n = {int(found.tables['formats']['n'].iloc[0]):,} questions",
        )
    tasks = behavior.tasks(found)
    if tasks:
        task = controls.choice("Answers", {name: f"{name} answers" for name in tasks}, "behavior_task")
        ranking, risks = behavior.task_charts(found, task)
        _task_card(found, "signals", "What shows that an answer is wrong", ranking, task, code)
        _task_card(found, "risk", "Answering only when sure", risks, task, code)
        _errors(found, task, code)
    _inside(found)


def _task_card(found: Any, name: str, title: str, chart: alt.LayerChart | plot.Chart, task: str, code: Code) -> None:
    table = found.tables["signals" if name == "signals" else "curves"]
    function = "ranking" if name == "signals" else "risks"
    # The ranking has its numbers in a column beside the scale, which stretching would run over.
    width = "content" if name == "signals" else "stretch"
    more = f"from interp.behavior.questions import page\n\nchart = page.{function}(report, {task!r})"
    with figure.card(f"behavior_{name}", title, ABOUT[name]) as card:
        card.chart(
            chart, table.loc[table["task"] == task], code=code(more), caption=f"Task: {text.plain(task)}", width=width
        )


def _inside(found: Any) -> None:
    frame = found.tables["inside"]
    if frame.empty:
        return
    rows = {str(row["figure"]): row for row in frame.to_dict("records")}
    with st.container(border=True):
        st.subheader("Does the inside know better?", anchor=False)
        shown = [name for name in rows if name != BLIND][:4]
        for column, name in zip(st.columns(max(1, len(shown))), shown):
            row = rows[name]
            column.metric(name, f"{row['value']:.2f}")
            column.caption(_interval(row))
        if KNOWS in rows and BLIND in rows:
            text.say(
                f"Of n = {rows[KNOWS]['n']:.0f} wrong outputs the probe names the right option in {rows[KNOWS]['value']:.2f} "
                f"({_interval(rows[KNOWS])}); a blind pick of another option would in {rows[BLIND]['value']:.2f}."
            )
        st.caption("The probe was fitted with labels of other groups, which the output never had.")


def _interval(row: dict[Any, Any]) -> str:
    ends = "" if pd.isna(row["low"]) else f"95 %: {row['low']:.2f} to {row['high']:.2f}, "
    return f"{ends}n = {row['n']:.0f}"


def _errors(found: Any, task: str, code: Code) -> None:
    table = behavior.surest_errors(found, task)
    what = "Wrong answers, those first that the model was surest of."
    with figure.card("behavior_errors", "Wrong and sure of it", what) as card:
        if table.empty:
            states.empty("No answer is wrong", "There is nothing to list.")
            return
        card.table(
            text.map_texts(table, _short),
            code=code("table = report.tables['answers']"),
            caption=f"The first {len(table)}, task {text.plain(task)}",
            columns={"prompt": st.column_config.TextColumn(width="large")},
        )


# ---------------------------------------------------------------------------------------------------------------- gate


def _gate(found: Any) -> None:
    check = {str(row["figure"]): row for row in found.tables["check"].to_dict("records")}
    shown = list(check)[:4]
    for column, name in zip(st.columns(max(1, len(shown))), shown):
        with column.container(border=True, height="stretch"):
            st.metric(name, "–" if pd.isna(check[name]["value"]) else f"{check[name]['value']:.3f}")
            st.caption(_interval(check[name]))
