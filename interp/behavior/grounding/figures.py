"""The tables of a grounding report: from items and scores to error rates, intervals, a threshold and signals.

Every interval is the bootstrap's over whole groups. A change of the error rate is paired: the same questions with and without
evidence. The threshold is chosen on one half of the groups and its figures are those of the other half.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp.behavior.grounding.measures import sentence_support, word_support
from interp.behavior.grounding.prompts import query_of
from interp.behavior.grounding.work import CONDITIONS, MISLEADING, MISSING, NONE, RETRIEVED
from interp.bootstrap import grouped_interval, grouped_share
from interp.calibration.ranking import rank_signals
from interp.dataset import grouped_split

DEPTHS = (1, 2, 3, 5, 10)
"""Ranks at which recall is told."""
THRESHOLDS = 60
"""Most thresholds on the curve."""
LEAST_ANSWERED = 0.1
"""Share that a threshold which misses its aim must at least answer."""
SIGNALS = {
    "score": "score of the best passage",
    "gap": "its lead over the second",
    "gain": "rise of the answer's log-probability",
    "p": "probability among the options",
    "word_support": "words of the answer in the evidence",
    "sentence_support": "question and answer in one sentence",
    "cosine": "cosine of the best sentence",
    "attention": "attention that reaches the evidence",
}
"""Columns of the answers -> what they are; a low value is the doubtful one."""


def answers_table(
    items: Sequence[Mapping[str, Any]], found: Sequence[tuple[dict[str, np.ndarray], Any]]
) -> tuple[pd.DataFrame, np.ndarray]:
    """A row per question and condition, and the attention [row, layer] with NaN where there is no evidence."""
    by_question = {item["question"]: item for item in items}
    alone = {row["question"]: row["logprobs"] for _, rows in found for row in rows if row["condition"] == NONE}
    table, attention = [], []
    for arrays, rows in found:
        place = 0
        for row in rows:
            item = by_question[row["question"]]
            evidence = item["evidence"][row["condition"]]
            made = _answer(item, row, evidence, alone[row["question"]])
            made["even"] = float(arrays["even"][place]) if evidence else math.nan
            layers = arrays["attention"][place] if evidence else np.full(arrays["attention"].shape[1], np.nan)
            made["attention"] = float(layers.mean())
            place += bool(evidence)
            table.append(made)
            attention.append(layers)
    return pd.DataFrame(table), np.stack(attention)


def _answer(item: Mapping[str, Any], row: Mapping[str, Any], evidence: str, alone: Sequence[float]) -> dict[str, Any]:
    logprobs = np.array(row["logprobs"])
    chosen = int(logprobs.argmax())
    said = item["options"][chosen].strip()
    searched = row["condition"] in (RETRIEVED, MISSING)
    return {
        "question": item["question"],
        "group": item["group"],
        "condition": row["condition"],
        "prompt": item["prompt"],
        "answer": said,
        "right_answer": item["options"][item["answer"]].strip(),
        "right": chosen == item["answer"],
        "followed": chosen == item["pushed"] if row["condition"] == MISLEADING else None,
        "p": float(1 / np.exp(logprobs - logprobs.max()).sum()),
        "gain": float(logprobs[chosen] - alone[chosen]) if evidence else math.nan,
        "word_support": _known(word_support(said, evidence)) if evidence else math.nan,
        "sentence_support": _known(sentence_support(query_of(item["prompt"]), said, evidence))
        if evidence
        else math.nan,
        "cosine": math.nan,
        "score": _known(item["score"]) if searched else math.nan,
        "gap": _known(item["gap"]) if searched else math.nan,
        "rank": _known(item["rank"]) if searched else math.nan,
        "dropped": item["dropped"] if searched else math.nan,
        "free": row["free"],
        "evidence": evidence,
    }


def _known(value: float | int | None) -> float:
    return math.nan if value is None else float(value)


def conditions_table(answers: pd.DataFrame, lengths: Mapping[str, int], seed: int, n_boot: int) -> pd.DataFrame:
    """Accuracy, error rate, and its change against no evidence on the same questions, by condition."""
    plain = answers.loc[answers["condition"] == NONE].set_index("question")["right"].astype(float)
    rows = []
    for condition in [each for each in CONDITIONS if each in set(answers["condition"])]:
        part = answers.loc[answers["condition"] == condition]
        groups = pd.factorize(part["group"])[0]
        right = part["right"].to_numpy(float)
        change = plain.loc[part["question"]].to_numpy(float) - right
        row: dict[str, Any] = {"condition": condition, "n": len(part), "groups": len(set(groups))}
        row |= _share("accuracy", right, groups, seed, n_boot)
        row |= {
            "error": 1 - row["accuracy"],
            "error_low": 1 - row["accuracy_high"],
            "error_high": 1 - row["accuracy_low"],
        }
        nothing = {"change": math.nan, "change_low": math.nan, "change_high": math.nan}
        row |= nothing if condition == NONE else _mean("change", change, groups, seed, n_boot)
        row |= _share("followed", _numbers(part["followed"]), groups, seed, n_boot)
        row |= _share("free_accuracy", _numbers(part["free_right"]), groups, seed, n_boot)
        row["p"] = float(part["p"].mean())
        row["tokens"] = float(np.mean([lengths[text] for text in part["evidence"]]))
        row |= {name: float(part[name].mean()) for name in ("gain", "attention", "even")}
        rows.append(row)
    return pd.DataFrame(rows)


def _numbers(column: pd.Series) -> np.ndarray:
    return column.astype(object).map(lambda value: math.nan if value is None else float(value)).to_numpy(float)


def _share(name: str, right: np.ndarray, groups: np.ndarray, seed: int, n_boot: int) -> dict[str, float]:
    if np.isnan(right).any() or not len(right):
        return {name: math.nan, f"{name}_low": math.nan, f"{name}_high": math.nan}
    low, high = grouped_share(right, groups, seed, n_boot)
    return {name: float(right.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def _mean(name: str, values: np.ndarray, groups: np.ndarray, seed: int, n_boot: int) -> dict[str, float]:
    low, high = grouped_interval(values, groups, seed, n_boot)
    return {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def retrieval_table(items: Sequence[Mapping[str, Any]], seed: int, n_boot: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Recall at several depths, and the mean reciprocal rank; all documents there, questions with a known passage."""
    known = [item for item in items if item["known"]]
    if not known:
        return pd.DataFrame(columns=["k", "recall", "recall_low", "recall_high", "n"]), {"mrr": None}
    ranks = np.array([math.inf if item["rank"] is None else item["rank"] for item in known], float)
    groups = pd.factorize(pd.Series([item["group"] for item in known]))[0]
    rows = [
        {"k": k, **_share("recall", (ranks <= k).astype(float), groups, seed, n_boot), "n": len(known)} for k in DEPTHS
    ]
    found = _mean("mrr", 1 / ranks, groups, seed, n_boot)
    return pd.DataFrame(rows), {name: None if math.isnan(value) else value for name, value in found.items()}


