"""One latent of an SAE: what it fires on, what it does, and on one's own text."""

import streamlit as st

from ui import frame, state, states
from ui.panels import feature_parts, sae_parts
from ui.services import saes

WHAT = """
A latent is one direction that an SAE learned. **Examples** are the tokens of a store on which it fires, the strongest first,
then from all over its range: the strongest alone flatter it. **Promoted tokens** are what its decoder row does to the logits
by the direct path, alone in the stream: their order means more than their size. **Density** is the share of tokens on which
it fires.
"""


def choose_latent(n: int) -> int:
    """Number box with a step to each side; the number stands in the URL."""
    asked = state.number("latent") or 0
    if asked >= n:
        states.empty("There is no such latent", f"{asked:,} was asked for; this SAE has {n:,}. The last one is shown.")
    number = st.number_input("Latent", 0, n - 1, min(asked, n - 1), help=f"0 to {n - 1:,}; the arrows step.", width=160)
    state.choose("latent", int(number))
    return int(number)


def render() -> None:
    frame.head("Feature", WHAT)
    frame.prompt_strip()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        entry = sae_parts.chosen_sae()
        if entry is None:
            return
        place = st.container()
    with states.guard("This SAE cannot be read"):
        n = saes.latent(entry.key, 0).n_latents
        with place:
            number = choose_latent(n)
        found = saes.latent(entry.key, number)
        feature_parts.headline(entry.key, number, found)
        left, right = st.columns([2, 3])
        with left:
            with states.guard("What it does to the logits cannot be shown"):
                feature_parts.effects(entry.key, number)
            feature_parts.neighbours(found)
        with right:
            with states.guard("Its activations cannot be shown"):
                feature_parts.activations(entry.key, number, found)
            with states.guard("Its examples cannot be shown"):
                feature_parts.examples(entry, number, found)
        with states.guard("Your text cannot be read"):
            feature_parts.own_text(entry.key, number, found)
        with states.guard("It cannot be steered with"):
            feature_parts.steer(entry.key, number, found)


render()
