"""The page of a question report, its charts and its sentences."""

from typing import Any

import numpy as np
import pandas as pd

from interp.behavior.questions.work import FREE, TEXT
from interp.behavior.report import BehaviorReport
from interp.calibration import CalibrationReport
from interp.plot import Chart, reliability, to_svg
from interp.plot.style import INK
from interp.plot.uncertainty import risk_coverage, signal_ranking
from interp.report import Figure, Section, Table
from interp.sites import short_name

CHARTS = ("signals", "risk", "reliability")
CURVES = 5
"""Signals of a task whose curves are drawn: the best ones."""
RATES = ("accuracy", "low", "high", "chance", "confidence", "ece", "null_low", "null_high")
EXAMPLES = 12
"""Wrong answers that are listed."""
PAIRS = 10
"""Pairs of signals that are printed."""


def chart(report: BehaviorReport, name: str | None) -> Chart:
    """A chart by name. ValueError for an unknown one, or one that has nothing to show."""
    wanted = CHARTS[0] if name is None else name
    if wanted not in CHARTS:
        raise ValueError(f"there is no chart {name!r}: there are {', '.join(CHARTS)}")
    if wanted == "reliability":
        found = calibration(report)
        return reliability(found.bins, null_band=found.null_band)
    if report.tables["signals"].empty:
        raise ValueError("no format was informative, so no signal was ranked and there is nothing to draw")
    task = str(report.tables["signals"]["task"].iloc[0])
    return ranking(report, task) if wanted == "signals" else risks(report, task)


def ranking(report: BehaviorReport, task: str) -> Chart:
    """Signals of a task by AUROC."""
    frame = report.tables["signals"]
    return signal_ranking(frame.loc[frame["task"] == task])


def risks(report: BehaviorReport, task: str) -> Chart:
    """Risk-coverage curves of a task's best signals."""
    order = report.tables["signals"].loc[report.tables["signals"]["task"] == task, "signal"].head(CURVES).tolist()
    frame = report.tables["curves"]
    part = frame.loc[(frame["task"] == task) & frame["signal"].isin(order)]
    ordered = pd.concat([part.loc[part["signal"] == name] for name in order])
    return risk_coverage(ordered, colour="signal")


def calibration(report: BehaviorReport) -> CalibrationReport:
    """Of the option with the most probable text."""
    return CalibrationReport.from_dict(report.values["calibration"])


# ----------------------------------------------------------------------------------------------------------- sentences


def summary(report: BehaviorReport) -> str:
    """Accuracy, the best signals, the inside, and what this n can show."""
    lines = [_accuracies(report)]
    signals = report.tables["signals"]
    for task in dict.fromkeys(signals["task"]):
        part = signals.loc[signals["task"] == task]
        best = [_figure(row) for row in part.head(3).to_dict("records")]
        reversed_ = int((part["high"] < 0.5).sum())
        unsure = int(np.count_nonzero(~part["reliable"].to_numpy(dtype=bool))) - reversed_
        n_wrong = int(np.count_nonzero(~_of_task(report, task)["right"].to_numpy(dtype=bool)))
        lines.append(
            f"Doubt of wrong answers, {task} ({n_wrong} wrong of {len(_of_task(report, task))}), AUROC: {', '.join(best)}."
            + (f" {unsure} of {len(part)} signals are not told from chance." if unsure else "")
            + (f" {reversed_} point the other way round." if reversed_ else "")
        )
    inside = report.tables["inside"].set_index("figure") if len(report.tables["inside"]) else pd.DataFrame()
    if "inside less output, accuracy" in inside.index:
        row = inside.loc["inside less output, accuracy"]
        word = (
            "right more often than"
            if row["low"] > 0
            else "right less often than"
            if row["high"] < 0
            else "not told from"
        )
        lines.append(
            f"A probe of the option's last token, fitted on other groups, is {word} the output: {row['value']:+.3f} "
            f"({row['low']:+.3f} to {row['high']:+.3f}). {_better(inside)}"
        )
    if len(signals):
        half = (signals["high"] - signals["low"]).median() / 2
        lines.append(
            f"At this n an AUROC is known to about ±{half:.2f}: smaller differences between signals say nothing."
        )
    return "\n\n".join(lines)