def layers_table(answers: pd.DataFrame, attention: np.ndarray, seed: int, n_boot: int) -> pd.DataFrame:
    """Mean share of the attention that reaches the evidence, by condition and layer."""
    rows = []
    for condition in [each for each in CONDITIONS if each in set(answers["condition"])]:
        at = (answers["condition"] == condition).to_numpy() & ~np.isnan(attention).any(1)
        if at.any():
            groups = pd.factorize(answers.loc[at, "group"])[0]
            low, high = grouped_interval(attention[at].T, groups, seed, n_boot)
            even = float(answers.loc[at, "even"].mean())
            for layer, mean in enumerate(attention[at].mean(0)):
                ends = {"low": float(low[layer]), "high": float(high[layer])}
                rows.append(
                    {
                        "condition": condition,
                        "layer": layer,
                        "share": float(mean),
                        **ends,
                        "even": even,
                        "n": int(at.sum()),
                    }
                )
    return pd.DataFrame(rows, columns=["condition", "layer", "share", "low", "high", "even", "n"])


def signals_table(answers: pd.DataFrame, seed: int, n_boot: int) -> tuple[pd.DataFrame, list[str]]:
    """How well each signal ranks wrong answers above right ones, with the evidence that the search gave; and notes."""
    columns = ["signal", "auroc", "low", "high", "n", "n_missing", "reliable"]
    part = answers.loc[answers["condition"].isin([RETRIEVED, MISSING])]
    wrong = ~part["right"].to_numpy(bool)
    if wrong.all() or not wrong.any():
        word = "wrong" if wrong.all() else "right"
        note = f"All {len(part)} answers with retrieved evidence are {word}: no signal can tell right from wrong ones."
        return pd.DataFrame(columns=columns), [note]
    if part["group"].nunique() < 2:
        return pd.DataFrame(columns=columns), ["A single group: the signals have no interval and are not compared."]
    doubtful = {name: -part[name].to_numpy(float) for name in SIGNALS if part[name].notna().to_numpy().any()}
    found = rank_signals(doubtful, wrong, groups=part["group"].tolist(), n_boot=n_boot, seed=seed)
    return found.loc[:, columns], []


