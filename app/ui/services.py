"""The only place that calls `interp`: the run's results, one shared model, and cached answers for a prompt.

1. A prompt that the run has already answered is served from the run's files; no model is loaded for it.
2. Any other prompt goes to the live model. There is one model per server, behind a lock: two browser tabs are two threads.
   A replaced model is released. Nothing of it is kept in a session.
3. Answers are frames, cached by the model's fingerprint and the token ids. Tensors never leave this module.

Where the model and the run lie comes from the environment (`interp app --run ... --model ...`), never from a page.
"""

import contextlib
import gc
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import streamlit as st

import interp
from ui import state
from ui.results import Run, open_run

logger = logging.getLogger("interp.app")

EXAMPLE = "The Eiffel Tower is located in the city of"
MAX_STATEMENTS = 20
Source = Literal["run", "live"]
"""Where an answer came from: the run's files or the live model."""

_loaded: dict[str, str] = {}
"""Name -> fingerprint of what was loaded, to speak of the model without loading it."""
_KEPT = {"max_entries": 64, "ttl": "1h", "show_spinner": False}


# --------------------------------------------------------------------------------------------------------- the run


def run() -> Run | None:
    """The run named by $INTERP_RUN, None where none is named.

    Raises:
        ValueError: it is named and cannot be read.
    """
    folder = os.environ.get("INTERP_RUN")
    return open_run(folder) if folder else None


def run_frame(name: str) -> pd.DataFrame:
    """A frame of the run. ValueError where there is no run, or the run lacks it."""
    found = _needed_run()
    return _frame(str(found.path), found.stamp, name)


def run_json(name: str) -> dict[str, Any]:
    """A JSON file of the run. ValueError where there is no run, or the run lacks it."""
    return _needed_run().json(name)


def stores() -> pd.DataFrame:
    """The stores that the run recorded: store, texts, rows, sites, dtype, megabytes."""
    found = _needed_run()
    return _stores(str(found.path), found.stamp)


def default_prompt() -> str:
    """The run's prompt, or an example."""
    try:
        found = run()
    except ValueError:
        found = None
    return found.prompt if found and found.prompt else EXAMPLE


@st.cache_data(**_KEPT)
def _frame(path: str, stamp: int, name: str) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    return open_run(path).frame(name)


@st.cache_data(**_KEPT)
def _stores(path: str, stamp: int) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    root, rows = Path(path).resolve(), []
    for card in sorted((root / "stores").glob("*/store.json")):
        if not card.resolve().is_relative_to(root):
            continue
        store = interp.open_store(card.parent)
        size = sum(file.stat().st_size for file in card.parent.rglob("*") if file.is_file()) / 1e6
        rows.append((card.parent.name, store.n_texts, store.n_rows, len(store.sites), store.dtype, f"{size:.1f}"))
    return pd.DataFrame(rows, columns=pd.Index(["store", "texts", "rows", "sites", "dtype", "MB"]))


def _needed_run() -> Run:
    found = run()
    if found is None:
        raise ValueError("no run is open: make one with `interp demo`, then start `interp app --run runs/demo`")
    return found


# ------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True, eq=False)
class Engine:
    """The shared model and its lock: one thread at a time computes."""

    model: Any
    fingerprint: str
    """Taken once: a model hashes all its weights at each call, and no page writes them."""
    lock: threading.RLock


def model_name() -> str:
    """The model that pages use: $INTERP_MODEL, else the run's.

    Raises:
        ValueError: neither names one, or the run names something that is not a plain model name.
    """
    chosen = os.environ.get("INTERP_MODEL")
    if chosen:
        return chosen
    found = _needed_run()
    name = str(found.model.get("loads_as") or found.model.get("name", ""))
    # A run's folder may come from somebody else: its model is a name, never a path.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", name) or ".." in name:
        raise ValueError(f"the run names the model {name[:80]!r}, which is no model name: start with --model NAME")
    return name


def _is_of_the_model(found: Run) -> bool:
    """Whether a run's results are those of the model that pages use: another --model gets no answers of the run's."""
    chosen = os.environ.get("INTERP_MODEL")
    return chosen in (None, "", found.model.get("name"), found.model.get("loads_as"))


def mismatch() -> str | None:
    """What is wrong where the loaded model has other weights than the run's; None while nothing is loaded."""
    found = run()
    loaded = _loaded.get(model_name())
    if found is None or loaded is None or not _is_of_the_model(found) or loaded == found.model.get("fingerprint"):
        return None
    return "The loaded model has other weights than the one of the run: their results do not belong together."


def engine() -> Engine:
    """The live model, loaded on first use and shared by all sessions.

    Raises:
        ValueError: it cannot be loaded, or a model of the catalogue was never fetched: pages do not download.
    """
    name = model_name()
    catalogue = interp.models()
    listed = {known: bool(row["cached"]) for row in catalogue.to_dict("records") for known in _names(row)}
    if not listed.get(name.lower(), True):
        raise ValueError(f"the model {name} is not on this machine yet: `interp demo` fetches it; pages never download")
    return _engine(name)


def _names(row: Mapping[Any, Any]) -> list[str]:
    return [str(row["name"]).lower(), *str(row["alias"]).lower().split(", ")]


def _release(old: Engine) -> None:
    logger.info("releasing a model")
    del old
    gc.collect()


