"""Look for a circuit of a bundled task, as a background job."""

import re

import streamlit as st

from ui import services, states
from ui.panels.job_status import start_button

TASKS = {
    "indirect_objects": "Indirect objects",
    "capitals": "Capitals",
    "greater_than": "Greater than",
    "repeats": "Repeated tokens",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def start() -> None:
    """Task, pairs and name; the button starts `interp circuit`."""
    with st.container(border=True):
        st.header("Find a circuit", anchor=False)
        st.caption("Minutes on two cores. Half of the pairs choose the edges, the others measure them.")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            tasks = [name for name in services.tasks() if name in TASKS]
            task = st.selectbox(
                "Task", tasks, format_func=lambda name: TASKS[name], key="circuit_task", bind="query-params", width=210
            )
            pairs = st.number_input("Pairs", 4, 64, 16, key="circuit_pairs", bind="query-params", width=120)
            name = st.text_input("Name", f"{task}_circuit", key=f"circuit_name_{task}", max_chars=60, width=260)
        if not NAME.fullmatch(name):
            states.empty("This is no file name", "Letters, digits, dot, dash and underscore, at most 60.")
            return
        argv = circuit_argv(services.model_name(), str(task), int(pairs), name)
        start_button("Find it", kind="circuit", argv=argv, title=f"Circuit of {TASKS[task]}", key="circuit_start")


def circuit_argv(model: str, task: str, pairs: int, name: str) -> list[str]:
    """Arguments of `interp`."""
    return ["circuit", model, "--task", task, "--n", str(pairs), "--random", "10", "--out", f"{name}.json"]
