"""What the pages share about the user: prompt, position, head, latent, pins. It lives in the session and in the URL.

Widgets with a key of their own are bound to the URL by Streamlit (`bind="query-params"`). The values here have no widget, since
they are chosen by a click in a picture, or are too long: they are read from the URL once, kept in the session, and written
back by `to_url` at the end of each run. The session is the truth, so a page change, which empties the URL, loses nothing.

A prompt of more than `MOST_IN_URL` characters does not stand in the URL itself. It is saved as a *view*, a small file in the
home folder named by the hash of what it holds, and the URL has that name. Pins A and B are views too.
"""

import re
from pathlib import Path

import streamlit as st

from interp import artifact

MAX_CHARS = 10_000
"""Longest prompt, in characters."""
MAX_TOKENS = 2048
"""Longest prompt, in tokens."""
MOST_IN_URL = 1500
"""Characters of a prompt up to which it stands in the URL."""
MOST_VIEWS = 2000
"""Saved views that are kept; the oldest ones go."""
WINDOW = 48
"""Tokens shown at once in a grid."""

_NUMBER, _NAME, _VIEW = r"[0-9]{1,6}", r"[^\x00-\x1f]{1,300}", r"[0-9a-f]{12}"
_CLICKED = {
    "pos": _NUMBER, "layer": _NUMBER, "head": _NUMBER, "sae": _NAME, "latent": _NUMBER, "job": _NAME, "a": _VIEW, "b": _VIEW,
}  # fmt: skip
"""Clicked values, and what they look like; anything else in the URL is ignored."""


# -------------------------------------------------------------------------------------------------------------- prompt


def prompt() -> str:
    """The prompt as it stands in the sidebar."""
    return str(st.session_state.get("prompt") or "")


def set_prompt(text: str) -> None:
    """Make this the prompt. To be called before the sidebar is drawn: in a callback, or followed by a rerun."""
    st.session_state["_prompt_next"] = text[:MAX_CHARS]


def settle_prompt(default: str) -> None:
    """Before the box is drawn: what was set, else what the URL has, else the default."""
    if (following := st.session_state.pop("_prompt_next", None)) is not None:
        st.session_state["prompt"] = following
    elif "prompt" not in st.session_state:
        st.session_state["prompt"] = _prompt_of_url(default)[:MAX_CHARS]
        st.session_state["_default"] = default


def _prompt_of_url(default: str) -> str:
    if "prompt" in st.query_params:
        return st.query_params["prompt"]
    name = st.query_params.get("view")
    if name is None:
        return default
    held = read_view(name)
    if held is None:
        st.session_state["_view_lost"] = True
    return default if held is None else held


def view_is_lost() -> bool:
    """Whether the URL named a saved prompt that is not on this machine (any more); said once."""
    return bool(st.session_state.pop("_view_lost", False))


# --------------------------------------------------------------------------------------------------------------- views


def save_view(text: str) -> str:
    """Keep a prompt under the hash of its text, and return that name: 12 hex digits."""
    content = {"format": 1, "prompt": text}
    name = artifact.hash_texts([text])[:12]
    path = _views() / f"{name}.json"
    if not path.is_file():
        artifact.write_json(path, content)
        old = sorted(_views().glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        for file in old[:-MOST_VIEWS]:
            file.unlink(missing_ok=True)
    return name


def read_view(name: str) -> str | None:
    """The prompt of a saved view, None where there is none of that name."""
    if not re.fullmatch(_VIEW, name):
        return None
    try:
        held = artifact.read_json(_views() / f"{name}.json")
    except ValueError:
        return None
    text = held.get("prompt") if isinstance(held, dict) else None
    return text if isinstance(text, str) else None


def pinned(side: str) -> str | None:
    """The prompt that is pinned as "a" or "b"."""
    name = chosen(side)
    return None if name is None else read_view(name)


def pin(side: str, text: str | None = None) -> None:
    """Pin a prompt, by default the present one, as "a" or "b"; an empty text takes the pin away."""
    text = prompt() if text is None else text
    choose(side, save_view(text) if text else None)


def _views() -> Path:
    return artifact.home() / "views"


# ------------------------------------------------------------------------------------------------------ clicked values


def chosen(name: str) -> str | None:
    """A clicked value as text: `pos`, `layer`, `head`, `sae`, `latent`, `job`, `a`, `b`; None where none was chosen."""
    key = f"_{name}"
    if key not in st.session_state:
        value = st.query_params.get(name)
        st.session_state[key] = value if value is not None and re.fullmatch(_CLICKED[name], value) else None
    return st.session_state[key]


def choose(name: str, value: object) -> None:
    """Choose a value, or none by None."""
    text = None if value is None else str(value)
    assert text is None or re.fullmatch(_CLICKED[name], text), (name, text)
    st.session_state[f"_{name}"] = text


def number(name: str) -> int | None:
    """A clicked value as a whole number."""
    text = chosen(name)
    return None if text is None or not text.isascii() else int(text)


def position(n_tokens: int) -> int:
    """The chosen token, the last one where none was chosen; a choice ends with its prompt."""
    if st.session_state.get("_pos_of") not in (None, prompt()):
        choose("pos", None)
    st.session_state["_pos_of"] = prompt()
    pos = number("pos")
    return pos if pos is not None and pos < n_tokens else n_tokens - 1


def choose_position(pos: int) -> None:
    """Choose a token of the prompt."""
    choose("pos", max(0, int(pos)))


def head() -> tuple[int, int] | None:
    """The chosen (layer, head), None where none was chosen."""
    layer, index = number("layer"), number("head")
    return None if layer is None or index is None else (layer, index)


def choose_head(layer: int, index: int) -> None:
    """Choose a head."""
    choose("layer", int(layer))
    choose("head", int(index))


def to_url() -> None:
    """Write the prompt, and what was chosen by a click, into the URL."""
    text = prompt()
    own = text != st.session_state.get("_default") and bool(text)
    short = len(text) <= MOST_IN_URL
    _to_url("prompt", text if own and short else None)
    _to_url("view", save_view(text) if own and not short else None)
    for name in _CLICKED:
        _to_url(name, chosen(name))


def _to_url(name: str, value: str | None) -> None:
    if value is None:
        st.query_params.pop(name, None)
    elif st.query_params.get(name) != value:
        st.query_params[name] = value


def window(n_tokens: int, at: int, size: int = WINDOW) -> range:
    """Positions of a grid: all, or `size` of them around `at`."""
    start = min(max(0, at - size // 2), max(0, n_tokens - size))
    return range(start, min(n_tokens, start + size))
