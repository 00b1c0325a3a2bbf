"""Controls that several pages use. Their values stand in the URL."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import streamlit as st

Token = str | int
"""A token's text, or its id where the text alone would be another token."""


def choice(
    label: str, options: Mapping[str, str], key: str, *, visibility: Literal["visible", "collapsed"] = "visible"
) -> str:
    """One of a few, in one row.

    Args:
        label: what is chosen; read to those who do not see it even where it is collapsed.
        options: value -> what the user reads. The first one is the default.
        key: in the session and in the URL; unique in the app.
        visibility: of the label.
    """
    first = next(iter(options))
    picked = st.segmented_control(
        label,
        list(options),
        default=first,
        format_func=options.__getitem__,
        key=key,
        required=True,
        bind="query-params",
        label_visibility=visibility,
    )
    return picked if picked in options else first  # an empty value in the URL comes as None


def tokens(label: str, offered: Mapping[str, Token], key: str, *, default: int, most: int) -> tuple[Token, ...]:
    """Some tokens: those offered, or typed ones, with `·` for a space.

    Args:
        label: what is chosen.
        offered: what a reader sees -> the token.
        key: in the session.
        default: how many of the first ones are chosen at the start.
        most: how many can be chosen.
    """
    picked = st.multiselect(
        label,
        list(offered),
        default=list(offered)[:default],
        key=key,
        max_selections=most,
        accept_new_options=True,
        placeholder="Choose or type a token",
        width=420,
    )
    return tuple(dict.fromkeys(offered.get(one, typed(one)) for one in picked))


def token(
    label: str, offered: Mapping[str, Token], key: str, *, index: int = 0, none: str | None = None, about: str = ""
) -> Token | None:
    """One token, offered or typed, with `·` for a space.

    Args:
        label: what is chosen.
        offered: what a reader sees -> the token.
        key: in the session.
        index: of the one that is chosen at the start.
        none: the choice of no token, last in the list; it gives None.
        about: help, before the way to type one.
    """
    picked = st.selectbox(
        label,
        [*offered, *([none] if none else [])],
        index=index,
        key=key,
        accept_new_options=True,
        help=f"{about} Type your own with `·` for the space before a word, as in `·Paris`.".strip(),
        width=200,
    )
    return None if picked is None or picked == none else offered.get(str(picked), typed(str(picked)))


def typed(token: str) -> str:
    """The text of a token that a user wrote: `·` is a space, and `↵` a line break."""
    return token.replace("·", " ").replace("↵", "\n")


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], object]]:
    """A bar for a computation of minutes, and the function(done, in all) that moves it; it goes when the work is done."""
    bar = st.progress(0.0, text=f"{what} …")
    try:
        yield lambda done, whole: bar.progress(min(1.0, done / max(1, whole)), text=f"{what}: {done:,} of {whole:,}")
    finally:
        bar.empty()
