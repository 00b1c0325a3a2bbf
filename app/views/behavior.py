"""Behaviour: reports on whether the model knows when it is wrong, and how one answer formed."""

import streamlit as st

from ui import controls, frame, library, states, text
from ui.panels import behavior_report, behavior_start, behavior_trace
from ui.services import behavior

WHAT = """
**Reports** say how a model behaves over many questions or documents: how often it is right and what shows that it is wrong,
whether its next-token probabilities can be believed, whether it follows the user's opinion, what evidence changes, and when
to withhold an answer. **Trace** reads how one answer to the prompt formed, layer by layer. **New report** starts one as a
background job.

Every figure stands with its n and its interval: with few questions most of them say little.
"""
PARTS = {"reports": "Reports", "trace": "Trace this prompt", "new": "New report"}


def reports() -> None:
    """Choose a report of the workspace, and show it."""
    entry = library.pick(behavior.kinds(), "Report", "behavior_report")
    if entry is None:
        states.empty(
            "There is no behaviour report in this workspace",
            "Start one under New report, or in a shell; gates and traces that were saved with --out are shown here too.",
            "interp behave questions smollm2-135m --questions questions --n 40 --out runs/answers",
        )
        return
    with states.guard("This report cannot be shown"):
        found = behavior.report(entry.key)
        model = str(found.card.get("model", "a model that it does not name"))
        st.caption(f"{text.plain(entry.kind.capitalize())} of {text.plain(model)}")
        if behavior.whose(entry.model) == "another model":
            st.warning("This report is of another model than the one that is loaded.", icon=":material/warning:")
        behavior_report.draw(found, behavior_report.saved_code(behavior.path_of(entry.key)), "saved")


def render() -> None:
    frame.head("Behaviour", WHAT)
    found = frame.prompt_strip()
    part = controls.choice("Show", PARTS, "behavior_part", visibility="collapsed")
    if part == "reports":
        reports()
    elif part == "new":
        with states.guard("This cannot be started"):
            behavior_start.show()
    elif found is None:
        st.caption("The prompt above cannot be read; reports do not need it.")
    else:
        with states.guard("The trace cannot be shown"):
            behavior_trace.show()


render()
