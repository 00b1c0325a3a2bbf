"""The SAE of a demo run: what it explains, beside a PCA of equal size."""

from typing import Any

import pandas as pd
import streamlit as st

from interp import plot, sites
from ui import figure, services, text

NEEDED = (
    "fvu", "fvu_low", "fvu_high", "fvu_all", "l0", "l0_p10", "l0_p90", "l0_max", "dead_share",
    "dense_share", "n_latents", "n_rows", "n_left_out", "n_units", "site", "pca",
)  # fmt: skip


def read() -> dict[str, Any]:
    """The run's figures. ValueError for those of an older version."""
    found = services.run_json("sae")
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise ValueError(
            f"sae.json is of an older version, without {', '.join(missing)}: remove it and start `interp demo` again"
        )
    return found


def figures(found: dict[str, Any]) -> None:
    """What it explains, how many latents that takes, and how sure the figures are."""
    low, high, units = found["fvu_low"], found["fvu_high"], f"n = {found['n_units']:,} documents"
    interval = units if low is None else f"95 % {low:.3f} to {high:.3f}, {units}"
    first, last, most = (f"{found[name]:.0f}" for name in ("l0_p10", "l0_p90", "l0_max"))
    spread = f"on each row {most}" if first == most else f"80 % of rows {first} to {last}, at most {most}"
    dead = f"of {found['n_latents']:,}; {found['dense_share']:.1%} fire on over a tenth of rows"
    shown = (
        ("FVU", f"{found['fvu']:.3f}", interval),
        ("L0", f"{found['l0']:.1f}", spread),
        ("Dead latents", f"{found['dead_share']:.1%}", dead),
        ("FVU, all rows", f"{found['fvu_all']:.3f}", f"with {found['n_left_out']:,} first, special and outlier rows"),
    )
    for column, (title, value, caption) in zip(st.columns(len(shown)), shown):
        with column.container(border=True, height="stretch"):
            st.metric(title, value)
            st.caption(caption)


def comparison() -> None:
    """Figures and curve of the run's own SAE."""
    found = read()
    figures(found)
    what = (
        "The line is PCA at growing rank; the dot is the autoencoder at its L0. Lower is better. An autoencoder below "
        "the line explains more with as many numbers per token. Position 0, special tokens and rows with an outlier norm "
        "are left out for both: with them one direction has nearly all the variance, and any method looks perfect."
    )
    with figure.card("sae_pca", "Unexplained variance beside PCA", what) as card:
        pca = pd.DataFrame(found["pca"])
        own = {f"sae_{name}": found[name] for name in ("fvu", "fvu_low", "fvu_high", "l0")}
        n = f"n = {found['n_rows']:,} held-out rows of {found['n_units']:,} documents; rows left out: {found['n_left_out']:,}"
        card.chart(
            plot.fvu_curve(pca, fvu=float(found["fvu"]), l0=float(found["l0"])),
            pca.assign(**own),
            code="""
import interp

sae = interp.load_sae("runs/demo/sae.safetensors")
store = interp.open_store("runs/demo/stores/python_docs")
_, held_out = interp.split_rows(store, 0.2, seed=0)
print(interp.evaluate_sae(sae, store, rows=held_out).to_frame().T)
""",
            caption=f"{text.plain(sites.short_name(str(found['site'])))}, {n}",
        )
