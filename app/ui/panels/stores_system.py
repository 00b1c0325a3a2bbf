"""The machine, the model in memory, the caches, versions and limits, and the doctor."""

import re

import streamlit as st

from ui import figure, library, states, text
from ui.panels import job_status
from ui.services import live, system

GB = 1e9
NUMBER = st.column_config.NumberColumn


def machine() -> None:
    """Processors, memory and disk at this moment."""
    found = system.machine()
    cells = [
        (
            "Processors",
            _whole(found["processors"]),
            "load unknown" if found["load"] is None else f"load {found['load']:.1f}",
            _part(found["load"], found["processors"]),
        ),
        (
            "Server's memory",
            _gb(found["own"]),
            f"at most {_gb(found['own_most'])}",
            _part(found["own"], found["total"]),
        ),
        (
            "Machine's memory",
            _gb(found["total"]),
            f"{_gb(found['free'])} free",
            None if found["free"] is None else _part((found["total"] or 0) - found["free"], found["total"]),
        ),
        (
            "Workspace's disk",
            _gb(found["disk_total"]),
            f"{_gb(found['disk_free'])} free",
            None
            if found["disk_free"] is None
            else _part((found["disk_total"] or 0) - found["disk_free"], found["disk_total"]),
        ),
    ]
    with st.container(horizontal=True, gap="small", key="system_cells"):
        for title, value, note, part in cells:
            with st.container(border=True, width=188):
                st.metric(title, value)
                if part is not None:
                    st.progress(part)
                st.caption(note)


def model() -> None:
    """The model in memory, and a button that frees it."""
    what = (
        "One model is loaded at a time and shared by all sessions; one thread computes with it at a time. Freeing it waits "
        "until nobody computes. Answers that were computed stay in the cache, and the next new question loads it again."
    )
    with figure.card("system_models", "Model in memory", what) as card:
        frame = system.models()
        if frame.empty:
            st.caption("No model is in memory. The first question that the run has not answered loads it.")
            return
        card.table(
            frame,
            code="import interp\n\nmodel = interp.load(NAME)\nprint(model.fingerprint)",
            columns={"parameters": NUMBER(format="localized"), "MB": NUMBER(format="%.0f")},
        )
        st.button("Free the model", key="system_free", icon=":material/eject:", on_click=_free)
        said = st.session_state.pop("_system_freed", None)
        if said == "busy":
            st.caption(":material/warning: It is busy: somebody computes. Try again in a moment.")


def _free() -> None:
    st.session_state["_system_freed"] = "freed" if system.free_model() else "busy"


def doctor() -> None:
    """The last report of the doctor, and a button for another one."""
    what = (
        "`interp doctor` recomputes a model's values in double precision from its weights, checks that hooks fire and reach the "
        "output, that masks and caches are right, that text goes in and out unharmed, and compares with transformers where "
        "that is installed. It takes minutes, as a job of its own."
    )
    with figure.card("system_doctor", "Doctor", what) as card:
        found = system.doctor_report()
        with states.guard("The doctor cannot be called"):
            _call_the_doctor()
        if found is None:
            st.caption("There is no report in the workspace yet.")
            return
        frame, summary, name, fingerprint = found
        columns = ["verdict", "name", "compared", "figure", "bound", "note", "seconds"]
        card.table(
            frame.loc[:, columns],
            code=f"import interp\n\nprint(interp.doctor(interp.load({name!r})))",
            caption=text.plain(f"{name} ({(fingerprint or 'no fingerprint')[:10]}): {summary}"),
            columns={
                "figure": NUMBER(format="%.3g"),
                "bound": NUMBER(format="%.3g"),
                "seconds": NUMBER(format="%.1f"),
                "compared": st.column_config.TextColumn(width="large"),
            },
            height=min(420, 38 + 35 * len(frame)),
        )


def _call_the_doctor() -> None:
    name = live.model_name()
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "model"
    space = library.workspace()
    if space is None:
        st.caption("Start with --workspace to keep reports.")
        return
    out = space / f"doctor-{safe}.json"
    job_status.start_button(
        f"Check {text.plain(name)}",
        kind="doctor",
        argv=["doctor", name, "--save", str(out.absolute())],
        title=f"doctor {name}",
        key="system_doctor_start",
    )


def tables() -> None:
    """Caches, limits and versions."""
    left, right = st.columns(2)
    with left:
        what = "What the server keeps so that it is not computed twice; entries by function. The oldest make room."
        with figure.card("system_caches", "Caches", what) as card:
            frame = system.caches()
            mb = frame["MB"].sum()
            card.table(
                frame,
                code="import streamlit as st\n\nst.cache_data.clear()",
                caption=f"{frame['entries'].to_numpy().sum():,} entries, {mb:,.1f} MB without models.",
                columns={"MB": NUMBER(format="%.2f")},
                height=min(320, 38 + 35 * max(1, len(frame))),
            )
            st.button(
                "Empty the caches",
                key="system_caches_clear",
                icon=":material/delete_sweep:",
                on_click=system.empty_caches,
            )
        with figure.card("system_versions", "Versions", "What this server runs on.") as card:
            card.table(system.versions(), code="import interp\n\nprint(interp.__version__)")
    with right:
        what = "What a page takes at most. Beyond it a page shows a window with a note, or says what to change."
        with figure.card("system_limits", "Limits", what) as card:
            card.prose(system.limits(), code="import interp  # the limits are those of the pages, not of the library")


def _gb(size: float | None) -> str:
    return "unknown" if size is None else f"{size / GB:,.2f} GB" if size < 10 * GB else f"{size / GB:,.0f} GB"


def _whole(number: float | None) -> str:
    return "unknown" if number is None else f"{number:,.0f}"


def _part(some: float | None, whole: float | None) -> float | None:
    return None if some is None or not whole else min(1.0, max(0.0, some / whole))
