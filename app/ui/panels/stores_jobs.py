"""Jobs from the page of the stores: a button that starts one, and the list of those in the workspace."""

import importlib
import importlib.util
import shlex

import pandas as pd
import streamlit as st

from ui import figure, library


def button(label: str, *, kind: str, argv: list[str], title: str, key: str) -> None:
    """Start `interp ARGV` as a job; the command for a shell where jobs cannot be started from here."""
    if importlib.util.find_spec("ui.panels.job_status"):
        panel = importlib.import_module("ui.panels.job_status")
        panel.start_button(label, kind=kind, argv=argv, title=title, key=key)
    else:
        st.code(shlex.join(["interp", *argv]), language="bash", wrap_lines=True)


def queue() -> None:
    """The last jobs of the workspace."""
    what = "Long work runs as jobs of their own, one at a time, and goes on when the browser or this server is closed."
    with figure.card("system_jobs", "Jobs", what) as card:
        space = library.workspace()
        there = importlib.util.find_spec("ui.services.jobs")
        listed = importlib.import_module("interp.jobs.background").jobs(space / "jobs") if there and space else []
        if not listed:
            st.caption("No job was started in this workspace.")
            return
        rows = [(each.id, each.title, each.status().state) for each in listed[:10]]
        card.table(
            pd.DataFrame(rows, columns=pd.Index(["job", "title", "state"])),
            code="interp jobs list  # in a shell",
            caption=f"{len(listed):,} jobs in all.",
        )
