"""The row under the strip: colour it by a probe or a latent, see what comes next, fork the text there, pin the prompt.

The model is asked only when the list of next tokens is opened, so that a page whose results lie in the run stays quick.
"""

import math

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, library, state, states, text
from ui.services import forks, tints
from ui.strip import Track

SHOWN = 8
"""Next tokens in the list."""
TINTS = {"own": "The model's own figures", "probe": "A probe", "latent": "A latent"}
LINKS = {"lens": "Lens", "attention": "Attention", "features": "Features"}


def token_card(tokens: pd.DataFrame, pos: int) -> tuple[Track, list[float]] | None:
    """One row under the strip.

    Args:
        tokens: of the prompt, a row each: `token`.
        pos: position of the chosen one.

    Returns:
        A further colour of the strip with its value at each token, None where none was chosen.
    """
    tint = None
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="token_card"):
        st.caption(text.plain(f"Token {pos}: {plot.token_label(str(tokens['token'].iloc[pos]), 24)}"), width="content")
        with (
            st.popover("Colour by", type="tertiary", icon=":material/palette:"),
            states.guard("The strip keeps its colours"),
        ):
            tint = _tint()
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
            st.page_link(f"views/{name}.py", label=title)
    return tint


def _tint() -> tuple[Track, list[float]] | None:
    kind = controls.choice("Colour of the tokens", TINTS, "tint", visibility="collapsed")
    if kind == "own":
        st.caption("Surprisal, entropy and rank; choose one above the tokens.")
        return None
    found = library.pick(
        "probe" if kind == "probe" else "sae", TINTS[kind].removeprefix("A ").capitalize(), f"tint_{kind}"
    )
    if found is None:
        st.caption("The workspace holds none: train one on the page Runs.")
        return None
    if kind == "probe":
        with states.busy("Asking the probe"):
            return Track("tint", f"probe {found.title}", ""), tints.probe_scores(state.prompt(), found.key)
    most = tints.n_latents(found.key) - 1
    latent = int(
        st.number_input("Latent", 0, most, state.number("latent") or 0, key="tint_number", bind="query-params")
    )
    with states.busy("Encoding"):
        values = tints.activations(state.prompt(), found.key, latent)
    top = max([value for value in values if not math.isnan(value)], default=0.0)
    return Track("tint", f"latent {latent}", "", high=max(top, 1e-6)), values


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
