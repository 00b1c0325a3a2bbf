"""Parts that the pages of SAEs share: the list, the way to a latent, collecting features, strips of examples."""

import re

import pandas as pd
import streamlit as st

from ui import library, services, state, states, text
from ui.panels.job_status import start_button
from ui.services import saes
from ui.strip import Track, token_strip

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
COLUMNS = {
    "l0": st.column_config.NumberColumn("L0", format="%.1f"),
    "fvu": st.column_config.NumberColumn("FVU", format="%.3f"),
    "fvu_low": st.column_config.NumberColumn("95 % from", format="%.3f"),
    "fvu_high": st.column_config.NumberColumn("to", format="%.3f"),
    "dead_share": st.column_config.NumberColumn("dead", format="percent"),
    "ce_recovered": st.column_config.NumberColumn("loss recovered", format="%.3f"),
    "density": st.column_config.NumberColumn("density", format="%.5f", help="Share of tokens on which it fires."),
}
STRIPS = 8
"""Examples drawn at once: each is a strip of its own."""


def marked(table: pd.DataFrame) -> pd.DataFrame:
    """The list with the model in words: whether it is the loaded one."""
    try:
        own = services.engine().fingerprint
    except ValueError:
        own = None
    said = [
        "not said"
        if model is None
        else "this one"
        if model == own
        else "not loaded"
        if own is None
        else "another model"
        for model in table["model"]
    ]
    return table.assign(model=said)


def open_feature(key: str, latent: int) -> None:
    """Go to the page of a latent."""
    state.choose("sae", key)
    state.choose("latent", latent)
    st.switch_page("views/feature.py")


def chosen_sae(label: str = "SAE") -> library.Entry | None:
    """A box with the SAEs; the choice is the shared one of the URL."""
    offered = {entry.key: entry for entry in library.entries("sae")}
    if not offered:
        why = "Train one first, or put an SAE file into the workspace."
        states.empty("There is no SAE in this workspace", why, "interp sae train --help")
        return None
    asked = state.chosen("sae")
    if asked is not None and asked not in offered:
        states.empty("That SAE is not in the workspace", f"{asked[:80]}: the newest one is shown instead.")
    key = asked if asked in offered else next(iter(offered))
    keys = list(offered)
    taken = st.selectbox(
        label, keys, index=keys.index(key), format_func=lambda k: text.plain(offered[k].title), width=360
    )
    if taken != key:
        state.choose("latent", 0)
    state.choose("sae", taken)
    return offered[taken]


def collect(entry: library.Entry) -> None:
    """What is missing to look at latents, and the job that makes it."""
    with st.container(border=True):
        st.header("No features yet", anchor=False)
        text.say(
            "What each latent fires on is one pass over a store of every token. Examples, densities and search need it."
        )
        stores = {store.key: store for store in saes.stores_for(entry.key)}
        if not stores:
            why = "No store of the workspace holds the activations that this SAE reads, of its model."
            states.empty("Record a store first", why, "interp record --help")
            return
        with st.container(horizontal=True, vertical_alignment="bottom"):
            store = st.selectbox(
                "Store", list(stores), format_func=lambda k: text.plain(stores[k].title), key="sae_store", width=300
            )
            name = st.text_input(
                "Name", f"{entry.path.stem}-features", key="sae_features_name", max_chars=60, width=260
            )
        if not NAME.fullmatch(name):
            states.empty("This is no file name", "Letters, digits, dot, dash and underscore, at most 60.")
            return
        argv = saes.features_argv(entry.key, stores[str(store)], services.model_name(), name)
        start_button(
            "Collect features", kind="sae features", argv=argv, title=f"Features of {entry.title}", key="sae_collect"
        )


def strip(frame: pd.DataFrame, high: float, key: str) -> None:
    """Tokens coloured by activation: no colour at 0, full colour at the latent's maximum."""
    track = Track("value", "activation", "", high=high if high > 0 else 1.0)  # a dead latent has no maximum
    token_strip(frame, [track], selected=-1, on_pick=lambda pos: None, key=key)  # noqa: ARG005 (nothing to choose here)


def example_strips(frame: pd.DataFrame, high: float, key: str) -> None:
    """Windows one below the other, the value and token of the maximum at the left."""
    for number, (_, window) in enumerate(list(frame.groupby(["group", "rank"], sort=True))[:STRIPS]):
        centre = window.loc[window["offset"] == 0].iloc[0]
        left, right = st.columns([1, 6], vertical_alignment="center")
        with left:
            text.say(f"{centre['value']:.3g}  {str(centre['token'])[:24]!r}")
        with right:
            strip(window.assign(pos=range(len(window))), high, f"{key}_{number}")
