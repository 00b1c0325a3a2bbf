"""What a gate does on rows that had no part in it: coverage, errors, and whether the named risk was kept.

Where rows stand alone the intervals are exact (Clopper & Pearson 1934). With groups every group weighs the same, as in the
gate's guarantee, and the intervals are a bootstrap over groups; the plain shares of rows stand beside them.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import beta

from interp.bootstrap import ratio_interval
from interp.calibration.figures import Interval


@dataclass(frozen=True)
class GateCheck:
    """Coverage and errors of a gate on held-out rows; made by `AbstentionGate.check`."""

    kind: str
    named_risk: float
    n: int
    """Rows."""
    n_groups: int
    """Independent units: n where rows stand alone."""
    n_answered: int
    n_wrong_answered: int
    n_wrong: int
    coverage: float
    """Share answered; with groups, of a random row of a random group."""
    coverage_interval: Interval
    risk: float | None
    """Error rate among answered, weighed the same way; None where nothing is answered."""
    risk_interval: Interval | None
    marginal: float
    """Share of all that is answered and wrong."""
    marginal_interval: Interval
    error_rate: float
    """Share wrong if everything were answered."""
    risk_rows: float | None
    """Error rate among answered as a plain share of rows."""
    coverage_rows: float

    @property
    def found(self) -> float | None:
        """The figure that the gate's kind bounds."""
        return self.risk if self.kind == "selective" else self.marginal

    @property
    def interval(self) -> Interval | None:
        """95 % interval of `found`."""
        return self.risk_interval if self.kind == "selective" else self.marginal_interval

    @property
    def kept(self) -> bool | None:
        """The bounded figure is at most the named risk in these rows; None where nothing is answered."""
        return None if self.n_answered == 0 or self.found is None else self.found <= self.named_risk

    @property
    def broken(self) -> bool:
        """The whole interval lies over the named risk."""
        return self.interval is not None and self.n_answered > 0 and self.interval[0] > self.named_risk

    @property
    def verdict(self) -> str:
        """What was found, with n and intervals."""
        units = f"{self.n} held-out rows" + (f" in {self.n_groups} groups" if self.n_groups < self.n else "")
        if self.n_answered == 0 or self.found is None or self.interval is None:
            return f"Of {units} the gate answers none, so there is no error rate to check."
        what = "error rate among answered" if self.kind == "selective" else "share answered and wrong"
        low, high = self.interval
        head = (
            f"Of {units} the gate answers {self.coverage:.1%} (95 % {self.coverage_interval[0]:.1%}-"
            f"{self.coverage_interval[1]:.1%}); {what} {self.found:.3f} (95 % {low:.3f}-{high:.3f}), "
            f"{self.error_rate:.3f} if it answered all."
        )
        if self.broken:
            return (
                f"{head} The named risk of {self.named_risk:g} is broken: these rows differ from those that decided, or rows "
                "of a group were taken as independent."
            )
        if not self.kept:
            return f"{head} That is over the named {self.named_risk:g}, by no more than chance in so few rows."
        sure = "" if high <= self.named_risk else ", though the interval reaches beyond"
        return f"{head} The named risk of {self.named_risk:g} was kept{sure}."

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "GateCheck":
        """The inverse of `to_dict`. ValueError for anything else."""
        rest: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        try:
            return cls(**rest)
        except TypeError as error:
            raise ValueError(f"this describes no check of a gate ({error})") from None

    def to_frame(self) -> pd.DataFrame:
        """A row for each figure: figure, value, low, high, rows (the plain share), n."""
        unknown = (np.nan, np.nan)
        shares = (self.n_wrong_answered / self.n, self.n_wrong / self.n)
        rows = [
            ("coverage", self.coverage, *self.coverage_interval, self.coverage_rows, self.n),
            ("risk", self.risk, *(self.risk_interval or unknown), self.risk_rows, self.n_answered),
            ("marginal", self.marginal, *self.marginal_interval, shares[0], self.n),
            ("error_rate", self.error_rate, *unknown, shares[1], self.n),
        ]
        frame = pd.DataFrame(rows, columns=pd.Index(["figure", "value", "low", "high", "rows", "n"]))
        return frame.astype(dict.fromkeys(["value", "low", "high", "rows"], float))


def check_answers(
    answered: Bool[np.ndarray, " row"],
    wrong: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    *,
    kind: str,
    named: float,
    n_boot: int,
    seed: int,
) -> GateCheck:
    """The check for rows that were answered or not, wrong or not, in groups 0 .. n_groups - 1."""
    n, n_groups = len(wrong), int(codes.max()) + 1
    grouped = n_groups < n
    both = answered & (wrong == 1)
    sizes = np.bincount(codes)
    # [measure, group]: share of the group's rows that is answered, answered and wrong, wrong
    share = np.stack([np.bincount(codes, mask, n_groups) / sizes for mask in (answered, both, wrong)])
    coverage, marginal, error_rate = (float(value) for value in share.mean(1))
    n_answered, n_both = int(answered.sum()), int(both.sum())

    def interval(above: np.ndarray, below: np.ndarray, count: int, of: int) -> Interval:
        """Exact for rows; for groups of the bootstrap, or exact for so many groups where no draw differs."""
        if not grouped:
            return exact_interval(count, of)
        low, high = ratio_interval(above, below, seed, n_boot)
        if np.isnan(low) or high - low < 1e-9:
            units = int((below > 0).sum())
            return exact_interval(above.sum() / below.sum() * units, units)
        return max(float(low), 0.0), min(float(high), 1.0)

    ones = np.ones(n_groups)
    return GateCheck(
        kind=kind,
        named_risk=named,
        n=n,
        n_groups=n_groups,
        n_answered=n_answered,
        n_wrong_answered=n_both,
        n_wrong=int(wrong.sum()),
        coverage=coverage,
        coverage_interval=interval(share[0], ones, n_answered, n),
        risk=marginal / coverage if n_answered else None,
        risk_interval=interval(share[1], share[0], n_both, n_answered) if n_answered else None,
        marginal=marginal,
        marginal_interval=interval(share[1], ones, n_both, n),
        error_rate=error_rate,
        risk_rows=n_both / n_answered if n_answered else None,
        coverage_rows=n_answered / n,
    )


def exact_interval(count: float, n: int) -> Interval:
    """Clopper and Pearson's 95 % interval of a share."""
    low = 0.0 if count <= 0 else float(beta.ppf(0.025, count, n - count + 1))
    high = 1.0 if count >= n else float(beta.ppf(0.975, count + 1, n - count))
    return low, high
