"""Answers about heads: scores, what the model loses without each, circuits, and who reads whom."""

from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp.heads.circuit import HeadCircuit, head_circuit
from interp.heads.composition import head_composition
from interp.heads.examples import HeadExamples, head_examples
from interp.heads.report import HeadReport, load_head_report
from ui import library
from ui.services.live import checked, engine, is_of_the_model
from ui.services.prompt import Source
from ui.services.runs import KEPT, run, run_frame

NATURAL, NATURAL_TEXTS = "books", 64
"""Corpus and number of passages of what is called natural text."""
PASSAGES = "python_docs"
"""Corpus of the passages on a head's page: long enough that words come again."""
PASSAGES_CODE = f"interp.load_corpus({PASSAGES!r}).texts[:{NATURAL_TEXTS}]"
EXAMPLE_TOKENS = 96
"""Tokens of a passage that are shown."""
NATURAL_CODE = f"interp.load_corpus({NATURAL!r}).texts[:{NATURAL_TEXTS}]"
"""Python that makes them."""


def heads(seed: int) -> tuple[pd.DataFrame, Source]:
    """A row per head (`interp.head_scores`): the run's, else the live model's with this seed."""
    found = run()
    if found is not None and is_of_the_model(found) and found.has("heads.parquet"):
        return run_frame("heads"), "run"
    return live_heads(seed), "live"


def live_heads(seed: int, *, natural: bool = False) -> pd.DataFrame:
    """Head scores of the live model; with `natural` also on passages of a bundled corpus, columns `natural_...`."""
    return _heads(engine().fingerprint, seed, natural)


@st.cache_data(**KEPT)
def _heads(fingerprint: str, seed: int, natural: bool) -> pd.DataFrame:
    texts = interp.load_corpus(NATURAL).texts[:NATURAL_TEXTS] if natural else None
    with checked(fingerprint) as model:
        return interp.head_scores(model, seed=seed, texts=texts).to_frame()


# ---------------------------------------------------------------------------------------------------- causal check


def causal_check() -> tuple[pd.DataFrame, dict[str, Any], Source] | None:
    """Every head with its effect and verdict (`HeadReport`): the run's, else the newest of this model in the workspace.

    None where there is neither. The facts: summary, kind of ablation, n_sequences, set_effect.
    """
    found = run()
    if found is not None and is_of_the_model(found):
        for path in found.of_kind("head report"):
            return *_facts(load_head_report(path)), "run"
    for entry in library.entries("head report"):
        if entry.model == engine().fingerprint:
            return *_facts(load_head_report(entry.path)), "run"
    return None


def _facts(report: HeadReport) -> tuple[pd.DataFrame, dict[str, Any]]:
    card = report.card
    facts = {
        "summary": report.summary(),
        "kind": card["ablation"],
        "n_sequences": card.get("n_sequences_alone"),
        "set_effect": report.set_effect,
    }
    return report.to_frame(), facts


# ---------------------------------------------------------------------------------------------------- ordinary text


def examples(layer: int, head: int) -> HeadExamples:
    """What a head does on the bundled passages (`interp.heads.examples.head_examples`)."""
    return _examples(engine().fingerprint, layer, head)


def example_row(layer: int, head: int, number: int, query: int) -> pd.DataFrame:
    """One passage with the attention of one query: pos, token, weight."""
    return _example_row(engine().fingerprint, layer, head, number, query)


@st.cache_data(max_entries=16, ttl="1h", show_spinner=False)
def _examples(fingerprint: str, layer: int, head: int) -> HeadExamples:
    with checked(fingerprint) as model:
        return head_examples(model, layer, head, interp.load_corpus(PASSAGES).texts[:NATURAL_TEXTS])


@st.cache_data(**KEPT)
def _example_row(fingerprint: str, layer: int, head: int, number: int, query: int) -> pd.DataFrame:
    import torch

    with checked(fingerprint) as model, torch.inference_mode():
        ids = model.tokenizer.encode(interp.load_corpus(PASSAGES).texts[number])[:EXAMPLE_TOKENS]
        site = f"pattern:{layer}"
        _, cache = model.run_with_cache(list(ids), sites=site, stop_at_layer=layer + 1)
        weights = cache[site][0, head, query].float().numpy()
        labels = [view.display for view in model.tokenizer.views(list(ids))]
    return pd.DataFrame({"pos": range(len(ids)), "token": labels, "weight": weights})


# -------------------------------------------------------------------------------------------------------- circuits


def circuit(layer: int, head: int, which: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Tokens of the singular vectors of a head's OV or QK circuit, and the facts: total (sum of squares), left_out."""
    return _circuit(engine().fingerprint, layer, head, which)


def circuit_tokens(layer: int, head: int, which: str, token: str, n: int = 10) -> pd.DataFrame:
    """What the head writes when it looks at a token (OV), or the keys that the token looks for (QK)."""
    return _circuit_tokens(engine().fingerprint, layer, head, which, token, n)


def composition(layer: int, head: int, n: int = 6) -> pd.DataFrame:
    """The n strongest partners of a head in each mode: those that it reads, and those that read it.

    Columns of `Composition.to_frame`, with `partner` and `does`: "writes for it" or "reads it".
    """
    pairs = _composition(engine().fingerprint)
    ends = {side: (pairs[f"{side}_layer"] == layer) & (pairs[f"{side}_head"] == head) for side in ("earlier", "later")}
    sides = {"earlier": ("later", "reads it"), "later": ("earlier", "writes for it")}
    found = []
    for own, (other, does) in sides.items():
        mine = pairs.loc[ends[own]].copy()
        mine["partner"] = [f"L{a}H{b}" for a, b in zip(mine[f"{other}_layer"], mine[f"{other}_head"])]
        best = mine.assign(does=does).sort_values("excess", ascending=False)
        found.append(best.groupby("mode", sort=False).head(n))
    return pd.concat(found, ignore_index=True)


@st.cache_data(**KEPT)
def _circuit(fingerprint: str, layer: int, head: int, which: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    found = _head_circuit(fingerprint, layer, head, which)
    facts = {"total": float(found.matrix.S.double().pow(2).sum()), "left_out": found.card["left_out"]}
    return found.to_frame(), facts


@st.cache_data(**KEPT)
def _circuit_tokens(fingerprint: str, layer: int, head: int, which: str, token: str, n: int) -> pd.DataFrame:
    found = _head_circuit(fingerprint, layer, head, which)
    with checked(fingerprint) as model:
        return found.top_tokens(model, token, n)


@st.cache_resource(max_entries=8, show_spinner=False)
def _head_circuit(fingerprint: str, layer: int, head: int, which: str) -> HeadCircuit:
    with checked(fingerprint) as model:
        return head_circuit(model, layer, head, which)


@st.cache_data(max_entries=2, ttl="1h", show_spinner=False)
def _composition(fingerprint: str) -> pd.DataFrame:
    with checked(fingerprint) as model:
        return head_composition(model).to_frame()
