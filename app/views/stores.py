"""Stores and system: what was recorded and what is in it; the machine, memory, caches, versions and the doctor."""

import streamlit as st

from ui import access, controls, figure, frame, library, states, text
from ui.panels import stores_jobs, stores_store, stores_system
from ui.services import recorded

WHAT = """
A **store** is what `interp record` keeps of a model's activations: for each text and site the rows of its tokens, with
statistics that leave sinks and outliers out. Choose one to read its texts and tokens, and to see what was left out.

**System** says what the server does with the machine: memory, the model that is loaded, caches, limits and versions.
"""
EMPTY = "interp record smollm2-135m cities --sites 'resid_post:*' --tokens last --out runs/cities"
NUMBER = st.column_config.NumberColumn


def overview() -> None:
    """All stores of the workspace."""
    what = (
        "Every store in the workspace. **Tokens** is the rule by which rows were kept. A store that is not whole goes on where "
        "it was when the same `interp record` is called again. The fingerprint says which model made it: results of others "
        "do not go with it."
    )
    with figure.card("store_list", "Stores", what) as card:
        listed = recorded.listed()
        shown = listed.assign(fingerprint=listed["fingerprint"].str[:8]).drop(columns="shape")
        card.table(
            shown if shown["problem"].astype(bool).to_numpy().any() else shown.drop(columns="problem"),
            code=f"interp store ls {str(library.workspace())!r}  # in a shell",
            caption=f"{len(listed):,} stores, {listed['MB'].sum():,.1f} MB.",
            columns={
                "texts": NUMBER(format="localized"),
                "rows": NUMBER(format="localized"),
                "MB": NUMBER(format="%.1f"),
                "whole": st.column_config.CheckboxColumn("whole"),
            },
        )


def one() -> None:
    """The chosen store."""
    entry = library.pick("store", "Store", "store")
    if entry is None:
        return
    row = recorded.listed().set_index("key").loc[entry.key]
    if row["problem"]:
        states.problem(f"{entry.title} cannot be read", ValueError(row["problem"]))
        return
    if not row["whole"]:
        text.say("⚠ This store is not finished: the same interp record call goes on where it was.")
    with states.guard("The sites cannot be shown"):
        stores_store.sites(entry)
    with states.guard("The texts cannot be shown"):
        number = stores_store.texts(entry)
        if number is not None:
            stores_store.tokens(entry, number)
    with states.guard("The outliers cannot be shown"):
        stores_store.left_out(entry)
    with states.guard("The store cannot be verified here"):
        stores_store.verify(entry)


def render() -> None:
    frame.head("Stores and system", WHAT)
    access.way_out()
    if (
        controls.choice("Show", {"stores": "Stores", "system": "System"}, "stores_show", visibility="collapsed")
        == "system"
    ):
        for title, part in (
            ("The machine cannot be asked", stores_system.machine),
            ("The model cannot be shown", stores_system.model),
            ("Jobs cannot be shown", stores_jobs.queue),
            ("The doctor's report cannot be shown", stores_system.doctor),
            ("Caches and limits cannot be shown", stores_system.tables),
        ):
            with states.guard(title):
                part()
        return
    with states.guard("The stores cannot be shown"):
        if not library.entries("store"):
            states.empty("No store in the workspace", "Nothing was recorded yet. Record a bundled data set:", EMPTY)
            return
        overview()
        one()


render()
