"""Which threshold of a gate can be certified: fixed-sequence tests of exact binomial tails, and conformal risk control.

Both take the doubts and errors of rows that decide, and give the thresholds that they looked at as a frame (`PATH`), the
certified ones marked; `gate` says what the guarantees are.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import beta, binom

THRESHOLDS = 100
"""Most thresholds that are tested."""
PATH = ("threshold", "coverage", "n", "wrong", "risk", "upper", "p_value", "passed")


def typed_path(path: pd.DataFrame) -> pd.DataFrame:
    figures = ["threshold", "coverage", "risk", "upper", "p_value"]
    return path.astype({**dict.fromkeys(figures, float), "n": float, "wrong": float, "passed": bool})


def fixed_sequence(
    first_doubt: Float[np.ndarray, " first"],
    first_y: Float[np.ndarray, " first"],
    doubt: Float[np.ndarray, " unit"],
    y: Float[np.ndarray, " unit"],
    risk: float,
    confidence: float,
) -> pd.DataFrame:
    """Fixed-sequence tests of the second part, up to and with the first that fails."""
    known = np.unique(first_doubt[~np.isnan(first_doubt)])
    grid = np.unique(np.quantile(known, np.linspace(0, 1, THRESHOLDS), method="higher")) if len(known) else known
    grid = np.append(grid[:-1], math.inf)
    n, wrong = _counts(first_doubt, first_y, grid)
    scale = len(doubt) / max(len(first_doubt), 1)
    # the first part's evidence as it would be at the second part's size; of equals the larger threshold
    evidence = binom.cdf(np.floor(wrong * scale), np.floor(n * scale), risk)
    start = len(grid) - 1 - int(np.argmin(evidence[::-1]))
    n, wrong = _counts(doubt, y, grid[start:])
    p_value = np.where(n > 0, binom.cdf(wrong, n, risk), 1.0)
    failed = np.flatnonzero(p_value > 1 - confidence)
    tested = int(failed[0]) + 1 if len(failed) else len(p_value)
    table = _path(grid[start:][:tested], n[:tested], wrong[:tested], len(doubt), confidence)
    return typed_path(table.assign(p_value=p_value[:tested], passed=p_value[:tested] <= 1 - confidence))


def risk_control(
    doubt: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], codes: Int[np.ndarray, " row"], risk: float
) -> pd.DataFrame:
    """Conformal risk control: every threshold, with the sum over groups of their share of answered and wrong rows."""
    share = 1 / np.bincount(codes)[codes]
    known = np.flatnonzero(~np.isnan(doubt))
    order = known[np.argsort(doubt[known], kind="stable")]
    last = np.flatnonzero(np.diff(doubt[order], append=np.inf)) if len(order) else order
    n_groups = int(codes.max()) + 1
    answered, loss = np.cumsum(share[order])[last], np.cumsum((share * y)[order])[last]
    passed = (loss + 1) / (n_groups + 1) <= risk + 1e-12
    thresholds = np.where(np.arange(len(last)) == len(last) - 1, np.inf, doubt[order][last])
    table = pd.DataFrame({"threshold": thresholds, "coverage": answered / n_groups, "n": answered, "wrong": loss})
    table = table.assign(risk=loss / answered, upper=math.nan, p_value=math.nan, passed=passed)
    return typed_path(_thinned(table))


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """At most about THRESHOLDS rows, the last that passed and the first that failed among them."""
    if len(table) <= THRESHOLDS:
        return table
    at = int(table["passed"].to_numpy().sum())
    kept = {*np.linspace(0, len(table) - 1, THRESHOLDS).astype(int).tolist(), max(at - 1, 0), min(at, len(table) - 1)}
    return table.iloc[sorted(kept)].reset_index(drop=True)


def _counts(
    doubt: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], grid: Float[np.ndarray, " threshold"]
) -> tuple[np.ndarray, np.ndarray]:
    """How many rows each threshold answers, and how many of them are wrong."""
    order = np.argsort(doubt)  # NaN last
    known = int((~np.isnan(doubt)).sum())
    at = np.searchsorted(doubt[order][:known], grid, side="right")
    return at.astype(float), np.append(0.0, np.cumsum(y[order]))[at]


def _path(thresholds: Any, n: np.ndarray, wrong: np.ndarray, n_all: int, confidence: float) -> pd.DataFrame:
    """Clopper and Pearson's one-sided upper bound beside each share; 1 where nothing or everything is wrong."""
    some = n > 0
    risk = np.divide(wrong, n, out=np.full(len(n), np.nan), where=some)
    upper = np.ones(len(n))
    inner = some & (wrong < n)
    upper[inner] = beta.ppf(confidence, wrong[inner] + 1, n[inner] - wrong[inner])
    return pd.DataFrame(
        {"threshold": thresholds, "coverage": n / n_all, "n": n, "wrong": wrong, "risk": risk, "upper": upper}
    )


def why_nothing(path: pd.DataFrame, n: int, risk: float, confidence: float, kind: str) -> str:
    if kind == "marginal":
        least = math.ceil(1 / risk - 1)
        if n < least:
            return f"a risk of {risk:g} needs at least {least} independent rows that decide, there are {n}."
        return "the rows it is surest of are wrong too often."
    least = math.ceil(math.log(1 - confidence) / math.log(1 - risk))
    if n < least:
        return (
            f"a risk of {risk:g} with confidence {confidence:g} needs at least {least} independent answered rows, all right; "
            f"there are {n}."
        )
    row = path.iloc[0]
    if row["n"] == 0:
        return "it met no row with so little doubt as the start asks for."
    return (
        f"of the {row['n']:.0f} rows it is surest of {row['wrong']:.0f} are wrong, so their error rate may be "
        f"{row['upper']:.3f} at confidence {confidence:g}, over {risk:g} (errorless, {least} rows would do)."
    )
