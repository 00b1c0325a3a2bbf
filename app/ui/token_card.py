"""What to do with the chosen token of the strip: see what comes next, fork the text there, pin the prompt, go to a page.

The model is asked only when the list of next tokens is opened, so that a page whose results lie in the run stays quick.
"""

import pandas as pd
import streamlit as st

from interp import plot
from ui import pages, state, states, text
from ui.services import forks

SHOWN = 8
"""Next tokens in the list."""
LINKS = {"lens": "Lens", "attention": "Attention", "features": "Features"}


def token_card(tokens: pd.DataFrame, pos: int) -> None:
    """One row under the strip.

    Args:
        tokens: of the prompt, a row each: `token`.
        pos: position of the chosen one.
    """
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="token_card"):
        st.caption(text.plain(f"Token {pos}: {plot.token_label(str(tokens['token'].iloc[pos]), 24)}"), width="content")
        after = st.popover(
            "Next and fork", type="tertiary", icon=":material/fork_right:", key="card_next", on_change="rerun"
        )
        if after.open:
            with after, states.guard("The model cannot be asked"):
                _next(pos)
        for side in ("a", "b"):
            held = state.pinned(side)
            st.button(
                f"Pin {side.upper()}",
                key=f"pin_{side}",
                type="tertiary",
                icon=":material/keep:" if held is None or held != state.prompt() else ":material/check:",
                on_click=state.pin,
                args=(side,),
                help="Keep this prompt to compare it with another one, on the page Compare.",
            )
        for name, title in LINKS.items():
            if pages.exists(name):
                st.page_link(f"views/{name}.py", label=title)


def _next(pos: int) -> None:
    with states.busy("Asking the model"):
        found = forks.fork(state.prompt(), pos, SHOWN)
    st.caption("Most probable next tokens. Choose one to go on with it from here.")
    for number, (label, probability, added) in enumerate(found.following):
        st.button(
            text.plain(f"{plot.token_label(label, 24)}  {probability:.3f}"),
            key=f"fork_{number}",
            type="tertiary",
            disabled=found.before is None,
            on_click=state.set_prompt,
            args=(f"{found.before}{added}",),
        )
    if found.before is None:
        st.caption("The prompt cannot be cut here: the token ends inside a character.")
        return
    with st.form("fork_form", border=False):
        st.text_input("Or go on with your own words", key="fork_text", max_chars=200)
        st.form_submit_button("Fork", on_click=_own, args=(found.before,), icon=":material/fork_right:")


def _own(before: str) -> None:
    state.set_prompt(before + str(st.session_state.get("fork_text") or ""))
