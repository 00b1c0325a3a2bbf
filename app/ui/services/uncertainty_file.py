"""Calibration of a user's own probabilities: a table that was uploaded, read in memory, judged, and never written anywhere.

The ending, the size, the number of rows and of columns are checked here, whatever the browser says of the file. Nothing in it is
ever code or a path: it is numbers in named columns, and the names are shown as text.
"""

import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import interp

ENDINGS = (".csv", ".jsonl")
MOST_MB = 5
MOST_ROWS = 20_000
MOST_COLUMNS = 100
DRAWS = 300
"""Draws of bootstrap and null band: a page is waited for."""
P_NAMES = ("p", "p_true", "p_top", "prob", "probability", "confidence", "score")
Y_NAMES = ("y", "label", "right", "correct", "outcome", "target", "true")
GROUP_NAMES = ("group", "document", "doc", "question", "id")
MEANINGS = {"p_true": "Probability that the outcome is 1", "p_top": "Confidence that the answer is right"}
T_LOW, T_HIGH = 0.2, 5.0


@dataclass(frozen=True)
class Chosen:
    """Columns and options of a judgement: hashable, so that a page knows whether it has it."""

    p: str
    y: str
    group: str | None
    meaning: str = "p_true"
    n_bins: int = 15
    by: str = "width"
    seed: int = 0


@dataclass(frozen=True)
class Judged:
    """What a table's probabilities are worth, as frames."""

    figures: pd.DataFrame
    """`CalibrationReport.to_frame`."""
    verdict: str
    notes: tuple[str, ...]
    bins: pd.DataFrame
    curve: pd.DataFrame
    """`interp.calibration.curve.reliability_curve`."""
    null_band: tuple[float, float] | None
    selective: pd.DataFrame | None
    """Risk against coverage; None where it cannot be had, for the reason in `unranked`."""
    ranked: str
    """What the ranking says, in words; empty without one."""
    unranked: str
    """Why there is no ranking; empty where there is one."""
    temperature: float | None
    """The best one for these rows; None where none can be fitted, for the reason in `untempered`."""
    untempered: str


