"""Inference-time intervention: find the heads that know, and push their outputs (Li et al. 2023, arXiv 2306.03341).

1. Divide the texts by groups, once: a *fit* part with folds inside it, and a *test* part. Every statistic below comes from
   this one division. (Where sigma or the choice of heads comes from all texts, the figure on "held-out" ones is not held out.)
2. In the fit part, for every head, fit a direction on all folds but one and see how well it tells the labels of that one
   apart. The heads are ranked by this accuracy: of equal ones by AUROC, then by log loss.
3. theta is the direction of the whole fit part, at length 1, towards the label 1; sigma the standard deviation of the fit
   part's rows along it. The first `top` heads are kept.
4. The accuracy on the test part, which chose nothing, stands beside: the best of many accuracies is too high.

`Steer(vectors, strength)` adds strength x sigma x theta to each kept head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.bootstrap import grouped_share
from interp.dataset import grouped_split
from interp.model import HookedTransformer
from interp.probe.figures import auroc
from interp.probe.folds import SPLIT_NAMES, held_out
from interp.probe.inputs import Column, check_strengths, check_whole
from interp.probe.labelled import Labelled
from interp.probe.methods import method as method_of
from interp.probe.reading import ActivationSource, read_place, store_facts
from interp.probe.solver import Design, log_loss
from interp.recording import record
from interp.steering.head_value import COLUMNS, HeadRows, HeadVectors, load_head_vectors
from interp.steering.rows import sd_along
from interp.store import Store

__all__ = ["HeadSplit", "HeadVectors", "head_split", "head_vectors", "load_head_vectors"]

METHODS = ("mass_mean", "logistic", "lda", "mass_mean_cov")
"""Kinds of probe whose direction a head can be pushed along."""


@dataclass(frozen=True, eq=False)
class HeadSplit:
    """The one division of the rows that every statistic of a fit comes from. No group stands on both sides of any line."""

    fit: Int[np.ndarray, " _fit"]
    """Rows of directions, sigma and ranking."""
    folds: list[Int[np.ndarray, " _held_out"]]
    """Held-out rows of each fold, counted within `fit`."""
    test: Int[np.ndarray, " _test"]
    """Rows of the test accuracy alone; may be empty."""
    source: str
    """Where the test part comes from, in words."""


def head_split(data: Labelled, n_folds: int, test_share: float, seed: int) -> HeadSplit:
    """The division of some labelled rows: by the column `split` where they have one, else by chance.

    Raises:
        ValueError: a group in the test part and outside, a part that lacks a label, too few groups for the folds.
    """
    names = list(data.frame["split"]) if "split" in data.frame else []
    if any(not pd.isna(name) for name in names):
        unknown = [name for name in names if name not in SPLIT_NAMES]
        if unknown:
            raise ValueError(f"split must be 'train', 'select' or 'test' for every row, got {unknown[0]!r}")
        in_test = np.array([SPLIT_NAMES[name] == 2 for name in names])
        shared = np.intersect1d(data.groups[in_test], data.groups[~in_test])
        if len(shared):
            row = int(np.flatnonzero(data.groups == shared[0])[0])
            raise ValueError(
                f"{len(shared)} groups stand in the test part and outside it (the first is that of row {row}): divide whole "
                "groups in the column 'split'"
            )
        fit, test, source = np.flatnonzero(~in_test), np.flatnonzero(in_test), "column 'split'"
    elif test_share:
        fit, test = grouped_split(data.groups, (1 - test_share, test_share), seed, labels=data.y)
        source = f"{test_share:g} of the groups, by chance"
    else:
        fit, test, source = np.arange(data.n), np.arange(0), "none"
    if len(np.unique(data.y[fit])) < 2:
        raise ValueError(f"the {len(fit)} rows to fit on need both labels: give more of them")
    return HeadSplit(fit, held_out(data.y[fit], data.groups[fit], n_folds, seed), test, source)


def head_vectors(
    data: Any,
    *,
    model: HookedTransformer,
    top: int | Any = 48,
    method: str = "mass_mean",
    ranked_by: str | None = None,
    sites: Any = "z:*",
    tokens: str | Any = "last",
    groups: Column | str | None = None,
    C: float | Any = 0.1,
    n_folds: int | Any = 5,
    test_share: float | Any = 0.2,
    seed: int | Any = 0,
) -> HeadVectors:
    """Directions of the heads that tell two labels apart best.

    Args:
        data: a store with z of the wanted layers, `interp.record(model, labelled, sites="z:*", tokens="last")`, or the
            labelled texts themselves (what `record` reads), which are recorded first. Their column `split`, where they
            have one, says which rows are the test part.
        model: what made the store.
        top: heads to keep.
        method: the direction: "mass_mean" (what the paper steers by), "logistic", "lda" or "mass_mean_cov".
        ranked_by: the kind of probe that ranks the heads, None for `method`. The paper ranks by "logistic".
        sites: layers to look at.
        tokens: which token of each text, see `Store.pooled`.
        groups: what a row is about: a column's name, one value a text, "rows" to split by row on purpose; None for the
            column `group`.
        C: strength of logistic probes, as in scikit-learn, on standardised features.
        n_folds: folds that rank the heads.
        test_share: share of the groups that nothing is fitted or chosen on; 0 for none.
        seed: of the division and of the intervals.

    Raises:
        ValueError: an unknown method; a store without z or labels, or of another model; rows without groups, or with too
            few of them; more heads to keep than there are.
    """
    check_whole(2, n_folds=n_folds)
    check_whole(seed=seed)
    check_whole(1, top=top)
    ranking = method if ranked_by is None else ranked_by
    for kind in (method, ranking):
        if kind not in METHODS:
            raise ValueError(
                f"a head is steered along the direction of a linear probe, {' or '.join(METHODS)}, not {kind!r}"
            )
    if isinstance(test_share, bool) or not isinstance(test_share, int | float) or not 0 <= test_share < 1:
        raise ValueError(f"test_share={test_share!r} must be a share of the groups from 0 to below 1")
    (strength,) = check_strengths(C, ())[:1]
    store = data if isinstance(data, ActivationSource) else _recorded(model, data, sites, tokens)
    names = _z_sites(model, store, sites)
    labelled = Labelled.of(read_place(store, names[0], tokens)[1], groups, n_folds)
    split = head_split(labelled, n_folds, float(test_share), seed)
    fits = []
    for name in names:
        rows, frame = read_place(store, name, tokens)
        assert isinstance(rows, Tensor)
        assert labelled.is_of(frame), "the sites of a store hold the same texts"
        layer = site_names.layer_of(name)
        assert layer is not None
        heads = rows.double().unflatten(1, (model.cfg.n_heads, -1)).unbind(1)
        fits += [_fit_head((layer, i), X, labelled, split, method, ranking, strength) for i, X in enumerate(heads)]
    order = sorted((fit for fit in fits if fit is not None), key=lambda fit: fit.rank)
    if top > len(order):
        raise ValueError(f"top={top}: these {len(names)} layers have {len(order)} heads to choose from")
    found = _rows_of(order, method)
    card = {
        "method": method, "ranked_by": ranking, "top": top, "C": strength if "logistic" in (method, ranking) else None,
        "tokens": tokens if isinstance(tokens, str) else str(tokens), "layers": [site_names.layer_of(name) for name in names],
        "n_heads": len(order), "constant_heads": len(fits) - len(order), **_facts(labelled, split), "store": store_facts(store),
        **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, seed=seed),
    }  # fmt: skip
    table = _table(order, labelled, split, top, seed)
    rest = found.take(range(top, len(order)))
    return HeadVectors(found.take(range(top)), table, card, rest)


def _recorded(model: HookedTransformer, data: Any, sites: Any, tokens: Any) -> Store:
    """The labelled texts as a store in memory."""
    return record(model, data, sites=sites, tokens=tokens, dtype="float32", progress=False)


def _facts(data: Labelled, split: HeadSplit) -> dict[str, Any]:
    """What a card says of the rows and their division."""
    return {
        "split": {
            "test_part": split.source, "folds": len(split.folds), "groups_from": data.groups_from,
            "fit_part": "theta, sigma, norms and the ranking by held-out folds", "test_part_gives": "test_accuracy alone",
        },
        "n": len(split.fit), "positives": int(data.y[split.fit].sum()), "n_groups": len(np.unique(data.groups[split.fit])),
        "n_test": len(split.test), "test_rows": [int(i) for i in split.test], "data": artifact.hash_texts(data.texts),
    }  # fmt: skip


def _z_sites(model: HookedTransformer, store: ActivationSource, sites: Any) -> list[str]:
    """The wanted z sites that the store has, by layer."""
    if isinstance(store, Store):
        store.check_model(model)
    wanted = model.expand_sites(sites)
    other = [name for name in wanted if not name.endswith("attn.hook_z")]
    if other:
        raise ValueError(f"heads are read at z, and sites={sites!r} names {site_names.short_name(other[0])}: try 'z:*'")
    found = [name for name in wanted if name in store.sites]
    if not found:
        raise ValueError(
            "the store has no z of these layers: record it, interp.record(model, labelled, sites='z:*', tokens='last')"
        )
    return found


# ------------------------------------------------------------------------------------------------------------ one head


@dataclass(frozen=True, eq=False)
class _HeadFit:
    """One head: its direction of the whole fit part, and what held-out rows say of it."""

    head: tuple[int, int]
    theta: Float64[Tensor, " d_head"]
    raw: float
    sigma: float
    norm: float
    right: Float64[np.ndarray, " _fit"]
    """1 where the held-out answer to a row of the fit part is right."""
    tested: Float64[np.ndarray, " _test"]
    """The same for the test part, by the direction of the whole fit part."""
    auroc: float
    log_loss: float

    @property
    def rank(self) -> tuple[Any, ...]:
        """Best first."""
        return -self.right.mean(), -self.auroc, self.log_loss, self.head


def _fit_head(
    head: tuple[int, int],
    X: Float64[Tensor, "row d_head"],
    data: Labelled,
    split: HeadSplit,
    method: str,
    ranking: str,
    C: float,
) -> _HeadFit | None:
    """The direction, its unit and the held-out figures; None where the head says the same of every text."""
    rows, y = X[torch.from_numpy(split.fit)].contiguous(), data.y[split.fit]
    if bool((rows == rows[0]).all()):
        return None
    design, n_folds = Design(rows), len(split.folds)
    # Problem f sees all but fold f; the last one sees the whole part.
    mask = torch.ones(n_folds + 1, len(y), dtype=torch.float64)
    fold_of_row = np.zeros(len(y), dtype=np.int64)
    for fold, out in enumerate(split.folds):
        mask[fold, out], fold_of_row[out] = 0.0, fold
    labels = torch.tensor(y, dtype=torch.float64)
    strengths = torch.full((n_folds + 1,), C, dtype=torch.float64)
    readers = method_of(ranking).fit(design, labels.expand(n_folds + 1, -1), mask, strengths, 0)
    logit = readers.logit(rows)[torch.from_numpy(fold_of_row), torch.arange(len(y))]
    whole = readers
    if method != ranking:
        whole = method_of(method).fit(design, labels[None], mask[-1:], strengths[-1:], 0)
    direction = whole.direction[-1]
    raw = float(direction.norm())
    if not raw > 0:
        return None
    theta = direction / raw
    sigma = sd_along(rows, theta)
    if sigma is None:
        return None
    unseen = X[torch.from_numpy(split.test)]
    return _HeadFit(
        head=head,
        theta=theta,
        raw=raw,
        sigma=sigma,
        norm=float(rows.norm(dim=1).median()),
        right=_right(logit, y),
        tested=_right(whole.logit(unseen)[-1], data.y[split.test]),
        auroc=float(auroc(logit.numpy(), y)[0]),
        log_loss=float(log_loss(logit[None], labels[None], torch.ones_like(labels)[None])) / len(y),
    )


def _right(logit: Float64[Tensor, " row"], y: Int[np.ndarray, " row"]) -> Float64[np.ndarray, " row"]:
    return ((logit > 0).numpy() == (y == 1)).astype(float)


# -------------------------------------------------------------------------------------------------------------- tables


def _rows_of(order: Sequence[_HeadFit], method: str) -> HeadRows:
    """The fitted heads as one value, best first."""

    def column(name: str) -> Float[Tensor, " k"]:
        return torch.tensor([getattr(fit, name) for fit in order], dtype=torch.float32)

    # Only a difference of means is a length in the head's own space.
    raw = column("raw") if method == "mass_mean" else None
    directions = torch.stack([fit.theta for fit in order]).float()
    return HeadRows(tuple(fit.head for fit in order), directions, column("sigma"), column("norm"), raw)


def _table(order: Sequence[_HeadFit], data: Labelled, split: HeadSplit, top: int, seed: int) -> pd.DataFrame:
    """The frame of all heads; all intervals share the drawn groups."""
    right, groups = np.stack([fit.right for fit in order]), data.groups[split.fit]
    low, high = grouped_share(right, groups, seed)
    unknown = np.full(len(order), np.nan)
    test, test_low, test_high = unknown, unknown, unknown
    if len(split.test):
        tested = np.stack([fit.tested for fit in order])
        test, (test_low, test_high) = tested.mean(1), grouped_share(tested, data.groups[split.test], seed)
    frame = pd.DataFrame(
        {
            "layer": [fit.head[0] for fit in order],
            "head": [fit.head[1] for fit in order],
            "rank": range(1, len(order) + 1),
            "kept": [place < top for place in range(len(order))],
            "accuracy": right.mean(1),
            "low": low,
            "high": high,
            "auroc": [fit.auroc for fit in order],
            "log_loss": [fit.log_loss for fit in order],
            "n": len(split.fit),
            "n_groups": len(np.unique(groups)),
            "test_accuracy": test,
            "test_low": test_low,
            "test_high": test_high,
            "n_test": len(split.test),
            "n_test_groups": len(np.unique(data.groups[split.test])),
            "sd": [fit.sigma for fit in order],
            "norm": [fit.norm for fit in order],
        }
    )
    return frame.loc[:, list(COLUMNS)]
