"""Lenses on a prompt: the logit lens, and trained or fitted ones from files.

Files are offered by name. They lie in the run's folder, or in `lenses/` of the home folder; a page cannot name a path.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from safetensors import SafetensorError, safe_open

import interp
from interp import artifact
from ui import state
from ui.services.live import checked, engine, is_of_the_model, token_ids
from ui.services.prompt import Source, saved_or_live
from ui.services.runs import KEPT, run

LOGIT = "logit"
MOST_LENS_BYTES = 2 * 2**30
"""Largest lens that is loaded for a page."""
_READERS = {"tuned_lens": "load_tuned_lens", "jacobian lens": "load_jacobian_lens"}
_NAMES = {"tuned_lens": "tuned", "jacobian lens": "Jacobian"}


def lens(
    prompt: str, *, file: str = LOGIT, middles: bool = False, at: int | None = None
) -> tuple[pd.DataFrame, Source]:
    """A row per layer and token (`interp.logit_lens`).

    Args:
        prompt: the text.
        file: a key of `lens_files`, or "logit" for the logit lens.
        middles: read the stream after each attention instead of after each block.
        at: of a long prompt read only the positions around this one (`places`); None for all, which takes long.

    Raises:
        ValueError: no such lens, a lens of another model or without these places, or a model without middles.
    """
    if file == LOGIT and not middles:
        return saved_or_live(
            "lens", prompt, lambda fingerprint, ids: _lens(fingerprint, *_part(ids, at), (), file, 0, False)[0]
        )
    ids, part = _part(token_ids(prompt), at)
    return _lens(engine().fingerprint, ids, part, (), *_lens_key(file), middles)[0], "live"


def places(n_tokens: int, at: int) -> range:
    """Positions that are read of a prompt: all of a short one, else `state.WINDOW` around a position. Neighbours share theirs,
    so that a click beside the last one reads nothing again."""
    step = state.WINDOW // 2
    start = min(max(0, at // step * step - step // 2), max(0, n_tokens - state.WINDOW))
    return range(start, min(n_tokens, start + state.WINDOW))


def followed(
    prompt: str, answers: tuple[str | int, ...], *, file: str = LOGIT, middles: bool = False, at: int | None = None
) -> pd.DataFrame:
    """A row per layer, token and followed answer (`LensResult.followed`)."""
    ids, part = _part(token_ids(prompt), at)
    return _lens(engine().fingerprint, ids, part, answers, *_lens_key(file), middles)[1]


def difference(
    prompt: str,
    answer: str | int,
    against: str | int,
    *,
    file: str = LOGIT,
    middles: bool = False,
    at: int | None = None,
) -> pd.DataFrame:
    """A row per layer and token: layer, pos, token, effect = ln p(answer) - ln p(against), nats."""
    table = followed(prompt, (answer, against), file=file, middles=middles, at=at).reset_index(drop=True)
    # A row for each answer, in the order asked. A probability that fp32 holds as 0 counts as the least that it can hold.
    log = np.log(np.maximum(table["probability"].to_numpy(dtype=float), 1e-38))
    return table.loc[table.index[::2], ["layer", "pos", "token"]].assign(effect=log[::2] - log[1::2])


def nearer(prompt: str, file: str, *, middles: bool = False, at: int | None = None) -> pd.DataFrame:
    """A row per layer and token: layer, pos, token, effect = KL(final || logit lens) - KL(final || this lens), nats: above 0 the
    lens of the file is nearer to the final prediction."""
    ids, part = _part(token_ids(prompt), at)
    plain = _lens(engine().fingerprint, ids, part, (), LOGIT, 0, middles)[0]
    other = _lens(engine().fingerprint, ids, part, (), *_lens_key(file), middles)[0]
    both = plain.merge(other, on=["layer", "pos"], suffixes=("", "_other"))
    return both.loc[:, ["layer", "pos", "token"]].assign(effect=both["kl"] - both["kl_other"])


def cell(prompt: str, layer: int, pos: int, *, file: str = LOGIT, middles: bool = False, k: int = 10) -> pd.DataFrame:
    """The k most probable tokens of one place: rank, token, prob. Empty where the lens does not read that layer."""
    ids = token_ids(prompt)[: pos + 1]  # nothing after the place can reach it
    table = _tops(engine().fingerprint, ids, *_lens_key(file), middles, k)
    return table.loc[table["layer"] == layer].drop(columns="layer").reset_index(drop=True)


def _part(ids: tuple[int, ...], at: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that have to be run, and the positions that are read of them: none named means all."""
    if at is None or len(ids) <= state.WINDOW:
        return ids, ()
    shown = places(len(ids), at)
    return ids[: shown.stop + 1], tuple(shown)  # one more: the loss of the last one needs the token after it


