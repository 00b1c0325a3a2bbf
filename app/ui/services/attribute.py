"""Direct logit attribution of a prompt's answer."""

from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp.attribution.promoted import promoted_tokens
from ui import state
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT

WAYS = {"component": "Component", "layer": "Layer", "head": "Head", "source": "Source token", "neuron": "Neuron"}
"""Ways to divide the stream."""
WITH_REST = ("component", "layer", "neuron")
"""Ways whose chart shows the part that no other explains."""
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


def shown_shares(table: pd.DataFrame, k: int = 30) -> pd.DataFrame:
    """The k largest shares in the model's order, and what is unexplained, however small it is."""
    rest = table["part"] == "unexplained"
    largest = table.loc[~rest, "mean"].abs().nlargest(k - sum(rest.tolist())).index
    return table.loc[table.index.isin(largest) | rest]


def at_places(prompt: str, pos: int, answer: str | int, against: str | int | None) -> pd.DataFrame:
    """What each layer's attention and MLP add to the answer's logit, read after each of the positions up to `pos` (the last
    `state.WINDOW` of them): component ("attn" or "mlp"), layer, pos, token, effect (logits)."""
    places = tuple(range(max(0, pos + 1 - state.WINDOW), pos + 1))
    return _at_places(engine().fingerprint, token_ids(prompt)[: pos + 1], places, answer, against)


def parts_of(table: pd.DataFrame) -> dict[str, tuple[str, int, int]]:
    """Part -> (component, layer, head) of the rows whose output can be read as tokens."""
    rows = table.loc[table["component"].isin(["embed", "attn", "mlp", "head"])]
    named = zip(rows["part"], rows["component"], rows["layer"], rows["head"])
    return {str(part): (str(kind), int(layer), int(head)) for part, kind, layer, head in named}


def promoted(prompt: str, pos: int, component: str, layer: int, head: int) -> pd.DataFrame:
    """The tokens that a part's output promotes and suppresses after `pos` (`promoted_tokens`)."""
    return _promoted(engine().fingerprint, token_ids(prompt)[: pos + 1], component, layer, head)


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
    table = found.to_frame()
    if by in WITH_REST:
        # What the parts miss, as a part of its own: always read it before the others.
        rest = {"part": "unexplained", "component": "unexplained", "mean": float(found.residual.mean())}
        rest |= {"n": 1, "n_texts": 1} | dict.fromkeys(("layer", "head", "neuron", "source"), -1)
        table = pd.concat([table, pd.DataFrame([rest])], ignore_index=True)
    return table, facts


@st.cache_data(**KEPT)
def _at_places(
    fingerprint: str, ids: tuple[int, ...], places: tuple[int, ...], answer: str | int, against: str | int | None
) -> pd.DataFrame:
    with checked(fingerprint) as model:
        found = interp.direct_logit_attribution(
            model, list(ids), answer, against, by="component", pos=list(places)
        ).by_place()
    found = found.loc[found["component"].isin(["attn", "mlp"])]
    return found.loc[:, ["component", "layer", "pos", "token", "value"]].rename(columns={"value": "effect"})


@st.cache_data(**KEPT)
def _promoted(fingerprint: str, ids: tuple[int, ...], component: str, layer: int, head: int) -> pd.DataFrame:
    with checked(fingerprint) as model:
        return promoted_tokens(model, list(ids), component, layer, head)
