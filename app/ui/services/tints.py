"""Further colours of the token strip: what a probe says of each token, and how strongly a latent fires on it."""

import math

import pandas as pd
import streamlit as st

import interp
from ui import library
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT

MOST_BYTES = 2 * 2**30
"""Largest SAE that is loaded for a page."""


def probe_scores(prompt: str, key: str) -> list[float]:
    """Probability that the probe gives at each token of the prompt; NaN at position 0 and special tokens.

    Raises:
        ValueError: no such probe, or one of another model.
    """
    found = library.entry(key, "probe")
    _refuse_other(found)
    return _probe_scores(engine().fingerprint, token_ids(prompt), str(found.path), found.stamp)


def activations(prompt: str, key: str, latent: int) -> list[float]:
    """Activation of a latent at each token of the prompt; NaN where the SAE does not read (position 0, outliers).

    Raises:
        ValueError: no such SAE or latent, or an SAE of another model.
    """
    found = library.entry(key, "sae")
    _refuse_other(found)
    width = sae(key).n_latents
    if not 0 <= latent < width:
        raise ValueError(f"there is no latent {latent}: this SAE has {width:,}, numbered from 0")
    fired, read = _fired(engine().fingerprint, token_ids(prompt), key, found.stamp)
    own = fired.loc[fired["latent"] == latent].set_index("position")["value"]
    n = len(token_ids(prompt))
    return [float(own.get(pos, 0.0)) if pos in read else math.nan for pos in range(n)]


def n_latents(key: str) -> int:
    """Latents of an SAE of the workspace."""
    return sae(key).n_latents


def sae(key: str) -> interp.SAE:
    """An SAE of the workspace, loaded once. ValueError for none of that key, or one that is too large for a page."""
    found = library.entry(key, "sae")
    if found.size > MOST_BYTES:
        raise ValueError(
            f"{found.title} has {found.size / 2**30:.1f} GB, more than the {MOST_BYTES / 2**30:.0f} of a page"
        )
    return _sae(str(found.path), found.stamp)


def _refuse_other(found: library.Entry) -> None:
    if found.model not in (None, engine().fingerprint):
        raise ValueError(f"{found.title} belongs to another model than the one that is loaded")


@st.cache_resource(max_entries=3, show_spinner=False)
def _sae(path: str, stamp: int) -> interp.SAE:  # noqa: ARG001 (the stamp is part of the key)
    return interp.load_sae(path)


@st.cache_data(**KEPT)
def _probe_scores(
    fingerprint: str,
    ids: tuple[int, ...],
    path: str,
    stamp: int,  # noqa: ARG001 (part of the key)
) -> list[float]:
    with checked(fingerprint) as model:
        table = interp.score_tokens(model, interp.load_probe(path), list(ids)).set_index("position")
    # At the first and at special tokens the stream is another one than any that the probe was fitted on.
    said = table["probability"].where(table["ordinary"]).to_dict()
    return [float(said.get(pos, math.nan)) for pos in range(len(ids))]


@st.cache_data(**KEPT)
def _fired(
    fingerprint: str,
    ids: tuple[int, ...],
    key: str,
    stamp: int,  # noqa: ARG001 (part of the key)
) -> tuple[pd.DataFrame, frozenset[int]]:
    """Position, latent and value of everything that fires, and the positions that were read."""
    dictionary = sae(key)
    with checked(fingerprint) as model:
        fired = interp.search_by_prompt(dictionary, model, list(ids), n=dictionary.n_latents, per_token=True)
    # A row is written for each token that is read, for something fires on every one of them.
    return fired.loc[:, ["position", "latent", "value"]], frozenset(fired["position"].tolist())
