"""The live model: one per server, behind a lock, and what every answer of it needs."""

import contextlib
import gc
import logging
import os
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

import interp
from ui import state
from ui.results import Run
from ui.services.runs import needed_run, run

logger = logging.getLogger("interp.app")

_loaded: dict[str, str] = {}
"""Name -> fingerprint of what was loaded, to speak of the model without loading it."""


@dataclass(frozen=True, eq=False)
class Engine:
    """The shared model and its lock: one thread at a time computes."""

    model: Any
    fingerprint: str
    """Taken once: a model hashes all its weights at each call, and no page writes them."""
    lock: threading.RLock


def model_name() -> str:
    """The model that pages use: the one chosen in the sidebar, else $INTERP_MODEL, else the run's.

    Raises:
        ValueError: none is named, or the run names something that is not a plain model name.
    """
    asked = st.session_state.get("model") or st.query_params.get("model")
    if asked and (offered := models_offered()) and asked in offered:
        return str(asked)
    return _default_model()


def models_offered() -> list[str]:
    """Names that can be chosen: the default first, then the models of the catalogue that are on this machine."""
    first = _default_model()
    known = interp.models()
    if "kind" in known:
        known = known.loc[known["kind"] == "language model"]
    same = next((_names(row) for row in known.to_dict("records") if first.lower() in _names(row)), [])
    others = [str(name) for name, cached in zip(known["name"], known["cached"]) if cached and name.lower() not in same]
    return [first, *(name for name in others if name != first)]


def _default_model() -> str:
    chosen = os.environ.get("INTERP_MODEL")
    if chosen:
        return chosen
    found = needed_run()
    name = str(found.model.get("loads_as") or found.model.get("name", ""))
    # A run's folder may come from somebody else: its model is a name, never a path.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", name) or ".." in name:
        raise ValueError(f"the run names the model {name[:80]!r}, which is no model name: start with --model NAME")
    return name


def is_of_the_model(found: Run) -> bool:
    """Whether a run's results are those of the model that pages use: another --model gets no answers of the run's."""
    return model_name() in (found.model.get("name"), found.model.get("loads_as"))


def mismatch() -> str | None:
    """What is wrong where the loaded model has other weights than the run's; None while nothing is loaded."""
    found = run()
    loaded = _loaded.get(model_name())
    if found is None or loaded is None or not is_of_the_model(found) or loaded == found.model.get("fingerprint"):
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


_in_memory: "weakref.WeakValueDictionary[str, Engine]" = weakref.WeakValueDictionary()
"""The engines that somebody still holds, by name."""


def in_memory() -> dict[str, Engine]:
    """The models that are in memory, by name; none is loaded for it."""
    return dict(_in_memory)


def release(wait_s: float = 10.0) -> bool:
    """Free the model; the next question loads it again. False where it was busy for so long."""
    held = list(in_memory().values())
    for live in held:
        if not live.lock.acquire(timeout=wait_s):
            return False
        live.lock.release()
    _engine.clear()
    del held
    gc.collect()
    return True


@st.cache_resource(max_entries=1, show_spinner=False, on_release=_release)
def _engine(name: str) -> Engine:
    model = interp.load(name).eval()
    _loaded[name] = model.fingerprint
    made = Engine(model, _loaded[name], threading.RLock())
    _in_memory[name] = made
    return made


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


@contextlib.contextmanager
def checked(fingerprint: str) -> Iterator[Any]:
    """The model, locked, if it is still the one that the caller's key names."""
    live = engine()
    with live.lock:
        if live.fingerprint != fingerprint:
            raise ValueError("the model was replaced while this page was computed: reload the page")
        yield live.model