def _accuracies(report: BehaviorReport) -> str:
    """Each way to ask with its accuracy, beside chance."""
    rows = [
        row
        for row in report.tables["formats"].to_dict("records")
        if row["format"] != "wording alone" and row["by"] != "probability"
    ]
    said = [
        f"{row['format']}{'' if row['format'] == FREE else ' (' + row['by'] + ')'} {row['accuracy']:.3f} ({row['low']:.3f} to "
        f"{row['high']:.3f}; chance {row['chance']:.3f}{'' if row['informative'] else ', not informative: ranked on nothing'})"
        for row in rows
    ]
    return f"Right answers of n = {rows[0]['n']:.0f}: {'; '.join(said)}."


def _better(inside: pd.DataFrame) -> str:
    """How often the inside is right where the output is wrong, beside a blind pick."""
    name, blind = (
        "of the wrong outputs, the inside knows better",
        "of the wrong outputs, a blind pick of another option",
    )
    if name not in inside.index:
        return "No output is wrong."
    row = inside.loc[name]
    return (
        f"Of {row['n']:.0f} wrong outputs it knows better in {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f}); a blind "
        f"pick among the other options would in {inside.loc[blind, 'value']:.2f}."
    )


def _of_task(report: BehaviorReport, task: str) -> pd.DataFrame:
    answers = report.tables["answers"]
    return answers.loc[answers["task"] == task]


def _figure(row: dict[Any, Any]) -> str:
    return f"{row['signal']} {row['auroc']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


# ----------------------------------------------------------------------------------------------------------- sections


def sections(report: BehaviorReport) -> list[Section]:
    """Those that have something to show."""
    found = [
        _formats(report),
        *_signals(report),
        _added(report),
        _inside(report),
        _letters(report),
        _examples(report),
        _again(report),
    ]
    return [section for section in found if section is not None]


def _svg(chart: Any) -> str:
    return to_svg(chart, ink=INK)


def _formats(report: BehaviorReport) -> Section:
    found = calibration(report)
    figure = Figure(
        _svg(reliability(found.bins, null_band=found.null_band)),
        f"Options by their text: confidence (softmax over the options) against the share that was right, n = {found.n}.",
    )
    text = (
        "By text: the option whose text is most probable, by the sum or the mean of its tokens' log-probabilities, or by what it "
        "gains over its prompt's last line alone (pmi). By letter: options are listed as A, B, ... and the letter is scored. "
        "Free: the greedy answer behind a few answered questions. A format whose interval covers chance is not informative: its "
        "answers say nothing, and neither would a ranking on them. Chance of a free answer is to say always the most "
        "frequent one. Wording alone picks an option without any model.\n\nOptions by their text: " + found.verdict
    )
    formats: dict[str, str] = dict.fromkeys(RATES, ".3f")
    table = Table(
        report.tables["formats"], "Accuracy with its 95 % interval, beside chance; ECE beside its null band.", formats
    )
    return Section("How often it is right", text, [figure], [table])


def _signals(report: BehaviorReport) -> list[Section]:
    found = []
    for task in dict.fromkeys(report.tables["signals"]["task"]):
        part = report.tables["signals"].loc[report.tables["signals"]["task"] == task]
        n = len(_of_task(report, task))
        figures = [
            Figure(
                _svg(ranking(report, task)), f"AUROC of each signal for a wrong answer with its 95 % interval, n = {n}."
            ),
            Figure(
                _svg(risks(report, task)),
                f"Error among the answers that remain when the most doubtful ones are withheld, n = {n}.",
            ),
        ]
        columns = ["signal", "auroc", "low", "high", "excess_aurc", "n", "n_missing", "note", "meaning"]
        if not part["note"].astype(bool).any():
            columns.remove("note")
        table = Table(part[[name for name in columns if name in part]], f"All signals of {task}, best first, n = {n}.")
        text = (
            "Of a wrong and a right answer drawn at random, the AUROC is how often the wrong one has the higher doubt: 0.5 is "
            "chance. Intervals draw whole groups of questions. p_ik and words were fitted on other groups than they are read on."
        )
        found.append(Section(f"What shows that an answer is wrong: {task}", text, figures, [table]))
    return found


