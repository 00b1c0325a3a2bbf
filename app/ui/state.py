"""What the pages share about the user: prompt, position, head. It lives in the session and in the URL.

Widgets with a key of their own are bound to the URL by Streamlit (`bind="query-params"`). Two values have no widget, since
they are chosen by a click in a picture: the position in the prompt and the head. They are read from the URL once, kept in
the session, and written back by `to_url` at the end of each run. The session is the truth, so a page change, which
empties the URL, loses nothing.
"""

import streamlit as st

MAX_CHARS = 2000
"""Longest prompt, in characters. It stands in the URL, and a page has to stay readable."""
MAX_TOKENS = 256
"""Longest prompt, in tokens."""
WINDOW = 48
"""Tokens shown at once in a grid."""

_CLICKED = ("pos", "layer", "head")


def prompt() -> str:
    """The prompt as it stands in the sidebar."""
    return str(st.session_state.get("prompt") or "")


def position(n_tokens: int) -> int:
    """The chosen token, the last one where none was chosen; a choice ends with its prompt."""
    if st.session_state.get("_pos_of") not in (None, prompt()):
        _forget("pos")
    st.session_state["_pos_of"] = prompt()
    chosen = _get("pos")
    return chosen if chosen is not None and chosen < n_tokens else n_tokens - 1


def choose_position(pos: int) -> None:
    """Choose a token of the prompt."""
    st.session_state["_pos"] = max(0, int(pos))


def head() -> tuple[int, int] | None:
    """The chosen (layer, head), None where none was chosen."""
    layer, index = _get("layer"), _get("head")
    return None if layer is None or index is None else (layer, index)


def choose_head(layer: int, index: int) -> None:
    """Choose a head."""
    st.session_state["_layer"], st.session_state["_head"] = int(layer), int(index)


def to_url() -> None:
    """Write what was chosen by a click into the URL."""
    for name in _CLICKED:
        value = st.session_state.get(f"_{name}")
        if value is None:
            st.query_params.pop(name, None)
        elif st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


def window(n_tokens: int, at: int, size: int = WINDOW) -> range:
    """Positions of a grid: all, or `size` of them around `at`."""
    start = min(max(0, at - size // 2), max(0, n_tokens - size))
    return range(start, min(n_tokens, start + size))


def _get(name: str) -> int | None:
    key = f"_{name}"
    if key not in st.session_state:
        st.session_state[key] = _whole(st.query_params.get(name))
    return st.session_state[key]


def _forget(name: str) -> None:
    st.session_state[f"_{name}"] = None


def _whole(text: str | None) -> int | None:
    """A whole number from the URL, None for anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 6 else None
