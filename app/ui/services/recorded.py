"""Recorded stores: what is in them, and which rows their statistics leave out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

import interp
from ui import library
from ui.services.live import in_memory
from ui.services.runs import KEPT

PAGE = 25
"""Examples on a page."""
MOST_TOKENS = 2048
"""Tokens of a text that are shown."""
POSITIONS = 24
"""Positions in the report on sinks."""
STRONGEST = 25
"""Rows in the list of the largest norms."""


@dataclass(frozen=True)
class Left:
    """What the statistics of a site leave out, and why."""

    reasons: pd.DataFrame
    """A row per reason: reason, rows, share (of all rows). A row may have several."""
    positions: pd.DataFrame
    """A row per early position: position, rows, outliers, share, times_typical (median norm over the typical one)."""
    strongest: pd.DataFrame
    """The rows of largest norm: text, position, token_id, norm, times_typical, outlier."""
    n_rows: int
    left_out: int
    typical_norm: float | None


def listed() -> pd.DataFrame:
    """A row per store of the workspace: key, model, fingerprint, texts, rows, sites, shape, dtype, tokens, MB, whole, problem."""
    rows = [_row(each.key, str(each.path), each.stamp) for each in library.entries("store")]
    return pd.DataFrame(
        rows,
        columns=pd.Index(
            [
                "key",
                "model",
                "fingerprint",
                "texts",
                "rows",
                "sites",
                "shape",
                "dtype",
                "tokens",
                "MB",
                "whole",
                "problem",
            ]
        ),
    )


def sites(key: str) -> pd.DataFrame:
    """A row per site (`Store.to_frame`), with `share`: of its rows, those that the statistics leave out."""
    found = library.entry(key, "store")
    return _sites(str(found.path), found.stamp)


def card(key: str) -> dict[str, Any]:
    """The card of a store, as it lies in store.json."""
    found = library.entry(key, "store")
    return interp.open_store(found.path).card


def examples(key: str, search: str, page: int) -> tuple[pd.DataFrame, int]:
    """A page of the texts that hold `search` (in any column, whatever the case), and how many there are in all."""
    found = library.entry(key, "store")
    frame = _examples(str(found.path), found.stamp)
    if search:
        words = frame.select_dtypes(exclude="number").astype("string")
        hit = words.apply(lambda column: column.str.contains(search, case=False, regex=False)).fillna(False).any(axis=1)
        frame = frame.loc[hit]
    start = page * PAGE
    return frame.iloc[start : start + PAGE], len(frame)


def tokens(key: str, text: int, site: str) -> tuple[pd.DataFrame, int]:
    """The tokens of a text with what was kept of them, at most `MOST_TOKENS`; and how many it has.

    Columns: pos, token_id, token (where the store's model is in memory), kept, typical, norm.

    Raises:
        ValueError: no such text; a store of format 1, which kept no tokens.
    """
    found = library.entry(key, "store")
    store = interp.open_store(found.path)
    if not 0 <= text < store.n_texts:
        raise ValueError(f"the store has texts 0 to {store.n_texts - 1}, no {text}")
    ids = store.token_ids(text)
    n_all = len(ids)
    frame = pd.DataFrame({"pos": range(min(n_all, MOST_TOKENS)), "token_id": ids[:MOST_TOKENS]})
    kept = store.tokens
    here = (kept["text"] == text) & (kept["position"] >= 0)
    rows = pd.DataFrame({"pos": kept.loc[here, "position"], "kept": True})
    rows["typical"] = store.typical(site)[here.to_numpy()]
    rows["norm"] = store.norms(site)[here.to_numpy()]
    frame = frame.merge(rows.drop_duplicates("pos"), on="pos", how="left")
    frame["kept"] = frame["kept"].notna()
    tokenizer = _tokenizer_of(store.model_fingerprint)
    if tokenizer is not None:
        frame.insert(2, "token", [view.display for view in tokenizer.views(frame["token_id"].tolist())])
    return frame, n_all


def left_out(key: str, site: str) -> Left:
    """Which rows of a site its statistics leave out."""
    found = library.entry(key, "store")
    return _left_out(str(found.path), found.stamp, site)


# ------------------------------------------------------------------------------------------------------------- reading


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False)
def _row(key: str, path: str, stamp: int) -> tuple[Any, ...]:  # noqa: ARG001 (the stamp is part of the key)
    try:
        store = interp.open_store(path)
    except ValueError as error:
        return (key, *[None] * 10, str(error))
    rules = store.card["tokens"]
    size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file() and not file.is_symlink())
    shape = " or ".join(sorted({" × ".join(map(str, each)) for each in store.shapes.values()}))
    model = str(store.card["model"].get("name", ""))
    return (
        key, model, store.model_fingerprint, store.n_texts, store.n_rows, len(store.sites), shape, store.dtype,
        rules if isinstance(rules, str) else ", ".join(map(str, rules)), size / 1e6, store.complete, "",
    )  # fmt: skip


@st.cache_data(**KEPT)
def _sites(path: str, stamp: int) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    frame = interp.open_store(path).to_frame()
    return frame.assign(share=frame["left_out"] / frame["rows"].clip(lower=1))


@st.cache_data(max_entries=4, ttl="1h", show_spinner=False)
def _examples(path: str, stamp: int) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    frame = interp.open_store(path).examples.reset_index(names="number")
    return frame.loc[:, [name for name in frame if name == "number" or frame[name].notna().to_numpy().any()]]


@st.cache_data(**KEPT)
def _left_out(path: str, stamp: int, site: str) -> Left:  # noqa: ARG001 (the stamp is part of the key)
    store = interp.open_store(path)
    stats, kept = store.stats(site), store.tokens
    norms, typical, outlier = store.norms(site), store.typical(site), store.outliers(site)
    unit = stats.typical_norm if stats.typical.count else None
    special, first = kept["is_special"].to_numpy(), kept["is_first"].to_numpy()
    average = (kept["position"] < 0).to_numpy()
    # What is left out and neither special, nor first, nor an average is left out as an outlier alone.
    alone = outlier & ~special & ~first & ~average
    reasons = {
        "special token": special,
        "first token of its text": first,
        "outlier at this site, nothing else": alone,
        "average beside single tokens": average & ~typical,
        "kept in the statistics": typical,
    }
    n = len(kept)
    told = pd.DataFrame({"reason": list(reasons), "rows": [int(each.sum()) for each in reasons.values()]})
    rows = pd.DataFrame(
        {"text": kept["text"], "position": kept["position"], "token_id": kept["token_id"], "norm": norms}
    )
    rows["times_typical"] = rows["norm"] / unit if unit else float("nan")
    rows["outlier"] = outlier
    early = rows.loc[rows["position"].between(0, POSITIONS - 1)].groupby("position")
    places = early.agg(rows=("norm", "size"), outliers=("outlier", "sum"), times_typical=("times_typical", "median"))
    places = places.reset_index().assign(share=lambda frame: frame["outliers"] / frame["rows"])
    return Left(
        told.assign(share=told["rows"] / max(1, n)),
        places,
        rows.nlargest(STRONGEST, "norm").reset_index(drop=True),
        n,
        stats.left_out,
        unit,
    )


def _tokenizer_of(fingerprint: str) -> Any:
    """Of the store's model where that is in memory; a page does not load another one to name tokens."""
    return next((live.model.tokenizer for live in in_memory().values() if live.fingerprint == fingerprint), None)
