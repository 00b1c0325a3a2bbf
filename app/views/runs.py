"""Runs: what works in the background, how trainings went, what lies in the workspace, and forms that start more."""

import pandas as pd
import streamlit as st

from interp import plot
from interp.report import printable
from ui import controls, figure, frame, services, state, states, text
from ui.panels import job_status, run_forms
from ui.services import jobs

WHAT = """
Work that takes minutes runs as a **job** in a process of its own. It goes on when this page is left, when the browser is
closed, and when the server is started again. One job runs at a time in a workspace; others wait for their turn.

A job that was cancelled, failed or got lost keeps what it had finished: **Go on** starts the same command again, and it
continues there. Everything that is started here can be started in a shell: the command stands beside each button.

**Training** shows what autoencoders logged while they learnt, also while they still do. **Results** lists everything that the
workspace holds, by what each file says of itself.
"""
TABS = {"jobs": "Jobs", "start": "Start", "training": "Training", "results": "Results"}
MOST_RUNS = 8


def job_list() -> None:
    """Every job; a row shows it in full."""
    if error := st.session_state.pop("_job_error", None):
        states.problem("The job was not started again", ValueError(error))
    listed = jobs.listed()
    if not listed:
        states.empty(
            "No job yet",
            "Open the tab Start to record a store or to train something; or in a shell:",
            "interp jobs list",
        )
        return
    rows = []
    for job in listed:
        found = job.status()
        rows.append(
            {
                "state": job_status.WORDS[found.state],
                "title": job.title,
                "kind": job.kind,
                "started": job_status.when(job.submitted),
                "seconds": found.seconds,
                "job": job.id,
            }
        )
    table = pd.DataFrame(rows)
    chosen = state.chosen("job")
    shown = next((job for job in listed if job.id == chosen), listed[0])
    job_status.job_panel(shown.id, log=True)
    with figure.card("jobs", "Jobs", "Newest first. Choose a row to see that job above.") as card:
        card.table(
            table,
            code="# In a shell:\n# interp jobs list",
            caption=f"{len(table):,} jobs",
            columns={"seconds": st.column_config.NumberColumn("seconds", format="%.0f")},
            key="jobs_table",
            on_select=lambda: _chosen([job.id for job in listed]),
            selection_mode="single-row",
            height=min(38 + 35 * len(table), 400),
        )


def _chosen(ids: list[str]) -> None:
    rows = st.session_state["jobs_table"]["selection"]["rows"]
    if rows:
        state.choose("job", ids[rows[0]])


def training() -> None:
    """Curves of what was logged."""
    there = list(jobs.logs())
    if not there:
        states.empty("No training was logged", "Train an autoencoder: its curves stand here from the first steps on.")
        return
    with figure.card(
        "training", "Training", "Loss, unexplained variance, active latents and dead latents over steps."
    ) as card:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = st.multiselect(
                "Runs",
                there,
                there[:1],
                format_func=printable,
                key="training_runs",
                max_selections=MOST_RUNS,
                width=420,
            )
            smoothing = st.slider(
                "Smoothing", 0.0, 0.99, 0.0, 0.01, key="training_smoothing", bind="query-params", width=220
            )
        if not chosen:
            states.empty("No run is chosen", "Choose one or more above.")
            return
        table = jobs.curves(chosen, smoothing)
        figures = [
            name for name in ("loss", "fvu", "l0", "dead_share") if name in table and any(table[name].notna().tolist())
        ]
        card.chart(
            plot.training_curves(table, figures, colour="run"),
            table,
            code=f"""
import pandas as pd
from interp import plot

frames = [pd.read_json("runs/" + name, lines=True).assign(run=name) for name in {chosen!r}]
plot.training_curves(pd.concat(frames).rename(columns={{"active": "l0"}}), {figures!r}, colour="run")
""",
            caption=f"{len(chosen)} of {len(there)} runs, {len(table):,} lines",
        )


def results() -> None:
    """Everything in the workspace."""
    table = jobs.results()
    if table.empty:
        states.empty("The workspace is empty", "Start something, or run the demo in a shell:", "interp demo")
        return
    with figure.card(
        "results", "Results", "What each file or folder says it is; another model's results are marked."
    ) as card:
        card.table(
            table,
            code="from interp import artifact\n\nprint(artifact.read_json('runs/demo/demo.json')['findings'])",
            caption=f"{len(table):,} results in the workspace",
            height=min(38 + 35 * len(table), 640),
        )


def render() -> None:
    frame.head("Runs", WHAT)
    frame.prompt_strip()
    tab = controls.choice("Show", TABS, "runs_show", visibility="collapsed")
    with states.guard("The runs cannot be shown"):
        {"jobs": job_list, "start": run_forms.start, "training": training, "results": results}[tab]()
    st.caption(f"Workspace of {text.plain(services.model_name())}")


render()