def lens_files() -> dict[str, str]:
    """Key -> what a reader sees, of the lenses that are there; the logit lens is always the first."""
    return {LOGIT: "Logit lens"} | {key: label for key, (_, label) in _found().items()}


def lens_code(file: str) -> str:
    """Python that loads a lens: the files of a reader's own run and home folder, by name."""
    where, name = file.split(":", 1)
    path = repr(f"runs/demo/{name}") if where == "run" else f"interp.artifact.home() / 'lenses' / {name!r}"
    return f"interp.{_READERS[_kind_of(file)]}({path})"


def comparison() -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """The run's comparison of lenses on held-out text, with its card; None where there is none of this model."""
    found = run()
    if found is None or not is_of_the_model(found):
        return None
    for path in found.of_kind("lens comparison"):
        loaded = interp.load_lens_comparison(path)
        return loaded.to_frame(), {"file": path.name, **loaded.card}
    return None


def _found() -> dict[str, tuple[Path, str]]:
    listed = {}
    for where, root in _folders():
        for path in sorted(root.glob("*.safetensors")):
            real = path.resolve()
            if not real.is_relative_to(root) or not real.is_file() or real.stat().st_size > MOST_LENS_BYTES:
                continue
            kind = _kind(str(real), real.stat().st_mtime_ns)
            if kind in _READERS:
                listed[f"{where}:{path.name}"] = (real, f"{path.stem} ({_NAMES[kind]}, {where})")
    return listed


def _folders() -> Iterator[tuple[str, Path]]:
    found = run()
    if found is not None:
        yield "run", found.path.resolve()
    yield "home", (artifact.home() / "lenses").resolve()


def _lens_key(file: str) -> tuple[str, int]:
    """The file and its time, which is part of what is cached."""
    if file == LOGIT:
        return file, 0
    found = _found()
    if file not in found:
        raise ValueError(f"there is no lens {file!r} any more: choose another one")
    return file, found[file][0].stat().st_mtime_ns


def _kind_of(file: str) -> str:
    path, _ = _found()[file]
    return _kind(str(path), path.stat().st_mtime_ns)


@st.cache_data(**KEPT)
def _kind(path: str, stamp: int) -> str:  # noqa: ARG001 (the stamp is part of the key)
    """The kind on the card of a file, empty where it has none: only the head of the file is read."""
    try:
        with safe_open(path, framework="pt") as opened:
            return str(json.loads((opened.metadata() or {})["card"])["kind"])
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError):
        return ""


@st.cache_resource(max_entries=2, show_spinner=False)
def _loaded(file: str, stamp: int) -> Any:  # noqa: ARG001 (the stamp is part of the key)
    return getattr(interp, _READERS[_kind_of(file)])(_found()[file][0])


@st.cache_data(**KEPT)
def _lens(
    fingerprint: str,
    ids: tuple[int, ...],
    part: tuple[int, ...],
    answers: tuple[str | int, ...],
    file: str,
    stamp: int,
    middles: bool,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    translator = None if file == LOGIT else _loaded(file, stamp)
    with checked(fingerprint) as model:
        sites = "resid_mid:*" if middles else None
        result = interp.logit_lens(
            model, list(ids), sites=sites, answer=list(answers) or None, lens=translator, positions=part or None
        )
    # The end of the last block is read besides, at the layer whose middle is there too.
    frames = [result.to_frame(), result.followed()]
    if middles:
        last = max(frames[0]["layer"])
        frames = [f.loc[(f["layer"] < last) | ~f["site"].str.contains("resid_mid")] for f in frames]
    return frames[0], frames[1]


@st.cache_data(**KEPT)
def _tops(fingerprint: str, ids: tuple[int, ...], file: str, stamp: int, middles: bool, k: int) -> pd.DataFrame:
    translator = None if file == LOGIT else _loaded(file, stamp)
    with checked(fingerprint) as model:
        result = interp.logit_lens(
            model, list(ids), sites="resid_mid:*" if middles else None, k=min(k, model.cfg.d_vocab), lens=translator,
            positions=[len(ids) - 1],
        )  # fmt: skip
    sites = {layer: i for i, layer in enumerate(result.layers) if not (middles and i == len(result.sites) - 1)}
    rows = [
        (layer, rank + 1, result.vocabulary[int(token)], float(prob))
        for layer, i in sites.items()
        for rank, (token, prob) in enumerate(zip(result.top_ids[i, 0].tolist(), result.top_probs[i, 0].tolist()))
    ]
    return pd.DataFrame(rows, columns=pd.Index(["layer", "rank", "token", "prob"]))
