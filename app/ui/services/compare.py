"""Two prompts side by side, and two models where a comparison lies in the workspace."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp.diff import prompt_diff
from ui import library
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT


@dataclass(frozen=True)
class Compared:
    """Frames of `interp.diff.PromptDiff`, and its facts."""

    tokens: pd.DataFrame
    following: pd.DataFrame
    layers: pd.DataFrame
    heads: pd.DataFrame
    card: dict[str, Any]
    summary: str


def compared(a: str, b: str) -> Compared:
    """What the model does differently with two prompts, at the last token of each.

    Raises:
        ValueError: a prompt that cannot be analysed.
    """
    return _compared(engine().fingerprint, token_ids(a), token_ids(b))


def model_diff(key: str) -> interp.ModelDiff:
    """A comparison of two models in the workspace."""
    found = library.entry(key, "model diff")
    return _model_diff(str(found.path), found.stamp)


@st.cache_data(**KEPT)
def _compared(fingerprint: str, a: tuple[int, ...], b: tuple[int, ...]) -> Compared:
    with checked(fingerprint) as model:
        found = prompt_diff(model, list(a), list(b))
    return Compared(found.tokens, found.following, found.layers, found.heads, found.card, found.summary())


@st.cache_resource(max_entries=4, show_spinner=False)
def _model_diff(path: str, stamp: int) -> interp.ModelDiff:  # noqa: ARG001 (the stamp is part of the key)
    return interp.load_model_diff(path)
