"""Sparse autoencoder: what it explains, beside a PCA of equal size."""

import pandas as pd
import streamlit as st

from interp import plot, sites
from ui import figure, frame, services, states, text

WHAT = """
A sparse autoencoder writes each activation as a sum of a few out of many learned directions. **FVU** is the fraction of
variance that it leaves unexplained, on texts that training never saw: 0 is perfect. **L0** is how many latents are
active for a token.

The fair rival is a **PCA** with as many components as the autoencoder has active latents. Position 0 and rows with an
outlier norm are left out for both: with them one direction has nearly all the variance, and any method looks perfect.
"""
FIGURES = {
    "fvu": ("FVU", ".3f"),
    "l0": ("L0", ".1f"),
    "dead_share": ("Dead latents", ".1%"),
    "fvu_all": ("FVU, all rows", ".3f"),
}


def render() -> None:
    frame.head("Sparse autoencoder", WHAT)
    frame.prompt_strip()
    with states.guard("The autoencoder's results cannot be shown"):
        found = services.run_json("sae")
        for column, (key, (title, spec)) in zip(st.columns(len(FIGURES)), FIGURES.items()):
            column.metric(title, format(found[key], spec), border=True)
        what = (
            "The line is PCA at growing rank; the dot is the autoencoder at its L0. Lower is better. An autoencoder below "
            "the line explains more with as many numbers per token."
        )
        with figure.card("sae_pca", "Unexplained variance beside PCA", what) as card:
            pca = pd.DataFrame(found["pca"])
            n = f"n = {found['n_rows']:,} held-out rows; {found['n_left_out']:,} first and outlier rows left out"
            card.chart(
                plot.fvu_curve(pca, fvu=float(found["fvu"]), l0=float(found["l0"])),
                pca.assign(sae_fvu=found["fvu"], sae_l0=found["l0"]),
                code="""
import interp

sae = interp.load_sae("runs/demo/sae.safetensors")
store = interp.open_store("runs/demo/stores/python_docs")
_, held_out = interp.split_rows(store, 0.2, seed=0)
print(interp.evaluate_sae(sae, store, rows=held_out).to_frame())
""",
                caption=f"{text.plain(sites.short_name(str(found['site'])))}, {n}",
            )


render()
