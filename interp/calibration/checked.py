"""What recalibration, stacking and the gate are given, checked once: probabilities, 0/1 outcomes, groups, signals.

A signal is a column of numbers, a row for each answer; NaN is a value that was not measured. Also here: the bootstrap over
groups as weights of rows, AUROC from counts of pairs, and logistic regression.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

CHUNK = 2**21
"""Most numbers in one working array."""


def vector(name: str, values: Any) -> Float[np.ndarray, " row"]:
    """Anything array-like of one dimension as float64. ValueError for other shapes, no rows, text and NaN."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a list, array or tensor of numbers ({error})") from None
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{name} must be of shape [n] with at least one row, got shape {found.shape}")
    bad = np.flatnonzero(np.isnan(found))
    if len(bad):
        raise ValueError(f"{name} is NaN in {len(bad)} of {len(found)} rows, first in row {bad[0]}: drop those rows")
    return found


def probabilities(name: str, values: Any) -> Float[np.ndarray, " row"]:
    """`vector` within [0, 1]."""
    found = vector(name, values)
    outside = np.flatnonzero((found < 0) | (found > 1))
    if len(outside):
        raise ValueError(
            f"{name} must lie in [0, 1], row {outside[0]} is {found[outside[0]]:g}: pass probabilities, not logits or "
            "percentages (clip what rounding put outside)"
        )
    return found


def zero_one(name: str, values: Any, n: int, means: str) -> Float[np.ndarray, " row"]:
    """`vector` of n zeros and ones; `means` says what 1 stands for."""
    found = vector(name, values)
    if len(found) != n:
        raise ValueError(f"{name} has {len(found)} rows and there are {n} of what it is about: give one for each row")
    odd = np.flatnonzero((found != 0) & (found != 1))
    if len(odd):
        raise ValueError(f"{name} must be 0 or 1, row {odd[0]} is {found[odd[0]]:g}: {means}")
    return found


def same_rows(**given: Any) -> None:
    """ValueError where pandas inputs that are paired row by row have different indexes.

    Rows are paired by position, so Series and frames must label them alike, in one order; what has no index is taken as it
    comes. Other lengths are left to whoever pairs them, whose message says more.

    Args:
        given: what is paired, by the name of its argument; of a mapping its first Series counts.
    """
    known: list[tuple[str, pd.Index]] = []
    for name, value in given.items():
        one = next((each for each in value.values() if _indexed(each)), None) if isinstance(value, Mapping) else value
        if one is not None and _indexed(one):
            known.append((name, one.index))
    for name, index in known[1:]:
        first, expected = known[0]
        if len(index) == len(expected) and not index.equals(expected):
            row = next((at for at, (one, other) in enumerate(zip(expected, index)) if one != other), 0)
            raise ValueError(
                f"{first} and {name} are labelled differently: row {row} is {expected[row]} in {first} and {index[row]} in "
                f"{name}. Rows are paired by position: align them ({name} = {name}.loc[{first}.index]) or, if they already stand "
                "in one order, use .reset_index(drop=True) on both. The values of a list or an array are taken by position"
            )


def _indexed(value: Any) -> bool:
    return isinstance(value, pd.Series | pd.DataFrame)


def group_codes(groups: Any, n: int) -> Int[np.ndarray, " row"]:
    """Groups as 0 .. n_groups - 1 in the order in which they come; each row its own for None."""
    if groups is None:
        return np.arange(n)
    keys = pd.Series(list(groups), dtype=object)
    if len(keys) != n:
        raise ValueError(f"groups has {len(keys)} entries for {n} rows: give one for each row")
    codes = pd.factorize(keys)[0].astype(np.int64)
    if (codes < 0).any():
        raise ValueError(f"row {int(np.argmin(codes))} has no group: name one, or drop the row")
    return codes


