"""What a grounding report says in words, its page and its charts."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.behavior.grounding.figures import SIGNALS
from interp.behavior.grounding.work import DISTRACTOR, GOLD, MISLEADING, MISSING, NONE, RETRIEVED
from interp.behavior.report import BehaviorReport
from interp.plot import Chart, to_svg
from interp.plot.grounding import NAMES, abstention_curve, attention_reach, grounding_errors, grounding_signals
from interp.plot.style import INK
from interp.report import Figure, Section, Table

CHARTS = ("errors", "abstention", "signals", "layers")
MOST_ROWS = 12
"""Questions that are printed of each kind."""
MOST_CHARACTERS = 400
"""Of a passage in the table of questions."""


def title(report: BehaviorReport) -> str:
    """Of the page."""
    return f"Answers with evidence: {report.card.get('model', 'a model')}"


# ---------------------------------------------------------------------------------------------------------------- words


def summary(report: BehaviorReport) -> str:
    """The finding first, then its controls, the search, the threshold and the signals."""
    rows = {row["condition"]: row for row in report.tables["conditions"].to_dict("records")}
    controls = _controls(rows, report.tables["answers"])
    parts = [_effect(rows), controls, _search(report), _threshold(report), _signals(report), _power(rows)]
    return "\n\n".join(part for part in parts if part)


def _effect(rows: Mapping[str, Any]) -> str:
    found, plain = rows.get(RETRIEVED), rows[NONE]
    alone = f"Without evidence the error rate is {_rate(plain)}."
    if found is None:
        return f"{alone} Every question had its document left out."
    return f"{_moved('With the passages that the search finds', found)} {alone}"


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['error']:.3f} ({row['error_low']:.3f}-{row['error_high']:.3f}, {_n(row)})"


def _n(row: Mapping[str, Any]) -> str:
    return f"{row['n']} questions in {row['groups']} group{'s' if row['groups'] > 1 else ''}"


def _moved(beginning: str, row: Mapping[str, Any]) -> str:
    """The change on the same questions, and whether it can be told from none."""
    change, low, high = row["change"], row["change_low"], row["change_high"]
    before = row["error"] - change
    if math.isnan(low):
        told = "a single group, so there is no interval"
    else:
        told = f"change {change:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    if math.isnan(low) or low <= 0 <= high:
        verb = f"is {row['error']:.3f} instead of {before:.3f}, which cannot be told from no change"
    else:
        verb = f"{'falls' if change < 0 else 'rises'} from {before:.3f} to {row['error']:.3f}"
    return f"{beginning} the error rate {verb} ({told}; {_n(row)})."


def _controls(rows: Mapping[str, Any], answers: pd.DataFrame) -> str:
    words = {
        GOLD: "With the right passage",
        DISTRACTOR: "Control: with unrelated passages of equal length",
        MISSING: "Where the question's own document is missing and the search finds others,",
    }
    told = [_moved(beginning, rows[name]) for name, beginning in words.items() if name in rows]
    row = rows.get(MISLEADING)
    if row is not None:
        share = f"{row['followed']:.3f} ({row['followed_low']:.3f}-{row['followed_high']:.3f})"
        told.append(
            f"Where the right passage is made to say another option, the model says that option in {share} of {_n(row)}; in "
            f"{_against_itself(answers):.3f} of them it says another one without evidence, so that the passage decides."
        )
    return " ".join(told)


def _against_itself(answers: pd.DataFrame) -> float:
    """Share of the misled questions where the model follows the passage to an option that it does not say without one."""
    alone = answers.loc[answers["condition"] == NONE].set_index("question")["answer"]
    misled = answers.loc[answers["condition"] == MISLEADING]
    moved = misled["answer"].to_numpy() != alone.loc[misled["question"]].to_numpy()
    return float((misled["followed"].astype(bool).to_numpy() & moved).mean())


def _search(report: BehaviorReport) -> str:
    table, found = report.tables["retrieval"], report.values["retrieval"]
    if table.empty or found.get("mrr") is None:
        return "Which passages answer the questions is not known, so the search itself is not judged."
    first = table.iloc[0]
    return (
        f"The search puts a passage with the answer first in {first['recall']:.3f} of {int(first['n'])} questions "
        f"({first['recall_low']:.3f}-{first['recall_high']:.3f}); mean reciprocal rank {found['mrr']:.3f}."
    )


def _threshold(report: BehaviorReport) -> str:
    found = report.values["abstention"]
    if not found:
        return ""
    head = f"Abstention, chosen on half of the groups and checked on {found['n']} questions of the other half: "
    if not found["reached"]:
        head += f"no score reaches the error rate of {found['target']:g}; the best one is taken; "
    if found["error"] is None:
        return f"{head}nothing is answered at a score of {found['threshold']:.3g}."
    told = (
        " This cannot be told from no gain." if found["error_low"] <= found["error_all"] <= found["error_high"] else ""
    )
    return (
        f"{head}from a score of {found['threshold']:.3g} on, {found['answered']:.3f} of them are answered with an error rate of "
        f"{found['error']:.3f} ({found['error_low']:.3f}-{found['error_high']:.3f}), against {found['error_all']:.3f} "
        f"({found['error_all_low']:.3f}-{found['error_all_high']:.3f}) if all are.{told}"
    )


def _signals(report: BehaviorReport) -> str:
    table = report.tables["signals"]
    if table.empty:
        return ""
    sure = table.loc[table["reliable"].astype(bool)]
    if sure.empty:
        return f"No signal tells wrong answers from right ones beyond chance ({max(table['n'].tolist()):.0f} answers)."
    best = sure.iloc[0]
    names = [f"{SIGNALS[each['signal']]} {each['auroc']:.3f}" for each in sure.iloc[1:].to_dict("records")]
    others = f" Beyond chance as well: {', '.join(names)}." if names else ""
    nothing = [SIGNALS[each] for each in table.loc[~table["reliable"].astype(bool), "signal"]]
    told = f" Not to be told from chance: {', '.join(nothing)}." if nothing else ""
    return (
        f"The best signal of a wrong answer is the {SIGNALS[best['signal']]}: AUROC {best['auroc']:.3f} "
        f"({best['low']:.3f}-{best['high']:.3f}, n = {int(best['n'])}).{others}{told}"
    )


def _power(rows: Mapping[str, Any]) -> str:
    row = rows.get(RETRIEVED, rows.get(MISSING))
    if row is None or math.isnan(row["change_low"]):
        return "A single group shows no spread: no interval can be given."
    half = (row["change_high"] - row["change_low"]) / 2
    return f"With {_n(row)}, a change of the error rate of less than about {half:.3f} cannot be told from none."


def notes(values: Mapping[str, Any], conditions: pd.DataFrame) -> list[str]:
    """Reasons to be careful."""
    found = [
        "Attention that reaches the evidence, and words that stand in it, are no proof that the answer was made from it."
    ]
    if values["left_out"]:
        found.append(f"The documents of {values['left_out']} groups were kept from the search, so that it fails there.")
    if values["dropped_passages"]:
        found.append(f"{values['dropped_passages']} retrieved passages did not fit into the context and were dropped.")
    if values["nothing_found"]:
        found.append(
            f"For {values['nothing_found']} questions the search found nothing: they were asked without evidence."
        )
    lengths = dict(zip(conditions["condition"].tolist(), conditions["tokens"].tolist()))
    if lengths.get(DISTRACTOR) and lengths.get(RETRIEVED) and abs(lengths[DISTRACTOR] / lengths[RETRIEVED] - 1) > 0.2:
        found.append(
            f"The unrelated passages have {lengths[DISTRACTOR]:.0f} tokens on average, the retrieved ones "
            f"{lengths[RETRIEVED]:.0f}: as a control of length they are rough."
        )
    return found


# ----------------------------------------------------------------------------------------------------------------- page


def chart(report: BehaviorReport, name: str | None) -> Chart:
    """A chart by its name."""
    wanted = CHARTS[0] if name is None else name
    if wanted not in CHARTS:
        raise ValueError(f"there is no chart {name!r}: there are {', '.join(CHARTS)}")
    if wanted == "errors":
        return grounding_errors(report.tables["conditions"])
    table = report.tables[wanted]
    if table.empty:
        raise ValueError(f"there is nothing to draw for {wanted!r}: the report's notes say why")
    if wanted == "abstention":
        return abstention_curve(table, chosen=report.values["abstention"])
    return grounding_signals(table, names=SIGNALS) if wanted == "signals" else attention_reach(_apart(table))


def _apart(layers: pd.DataFrame) -> pd.DataFrame:
    """The right passage and the misleading one lie on the retrieved one: they are left to the table."""
    shown = layers["condition"].isin([RETRIEVED, DISTRACTOR]).to_numpy()
    return layers.loc[shown] if shown.any() else layers


def sections(report: BehaviorReport) -> list[Section]:
    """Those that have something to show; the last one says how to run it again."""
    found = [_errors(report), _retrieval(report), _abstention(report), _signal_section(report), _layers(report)]
    return [*(each for each in found if each is not None), *_questions(report), _again(report)]


def _figure(report: BehaviorReport, name: str, caption: str) -> Figure:
    return Figure(to_svg(chart(report, name), ink=INK), caption)


def _errors(report: BehaviorReport) -> Section:
    table = report.tables["conditions"]
    shown = table.assign(evidence=[NAMES.get(name, name) for name in table["condition"]])
    columns = ["evidence", "n", "error", "error_low", "error_high", "change", "change_low", "change_high", "followed"]
    columns += [name for name in ("tokens", "free_accuracy") if shown[name].notna().to_numpy().any()]
    if shown["followed"].isna().to_numpy().all():
        columns.remove("followed")
    signed = dict.fromkeys(("change", "change_low", "change_high"), "+.3f") | {"tokens": ".0f"}
    words = "Change: of the error rate against no evidence, on the same questions, with its 95 % interval by group."
    if "followed" in columns:
        words += " Followed: says the option that was put into the passage."
    if "free_accuracy" in columns:
        words += " Free accuracy: of the answer in the model's own words."
    formats = {name: spec for name, spec in signed.items() if name in columns}
    return Section(
        "Error rate with and without evidence",
        "The model chooses among the options of a question by the probability of their text, after the evidence. Unrelated "
        "passages of equal length show what a longer prompt does by itself.",
        [_figure(report, "errors", "Error rate with its 95 % interval; dashed: without evidence.")],
        [Table(shown.loc[:, columns], words, formats)],
        code='report = GroundingReport.load("report.json")\nreport.to_frame()',
    )


def _retrieval(report: BehaviorReport) -> Section | None:
    table = report.tables["retrieval"]
    if table.empty:
        return None
    return Section(
        "Does the search find it?",
        "Share of the questions whose answering passage is among the first k, with every document there.",
        tables=[Table(table, "Recall with its 95 % interval by group.")],
        code='report.tables["retrieval"]',
    )


def _abstention(report: BehaviorReport) -> Section | None:
    if report.tables["abstention"].empty:
        return None
    return Section(
        "When to say nothing",
        "Nothing is answered where the best passage scores below a threshold. It is chosen on one half of the groups; the red "
        "mark is what it does on the other half. A threshold belongs to one retriever over one set of passages.",
        [
            _figure(
                report,
                "abstention",
                "Error rate among the answered, over the share answered; dashed: the rate aimed at.",
            )
        ],
        code='report.values["abstention"]["threshold"]  # min_score= of interp.grounded_answer',
    )


def _signal_section(report: BehaviorReport) -> Section | None:
    table = report.tables["signals"]
    if table.empty:
        return None
    shown = table.assign(signal=[SIGNALS.get(name, name) for name in table["signal"]])
    return Section(
        "Signals of a wrong answer",
        "How often a wrong answer has less of the signal than a right one, with the evidence that the search gave. Grey ones "
        "cannot be told from chance.",
        [_figure(report, "signals", f"AUROC with its 95 % interval by group, n = {max(table['n'].tolist()):.0f}.")],
        [Table(shown, "Of several signals the best one looks better than it is.")],
        code='report.tables["signals"]',
    )


def _layers(report: BehaviorReport) -> Section | None:
    if report.tables["layers"].empty:
        return None
    return Section(
        "Where the answer looks",
        "Share of the attention that leaves the answer's tokens for the evidence: mean over heads, position 0 left out. It shows "
        "where the model can read, not that it does.",
        [
            _figure(
                report, "layers", "Mean over questions with its 95 % interval; dashed: what even attention would give."
            )
        ],
        code='report.tables["layers"]',
    )


def _questions(report: BehaviorReport) -> list[Section]:
    answers = report.tables["answers"]
    plain = answers.loc[answers["condition"] == NONE].set_index("question")
    with_evidence = answers.loc[answers["condition"].isin([RETRIEVED, MISSING])]
    before = plain.loc[with_evidence["question"]]
    shown = with_evidence.assign(without=before["answer"].tolist(), was=before["right"].astype(bool).tolist())
    right = shown["right"].astype(bool)
    kinds = {
        "Mended by the evidence": right & ~shown["was"],
        "Broken by the evidence": ~right & shown["was"],
        "Wrong with and without": ~right & ~shown["was"],
    }
    tables = []
    for name, at in kinds.items():
        part = shown.loc[at].sort_values("gain", ascending=False).head(MOST_ROWS)
        if len(part):
            rows = {
                "question": [_asked(prompt) for prompt in part["prompt"]],
                "without": part["without"].tolist(), "with": part["answer"].tolist(), "right": part["right_answer"].tolist(),
                "score": part["score"].tolist(), "gain": part["gain"].tolist(),
                "evidence": [_shortened(text) for text in part["evidence"]],
            }  # fmt: skip
            count = f"{len(part)} of {int(at.sum())}, the largest gain first."
            tables.append(Table(pd.DataFrame(rows), f"{name}: {count}", {"score": ".2f", "gain": "+.2f"}))
    if not tables:
        return []
    return [
        Section(
            "Questions one by one",
            "The answer without and with the retrieved evidence. Gain: how many nats the evidence adds to the log-probability of "
            "the answer given with it.",
            tables=tables,
            code='report.tables["answers"]',
        )
    ]


def _asked(prompt: str) -> str:
    return _shortened(prompt.removeprefix("Question: ").removesuffix("\nAnswer:"))


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} … ({len(text)} characters)"


def _again(report: BehaviorReport) -> Section:
    name = json.dumps(str(report.card.get("model", "MODEL")), ensure_ascii=False)
    names = ("k", "leave_out", "target_error", "template", "free", "seed", "batch_size", "n_boot", "conditions")
    options = "".join(f",\n    {each}={report.card[each]!r}" for each in names if each in report.card)
    return Section(
        "Run it again",
        "The same questions, documents and settings give the same figures. The ones here are those of the bundled sets.",
        code="import interp\n\n"
        f'model = interp.load({name})\nquestions = interp.load_questions("questions")\n'
        'documents = interp.load_corpus("evidence")\n'
        f"report = interp.grounding_report(\n    model, questions, documents,\n"
        f"    n_questions={report.card.get('questions')}{options}\n)",
    )
