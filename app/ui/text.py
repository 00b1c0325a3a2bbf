"""Data as text. Prompts, tokens and names come from anywhere: they are never Markdown or HTML, and always readable."""

import re
from collections.abc import Callable

import pandas as pd
import streamlit as st

from interp.report import printable


def say(text: str) -> None:
    """Show data as plain text, characters without a glyph by their code point."""
    st.text(printable(text))


def plain(text: str) -> str:
    """Data for a place that reads Markdown: every sign that could mean something is escaped, line breaks are spaces.

    Streamlit looks for `:material/home:` and `:smile:` after Markdown has taken the escapes away, so an invisible word
    joiner parts the colon from its word.
    """
    escaped = re.sub(r"([\\`*_{}\[\]()<>#+\-.!|~$:&^=\"'])", r"\\\1", " ".join(printable(text).split()))
    return re.sub(r":(?=\w)", ":\u2060", escaped)


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose texts can be shown as they are."""
    return map_texts(frame, printable)


def map_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """A copy of the frame with every text in it changed; numbers and missing values stay."""
    changed = frame.copy()
    for place, dtype in enumerate(changed.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):
            column = changed.iloc[:, place]
            changed.isetitem(place, column.map(lambda value: change(value) if isinstance(value, str) else value))
    return changed