# ----------------------------------------------------------------------------------------------------------- abstention


def abstention(
    answers: pd.DataFrame, target: float, seed: int, n_boot: int
) -> tuple[pd.DataFrame, dict[str, Any], list[str]]:
    """The curve of both halves, the chosen threshold with the other half's figures, and notes.

    The threshold is the lowest score from which on the first half errs in at most `target` of what it answers; where no score
    reaches that, the one with the fewest errors among those that answer a tenth.
    """
    columns = ["part", "threshold", "answered", "error", "n_answered"]
    part = answers.loc[answers["condition"].isin([RETRIEVED, MISSING])]
    score = part["score"].fillna(-math.inf).to_numpy(float)
    wrong, groups = 1 - part["right"].to_numpy(float), pd.factorize(part["group"])[0]
    if len(set(groups)) < 4:
        return pd.DataFrame(columns=columns), {}, ["Fewer than four groups: no threshold was chosen."]
    first, second = grouped_split(groups, (0.5, 0.5), seed)
    steps = _steps(score)
    if not steps or (score[first] >= steps[0]).mean() < LEAST_ANSWERED:
        note = "The search finds passages for under a tenth of the questions to choose on: no threshold was chosen."
        return pd.DataFrame(columns=columns), {}, [note]
    curves = {"choose": _curve(score[first], wrong[first], steps), "check": _curve(score[second], wrong[second], steps)}
    table = pd.DataFrame([{"part": name, **row} for name, rows in curves.items() for row in rows], columns=columns)
    reached = [row for row in curves["choose"] if row["n_answered"] and row["error"] <= target]
    enough = [row for row in curves["choose"] if row["answered"] >= LEAST_ANSWERED]
    chosen = reached[0] if reached else min(enough, key=lambda row: (row["error"], row["threshold"]))
    answered = score[second] >= chosen["threshold"]
    values: dict[str, Any] = {"threshold": chosen["threshold"], "target": target, "reached": bool(reached)}
    values |= {"n": len(second), "groups": len(set(groups[second])), "n_answered": int(answered.sum())}
    values |= _share("answered", answered.astype(float), groups[second], seed, n_boot)
    values |= _share("error_all", wrong[second], groups[second], seed, n_boot)
    values |= _share("error", wrong[second][answered], groups[second][answered], seed, n_boot)
    values |= _share("error_withheld", wrong[second][~answered], groups[second][~answered], seed, n_boot)
    clean = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
    return table, clean, []


def _steps(score: np.ndarray) -> list[float]:
    distinct = np.unique(score[np.isfinite(score)])
    if len(distinct) > THRESHOLDS:
        distinct = distinct[np.unique(np.linspace(0, len(distinct) - 1, THRESHOLDS).round().astype(int))]
    return [float(each) for each in distinct]


def _curve(score: np.ndarray, wrong: np.ndarray, steps: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for threshold in steps:
        answered = score >= threshold
        error = float(wrong[answered].mean()) if answered.any() else math.nan
        share = float(answered.mean())
        rows.append({"threshold": threshold, "answered": share, "error": error, "n_answered": int(answered.sum())})
    return rows
