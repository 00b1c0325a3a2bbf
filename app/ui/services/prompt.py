"""Answers about one prompt: its tokens, the next ones, attention, and what a saved probe says."""

from typing import Any, Literal

import numpy as np
import pandas as pd
import streamlit as st

import interp
from ui.services.live import checked, engine, is_of_the_model, token_ids
from ui.services.runs import KEPT, needed_run, run, run_frame

MAX_STATEMENTS = 20
FEW: dict[str, Any] = {"max_entries": 3, "show_spinner": False}
"""Matrices are shared and not copied: a layer of 2,048 tokens has some 100 MB."""
EXACT_TOKENS = 512
"""Longest text whose attention is kept in single precision."""
Source = Literal["run", "live"]
"""Where an answer came from: the run's files or the live model."""


def tokens(prompt: str) -> tuple[pd.DataFrame, Source]:
    """A row per token: pos, token, logprob, entropy, rank ... (`interp.token_uncertainty`)."""
    frame, source = saved_or_live("tokens", prompt, _tokens)
    if source == "run" and needed_run().has("lens.parquet"):  # the run scores the answer too, which is not asked for
        frame = frame.loc[frame["pos"].isin(run_frame("lens")["pos"])]
    return frame, source


def next_tokens(prompt: str, pos: int, k: int = 10) -> pd.DataFrame:
    """The k most probable tokens after position `pos`: rank, token, prob, logprob (nats)."""
    frame = _next_tokens(engine().fingerprint, token_ids(prompt), k)
    return frame.loc[frame["pos"] == pos].drop(columns="pos").reset_index(drop=True)


def candidates(prompt: str, pos: int, k: int = 10) -> dict[str, str | int]:
    """The k most probable tokens after `pos`: as a reader sees them -> text, or the id where the text is no single token."""
    return _candidates(engine().fingerprint, token_ids(prompt), pos, k)


def attention(prompt: str, layer: int) -> np.ndarray:
    """Attention of one layer on the prompt: [head query key], read only, rows sum to 1; float16 over 512 tokens."""
    return _attention(engine().fingerprint, token_ids(prompt), layer)


def value_weighted(prompt: str, layer: int) -> np.ndarray:
    """Attention times the length of what it moves (`interp.value_weighted_attention`): [head query key], as `attention`."""
    return _value_weighted(engine().fingerprint, token_ids(prompt), layer)


def without_sink(weights: np.ndarray) -> np.ndarray:
    """Attention among positions 1 and on, each row summing to 1 again; a row with nothing left stays zero."""
    rest = weights[1:, 1:]
    total = rest.sum(-1, keepdims=True)
    return np.divide(rest, total, out=np.zeros_like(rest), where=total > 1e-12)


def score_statements(statements: list[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What the run's saved probe says of each statement: statement, probability, says; and the probe's site and kind.

    Raises:
        ValueError: no probe in the run, a probe of another model, or more statements than a page takes.
    """
    if len(statements) > MAX_STATEMENTS:
        raise ValueError(f"{len(statements)} statements are more than the {MAX_STATEMENTS} of one go")
    path = needed_run().file("probe.safetensors")
    ids = tuple(token_ids(statement) for statement in statements)
    probability, probe = _scores(engine().fingerprint, str(path), path.stat().st_mtime_ns, ids)
    says = ["true" if p > probe["threshold"] else "false" for p in probability]
    return pd.DataFrame({"statement": statements, "probability": probability, "says": says}), probe


def saved_or_live(name: str, prompt: str, live: Any) -> tuple[pd.DataFrame, Source]:
    """The run's frame where it answers this prompt, else what `live(fingerprint, ids)` gives."""
    found = run()
    if found is not None and prompt == found.prompt and is_of_the_model(found) and found.has(f"{name}.parquet"):
        return run_frame(name), "run"
    return live(engine().fingerprint, token_ids(prompt)), "live"


@st.cache_data(**KEPT)
def _tokens(fingerprint: str, ids: tuple[int, ...]) -> pd.DataFrame:
    with checked(fingerprint) as model:
        return interp.token_uncertainty(model, list(ids)).to_frame()


@st.cache_data(**KEPT)
def _next_tokens(fingerprint: str, ids: tuple[int, ...], k: int) -> pd.DataFrame:
    import torch  # a page whose answers lie in the run never pays for this import

    with checked(fingerprint) as model, torch.inference_mode():
        logprob = model(list(ids))[0].float().log_softmax(-1)
        top = logprob.topk(min(k, logprob.shape[-1]))
    found, n, k = top.values.numpy(), *top.indices.shape
    read = {i: model.tokenizer.views([i])[0].display for i in set(top.indices.flatten().tolist())}
    return pd.DataFrame(
        {
            "pos": np.repeat(np.arange(n), k),
            "rank": np.tile(np.arange(1, k + 1), n),
            "token": [read[i] for i in top.indices.flatten().tolist()],
            "prob": np.exp(found).flatten(),
            "logprob": found.flatten(),
        }
    )


@st.cache_data(**KEPT)
def _candidates(fingerprint: str, ids: tuple[int, ...], pos: int, k: int) -> dict[str, str | int]:
    import torch

    with checked(fingerprint) as model, torch.inference_mode():
        tokenizer, found = model.tokenizer, model(list(ids[: pos + 1]))[0, -1].topk(min(k, model.cfg.d_vocab)).indices
        views = tokenizer.views(found.tolist())
        return {
            view.display: view.text if tokenizer.encode(view.text, False) == [view.id] else view.id for view in views
        }


@st.cache_resource(**FEW)
def _attention(fingerprint: str, ids: tuple[int, ...], layer: int) -> np.ndarray:
    import torch

    with checked(fingerprint) as model, torch.inference_mode():
        _, cache = model.run_with_cache(list(ids), sites=f"pattern:{layer}", stop_at_layer=layer + 1)
        return _held(cache[f"pattern:{layer}"][0])


@st.cache_resource(**FEW)
def _value_weighted(fingerprint: str, ids: tuple[int, ...], layer: int) -> np.ndarray:
    with checked(fingerprint) as model:
        return _held(interp.value_weighted_attention(model, list(ids), layer)[0])


def _held(weights: Any) -> np.ndarray:
    """As an array that nobody can write to: all sessions share it. Of a long text in half precision, which keeps three
    digits."""
    held = (weights.half() if weights.shape[-1] > EXACT_TOKENS else weights.float()).cpu().numpy()
    held.flags.writeable = False
    return held


@st.cache_data(**KEPT)
def _scores(
    fingerprint: str,
    path: str,
    stamp: int,  # noqa: ARG001 (part of the key)
    statements: tuple[tuple[int, ...], ...],
) -> tuple[list[float], dict[str, Any]]:
    import torch

    probe = interp.load_probe(path)
    fitted_on = probe.card.get("fingerprint", probe.card.get("provenance", {}).get("fingerprint"))
    if fitted_on not in (None, fingerprint):
        raise ValueError("the run's probe was fitted on another model than the one that is loaded")
    found = []
    with checked(fingerprint) as model, torch.inference_mode():
        for ids in statements:
            _, cache = model.run_with_cache(list(ids), sites=probe.site)
            found.append(float(probe(cache[probe.site][0, -1])))
    return found, {"kind": probe.kind, "site": probe.site, "threshold": float(probe.threshold)}
