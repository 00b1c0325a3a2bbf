"""Direct logit attribution of a prompt's answer."""

from typing import Any

import pandas as pd
import streamlit as st

import interp
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT

WAYS = {"component": "Component", "layer": "Layer", "head": "Head", "source": "Source token", "neuron": "Neuron"}
"""Ways to divide the stream."""
MAX_SOURCES = 96
"""Most tokens up to the chosen one where shares are told by source token: each head has one share for each."""


def attribution(
    prompt: str, pos: int, answer: str | int, against: str | int | None, by: str
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per part (`Attribution.to_frame`), and the facts: logit, tokens, before_softcap.

    Raises:
        ValueError: an answer of several tokens, or a model whose stream is no sum.
    """
    ids = token_ids(prompt)[: pos + 1]  # nothing after the place can reach it
    if by == "source" and len(ids) > MAX_SOURCES:
        raise ValueError(f"by source token at most {MAX_SOURCES} tokens: choose an earlier one than {pos}")
    return _attribution(engine().fingerprint, ids, answer, against, by)


@st.cache_data(**KEPT)
def _attribution(
    fingerprint: str, ids: tuple[int, ...], answer: str | int, against: str | int | None, by: str
) -> tuple[pd.DataFrame, dict[str, Any]]:
    with checked(fingerprint) as model:
        found = interp.direct_logit_attribution(model, list(ids), answer, against, by=by)
    facts = {
        "logit": float(found.logit[0]),
        "tokens": list(found.tokens[0]),
        "before_softcap": bool(found.card["before_softcap"]),
        "unexplained": float(found.residual.abs().max()),
    }
    return found.to_frame(), facts