def _added(report: BehaviorReport) -> Section | None:
    frame = report.tables["added"]
    if frame.empty:
        return None
    tables = []
    for task in dict.fromkeys(frame["task"]):
        part = frame.loc[frame["task"] == task]
        pairs = part.loc[part["kind"] == "pair"].sort_values("gain", ascending=False)
        shown = pd.concat([pairs.head(PAIRS), part.loc[part["kind"] == "all"]])
        columns = [
            name
            for name in ("kind", "a", "b", "auroc", "better", "gain", "gain_low", "gain_high", "adds")
            if name in shown
        ]
        said = f"{task}: the {min(PAIRS, len(pairs))} of {len(pairs)} pairs that gain most, and all signals together."
        tables.append(Table(shown.loc[:, columns], said, {"gain": "+.3f", "gain_low": "+.3f", "gain_high": "+.3f"}))
    text = (
        "A logistic regression of each pair of signals, and of all, on groups that were not fitted on. The gain is over the "
        "better signal of the pair alone. Where its interval holds 0 the second signal adds nothing that shows here."
    )
    return Section("Which signal adds to which", text, (), tables)


def _inside(report: BehaviorReport) -> Section | None:
    frame = report.tables["inside"]
    if frame.empty:
        return None
    text = (
        "A probe reads the last token of each option, and picks the one that it holds for the right one. It was fitted with "
        "labels of other groups, which the output never had: what it reads is there, but whether the model uses it stays open."
    )
    tables = [Table(frame, "Shares of questions with 95 % intervals over groups.")]
    sites = report.tables["sites"]
    if len(sites):
        shown = sites.assign(site=[short_name(str(site)) for site in sites["site"]])
        said = (
            "Held-out AUROC of the probes at each place, and how many folds chose it: of each task, and of the options."
        )
        tables.append(Table(shown.loc[:, ["task", "site", "auroc", "chosen"]], said))
    return Section("Does the inside know better?", text, (), tables)


def _letters(report: BehaviorReport) -> Section | None:
    frame = report.tables["letters"]
    if frame.empty:
        return None
    text = "A model that reads the options chooses each letter about as often as it is right."
    return Section(
        "Letters and their position", text, (), [Table(frame, f"Shares of n = {int(frame['n'].iloc[0])} questions.")]
    )


def _examples(report: BehaviorReport) -> Section | None:
    answers = report.tables["answers"]
    wrong = answers.loc[~answers["right"].astype(bool)]
    if wrong.empty:
        return None
    tables = []
    for task in dict.fromkeys(wrong["task"]):
        sure = "option_margin" if task == TEXT else "sequence_probability"
        part = wrong.loc[wrong["task"] == task].sort_values(sure, ascending=False).head(EXAMPLES)
        columns = [name for name in ("prompt", "answer", sure, "p_ik", "self_consistency") if name in part]
        tables.append(Table(part[columns], f"The surest of its wrong answers: {task}.", {sure: ".3f"}))
    return Section("Wrong and sure of it", "", (), tables)


def _meaning(match: Any) -> str:
    return (
        "normalised words" if not match else str(match.get("match") or match.get("kind") or "a match of the caller's")
    )


def _again(report: BehaviorReport) -> Section:
    settings, card = report.values.get("settings", {}), report.card
    names = (
        "n_samples", "n_shots", "max_new_tokens", "free", "p_true", "eigenscore", "grader", "sites", "n_folds", "n_bins",
        "n_boot", "seed",
    )  # fmt: skip
    shown = "".join(f"\n    {name}={settings[name]!r}," for name in names if name in settings)
    text = (
        f"The questions are those whose hash is {card.get('questions', 'not known')}, n = {card.get('n_questions', 0)} beside "
        f"the shown ones; meaning was compared by {_meaning(settings.get('match'))}."
    )
    code = (
        f"import interp\n\nmodel = interp.load({card.get('model', 'MODEL')!r})\nquestions = interp.load_questions(SOURCE)\n"
        f"report = interp.question_report(\n    model, questions,{shown}\n)\nprint(report)"
    )
    return Section("Run it again", text, code=code)
