"""Probes of the workspace: what their jobs found, what they say of each token, and where they are wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

import interp
from interp import sites as site_names
from ui import library
from ui.services.live import checked, engine, token_ids
from ui.services.prompt import MAX_STATEMENTS
from ui.services.runs import KEPT

MOST_PROBES = 24
"""Probes of one folder that are asked about each token at once."""
MATRICES = ("transfer report", "probe job")
SWEEPS = ("probe job", "probe report")


@dataclass(frozen=True)
class Found:
    """What a job or a sweep left, as frames."""

    question: str
    summary: str
    figures: pd.DataFrame
    """A row for each place and kind: layer, kind, auroc, low, high, n, n_groups ..."""
    selected: pd.DataFrame
    """A row for each kind: the figures to quote."""
    baselines: dict[str, float]
    """What needs no probe -> its AUROC."""
    predictions: pd.DataFrame
    """Held-out: kind, text, label, group, probability, threshold, says."""


def found(key: str) -> Found:
    """What an entry of `SWEEPS` found; of several seeds the first. ValueError for a folder that is not whole."""
    entry = library.entry(key, *SWEEPS)
    return _found(str(entry.path), entry.stamp, entry.kind)


def matrices(key: str) -> pd.DataFrame:
    """The cells of an entry of `MATRICES`: by, kind, train, test, auroc, low, high ...; empty where a job has no transfer."""
    entry = library.entry(key, *MATRICES)
    return _matrices(str(entry.path), entry.stamp, entry.kind)


def with_transfer() -> list[library.Entry]:
    """The entries that have a matrix, newest first; a damaged one is among them, so that a page can say so."""
    held = []
    for entry in library.entries(*MATRICES):
        try:
            empty = matrices(entry.key).empty
        except ValueError:
            empty = False
        held += [] if empty else [entry]
    return held


def roc(predictions: pd.DataFrame) -> pd.DataFrame:
    """The way from "none" to "all": threshold, false_positives and true_positives (shares of the label's rows)."""
    p, y = predictions["probability"].to_numpy(float), predictions["label"].to_numpy(int)
    order = np.argsort(-p, kind="stable")
    p, y = p[order], y[order]
    last = np.r_[p[1:] != p[:-1], True]  # rows of one probability pass the threshold together
    true, false = np.cumsum(y)[last], np.cumsum(1 - y)[last]
    return pd.DataFrame(
        {
            "threshold": [1.0, *p[last]],
            "false_positives": [0.0, *(false / max(1, (y == 0).sum()))],
            "true_positives": [0.0, *(true / max(1, (y == 1).sum()))],
        }
    )


def confusion(predictions: pd.DataFrame, threshold: float | None) -> dict[str, float]:
    """Counts of each kind of answer, accuracy, and both rates; None for each row's own threshold."""
    says, y = _says(predictions, threshold), predictions["label"].to_numpy(int)
    counts = {
        "true, said true": int((says & (y == 1)).sum()), "true, said false": int((~says & (y == 1)).sum()),
        "false, said true": int((says & (y == 0)).sum()), "false, said false": int((~says & (y == 0)).sum()),
    }  # fmt: skip
    return {
        **counts,
        "accuracy": float((says == (y == 1)).mean()),
        "true_positives": counts["true, said true"] / max(1, int((y == 1).sum())),
        "false_positives": counts["false, said true"] / max(1, int((y == 0).sum())),
    }


def mistakes(predictions: pd.DataFrame, n: int = 50) -> pd.DataFrame:
    """Rows on the wrong side of their own threshold, the farthest first: text, label, says, probability, threshold, off_by
    (log-odds beyond the threshold) and group."""
    p = np.clip(predictions["probability"].to_numpy(float), 1e-9, 1 - 1e-9)
    t = np.clip(predictions["threshold"].to_numpy(float), 1e-9, 1 - 1e-9)
    logit = predictions["logit"].to_numpy(float) if "logit" in predictions else np.log(p / (1 - p))
    off = logit - np.log(t / (1 - t))
    table = predictions.assign(off_by=np.abs(off), says=off > 0)
    table = table.loc[table["says"] != (table["label"] == 1)].sort_values("off_by", ascending=False).head(n)
    table = table.assign(says=np.where(table["says"], "true", "false"), label=np.where(table["label"], "true", "false"))
    shown = [c for c in ("text", "label", "says", "probability", "threshold", "off_by", "group") if c in table]
    return table.loc[:, shown].reset_index(drop=True)


def siblings(key: str) -> list[library.Entry]:
    """The probes that lie in the folder of this one and are of its model, itself among them."""
    own = library.entry(key, "probe")
    near = [
        each for each in library.entries("probe") if each.path.parent == own.path.parent and each.model == own.model
    ]
    others = [each for each in near if each.key != key][: MOST_PROBES - 1]
    return [own, *others]


def scan(prompt: str, keys: Sequence[str]) -> pd.DataFrame:
    """What probes say of each token of a prompt, a row per token and probe (`interp.score_tokens`).

    Returns:
        pos, token, probe, layer (None for no layer), probability, threshold, logit (of the probability, minus that of the
        threshold: above 0 it says "true"), ordinary. Figures are NaN at tokens that no probe was fitted on.

    Raises:
        ValueError: no such probe, or one of another model.
    """
    entries = [_own(key) for key in keys]
    paths = tuple((each.title, str(each.path), each.stamp) for each in entries)
    return _scan(engine().fingerprint, token_ids(prompt), paths)


def score(statements: list[str], key: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What a probe says of the last token of each statement: statement, probability, says; and its kind, site, threshold.

    Raises:
        ValueError: no such probe, one of another model, or more statements than a page takes.
    """
    if len(statements) > MAX_STATEMENTS:
        raise ValueError(f"{len(statements)} statements are more than the {MAX_STATEMENTS} of one go")
    entry = _own(key)
    ids = tuple(token_ids(statement) for statement in statements)
    p, about = _scores(engine().fingerprint, ids, str(entry.path), entry.stamp)
    says = ["true" if each > about["threshold"] else "false" for each in p]
    return pd.DataFrame({"statement": statements, "probability": p, "says": says}), about


def _own(key: str) -> library.Entry:
    entry = library.entry(key, "probe")
    if entry.model not in (None, engine().fingerprint):
        raise ValueError(f"{entry.title} was fitted on another model than the one that is loaded: choose its model")
    return entry


def _says(predictions: pd.DataFrame, threshold: float | None) -> np.ndarray:
    limit = predictions["threshold"].to_numpy(float) if threshold is None else threshold
    return predictions["probability"].to_numpy(float) > limit


@st.cache_data(**KEPT)
def _found(path: str, stamp: int, kind: str) -> Found:  # noqa: ARG001 (the stamp is part of the key)
    if kind == "probe report":
        report = interp.load_probe_report(path)
        baselines = {name: float(each.auroc) for name, each in report.baselines.items()}
        chosen = pd.DataFrame([{"kind": name, **vars(each)} for name, each in report.selected.items()])
        return Found("", report.summary(), report.to_frame(), chosen, baselines, report.predictions)
    job = interp.load_probe_job_report(path)
    seed = job.job["seeds"][0]
    figures, chosen, rest, predictions = (
        _of_seed(each, seed) for each in (job.figures, job.selected, job.baselines, job.predictions)
    )
    baselines = {str(name): float(value) for name, value in zip(rest["name"], rest["auroc"])}
    return Found(str(job.job["question"]), job.summary(), figures, chosen, baselines, predictions)


def _of_seed(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    return frame.loc[frame["seed"] == seed].reset_index(drop=True) if "seed" in frame else frame


@st.cache_data(**KEPT)
def _matrices(path: str, stamp: int, kind: str) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    if kind == "transfer report":
        report = interp.load_transfer_report(path)
        return report.selected.assign(by=str(report.card.get("by", "set")))
    table = interp.load_probe_job_report(path).transfer
    return pd.DataFrame() if table is None else table


@st.cache_data(**KEPT)
def _scan(fingerprint: str, ids: tuple[int, ...], paths: tuple[tuple[str, str, int], ...]) -> pd.DataFrame:
    probes = {title: interp.load_probe(path) for title, path, _ in paths}
    with checked(fingerprint) as model:
        table = interp.score_tokens(model, probes, list(ids)).rename(columns={"position": "pos"})
    layers = {name: site_names.layer_of(each.site) if each.site else None for name, each in probes.items()}
    limits = {name: float(each.threshold) for name, each in probes.items()}
    names = table["probe"].tolist()
    table = table.assign(
        probability=np.where(table["ordinary"], table["probability"], np.nan),
        layer=[layers[name] for name in names],
        threshold=[limits[name] for name in names],
    )
    table["logit"] = _logit(table["probability"].to_numpy()) - _logit(table["threshold"].to_numpy())
    return table.loc[:, ["pos", "token", "probe", "layer", "probability", "threshold", "logit", "ordinary"]]


def _logit(p: np.ndarray) -> np.ndarray:
    held = np.clip(p.astype(float), 1e-9, 1 - 1e-9)
    return np.log(held / (1 - held))


@st.cache_data(**KEPT)
def _scores(
    fingerprint: str,
    statements: tuple[tuple[int, ...], ...],
    path: str,
    stamp: int,  # noqa: ARG001 (part of the key)
) -> tuple[list[float], dict[str, Any]]:
    import torch

    probe = interp.load_probe(path)
    fitted_on = probe.card.get("fingerprint", probe.card.get("provenance", {}).get("fingerprint"))
    if fitted_on not in (None, fingerprint):
        raise ValueError("the probe was fitted on another model than the one that is loaded: choose its model")
    if not probe.site:
        raise ValueError("this probe does not say which site it reads: it cannot be asked about a text")
    said = []
    with checked(fingerprint) as model, torch.inference_mode():
        for ids in statements:
            _, cache = model.run_with_cache(list(ids), sites=probe.site)
            said.append(float(probe(cache[probe.site][0, -1])))
    return said, {"kind": probe.kind, "site": probe.site, "threshold": float(probe.threshold)}
