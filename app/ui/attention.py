"""The attention canvas of `interp.widgets` in a page."""

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from interp.widgets.attention import AttentionView
from interp.widgets.page import source

_component = component(
    "interp_attention", html='<div class="attention"></div>', css=source("attention.css"), js=source("attention.js")
)


def attention_canvas(view: AttentionView, *, key: str, on_pick: Callable[[int, int, int], None]) -> None:
    """Draw it; `on_pick(head, query, key position)` is called for a click on a cell or a head."""
    shape = (len(view.pattern), len(view.tokens), len(view.tokens))

    def picked() -> None:
        found = checked_pick(getattr(st.session_state.get(key), "pick", None), shape)
        if found is not None:
            on_pick(*found)

    _component(key=key, data=view.data(), on_pick_change=picked, height="content")


def checked_pick(value: Any, shape: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Head, query and key if they are whole numbers inside the shape, else None: it comes from the browser."""
    if not isinstance(value, Mapping):
        return None
    found = tuple(value.get(name) for name in ("head", "query", "key"))
    for each, size in zip(found, shape):
        if (
            isinstance(each, bool)
            or not isinstance(each, int | float)
            or each != each
            or not 0 <= each < size
            or each != int(each)
        ):
            return None
    head, query, key = (int(each) for each in found if each is not None)
    return head, query, key
