"""Steering live, and what steering experiments of the workspace found."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp import sites as site_names
from interp.lens.places import final_site
from interp.steering import SteeringReport, StrengthMap
from ui import library
from ui.services import tints
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT

MOST_NEW = 64
"""Most new tokens."""
WHERE = ("all", "prompt", "generated")
MOST_VECTORS = 16
"""Vectors in a table of cosines."""


@dataclass(frozen=True)
class Pair:
    """The same prompt continued without and with the push."""

    default: pd.DataFrame
    """A row per new token: pos (from 0), token, logprob (nats, under the model that wrote it), surprisal (its negative), kl
    (of the default's next-token distribution from the steered one's, nats; NaN after the first divergence)."""
    steered: pd.DataFrame
    """The same without kl; log-probabilities are the steered model's own."""
    texts: tuple[str, str]
    first: int | None
    """First new token that differs; None where none does."""
    site: str
    typical_norm: float
    note: str = ""
    """What could not be shown, and why."""


@dataclass(frozen=True)
class Push:
    """What is added: a vector of the workspace, or a latent of one of its SAEs."""

    key: str
    latent: int | None = None

    @property
    def entry(self) -> library.Entry:
        """ValueError for nothing of that key, or something of another model."""
        found = library.entry(self.key, "steering vector" if self.latent is None else "sae")
        if found.model not in (None, engine().fingerprint):
            raise ValueError(f"{found.title} was made on another model than the one that is loaded: choose its model")
        return found


def written(
    prompt: str,
    push: Push,
    strength: float,
    *,
    where: str = "all",
    n: int = 30,
    temperature: float = 0.0,
    seed: int = 0,
) -> Pair:
    """Both continuations: `model.generate`, and the same under `model.intervene(interp.Steer(...))`.

    Args:
        prompt: text.
        push: what is added.
        strength: in typical norms of the site.
        where: one of `WHERE`.
        n: most new tokens, at most `MOST_NEW`.
        temperature: 0 is greedy.
        seed: of the draws, where the temperature is over 0.

    Raises:
        ValueError: another model's vector, no such latent, no typical norm in the SAE's card, or a text that is too long.
    """
    if where not in WHERE:
        raise ValueError(f"{where[:40]!r} is no place: there are {', '.join(WHERE)}")
    entry = push.entry
    settings = (where, min(int(n), MOST_NEW), float(temperature), int(seed))
    return _written(engine().fingerprint, token_ids(prompt), push, entry.stamp, float(strength), settings)


def report(key: str) -> tuple[SteeringReport, str, str]:
    """A steering report of the workspace, the name of what was added, and its site."""
    entry = library.entry(key, "steering report", "steering job")
    found = _report(str(entry.path), entry.stamp, entry.path.is_dir())
    held = found.card.get("sites") or [found.card.get("site") or "its site"]
    return found, entry.title, ", ".join(str(each) for each in held)


def strength_map(key: str) -> tuple[pd.DataFrame, bool]:
    """The table of a steering map, and whether damage was measured in every cell."""
    entry = library.entry(key, "steering map")
    table = _map(str(entry.path), entry.stamp).table
    return table, bool(table["loss_rise"].notna().to_numpy().all())


def best(key: str, bound: float) -> dict[str, float | str]:
    """The cell with the largest effect within a bound on the damage. ValueError where there is none."""
    entry = library.entry(key, "steering map")
    return _map(str(entry.path), entry.stamp).best(bound).to_dict()


def vectors() -> dict[str, library.Entry]:
    """The workspace's vectors of one width as the cosine table takes them: name -> entry, the newest `MOST_VECTORS`."""
    return {each.title: each for each in library.entries("steering vector")[:MOST_VECTORS]}


def cosines() -> tuple[pd.DataFrame, list[str]]:
    """The cosine of every two vectors of the workspace (`interp.cosine_table`), and the names of those left out, since they
    belong to another model than the loaded one. Empty with fewer than two."""
    held = vectors()
    own = engine().fingerprint
    kept = {name: each for name, each in held.items() if each.model in (None, own)}
    left = [name for name in held if name not in kept]
    if len(kept) < 2:
        return pd.DataFrame({"a": [], "b": [], "cosine": []}), left
    return _cosines(tuple((name, str(each.path), each.stamp) for name, each in kept.items())), left


