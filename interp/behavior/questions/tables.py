"""From what the pieces measured to the tables of the report.

1. `formats`: accuracy of every way to ask beside chance. One whose interval covers chance is not informative, and nothing is
   ranked on it.
2. `with_probes`: P(I know) and the control by the question's words, both for questions of groups that no fit has seen.
3. `ranked`, `curves`, `added`: every signal of the informative tasks by AUROC for "the answer is wrong", error among the
   answers that remain when the most doubtful ones go, and what a second signal adds to a first.
4. `inside`: a probe that picks the option which it holds for the right one, beside the option that the model says.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp.behavior.questions.work import FREE, SIGNALS, TEXT
from interp.bootstrap import grouped_interval, grouped_share
from interp.calibration import calibration_report
from interp.calibration.ranking import rank_signals
from interp.calibration.selective import selective_report
from interp.calibration.stacking import stack_signals
from interp.dataset import Question
from interp.probe.choice import choice_baseline
from interp.probe.controls import text_logit
from interp.probe.folds import held_out
from interp.probe.inputs import check_groups
from interp.uncertainty.knowing import PIKReport, p_ik
from interp.uncertainty.questions import AnswerReport, accuracy_interval, answer_report, right_options

FORMATS = (
    "format", "by", "n", "accuracy", "low", "high", "chance", "informative", "confidence", "ece", "null_low", "null_high",
    "auroc", "brier",
)  # fmt: skip
WAYS = (("text", "sum"), ("text", "mean"), ("text", "pmi"), ("letter", "sum"))
"""Format and score of each way to choose an option."""
STACKED = (
    "nll_mean", "entropy_first", "margin_mean", "attention_diffusion", "settle_depth", "option_entropy", "p_true",
    "semantic_entropy", "eigenscore", "p_ik",
)  # fmt: skip
"""Signals of which pairs are fitted: one of each kind, named before any figure was seen."""
POINTS = 40
"""Points of a curve that are kept."""


def formats(
    options: pd.DataFrame, answers: pd.DataFrame, questions: Sequence[Question], *, grader: str, pmi: bool, n_bins: int,
    n_boot: int, seed: int,
) -> tuple[pd.DataFrame, dict[str, AnswerReport], list[str]]:  # fmt: skip
    """The table of all ways to ask, the reports on options by way, and what could not be had."""
    wording, notes = _wording(questions, seed, n_boot)
    rows, reports = [wording], {}
    draws = {"n_bins": n_bins, "n_boot": n_boot, "n_null": n_boot, "seed": seed}
    for format, by in WAYS:
        if by == "pmi" and not pmi:
            continue
        report = answer_report(options.loc[options["format"] == format], by=by, **draws)
        reports[f"{format} {by}"] = report
        row = report.to_frame().iloc[0].to_dict()
        rows.append({name: row.get(name) for name in FORMATS if name != "brier"} | {"brier": report.calibration.brier})
    free = answers.loc[answers["task"] == FREE]
    if len(free):
        rows += _free_rows(free, questions, grader, draws)
    return pd.DataFrame(rows, columns=pd.Index(FORMATS)), reports, notes


def _free_rows(
    free: pd.DataFrame, questions: Sequence[Question], grader: str, draws: dict[str, Any]
) -> list[dict[str, Any]]:
    """Free answers, with two confidences: how many samples agree, and the probability of the answer."""
    groups, right = [str(question.group) for question in questions], free["right"].to_numpy(dtype=bool)
    low, high = accuracy_interval(right, groups)
    chance = _commonest(questions)
    if grader == "nearest":  # any text is nearest to some option
        chance = max(chance, float(np.mean([len(right_options(each)) / len(each.options) for each in questions])))
    rows = []
    for by, column in (("agreement of samples", "self_consistency"), ("probability", "sequence_probability")):
        p = np.clip(free[column].to_numpy(dtype=float), 0, 1)
        found = calibration_report(p_top=p, y=right, groups=groups, **draws)
        null_low, null_high = found.null_band or (None, None)
        row = {"format": FREE, "by": by, "n": len(free), "accuracy": float(right.mean()), "low": low, "high": high}
        row |= {"chance": chance, "informative": low > chance, "confidence": found.mean_p, "ece": found.ece}
        rows.append(row | {"null_low": null_low, "null_high": null_high, "auroc": found.auroc, "brier": found.brier})
    return rows


def _wording(questions: Sequence[Question], seed: int, n_boot: int) -> tuple[dict[str, Any], list[str]]:
    """What picks the right option without a model, and why it could not be fitted."""
    row: dict[str, Any] = {"format": "wording alone", "by": "bag of words", "n": len(questions), "informative": False}
    try:
        found = choice_baseline(questions, seed=seed, n_boot=n_boot)
    except ValueError as error:
        return row, [f"what the options' wording alone gives away was not fitted ({error})."]
    row |= {"accuracy": found.accuracy, "low": found.low, "high": found.high, "chance": found.chance}
    return row | {"informative": found.low > found.chance}, []


def _commonest(questions: Sequence[Question]) -> float:
    """Accuracy of always saying the same thing."""
    said: dict[str, int] = {}
    for question in questions:
        for place in right_options(question):
            text = question.options[place].strip().casefold()
            said[text] = said.get(text, 0) + 1
    return max(said.values()) / len(questions)


# -------------------------------------------------------------------------------------------------------------- probes


def with_probes(
    answers: pd.DataFrame,
    questions: Sequence[Question],
    streams: dict[str, dict[str, np.ndarray]],
    *,
    n_folds: int,
    seed: int,
) -> tuple[pd.DataFrame, list[str], dict[str, PIKReport]]:
    """The answers with the columns p_ik and words, what could not be fitted, and the reports of P(I know) by task.

    Args:
        answers: in the order of the questions within each task.
        questions: measured.
        streams: `<task>_streams` -> site -> [question d], at the last token of the prompt that was answered.
        n_folds, seed: of the fits.
    """
    groups, notes, reports = [str(question.group) for question in questions], [], {}
    parts = []
    for task in answers["task"].unique():
        part = answers.loc[answers["task"] == task].copy()
        right = part["right"].to_numpy(dtype=bool)
        try:
            found = p_ik(None, None, right, groups, streams=streams[f"{task}_streams"], n_folds=n_folds, seed=seed)
        except ValueError as error:
            notes.append(f"{task}: no probe for what the model knows ({error})")
            parts.append(part.assign(p_ik=np.nan, words=np.nan))
            continue
        reports[task] = found
        parts.append(part.assign(p_ik=found.p, words=_words(questions, right, groups, n_folds, seed)))
    return pd.concat(parts, ignore_index=True), notes, reports


def _words(questions: Sequence[Question], right: np.ndarray, groups: list[str], n_folds: int, seed: int) -> np.ndarray:
    """Log-odds that the answer is right by the words of the question alone, for groups that were not fitted on."""
    y, codes, rows = right.astype(int), check_groups(groups, len(right), n_folds), np.arange(len(right))
    folds = [(np.setdiff1d(rows, part), part) for part in held_out(y, codes, n_folds, seed)]
    return text_logit("bag_of_words", [question.prompt for question in questions], y, folds)


def inside(
    options: pd.DataFrame,
    questions: Sequence[Question],
    streams: dict[str, np.ndarray],
    *,
    n_folds: int,
    n_boot: int,
    seed: int,
) -> tuple[pd.DataFrame, PIKReport | None, list[str]]:
    """How often a probe of each option's last token picks the right one, and how often the output does.

    The probe has seen labels of other groups, the output none: it says what is there to be read, not what the model uses.
    """
    sizes = [len(question.options) for question in questions]
    of_question = [number for number, size in enumerate(sizes) for _ in range(size)]
    place = [at for size in sizes for at in range(size)]
    right = np.array([at in right_options(questions[i]) for i, at in zip(of_question, place)])
    groups = [str(questions[i].group) for i in of_question]
    try:
        found = p_ik(None, None, right, groups, streams=streams, n_folds=n_folds, seed=seed)
    except ValueError as error:
        return pd.DataFrame(columns=pd.Index(INSIDE)), None, [f"no probe of the options ({error})"]
    text = options.loc[options["format"] == TEXT].sort_values(["question", "option"])
    output = text["logprob_sum"].to_numpy(dtype=float)
    ends = np.cumsum(sizes)[:-1]
    picked = [int(part.argmax()) for part in np.split(found.p, ends)]
    said = [int(part.argmax()) for part in np.split(output, ends)]
    good = [right_options(question) for question in questions]
    probe = np.array([place in ok for place, ok in zip(picked, good)], dtype=float)
    model = np.array([place in ok for place, ok in zip(said, good)], dtype=float)
    codes = pd.factorize(pd.Series([str(question.group) for question in questions]))[0]
    wrong = model == 0
    rows = [
        _share("output right", model, codes, n_boot, seed),
        _share("inside right (probe of the option's last token)", probe, codes, n_boot, seed),
        _share("inside right, output wrong", probe * (1 - model), codes, n_boot, seed),
        _share("output right, inside wrong", model * (1 - probe), codes, n_boot, seed),
    ]
    if wrong.any():
        blind = np.array([len(ok) / (size - 1) for ok, size in zip(good, sizes)])[wrong]
        rows.append(_share("of the wrong outputs, the inside knows better", probe[wrong], codes[wrong], n_boot, seed))
        rows.append(
            ("of the wrong outputs, a blind pick of another option", float(blind.mean()), np.nan, np.nan, len(blind))
        )
    low, high = grouped_interval(probe - model, codes, seed, n_boot)
    rows.append(("inside less output, accuracy", float((probe - model).mean()), float(low), float(high), len(model)))
    return pd.DataFrame(rows, columns=pd.Index(INSIDE)), found, []


INSIDE = ("figure", "value", "low", "high", "n")


def _share(
    name: str, values: np.ndarray, codes: np.ndarray, n_boot: int, seed: int
) -> tuple[str, float, float, float, int]:
    low, high = grouped_share(values, codes, seed, n_boot)
    return name, float(values.mean()), float(low), float(high), len(values)


# ------------------------------------------------------------------------------------------------------------- signals


def oriented_signals(part: pd.DataFrame) -> pd.DataFrame:
    """Every signal that is there and varies, higher being more doubtful."""
    found = {}
    for name, (sign, _) in SIGNALS.items():
        values = part[name].to_numpy(dtype=float) if name in part else np.array([])
        if len(np.unique(values[~np.isnan(values)])) > 1:
            found[name] = sign * values
    return pd.DataFrame(found)


def ranked(
    answers: pd.DataFrame, questions: Sequence[Question], informative: Sequence[str], *, n_boot: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """(signals, curves, notes): each signal of each informative task, and its risk-coverage curve."""
    groups, tables, lines, notes = [str(question.group) for question in questions], [], [], []
    for task in informative:
        part = answers.loc[answers["task"] == task]
        wrong = ~part["right"].to_numpy(dtype=bool)
        signals = oriented_signals(part)
        try:
            table = rank_signals(signals, wrong, groups=groups, n_boot=n_boot, seed=seed)
        except ValueError as error:
            notes.append(f"{task}: nothing is ranked ({error})")
            continue
        table.insert(0, "task", task)
        table["meaning"] = [SIGNALS[name][1] for name in table["signal"]]
        tables.append(table)
        lines += [
            _curve(task, name, signals[name].to_numpy(), ~wrong, groups, n_boot, seed) for name in table["signal"]
        ]
    empty = pd.DataFrame(columns=pd.Index(SIGNAL_COLUMNS)), pd.DataFrame(columns=pd.Index(CURVE_COLUMNS))
    if not tables:
        return *empty, notes
    return pd.concat(tables, ignore_index=True), pd.concat(lines, ignore_index=True), notes


SIGNAL_COLUMNS = (
    "task", "signal", "auroc", "low", "high", "aurc", "excess_aurc", "n", "n_missing", "reliable", "note",
    "meaning",
)  # fmt: skip
CURVE_COLUMNS = ("task", "signal", "coverage", "risk", "low", "high", "n")


def _curve(
    task: str, name: str, doubt: np.ndarray, right: np.ndarray, groups: list[str], n_boot: int, seed: int
) -> pd.DataFrame:
    known = ~np.isnan(doubt)
    if right[known].all() or not right[known].any():
        return pd.DataFrame(columns=pd.Index(CURVE_COLUMNS))
    kept = [group for group, there in zip(groups, known) if there]
    if len(set(kept)) < 2:
        return pd.DataFrame(columns=pd.Index(CURVE_COLUMNS))
    curve = selective_report(confidence=-doubt[known], y=right[known], groups=kept, n_boot=n_boot, seed=seed).curve
    if len(curve) > POINTS:
        coverage = curve["coverage"].to_numpy(dtype=float)
        places = np.unique(np.searchsorted(coverage, np.linspace(coverage[0], 1, POINTS)).clip(max=len(curve) - 1))
        curve = curve.iloc[places]
    found = curve.assign(task=task, signal=name, n=int(known.sum()))
    return found.loc[:, list(CURVE_COLUMNS)].reset_index(drop=True)


def added(
    answers: pd.DataFrame,
    questions: Sequence[Question],
    informative: Sequence[str],
    *,
    n_folds: int,
    n_boot: int,
    seed: int,
) -> tuple[pd.DataFrame, list[str]]:
    """What a second signal adds to a first, by task."""
    groups, tables, notes = [str(question.group) for question in questions], [], []
    for task in informative:
        part = answers.loc[answers["task"] == task]
        signals = oriented_signals(part)
        signals = signals[[name for name in STACKED if name in signals]]
        try:
            found = stack_signals(
                signals, ~part["right"].to_numpy(dtype=bool), groups=groups, n_folds=n_folds, n_boot=n_boot, seed=seed
            )
        except ValueError as error:
            notes.append(f"{task}: signals were not combined ({error})")
            continue
        table = found.to_frame()
        table.insert(0, "task", task)
        tables.append(table)
    if tables:
        notes.append(
            "p_ik was itself fitted with labels of the other groups, so what is combined with it is slightly too good; its own "
            "figure stands among the signals."
        )
    return (pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"task": []})), notes


def letters(options: pd.DataFrame) -> pd.DataFrame:
    """How often each letter was chosen, and how often it was right."""
    part = options.loc[options["format"] == "letter"].copy()
    best = part.loc[part.groupby("question")["logprob_sum"].idxmax()]
    n = part["question"].nunique()
    rows = [
        {
            "letter": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place],
            "chosen": float((best["option"] == place).sum() / n),
            "right": float(part.loc[part["option"] == place, "right"].sum() / n),
            "n": n,
        }
        for place in sorted(part["option"].unique())
    ]
    return pd.DataFrame(rows)
