"""Find latents: by label, by what a prompt makes fire, by a token, or by a direction."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from ui import figure, frame, library, state, states
from ui.panels import sae_parts
from ui.services import saes

WHAT = """
Four ways to a latent. **Prompt**: what fires on your prompt; position 0 and special tokens are left out, as in training.
**Token**: what reads a token, or raises or lowers it. **Label**: words of the labels. **Direction**: which latents point
along a probe or a steering vector; p says how often a random direction comes as close to any latent.
"""
LEAST = 0.0001
"""Density below which the search by token hides latents at first: nearly dead ones have a single token and rank first."""


def by_prompt(key: str) -> tuple[pd.DataFrame, str, str]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        one = st.toggle(
            "Only the chosen token", key="features_one", bind="query-params", help="Click one in the strip."
        )
        hide = st.toggle("Hide dense (over 1 %)", True, key="features_hide", bind="query-params")
    if hide and saes.features_of(key) is None:
        st.caption("Dense latents cannot be hidden: this SAE has no features in the workspace.")
    pos = (state.number("pos") or 0) if one else None
    with states.busy("Encoding the prompt"):
        found = saes.by_prompt(key, state.prompt(), pos, hide)
    if one and found.empty:
        st.caption(
            "Nothing is read at this token (the first, a special one or an outlier), or all that fires is hidden."
        )
    where = ("all tokens" if pos is None else f"token {pos}") + ", at most 50 shown"
    return found, where, f"print(interp.search_by_prompt(sae, model, {state.prompt()!r}, n=50, features=features))"


def by_token(key: str) -> tuple[pd.DataFrame, str, str]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        token = st.text_input("Token", " the", key="features_token", bind="query-params", max_chars=60, width=220)
        least = st.number_input(
            "Minimum density", 0.0, 1.0, LEAST, step=0.0001, format="%.5f", key="features_least", bind="query-params",
            width=180, help="A latent that fired once has one token with all of its activation, so it would rank first.",
        )  # fmt: skip
    found, hidden = saes.by_token(key, token, float(least))
    note = f"{hidden:,} hits hidden below the minimum density"
    return found, note, f"print(interp.search_by_token(features, {token!r}))"


def by_label(key: str) -> tuple[pd.DataFrame, str, str]:
    typed = st.text_input("Words", "", key="features_words", bind="query-params", max_chars=100, width=320)
    code = f"""
labels = interp.load_sae_labels({"runs/" + saes.labels_key(key)!r}).frame
print(labels[labels.label.str.contains({typed!r}, regex=False, case=False)])
"""
    return saes.by_label(key, typed), "in any case", code


def by_direction(key: str) -> tuple[pd.DataFrame, str, str]:
    own = library.entry(key, "sae").model
    vector = library.pick(("probe", "steering vector"), "Probe or vector", "features_vector", model=own)
    if vector is None:
        raise ValueError("the workspace has no probe and no steering vector: train one first")
    load = "load_probe" if vector.kind == "probe" else "load_steering_vector"
    found = saes.by_direction(key, vector.key)
    code = f"print(interp.search_by_direction(sae, interp.{load}({'runs/' + vector.key!r}), n=30))"
    return found, "p over 200 random directions", code


SEARCHES: dict[str, Callable[[str], tuple[pd.DataFrame, str, str]]] = {
    "Prompt": by_prompt,
    "Token": by_token,
    "Label": by_label,
    "Direction": by_direction,
}


def render() -> None:
    frame.head("Feature search", WHAT)
    frame.prompt_strip()
    entry = sae_parts.chosen_sae()
    if entry is None:
        return
    way = str(
        st.segmented_control("Search by", list(SEARCHES), default="Prompt", key="features_by", bind="query-params")
        or "Prompt"
    )
    with states.guard("This search has no result"):
        what = "A row per latent, the best one first. Choose a row to open its page."
        with figure.card("feature_search", f"Latents by {way.lower()}", what) as card:
            found, note, call = SEARCHES[way](entry.key)
            if found.empty:
                states.empty("Nothing found", f"No latent fits; {note}.")
                return
            picked = card.table(
                found,
                code=saes.load_code(entry.key, model=True, features=True) + call,
                caption=f"n = {len(found)}, {note}",
                columns=sae_parts.COLUMNS,
                on_select="rerun",
                selection_mode="single-row",
                key=f"features_table_{way.lower()}",
            )
        if picked.selection.rows:
            sae_parts.open_feature(entry.key, int(found["latent"].iloc[picked.selection.rows[0]]))


render()