@st.cache_data(**KEPT)
def _written(
    fingerprint: str,
    ids: tuple[int, ...],
    push: Push,
    stamp: int,  # noqa: ARG001 (part of the key)
    strength: float,
    settings: tuple[str, int, float, int],
) -> Pair:
    import torch

    where, n, temperature, seed = settings
    if push.latent is None:
        vector = interp.load_steering_vector(push.entry.path)
    else:
        vector = interp.latent_direction(tints.sae(push.key), push.latent)
    with checked(fingerprint) as model, torch.inference_mode():
        final = final_site(model.cfg)
        options = {"max_new_tokens": n, "temperature": temperature, "seed": seed, "sites": [final]}
        plain = model.generate(list(ids), **options).rows[0]
        with model.intervene(interp.Steer(vector, strength, where=where)):
            changed = model.generate(list(ids), **options).rows[0]
        both = zip(plain.tokens, changed.tokens)
        shared = min(len(plain.tokens), len(changed.tokens))
        first = next((at for at, (a, b) in enumerate(both) if a != b), None)
        if first is None and len(plain.tokens) != len(changed.tokens):
            first = shared  # one of them ended
        kl = _kl(model, plain, changed, final, len(ids), shared if first is None else first + 1)
        frames = [_frame(model, row) for row in (plain, changed)]
    frames[0]["kl"] = pd.Series(kl or [], dtype=float).reindex(frames[0].index)
    site, norm = _place(vector)
    note = "" if kl is not None else "The recorded stream does not give the model's own probabilities: no KL is shown."
    return Pair(frames[0], frames[1], (str(plain.text), str(changed.text)), first, site, norm, note)


def _kl(model: Any, plain: Any, changed: Any, final: str, n_prompt: int, n: int) -> list[float] | None:
    """KL(default || steered) of the distributions that the first `n` new tokens were drawn from: up to there both have read
    the same text. None where these are not the model's own distributions."""
    n = min(n, len(plain.tokens), len(changed.tokens))
    if n == 0:
        return []
    logprobs = [
        model.unembed_logits(row.cache[final][n_prompt - 1 : n_prompt - 1 + n]).double().log_softmax(-1)
        for row in (plain, changed)
    ]
    for found, row in zip(logprobs, (plain, changed)):
        read = [float(found[at, token]) for at, token in enumerate(row.tokens[:n])]
        if max(abs(a - b) for a, b in zip(read, row.logprobs)) > 0.01:
            return None
    return (logprobs[0].exp() * (logprobs[0] - logprobs[1])).sum(-1).clamp_min(0).tolist()


def _frame(model: Any, row: Any) -> pd.DataFrame:
    labels = (
        [f"⟨id {each}⟩" for each in row.tokens]
        if model.tokenizer is None
        else [view.display for view in model.tokenizer.views(row.tokens)]
        if row.tokens
        else []
    )
    logprob = pd.Series(row.logprobs[: len(row.tokens)], dtype=float)
    return pd.DataFrame({"pos": range(len(row.tokens)), "token": labels, "logprob": logprob, "surprisal": -logprob})


def _place(vector: Any) -> tuple[str, float]:
    return site_names.short_name(vector.site), float(vector.typical_norm)


@st.cache_data(**KEPT)
def _report(path: str, stamp: int, folder: bool) -> SteeringReport:  # noqa: ARG001 (the stamp is part of the key)
    return interp.load_steer_job_report(path) if folder else interp.load_steering_report(path)


@st.cache_resource(max_entries=4, show_spinner=False)
def _map(path: str, stamp: int) -> StrengthMap:  # noqa: ARG001 (the stamp is part of the key)
    return interp.load_strength_map(path)


@st.cache_data(**KEPT)
def _cosines(paths: tuple[tuple[str, str, int], ...]) -> pd.DataFrame:
    return interp.cosine_table({name: interp.load_steering_vector(path) for name, path, _ in paths})
