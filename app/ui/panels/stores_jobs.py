"""Jobs on the page of the stores: the list of those in the workspace."""

import pandas as pd
import streamlit as st

from ui import figure
from ui.services import jobs


def queue() -> None:
    """The last jobs of the workspace."""
    what = "Long work runs as jobs of their own, one at a time, and goes on when the browser or this server is closed."
    with figure.card("system_jobs", "Jobs", what) as card:
        listed = jobs.listed()
        if not listed:
            st.caption("No job was started in this workspace.")
            return
        rows = [(each.id, each.title, each.status().state) for each in listed[:10]]
        card.table(
            pd.DataFrame(rows, columns=pd.Index(["job", "title", "state"])),
            code="# In a shell:\n# interp jobs list",
            caption=f"{len(listed):,} jobs in all.",
        )