def signal_matrix(
    signals: Any, names: tuple[str, ...] | None = None, *, empty: bool = False
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names and values [row, signal] of a frame or a mapping; NaN stays.

    Args:
        signals: a column for each signal; numbers or yes and no.
        names: the columns that are wanted, None for all.
        empty: no rows are no error.

    Raises:
        ValueError: no rows or columns, Series of a mapping that are labelled differently, a column that is missing, given twice,
            of text, or holds an infinite value.
    """
    if not isinstance(signals, pd.DataFrame | Mapping):
        raise ValueError(f"signals must be a DataFrame with a column for each signal, got {type(signals).__name__}")
    if isinstance(signals, Mapping):
        # pandas would put Series side by side by their labels, and arrays beside them by position
        labelled = {str(name): values for name, values in signals.items() if _indexed(values)}
        sizes = {len(values) for values in labelled.values()}
        if len(sizes) > 1:
            raise ValueError(
                f"the signals have {min(sizes)} to {max(sizes)} rows: give every signal one value for each row"
            )
        for name in list(labelled)[1:]:
            first = next(iter(labelled))
            same_rows(**{first: labelled[first], name: labelled[name]})
    try:
        frame = pd.DataFrame(signals)
    except ValueError as error:
        raise ValueError(f"signals make no frame ({error}): give every signal one value for each row") from None
    wanted = tuple(str(column) for column in frame) if names is None else names
    frame.columns = pd.Index([str(column) for column in frame])
    if not wanted or not (len(frame) or empty):
        raise ValueError(f"signals must have at least one row and one column, got shape {frame.shape}")
    lacking = [name for name in wanted if name not in frame]
    if lacking:
        raise ValueError(f"signals has no column {lacking[0]!r}; it has {', '.join(frame.columns)}")
    if len(set(wanted)) < len(wanted) or (names is not None and frame.columns.duplicated().any()):
        raise ValueError("two signals have one name: rename one of them")
    columns = []
    for name in wanted:
        try:
            columns.append(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError):
            raise ValueError(f"the signal {name!r} is no column of numbers: drop it, or code it as numbers") from None
        endless = np.flatnonzero(np.isinf(columns[-1]))
        if len(endless):
            raise ValueError(
                f"the signal {name!r} is infinite in row {endless[0]}: clip it, or set it to NaN where it was not measured"
            )
    return wanted, np.stack(columns, axis=1)


def both_classes(wrong: Float[np.ndarray, " row"], what: str, part: str = "") -> None:
    """ValueError where all answers are right, or all wrong; `what` cannot be done then, `part` says which answers they are."""
    if wrong.min() == wrong.max():
        word = "wrong" if wrong[0] else "right"
        mend = "easier" if wrong[0] else "harder"
        raise ValueError(f"all {len(wrong)} answers{part} are {word}: {what}; take more or {mend} questions")


# -------------------------------------------------------------------------------------------------------- draws, pairs


def group_weights(
    codes: Int[np.ndarray, " row"], n_boot: int, rng: np.random.Generator, width: int | None = None
) -> Iterator[Float[np.ndarray, "draw row"]]:
    """Bootstrap over groups, in chunks: how often each row counts in each draw. `width`: numbers a draw needs elsewhere."""
    n_groups = int(codes.max()) + 1
    size = max(1, CHUNK // max(len(codes), width or 0))
    for start in range(0, n_boot, size):
        several = min(size, n_boot - start)
        drawn = rng.integers(n_groups, size=(several, n_groups)) + n_groups * np.arange(several)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=several * n_groups).reshape(several, n_groups)
        yield counts[:, codes].astype(float)


def concordant_pairs(
    score: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], weights: Float[np.ndarray, "draw row"]
) -> tuple[Float[np.ndarray, " draw"], Float[np.ndarray, " draw"]]:
    """Pairs (y = 1, y = 0) that the score ranks the right way, ties half, and all such pairs; their ratio is the AUROC."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf))
    ordered = weights[:, order]
    positive = np.add.reduceat(ordered * y[order], starts, axis=1)
    negative = np.add.reduceat(ordered, starts, axis=1) - positive
    below = np.cumsum(negative, axis=1) - negative / 2
    return (positive * below).sum(1), positive.sum(1) * negative.sum(1)


# ------------------------------------------------------------------------------------------------------------ logistic


def logistic(
    X: Float[np.ndarray, "row k"], target: Float[np.ndarray, " row"], penalty: Float[np.ndarray, " k"] | float = 0.0
) -> tuple[float, Float[np.ndarray, " k"]]:
    """Least value of mean NLL + sum(penalty * weights^2) / (2 n), and its weights; Newton's method in float64.

    Args:
        X: columns, one of them all 1 for an offset.
        target: 0 .. 1, may lie between.
        penalty: of each weight; without any the weights of separable rows grow until the NLL stops falling.
    """
    n, weights = len(X), np.zeros(X.shape[1])
    ridge = np.broadcast_to(np.asarray(penalty, dtype=float), weights.shape) / n

    def value(at: Float[np.ndarray, " k"]) -> float:
        logit = X @ at
        return float((np.logaddexp(0.0, logit) - target * logit).mean() + (ridge * at**2).sum() / 2)

    loss = value(weights)
    for _ in range(200):
        q = sigmoid(X @ weights)
        slope = X.T @ (q - target) / n + ridge * weights
        curvature = (X * (q * (1 - q))[:, None]).T @ X / n + np.diag(ridge)
        step = np.linalg.lstsq(curvature, slope, rcond=1e-12)[0]
        if slope @ step <= 1e-16 * loss:  # twice what the step would gain, less than floats can tell
            break
        for halving in range(40):
            tried = weights - step / 2**halving
            now = value(tried)
            if now <= loss:
                break
        else:
            break
        weights, loss = tried, now
    return loss, weights


def sigmoid(x: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))
