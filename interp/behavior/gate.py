"""A report of a gate that answers or abstains: fitted, decided and checked on three parts of the answers.

1. Groups (questions about one entity) are divided at random: one part fits the doubt, one decides the threshold, one checks.
2. The gate for the named risk, and beside it the gates for other risks: what a stricter promise would cost.
3. Everything that is shown as found is of the third part, which no gate has seen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp import artifact
from interp.behavior.report import BehaviorReport
from interp.calibration.checked import group_codes, same_rows, signal_matrix, zero_one
from interp.calibration.gate import AbstentionGate, fit_on_parts, random_parts
from interp.calibration.gate_check import GateCheck, check_answers
from interp.calibration.stacking import WRONG
from interp.plot import Chart, to_svg
from interp.plot.gate import gate_curve, gate_risks
from interp.plot.style import INK
from interp.report import Figure, Section, Table

RISKS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Named risks that stand beside the one that was asked for."""
POINTS = 60
"""Most thresholds of the curve."""
WORDS = {"selective": "error rate among answered", "marginal": "share answered and wrong"}
"""Kind of gate -> the figure that it bounds."""
FEW = 50
"""Independent units under which the check says little."""


@dataclass(frozen=True, eq=False)
class GateReport(BehaviorReport):
    """A gate and what it does on answers that it has not seen; made by `gate_report`."""

    KIND: ClassVar[str] = "gate report"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "risks": (
            "risk", "named", "threshold", "answers_all", "coverage", "coverage_low", "coverage_high", "found", "found_low",
            "found_high", "kept",
        ),
        "curve": ("coverage", "threshold", "value", "low", "high", "n"),
        "check": ("figure", "value", "low", "high", "rows", "n"),
        "path": ("threshold", "answers_all", "coverage", "n", "wrong", "risk", "upper", "p_value", "passed"),
        "weights": ("signal", "weight", "missing_weight"),
    }  # fmt: skip
    WORDS: ClassVar[frozenset[str]] = frozenset({"named", "answers_all", "kept", "figure", "passed", "signal"})

    @property
    def gate(self) -> AbstentionGate:
        """The gate itself: call it on signals of new answers."""
        return AbstentionGate.from_dict(self.values["gate"])

    @property
    def check(self) -> GateCheck:
        """What it did on the third part."""
        return GateCheck.from_dict(self.values["check"])

    def title(self) -> str:
        """Of the page."""
        return f"Abstention gate, {self.gate.kind} risk {self.gate.risk:g}"

    def summary(self) -> str:
        """What the gate does, whether its promise held, and what this many answers can show."""
        gate = self.gate
        parts = [gate.verdict] if gate.answers_nothing else [self.check.verdict, gate.verdict]
        if gate.answers_nothing:
            some = self.tables["risks"].dropna(subset=["found"])
            if len(some):
                least = some.iloc[0]
                parts.append(
                    f"The least risk of those tried for which a gate answers anything is {least['risk']:g} (it answers "
                    f"{least['coverage']:.1%} of the held-out rows, {WORDS[gate.kind]} {least['found']:.3f}). A risk that is "
                    "chosen after this look needs new rows that decide."
                )
            else:
                parts.append("No gate for any other risk that was tried answers anything either.")
        return "\n\n".join([*parts, self._can_show()])

    def _can_show(self) -> str:
        gate, check = self.gate, self.check
        n = gate.card["n_units"]
        unit = "groups" if gate.card["grouped"] else "rows"
        if gate.confidence is None:
            least = 1 / (n + 1)
        else:
            least = 1 - (1 - gate.confidence) ** (1 / n)
        text = f"What this n can show: {n} {unit} decide, so no risk under {least:.3g} can be promised, even without an error."
        return text + (
            f" The check has {check.n_groups}, under {FEW}: it can hardly contradict." if check.n_groups < FEW else ""
        )

    def plot(self, name: str | None = None) -> Chart:
        """The chart "curve" (errors against coverage) or "risks" (promised against found)."""
        gate, check = self.gate, self.check
        words = f"{WORDS[gate.kind]} (held out)"
        if name in (None, "curve"):
            at = check.coverage if check.n_answered else None
            return gate_curve(self.tables["curve"], risk=gate.risk, coverage=at, found=check.found, title=words)
        if name != "risks":
            raise ValueError(f"there is no chart {name!r}; there are curve and risks")
        known = self.tables["risks"].dropna(subset=["found"])
        if known.empty:
            raise ValueError(
                "no gate answers anything, so there are no promises to draw: take more or easier questions"
            )
        return gate_risks(known, title=words)

    def sections(self) -> list[Section]:
        """The curve, the promises, the threshold, and the way to make it again."""
        check = self.check
        held = f"{check.n} answers in {check.n_groups} groups" if check.n_groups < check.n else f"{check.n} answers"
        shaded = "Shaded: 95 % interval at each threshold by itself."
        chosen = (
            "Orange: the gate's threshold." if check.n_answered else "The gate answers nothing, so no point is marked."
        )
        found = [
            Section(
                "Errors and coverage",
                "From the surest answers on the left to all of them on the right, on rows that had no part in the gate.",
                [Figure(to_svg(self.plot(), ink=INK), f"{held}. {shaded} {chosen}")],
                [Table(self.tables["check"], "The gate on the held-out rows; `rows` are plain shares of rows.")],
                code='report = GateReport.load("gate.json")\nreport.plot()\nreport.gate(signals_of_new_answers)',
            )
        ]
        risks = self.tables["risks"]
        figures = []
        if len(risks.dropna(subset=["found"])):
            text = f"{held}. Points under the dashed line are promises kept; orange is the risk that was asked for."
            figures = [Figure(to_svg(self.plot("risks"), ink=INK), text)]
        found.append(
            Section(
                "What other risks would cost",
                "A gate for each named risk, all from the same rows. Each promise holds by itself, for a risk that is named "
                "before this table is seen.",
                figures,
                [Table(risks, "One gate a row; – where it answers nothing.", {"threshold": ".4g"})],
            )
        )
        weights = self.tables["weights"]
        found.append(
            Section(
                "How the threshold was decided",
                self.gate.guarantee,
                tables=[
                    Table(
                        self.tables["path"], f"Thresholds in the order in which they were looked at; {self._units()}."
                    ),
                    Table(weights, "Log-odds of a wrong answer for each standard deviation of a signal.")
                    if len(weights)
                    else Table(pd.DataFrame({"doubt": list(self.gate.signals)}), "A single signal, taken as it is."),
                ],
            )
        )
        return [*found, self._again()]

    def _units(self) -> str:
        gate = self.gate
        if not gate.card["grouped"]:
            return f"{gate.card['n_units']} rows"
        each = "one row of each" if gate.kind == "selective" else "the mean of each"
        return f"{gate.card['n_units']} groups, {each}"

    def _again(self) -> Section:
        asked = ", ".join(f"{name}={self.card[name]!r}" for name in ("risk", "confidence", "kind", "fractions", "seed"))
        return Section(
            "Run it again",
            "`signals` has a column for each signal (higher is more doubtful) and `wrong` is 1 where the answer was wrong.",
            code=f"from interp.behavior.gate import gate_report\n\nreport = gate_report(signals, wrong, groups=groups, {asked})",
        )


