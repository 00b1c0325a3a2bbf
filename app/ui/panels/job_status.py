"""A background job on a page: a button that starts one, and how far it is, asked every two seconds until it is over."""

import shlex
import time
from collections.abc import Sequence

import streamlit as st

from interp.report import printable
from ui import state, states, text
from ui.services import jobs

WORDS = {
    "queued": "Waiting for its turn", "running": "Running", "done": "Done", "failed": "Failed", "cancelled": "Cancelled",
    "lost": "Lost: its process is gone",
}  # fmt: skip
ICONS = {
    "queued": "hourglass_empty", "running": "play_circle", "done": "check_circle", "failed": "error", "cancelled": "cancel",
    "lost": "help",
}  # fmt: skip


def start_button(label: str, *, kind: str, argv: Sequence[str], title: str, key: str) -> None:
    """A button that starts `interp ARGV` in the background, and under it how far the job that it started is.

    Args:
        label: of the button.
        kind: what the job makes, a key of `jobs.PAGES` where a page shows it.
        argv: words of the command.
        title: of the job, for people.
        key: of the widget; unique in the app.
    """
    own = f"_job_of_{key}"
    if st.button(label, key=key, icon=":material/play_arrow:"):
        with states.guard("The job cannot be started"):
            st.session_state[own] = jobs.start(kind, argv, title)
    with st.popover("The command", type="tertiary", icon=":material/terminal:"):
        st.code(shlex.join(["interp", *argv]), language=None, wrap_lines=True)
    if started := st.session_state.get(own):
        job_panel(started)


def job_panel(name: str, *, log: bool = False) -> None:
    """How far a job is; asked again every two seconds while it goes on.

    Args:
        name: the job's id.
        log: show the end of its log as well.
    """
    with states.guard("This job cannot be read"):
        over = jobs.job(name).status().is_over
        (_panel if over else _live)(name, log)


@st.fragment(run_every="2s")
def _live(name: str, log: bool) -> None:
    with states.guard("This job cannot be read"):
        if jobs.job(name).status().is_over:
            st.rerun()  # the whole page: what the job made is to be shown, and nothing asks any more
        _panel(name, log)


def _panel(name: str, log: bool) -> None:
    job = jobs.job(name)
    found = job.status()
    with st.container(border=True, key=f"job_{name}"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown(
                f":material/{ICONS[found.state]}: **{text.plain(job.title)}**: {WORDS[found.state].lower()}",
                width="content",
            )
            with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
                if found.seconds is not None:
                    st.caption(_duration(found.seconds), width="content")
                if not found.is_over:
                    st.button(
                        "Cancel", key=f"cancel_{name}", on_click=jobs.cancel, args=(name,), icon=":material/stop:"
                    )
                elif found.state != "done":
                    st.button("Go on", key=f"again_{name}", on_click=_again, args=(name,), icon=":material/replay:")
                page = jobs.PAGES.get(job.kind)
                if found.state == "done" and page:
                    st.page_link(f"views/{page}.py", label="Show the result", icon=":material/arrow_forward:")
        if not found.is_over and found.total:
            st.progress(min(1.0, found.done / found.total), text=_pace(found))
        elif found.state == "running":
            st.progress(0.0, text="starting: loading the model and the data")
        if found.message and not found.is_over:
            text.say(found.message)
        if found.error:
            text.say(found.error)
        if log and (tail := job.log_tail()):
            st.code(printable_lines(tail), language=None, height=220, wrap_lines=True)


def printable_lines(tail: str) -> str:
    """A log as text whose every line can be shown."""
    return "\n".join(printable(line) for line in tail.splitlines())


def _pace(found: "jobs.background.JobState") -> str:
    said = f"{text.plain(found.step)}: {found.done:,} of {found.total:,}"
    if found.seconds and 0 < found.done < found.total:
        # Of this step alone nobody knows when it began; the whole job's time bounds it from above.
        said += f" · at most {_duration(found.seconds * (found.total - found.done) / found.done)} of this step left"
    return said


def _again(name: str) -> None:
    try:
        state.choose("job", jobs.again(name))
    except ValueError as error:
        st.session_state["_job_error"] = str(error)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def when(seconds: float) -> str:
    """A time of day, with its date."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
