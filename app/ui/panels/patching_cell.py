"""One patch of a sweep: its numbers, and what the model says with it."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from interp.plot.prompts import next_token_pairs
from ui import figure, state, states
from ui.services import patches


def clicked() -> None:
    """A click on a cell chooses its patch."""
    picked = st.session_state["patching"]["selection"].get("cell") or []
    if picked:
        state.choose("layer", int(picked[0]["layer"]))
        state.choose("head" if "head" in picked[0] else "pos", int(picked[0].get("head", picked[0].get("pos", 0))))


def one(asked: patches.Sweep, table: pd.DataFrame, code: Callable[[patches.Sweep, str], str]) -> None:
    """The chosen patch, at first the strongest."""
    across = "head" if asked.by == "head" else "pos"
    layer, place = state.number("layer"), state.number(across)
    row = table.loc[(table["layer"] == layer) & (table[across] == place)]
    if row.empty:
        # What moves the answer furthest from the run that is patched: 0 of the corrupted one, 1 of the clean one.
        moved = table["effect"] if asked.mode == "denoise" else 1.0 - table["effect"]
        row = table.loc[[moved.abs().idxmax()]]
    found = row.iloc[0]
    layer, place = int(found["layer"]), int(found[across])
    what = (
        "The next tokens of the first pair, in the run that is patched: **A** without the patch, **B** with it. Click a cell of "
        "the map for another patch; at first it is the one that moves the answer most."
    )
    with figure.card("one_patch", "One patch", what) as card, states.guard("The patch cannot be run"):
        with states.busy("Running the patch"):
            shown = patches.one_patch(asked, layer, place)
        with st.container(horizontal=True):
            st.metric(
                "Patch", f"layer {layer}, {'head' if across == 'head' else 'token'} {place}", border=True, width=220
            )
            st.metric(
                "Effect", f"{found['effect']:.3f}", border=True, width=140, help="0: corrupted run, 1: clean run."
            )
            if pd.notna(found["low"]):
                st.metric("95 % interval", f"{found['low']:.3f} to {found['high']:.3f}", border=True, width=230)
            st.metric("Pairs", f"{int(found['n'])}", border=True, width=110)
        site = f"{asked.site}:{layer}" + (f".{place}" if across == "head" else "")
        where = "" if across == "head" else f", positions=[{place}]"
        source, base = ("clean", "corrupted") if asked.mode == "denoise" else ("corrupted", "clean")
        card.chart(
            next_token_pairs(shown),
            shown,
            code=code(
                asked,
                f"_, cache = model.run_with_cache(pairs[:1].{source}, sites={asked.site + ':' + str(layer)!r})\n"
                f"with model.intervene(interp.Patch({site!r}, cache{where})):\n"
                f"    print(model(pairs[:1].{base})[0, -1].softmax(-1).topk(8))",
            ),
            caption=f"Pair 1 of {int(found['n'])}, the {base} prompt; the answer stands first",
        )