def gate_report(
    signals: Any,
    wrong: Any,
    *,
    risk: float = 0.1,
    confidence: float = 0.9,
    kind: str = "selective",
    groups: Any = None,
    fractions: Sequence[float] = (0.4, 0.3, 0.3),
    risks: Sequence[float] = RISKS,
    seed: int = 0,
    n_boot: int = 1000,
    card: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> GateReport:
    """Fit a gate, decide its threshold and check it, each on groups of its own.

    Args:
        signals: frame with a column for each signal, a row for each answer; NaN where it was not measured. One signal is the
            doubt itself (higher is more doubtful); several are weighed by logistic regression.
        wrong: [n] 1 where the answer was wrong, else 0.
        risk: the error rate to keep.
        confidence: of the promise, for "selective".
        kind: "selective" or "marginal", as in `fit_gate`.
        groups: [n] which answers belong together; the promise is then about a random answer of a new group.
        fractions: of the groups, to fit, to decide and to check.
        risks: others that are tried beside it.
        seed: of the division and the draws.
        n_boot: draws of groups for the intervals.
        card: JSON-ready facts about where the answers come from (model, data ...), kept and printed.
        notes: what a reader must know about these answers; they stand before the report's own.

    Raises:
        ValueError: what `fit_gate` refuses, fractions that are not three, or notes that are one text.
    """
    if isinstance(notes, str):
        raise ValueError("notes are a list of sentences, got one text: put it into a list")
    if len(fractions) != 3:
        raise ValueError(
            f"fractions are three shares, to fit, to decide and to check, got {[float(share) for share in fractions]}"
        )
    names, values = signal_matrix(signals)
    same_rows(signals=signals, wrong=wrong, groups=groups)
    y = zero_one("wrong", wrong, len(values), WRONG)
    codes = group_codes(groups, len(y))
    first, second, third = random_parts(codes, tuple(fractions), seed)

    def fitted(named: float) -> AbstentionGate:
        given: dict[str, Any] = {"risk": named, "confidence": confidence, "kind": kind, "seed": seed}
        return fit_on_parts(names, values, y, codes, first, second, **given)

    gates = {named: fitted(named) for named in sorted({risk, *risks})}
    gate, held = gates[risk], pd.DataFrame(values[third], columns=pd.Index(names))
    group = np.unique(codes[third], return_inverse=True)[1]
    checks = {named: one.check(held, y[third], groups=group, n_boot=n_boot, seed=seed) for named, one in gates.items()}
    check = checks[risk]
    tables = {
        "risks": _risks(gates, checks, risk),
        "curve": _curve(gate.doubt(held), y[third], group, kind, n_boot, seed),
        "check": check.to_frame(),
        "path": _endless(gate.path),
        "weights": pd.DataFrame(
            [] if gate.stack is None else list(zip(names, gate.stack.weight, gate.stack.missing_weight)),
            columns=pd.Index(["signal", "weight", "missing_weight"]),
        ),
    }
    shares = [float(share) for share in fractions]
    asked = {"risk": float(risk), "confidence": float(confidence), "kind": kind, "fractions": shares, "seed": seed}
    counts = {"n": len(y), "n_wrong": int(y.sum()), "n_groups": int(codes.max()) + 1, "n_fit": gate.card["n_fit"]}
    counts |= {"n_decide": gate.card["n_calibrate"], "n_check": len(third), "signals": list(names)}
    facts = {**dict(card or {}), **asked, **counts, "n_boot": n_boot, **artifact.provenance()}
    return GateReport(tables, {"gate": gate.to_dict(), "check": check.to_dict()}, facts, (*notes, *gate.notes))


def _risks(gates: Mapping[float, AbstentionGate], checks: Mapping[float, GateCheck], asked: float) -> pd.DataFrame:
    rows = []
    for named, gate in gates.items():
        check = checks[named]
        low, high = check.interval if check.n_answered and check.interval is not None else (math.nan, math.nan)
        row: dict[str, Any] = {"risk": named, "named": named == asked, "threshold": gate.threshold}
        row |= {"coverage": check.coverage, "found": check.found if check.n_answered else math.nan}
        row |= {"coverage_low": check.coverage_interval[0], "coverage_high": check.coverage_interval[1]}
        rows.append({**row, "found_low": low, "found_high": high, "kept": check.kept})
    return _endless(pd.DataFrame(rows)).loc[:, list(GateReport.TABLES["risks"])]


def _endless(frame: pd.DataFrame) -> pd.DataFrame:
    """Thresholds that a file can hold: NaN for no threshold, and whether that is because everything is answered."""
    threshold = frame["threshold"].to_numpy(float)
    finite = np.where(np.isfinite(threshold), threshold, math.nan)
    found = frame.assign(threshold=finite, answers_all=threshold == math.inf)
    return found.loc[:, ["threshold", "answers_all", *[name for name in frame if name != "threshold"]]]


def _curve(
    doubt: Float[np.ndarray, " row"],
    y: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    kind: str,
    n_boot: int,
    seed: int,
) -> pd.DataFrame:
    """The bounded figure at thresholds spread over the doubts of the held-out rows."""
    known = np.unique(doubt[~np.isnan(doubt)])
    if not len(known):
        raise ValueError("no row of the part that checks has a measured signal: measure more, or drop the signal")
    grid = known[np.unique(np.linspace(0, len(known) - 1, POINTS).astype(int))]
    rows = []
    for threshold in grid:
        check = check_answers(doubt <= threshold, y, codes, kind=kind, named=1.0, n_boot=min(n_boot, 200), seed=seed)
        assert check.found is not None, "the threshold is the doubt of a row"
        assert check.interval is not None, "the threshold is the doubt of a row"
        rows.append((check.coverage, threshold, check.found, *check.interval, check.n_answered))
    return pd.DataFrame(rows, columns=pd.Index(GateReport.TABLES["curve"]))
