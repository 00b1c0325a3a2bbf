"""Sparse autoencoders of the workspace: how good each is, and what is missing to look at its latents."""

import pandas as pd
import streamlit as st

from interp import plot
from ui import figure, frame, library, services, states, text
from ui.panels import sae_parts, sae_run
from ui.services import saes

WHAT = """
A sparse autoencoder writes each activation as a sum of a few out of many learned directions, its latents. **FVU** is the
fraction of variance that it leaves unexplained, on texts that training never saw: 0 is perfect. **L0** is how many latents
are active for a token. **Dead** latents fire on none of the rows that were measured.

The list has every SAE of the workspace. Figures come from a report in its own folder. A report does not name its SAE, so beside
several SAEs it is left out.
"""


def listing() -> None:
    """The table, newest first; a row opens its latents."""
    table = saes.listed()
    what = "Every SAE of the workspace. Choose a row to open the page of its latents."
    with figure.card("sae_list", "In this workspace", what) as card:
        shown = sae_parts.marked(table)
        picked = card.table(
            shown.drop(columns=["key"]),
            code="""
import interp

print(interp.load_sae("runs/demo/sae.safetensors").card)
""",
            caption=f"n = {len(table)} SAEs",
            columns=sae_parts.COLUMNS,
            on_select="rerun",
            selection_mode="single-row",
            key="saes_table",
        )
        if picked.selection.rows:
            sae_parts.open_feature(str(table["key"].iloc[picked.selection.rows[0]]), 0)
    known = table.dropna(subset=["l0", "fvu"])
    if len(known) > 1:
        what = "Unexplained variance against active latents. Low and left is better. Only SAEs of one site compare."
        with figure.card("sae_frontier", "Error against sparsity", what) as card:
            frontier = known.rename(columns={"sae": "name"})
            rows = frontier.loc[:, ["name", "l0", "fvu"]].to_dict("records")
            code = f"""
import pandas as pd
from interp import plot

plot.sae_frontier(pd.DataFrame({rows!r}))
"""
            card.chart(plot.sae_frontier(frontier), frontier, code=code, caption=f"n = {len(known)} SAEs")


def of_one(entry: library.Entry) -> None:
    """Features and densities of one SAE, or how they come about."""
    found = saes.features_of(entry.key)
    if found is None:
        sae_parts.collect(entry)
        return
    shares = saes.densities(entry.key)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Look at its latents", icon=":material/arrow_forward:", key="saes_open"):
            sae_parts.open_feature(entry.key, 0)
        st.caption(f"Features: {text.plain(found.title)}")
    what = (
        "On how many of the tokens each latent fires. A latent on more than 1 % of tokens is called dense here: what it "
        "stands for is seldom one thing. Latents that never fire are counted in the title."
    )
    with figure.card("sae_density", "How often latents fire", what) as card:
        data = pd.DataFrame({"latent": range(len(shares)), "density": shares})
        chart = plot.latent_densities(shares, dense=saes.DENSE)
        code = saes.load_code(entry.key, features=True)
        code += f'interp.plot.latent_densities(features.latents["density"].fillna(0).tolist(), dense={saes.DENSE})'
        card.chart(chart, data, code=code, caption=f"n = {len(shares):,} latents")


def render() -> None:
    frame.head("Sparse autoencoders", WHAT)
    frame.prompt_strip()
    if library.entries("sae"):
        with states.guard("The SAEs cannot be listed"):
            listing()
        entry = library.pick("sae", "SAE", "saes_sae")
        with states.guard("This SAE cannot be shown"):
            if entry is not None:
                of_one(entry)
    else:
        why = "An SAE is a file that `interp sae train` writes, from a store of activations or from a model's texts."
        states.empty("There is no SAE in this workspace", why, "interp sae train --help")
    if services.run() is not None:
        with states.guard("The run's comparison with PCA cannot be shown"):
            sae_run.comparison()


render()