@st.cache_resource(max_entries=1, show_spinner=False, on_release=_release)
def _engine(name: str) -> Engine:
    model = interp.load(name).eval()
    _loaded[name] = model.fingerprint
    return Engine(model, _loaded[name], threading.RLock())


def token_ids(prompt: str) -> tuple[int, ...]:
    """The prompt as token ids, with a BOS where the tokenizer has that rule.

    Raises:
        ValueError: an empty prompt, or one that is too long for a page.
    """
    if not prompt:
        raise ValueError("the prompt is empty: write one in the sidebar")
    if len(prompt) > state.MAX_CHARS:
        raise ValueError(f"the prompt has {len(prompt):,} characters, more than the {state.MAX_CHARS:,} of a page")
    live = engine()
    limit = min(state.MAX_TOKENS, live.model.cfg.n_ctx)
    return tuple(live.model.tokenize(prompt, max_length=limit).row(0))


# --------------------------------------------------------------------------------------------------------- answers


def tokens(prompt: str) -> tuple[pd.DataFrame, Source]:
    """A row per token: pos, token, logprob, entropy, rank ... (`interp.token_uncertainty`)."""
    frame, source = _saved_or_live("tokens", prompt, _tokens)
    if source == "run" and _needed_run().has("lens.parquet"):  # the run scores the answer too, which is not asked for
        frame = frame.loc[frame["pos"].isin(run_frame("lens")["pos"])]
    return frame, source


def lens(prompt: str) -> tuple[pd.DataFrame, Source]:
    """A row per layer and token (`interp.logit_lens`)."""
    return _saved_or_live("lens", prompt, _lens)


def next_tokens(prompt: str, pos: int, k: int = 10) -> pd.DataFrame:
    """The k most probable tokens after position `pos`: rank, token, prob, logprob (nats)."""
    frame = _next_tokens(engine().fingerprint, token_ids(prompt), k)
    return frame.loc[frame["pos"] == pos].drop(columns="pos").reset_index(drop=True)


def heads(seed: int) -> tuple[pd.DataFrame, Source]:
    """A row per head (`interp.head_scores`): the run's, else the live model's with this seed."""
    found = run()
    if found is not None and _is_of_the_model(found) and found.has("heads.parquet"):
        return run_frame("heads"), "run"
    return live_heads(seed), "live"


def live_heads(seed: int) -> pd.DataFrame:
    """Head scores of the live model."""
    return _heads(engine().fingerprint, seed)


def attention(prompt: str, layer: int) -> np.ndarray:
    """Attention of one layer on the prompt: [head query key], float32, rows sum to 1."""
    return _attention(engine().fingerprint, token_ids(prompt), layer)


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
    path = _needed_run().file("probe.safetensors")
    ids = tuple(token_ids(statement) for statement in statements)
    probability, probe = _scores(engine().fingerprint, str(path), path.stat().st_mtime_ns, ids)
    says = ["true" if p > probe["threshold"] else "false" for p in probability]
    return pd.DataFrame({"statement": statements, "probability": probability, "says": says}), probe


def _saved_or_live(name: str, prompt: str, live: Any) -> tuple[pd.DataFrame, Source]:
    found = run()
    if found is not None and prompt == found.prompt and _is_of_the_model(found) and found.has(f"{name}.parquet"):
        return run_frame(name), "run"
    return live(engine().fingerprint, token_ids(prompt)), "live"


@st.cache_data(**_KEPT)
def _tokens(fingerprint: str, ids: tuple[int, ...]) -> pd.DataFrame:
    with _checked(fingerprint) as model:
        return interp.token_uncertainty(model, list(ids)).to_frame()


@st.cache_data(**_KEPT)
def _lens(fingerprint: str, ids: tuple[int, ...]) -> pd.DataFrame:
    with _checked(fingerprint) as model:
        return interp.logit_lens(model, list(ids)).to_frame()


@st.cache_data(**_KEPT)
def _heads(fingerprint: str, seed: int) -> pd.DataFrame:
    with _checked(fingerprint) as model:
        return interp.head_scores(model, seed=seed).to_frame()


@st.cache_data(**_KEPT)
def _next_tokens(fingerprint: str, ids: tuple[int, ...], k: int) -> pd.DataFrame:
    import torch  # a page whose answers lie in the run never pays for this import

    with _checked(fingerprint) as model, torch.inference_mode():
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


@st.cache_data(**_KEPT)
def _attention(fingerprint: str, ids: tuple[int, ...], layer: int) -> np.ndarray:
    import torch

    with _checked(fingerprint) as model, torch.inference_mode():
        _, cache = model.run_with_cache(list(ids), sites=f"pattern:{layer}", stop_at_layer=layer + 1)
        return cache[f"pattern:{layer}"][0].float().numpy()


@st.cache_data(**_KEPT)
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
    with _checked(fingerprint) as model, torch.inference_mode():
        for ids in statements:
            _, cache = model.run_with_cache(list(ids), sites=probe.site)
            found.append(float(probe(cache[probe.site][0, -1])))
    return found, {"kind": probe.kind, "site": probe.site, "threshold": float(probe.threshold)}


@contextlib.contextmanager
def _checked(fingerprint: str) -> Iterator[Any]:
    """The model, locked, if it is still the one that the caller's key names."""
    live = engine()
    with live.lock:
        if live.fingerprint != fingerprint:
            raise ValueError("the model was replaced while this page was computed: reload the page")
        yield live.model
