"""The run that pages show: which one it is, and its files."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

import interp
from ui import library
from ui.results import Run, open_run

EXAMPLE = "The Eiffel Tower is located in the city of"
KEPT: dict[str, Any] = {"max_entries": 64, "ttl": "1h", "show_spinner": False}
"""How long answers are kept, and how many of a kind."""


def runs_offered() -> dict[str, Path]:
    """Key -> folder of the runs that pages can show; the one of $INTERP_RUN first."""
    found = {each.key: each.path for each in library.entries("run")}
    own = os.environ.get("INTERP_RUN")
    if not own:
        return found
    folder = Path(own)
    key = next((key for key, path in found.items() if path == folder.resolve()), f"@{folder.name}")
    return {key: folder} | found


def run() -> Run | None:
    """The run that was chosen in the sidebar, at first that of $INTERP_RUN; None where there is none.

    Raises:
        ValueError: it is there and cannot be read.
    """
    offered = runs_offered()
    if not offered:
        return None
    asked = st.session_state.get("run") or st.query_params.get("run")
    return open_run(offered.get(str(asked), next(iter(offered.values()))))


def run_frame(name: str) -> pd.DataFrame:
    """A frame of the run. ValueError where there is no run, or the run lacks it."""
    found = needed_run()
    return _frame(str(found.path), found.stamp, name)


def run_json(name: str) -> dict[str, Any]:
    """A JSON file of the run. ValueError where there is no run, or the run lacks it."""
    return needed_run().json(name)


def stores() -> pd.DataFrame:
    """The stores that the run recorded: store, texts, rows, sites, dtype, megabytes."""
    found = needed_run()
    return _stores(str(found.path), found.stamp)


def default_prompt() -> str:
    """The run's prompt, or an example."""
    try:
        found = run()
    except ValueError:
        found = None
    return found.prompt if found and found.prompt else EXAMPLE


@st.cache_data(**KEPT)
def _frame(path: str, stamp: int, name: str) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    return open_run(path).frame(name)


@st.cache_data(**KEPT)
def _stores(path: str, stamp: int) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    root, rows = Path(path).resolve(), []
    for card in sorted((root / "stores").glob("*/store.json")):
        if not card.resolve().is_relative_to(root):
            continue
        store = interp.open_store(card.parent)
        size = sum(file.stat().st_size for file in card.parent.rglob("*") if file.is_file()) / 1e6
        rows.append((card.parent.name, store.n_texts, store.n_rows, len(store.sites), store.dtype, f"{size:.1f}"))
    return pd.DataFrame(rows, columns=pd.Index(["store", "texts", "rows", "sites", "dtype", "MB"]))


def needed_run() -> Run:
    found = run()
    if found is None:
        raise ValueError("no run is open: make one with `interp demo`, then start `interp app --run runs/demo`")
    return found
