"""What a page shows when there is nothing, when something went wrong, and while it works.

Messages may hold a prompt or a file's content, so they are shown as text, never as Markdown.
"""

import contextlib
import logging
import secrets
from collections.abc import Iterator

import streamlit as st

from ui.text import plain, say

logger = logging.getLogger("interp.app")


def empty(title: str, why: str, command: str | None = None) -> None:
    """Nothing to show yet, why, and how it comes about."""
    with st.container(border=True):
        st.markdown(f":material/inbox: **{plain(title)}**")
        say(why)
        if command:
            st.code(command, language=None)


def problem(title: str, error: Exception) -> None:
    """What failed and what to do. An error that is not meant for users stays in the log, under a number."""
    with st.container(border=True):
        st.markdown(f":material/error: **{plain(title)}**")
        if isinstance(error, ValueError | ConnectionError):
            say(_sentence(str(error)))
        else:
            number = secrets.token_hex(4)
            logger.error("error %s on a page", number, exc_info=error)
            say(f"{type(error).__name__}: this should not happen. The server's log has it under {number}.")


@contextlib.contextmanager
def guard(title: str) -> Iterator[None]:
    """Show a problem in place of the part that failed; the rest of the page stands."""
    try:
        yield
    except Exception as error:  # the border between the library and the page
        problem(title, error)


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """A named wait, with the seconds so far."""
    with st.spinner(f"{what} …", show_time=True):
        yield


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")
