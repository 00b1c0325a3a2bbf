"""Start a behaviour report in the background."""

import streamlit as st

from ui import controls
from ui.panels.job_status import start_button
from ui.services import jobs

WHAT = {
    "questions": "Questions: do signs of doubt tell wrong answers from right ones?",
    "text": "Text: are the probabilities of the next token right?",
    "sycophancy": "Opinions: does a stated opinion move the answer?",
    "ground": "Evidence: does the model stay with what it was given?",
}
SHORT = {"questions": "Questions", "text": "Text", "sycophancy": "Opinions", "ground": "Evidence"}


def show() -> None:
    """What, how many, and the name of the result."""
    what = controls.choice("What is asked", SHORT, "behavior_what")
    st.caption(WHAT[what])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        n = st.slider("Questions or documents", 4, 200, 12, key="behavior_n", bind="query-params", width=240)
        name = st.text_input(
            "Name of the result", f"behave-{what}", key=f"behavior_name_{what}", max_chars=60, width=240
        )
    argv = jobs.behave_argv(what, int(n), name)
    start_button(
        "Start the report",
        kind="behaviour",
        argv=argv,
        title=f"{SHORT[what]}: {name}",
        key="behavior_start",
    )