def read_table(name: str, data: bytes) -> pd.DataFrame:
    """A table from the bytes of a file.

    Args:
        name: as the browser gives it; only its ending is looked at.
        data: the content.

    Raises:
        ValueError: another ending, a file over 5 MB, not UTF-8, no table, over 20,000 rows or 100 columns, or nothing in it.
    """
    ending = next((each for each in ENDINGS if name.lower().endswith(each)), None)
    if ending is None:
        raise ValueError(f"only {' and '.join(ENDINGS)} files are read: save the table as one of them")
    if len(data) > MOST_MB * 2**20:
        raise ValueError(
            f"the file has {len(data) / 2**20:.1f} MB, and a page takes {MOST_MB}: keep only the needed columns"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the file is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    if "\x00" in text:
        raise ValueError("the file holds NUL characters, so it is no text: save it as CSV or JSON lines")
    frame = _csv(text) if ending == ".csv" else _jsonl(text)
    if len(frame) > MOST_ROWS:
        raise ValueError(
            f"the table has more than {MOST_ROWS:,} rows: take a sample, or use interp.calibration_report in Python"
        )
    if len(frame.columns) > MOST_COLUMNS:
        raise ValueError(
            f"the table has {len(frame.columns)} columns, and a page takes {MOST_COLUMNS}: keep the needed ones"
        )
    if frame.empty:
        raise ValueError("the table has no rows: the first line names the columns, the others are the data")
    frame.columns = pd.Index([str(column) for column in frame.columns])
    if frame.columns.duplicated().any():
        raise ValueError(f"two columns are called {frame.columns[frame.columns.duplicated()][0]!r}: rename one")
    return frame


def _csv(text: str) -> pd.DataFrame:
    try:
        return pd.read_csv(io.StringIO(text), nrows=MOST_ROWS + 1, index_col=False, low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise ValueError(
            f"this is no CSV table ({str(error).strip()[:120]}): the first line names the columns"
        ) from None


def _jsonl(text: str) -> pd.DataFrame:
    rows = []
    # Not splitlines: JSON texts may hold other signs that Python takes for the end of a line.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number} is no JSON: write one object a line") from None
        if not isinstance(row, dict):
            raise ValueError(f'line {number} is no JSON object: write one object a line, as in {{"p": 0.7, "y": 1}}')
        rows.append(row)
        if len(rows) > MOST_ROWS or len(row) > MOST_COLUMNS:
            break  # refused by the caller, which says why
    return pd.DataFrame(rows)


def numeric(frame: pd.DataFrame) -> list[str]:
    """Columns of numbers, or of yes and no."""
    return [str(name) for name in frame if pd.api.types.is_numeric_dtype(frame[name])]


def guess(frame: pd.DataFrame) -> tuple[str | None, str | None, str | None]:
    """Likely columns of probability, outcome and group, by their names and values; None where there is none."""
    names = numeric(frame)
    lower = {name.lower().strip(): name for name in names}
    inside = [name for name in names if bool(frame[name].dropna().between(0, 1).all())]
    binary = [name for name in inside if set(frame[name].dropna().unique()) <= {0, 1}]
    y = next((lower[name] for name in Y_NAMES if name in lower), None) or next(iter(binary), None)
    p = next((lower[name] for name in P_NAMES if name in lower and lower[name] != y), None)
    p = p or next((name for name in inside if name != y and name not in binary), None)
    every = {str(name).lower().strip(): str(name) for name in frame}
    group = next((every[name] for name in GROUP_NAMES if name in every and every[name] not in (p, y)), None)
    return p, y, group


def judge(frame: pd.DataFrame, chosen: Chosen) -> Judged:
    """Calibration and ranking of the chosen columns.

    Raises:
        ValueError: a column that is not there, or what `interp.calibration_report` refuses: NaN, p outside 0 .. 1, outcomes
            that are not 0/1.
    """
    from interp.calibration.curve import reliability_bins, reliability_curve

    p, y, groups = _columns(frame, chosen)
    given: dict[str, Any] = {chosen.meaning: p}
    report = interp.calibration_report(
        **given, y=y, groups=groups, n_bins=chosen.n_bins, n_boot=DRAWS, n_null=DRAWS, seed=chosen.seed
    )
    bins = reliability_bins(p, y, chosen.n_bins, chosen.by)
    curve = reliability_curve(p, y, groups=groups, seed=chosen.seed)
    selective, ranked, unranked = _ranking(p, y, groups, chosen)
    temperature, untempered = _fitted(p, y, groups, chosen)
    return Judged(
        report.to_frame(), report.verdict, report.notes, bins, curve, report.null_band, selective, ranked, unranked,
        temperature, untempered,
    )  # fmt: skip


def _ranking(p: Any, y: Any, groups: Any, chosen: Chosen) -> tuple[pd.DataFrame | None, str, str]:
    """Risk against coverage: of `p_true` the answer is the likelier outcome, and its confidence max(p, 1 - p)."""
    confidence, right = p, y
    if chosen.meaning == "p_true":
        confidence, right = np.maximum(p, 1 - p), ((p > 0.5) == (y == 1)).astype(int)
    try:
        found = interp.selective_report(confidence=confidence, y=right, groups=groups, n_boot=DRAWS, seed=chosen.seed)
    except ValueError as error:
        return None, "", str(error)
    return found.curve, found.verdict, ""


def _fitted(p: Any, y: Any, groups: Any, chosen: Chosen) -> tuple[float | None, str]:
    if chosen.meaning != "p_true":
        return (
            None,
            "the confidence in one of several answers is no function of T: the other answers' logits are needed",
        )
    try:
        found = interp.fit_recalibration(p_true=p, y=y, groups=groups, kind="temperature")
    except ValueError as error:
        return None, str(error)
    return float(found.parameters["temperature"][0]), ""


def at_temperature(frame: pd.DataFrame, chosen: Chosen, temperature: float) -> tuple[pd.DataFrame, dict[str, float]]:
    """Bins before and after sigmoid(logit p / T), with a column `state`, and ECE and NLL: ece, ece_before, nll, nll_before.

    Raises:
        ValueError: a temperature outside 0.2 .. 5, confidences instead of probabilities, or what `judge` refuses.
    """
    from interp.calibration.curve import reliability_bins
    from interp.calibration.recalibration import Recalibration

    if not T_LOW <= temperature <= T_HIGH or chosen.meaning != "p_true":
        raise ValueError(
            f"the temperature of probabilities of two outcomes lies in {T_LOW:g} to {T_HIGH:g}, got {temperature:g}"
        )
    p, y, _ = _columns(frame, chosen)
    by_t = Recalibration("temperature", "p_true", len(p), len(p), float(np.mean(y)), {"temperature": [temperature]})
    states = {"as it is": np.asarray(p, dtype=float), f"at T = {temperature:.2f}": by_t(p)}
    bins = [reliability_bins(q, y, chosen.n_bins, chosen.by).assign(state=name) for name, q in states.items()]
    before, after = (
        interp.calibration_report(p_true=q, y=y, n_bins=chosen.n_bins, n_boot=0, n_null=0) for q in states.values()
    )
    facts = {"ece": after.ece, "ece_before": before.ece, "nll": after.nll, "nll_before": before.nll}
    return pd.concat(bins, ignore_index=True), facts


def _columns(frame: pd.DataFrame, chosen: Chosen) -> tuple[Any, Any, Any]:
    for name in (chosen.p, chosen.y, chosen.group):
        if name is not None and name not in frame:
            raise ValueError(f"the table has no column {name[:60]!r} (any more): choose another one")
    if chosen.p == chosen.y:
        raise ValueError("probability and outcome are one column: choose two")
    if chosen.meaning not in MEANINGS:
        raise ValueError(f"{chosen.meaning[:40]!r} is no meaning of a probability: it is one of {', '.join(MEANINGS)}")
    p, y = (frame[name].astype(float).to_numpy() for name in (chosen.p, chosen.y))
    return p, y, None if chosen.group is None else frame[chosen.group].tolist()


def code(name: str, chosen: Chosen) -> str:
    """Python that makes the same judgement of the reader's own file."""
    read = "pd.read_csv('table.csv')" if name.lower().endswith(".csv") else "pd.read_json('table.jsonl', lines=True)"
    p = f"table[{chosen.p!r}].to_numpy(float)"
    group = "None" if chosen.group is None else f"table[{chosen.group!r}].tolist()"
    rank = (
        "confidence, right = np.maximum(p, 1 - p), (p > 0.5) == (y == 1)"
        if chosen.meaning == "p_true"
        else "confidence, right = p, y"
    )
    return f"""
import interp
import numpy as np
import pandas as pd
from interp import plot
from interp.calibration.curve import reliability_bins, reliability_curve
from interp.plot.uncertainty import smooth_reliability

table = {read}
p, y = {p}, table[{chosen.y!r}].to_numpy(float)
groups = {group}
draws = dict(n_boot={DRAWS}, seed={chosen.seed})
report = interp.calibration_report({chosen.meaning}=p, y=y, groups=groups, n_bins={chosen.n_bins}, n_null={DRAWS}, **draws)
print(report.verdict)
bins = reliability_bins(p, y, {chosen.n_bins}, {chosen.by!r})
chart = smooth_reliability(reliability_curve(p, y, groups=groups, seed={chosen.seed}), bins)
{rank}
selective = interp.selective_report(confidence=confidence, y=right, groups=groups, **draws)
risks = plot.risk_coverage(selective.curve)
"""
