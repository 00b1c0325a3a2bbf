"""The trace of one answer to the current prompt."""

import streamlit as st

from ui import state, states
from ui.panels import behavior_report
from ui.services import behavior
from ui.services.behavior import TraceAsked


def show() -> None:
    """Ask, trace behind a button, and what came of it."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        answer = st.text_input("Answer (the model's own if empty)", key="behavior_answer", max_chars=200, width=260)
        against = st.text_input("Against another answer", key="behavior_against", max_chars=200, width=220)
        subject = st.text_input(
            "Subject", key="behavior_subject", max_chars=200, width=180,
            help="Words of the prompt; the share of attention to them is told.",
        )  # fmt: skip
        most = st.slider("Most tokens", 1, behavior.MOST_ANSWER, 8, key="behavior_most", bind="query-params", width=180)
    asked = TraceAsked(state.prompt(), answer or None, against or None, subject or None, int(most))
    pressed = st.button("Trace the answer", key="behavior_run", icon=":material/timeline:")
    if pressed:
        with states.busy("Tracing the answer"):
            behavior.run_trace(asked)
    found = behavior.trace(asked)
    if found is None:
        states.empty(
            "Not traced yet",
            "Press the button: a few seconds on a small model. The prompt should end where the answer begins.",
        )
        return
    behavior_report.draw(found, lambda last: behavior.trace_code(asked).replace("print(report)", last), "trace")
