"""Does evidence help? Error rates without evidence, with what a search finds, with the right passage, and with wrong ones.

1. For each question the retriever is asked; the evidence of every condition is written down before the model runs.
2. The model chooses among the options by their text, under each condition; the change of the error rate is paired.
3. Controls: *distractor*, unrelated passages of equal length, shows what a longer prompt does by itself; *misleading*, the right
   passage with another option in the answer's place, shows whether the model reads the passage or knows the answer; *missing*,
   the search without the question's own document, shows what happens where there is nothing to find.
4. From the scores of the search a threshold is chosen under which nothing is answered, on one half of the groups for the other.
5. Signals of a wrong answer: the search's, the words', the probability's, the attention's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from interp.artifact import provenance
from interp.behavior.grounding import figures, page
from interp.behavior.grounding.answer import GroundedAnswer, grounded_answer
from interp.behavior.grounding.measures import best_cosines
from interp.behavior.grounding.prompts import Template, drawn, needs_tokenizer, query_of
from interp.behavior.grounding.work import CONDITIONS, MISSING, NEED_GOLD, NONE, gold_passages, group_of, items_of, work
from interp.behavior.pieces import divided, in_folder, run_pieces
from interp.behavior.report import BehaviorReport
from interp.calibration.ordering import LEAST_BOOT
from interp.dataset import Question
from interp.jobs import JobFolder
from interp.meaning.grading import answers_match
from interp.meaning.passages import Passage, passages_of
from interp.meaning.retrieval import BM25Retriever, Retriever, encoder_name
from interp.model import HookedTransformer
from interp.plot import Chart
from interp.report import Section

__all__ = ["GroundedAnswer", "GroundingReport", "grounded_answer", "grounding_report"]

PIECE = 24
"""Questions that are kept together."""
N_BOOT = 1000


@dataclass(frozen=True, eq=False, repr=False)
class GroundingReport(BehaviorReport):
    """What evidence does to a model's answers; made by `grounding_report`.

    Tables: `conditions` (error rate and its change, attention, by condition), `answers` (a row per question and condition),
    `retrieval` (recall at k), `abstention` (threshold, share answered, error; on the half that chose it and the half that
    checks it), `signals` (AUROC for a wrong answer), `layers` (share of the attention that reaches the evidence).
    """

    KIND: ClassVar[str] = "grounding report"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "conditions": (
            *(
                "condition",
                "n",
                "groups",
                "accuracy",
                "accuracy_low",
                "accuracy_high",
                "error",
                "error_low",
                "error_high",
            ),
            *(
                "change",
                "change_low",
                "change_high",
                "followed",
                "followed_low",
                "followed_high",
                "p",
                "tokens",
                "gain",
            ),
            *("attention", "even", "free_accuracy", "free_accuracy_low", "free_accuracy_high"),
        ),
        "answers": (
            *("question", "group", "condition", "prompt", "answer", "right_answer", "right", "followed", "p", "gain"),
            *("word_support", "sentence_support", "cosine", "score", "gap", "rank", "dropped", "attention", "even"),
            *("free", "free_right", "evidence"),
        ),
        "retrieval": ("k", "recall", "recall_low", "recall_high", "n"),
        "abstention": ("part", "threshold", "answered", "error", "n_answered"),
        "signals": ("signal", "auroc", "low", "high", "n", "n_missing", "reliable"),
        "layers": ("condition", "layer", "share", "low", "high", "even", "n"),
    }
    WORDS: ClassVar[frozenset[str]] = frozenset(
        {
            *("condition", "group", "prompt", "answer", "right_answer", "right", "followed", "free", "free_right"),
            *("evidence", "part", "signal", "reliable"),
        }
    ) - {"followed"}

    def summary(self) -> str:
        """What evidence changes, beside the controls, with n and intervals."""
        return page.summary(self)

    def title(self) -> str:
        """Of the page."""
        return page.title(self)

    def sections(self) -> list[Section]:
        """Of the page."""
        return page.sections(self)

    def plot(self, name: str | None = None) -> Chart:
        """`errors` (the main one), `abstention`, `signals` or `layers`."""
        return page.chart(self, name)


def grounding_report(
    model: HookedTransformer,
    questions: Sequence[Question],
    documents: Any,
    *,
    conditions: Sequence[str] | Any = None,
    n_questions: int | Any = None,
    k: int | Any = 1,
    size: int | Any | None = 1,
    gold: Sequence[Sequence[int]] | Any = None,
    leave_out: float | Any = 0.25,
    target_error: float | Any = 0.1,
    template: str | Any = "plain",
    free: bool = False,
    max_new_tokens: int | Any = 12,
    encoder: Callable[[Any], Any] | Any = None,
    out: str | Path | Any = None,
    engine: Any = "local",
    resume: bool = True,
    replace: bool = False,
    progress: Callable[[int, int], Any] | None = None,
    seed: int | Any = 0,
    batch_size: int | Any = 32,
    n_boot: int | Any = N_BOOT,
) -> GroundingReport:
    """Ask questions without evidence, with what a search finds in the documents, and with controls.

    Args:
        model: what answers.
        questions: with options; those of a group are drawn and split together.
        documents: a retriever, passages, or what `passages_of` takes. Passages are searched by BM25.
        conditions: some of "none", "retrieved", "missing", "gold", "distractor", "misleading"; "none" and "retrieved" always
            are. None: all that can be made, which without known passages are none, retrieved and distractor.
        n_questions: at most so many, by whole groups drawn with the seed; None for all.
        k: passages in a prompt.
        size: sentences of a passage where documents are given, which do not overlap; None for whole documents. Small models
            copy any name from a passage that holds several facts.
        gold: for each of `questions`, the passages that answer it (indices). None: of those of the question's group that
            hold the right option's words, the ones with the most words of the question.
        leave_out: share of the groups none of whose passages the search has ("missing"): without such questions there
            is nothing to abstain from. These have no "retrieved".
        target_error: the error rate that the threshold of abstention aims at.
        template: "plain", "few-shot", or a text with {evidence} and at its end {question}.
        free: let the model also answer in its own words, greedily; graded by `answers_match`. Small models need "few-shot".
        max_new_tokens: of a free answer.
        encoder: a `SentenceEncoder`, for the cosine of the answer with its evidence.
        out: folder to keep the report and its pieces in; the same call goes on where it was.
        engine: "local", "ray" or a `RayEngine`.
        resume: go on with the same job in `out`; False refuses a folder that holds one.
        replace: keep what another job left in `out` under `earlier/`, and begin.
        progress: called with (pieces done, in all).
        seed: of the questions drawn, the documents left out, the distractors, the split and the bootstrap.
        batch_size: sequences in a pass.
        n_boot: draws of every interval, at least 100.

    Raises:
        ValueError: questions or conditions that are not such, a question without a known passage where one is needed, a
            prompt that does not fit into the context even with one passage, no unrelated passage, or a folder of another job.
    """
    _check(k, leave_out, target_error, max_new_tokens, batch_size, seed, n_boot)
    retriever = _retriever(documents, size)
    shape = Template.of(template)
    chosen = drawn_questions(questions, n_questions, seed)
    asked_of = [questions[i] for i in chosen]
    known = gold_passages(asked_of, retriever, None if gold is None else [_gold(gold, questions)[i] for i in chosen])
    wanted = _conditions(conditions, known, asked_of)
    left_out = _left_out(asked_of, leave_out, seed) if MISSING in wanted else frozenset()
    room = max_new_tokens if free else 0
    items = items_of(
        model, asked_of, retriever, known, wanted, template=shape, k=k, left_out=left_out, room=room, seed=seed
    )  # fmt: skip
    settings = {"template": template, "batch_size": batch_size, "free": free, "max_new_tokens": max_new_tokens}
    job = {
        **settings, "conditions": wanted, "questions": len(items), "k": k, "leave_out": leave_out if left_out else 0,
        "target_error": target_error, "seed": seed, "n_boot": n_boot, "retriever": retriever.describe(),
        "encoder": _encoder_of(encoder),
    }  # fmt: skip

    def make(folder: JobFolder | None) -> GroundingReport:
        found = run_pieces(
            model, work, settings, divided("questions", items, PIECE), decides=settings, folder=folder, engine=engine,
            progress=progress,
        )  # fmt: skip
        return _report(model, items, found, job, encoder)

    return in_folder(out, GroundingReport, job, items, model, make, resume=resume, replace=replace)


def _report(
    model: HookedTransformer, items: list[dict[str, Any]], found: Any, job: Mapping[str, Any], encoder: Any
) -> GroundingReport:
    seed, n_boot = job["seed"], job["n_boot"]
    answers, attention = figures.answers_table(items, found)
    answers["free_right"] = [
        None if text is None else answers_match(text, right)
        for text, right in zip(answers["free"], answers["right_answer"])
    ]
    if encoder is not None:
        claims = [f"{query_of(prompt)} {answer}" for prompt, answer in zip(answers["prompt"], answers["answer"])]
        answers["cosine"] = best_cosines(encoder, claims, answers["evidence"].tolist())
    tokenizer = needs_tokenizer(model)
    lengths = {text: len(tokenizer.encode(text, close=False)) if text else 0 for text in set(answers["evidence"])}
    retrieval, ranks = figures.retrieval_table(items, seed, n_boot)
    curve, threshold, notes = figures.abstention(answers, job["target_error"], seed, n_boot)
    signals, more = figures.signals_table(answers, seed, n_boot)
    dropped, empty = sum(item["dropped"] for item in items), sum(item["score"] is None for item in items)
    values = {"retrieval": ranks, "abstention": threshold, "dropped_passages": dropped, "nothing_found": empty}
    values["left_out"] = len({item["group"] for item in items if MISSING in item["evidence"]})
    tables = {
        "conditions": figures.conditions_table(answers, lengths, seed, n_boot),
        "answers": answers, "retrieval": retrieval, "abstention": curve, "signals": signals,
        "layers": figures.layers_table(answers, attention, seed, n_boot),
    }  # fmt: skip
    card = {"model": model.cfg.name, "fingerprint": model.fingerprint, **job, "provenance": provenance()}
    return GroundingReport(tables, values, card, (*page.notes(values, tables["conditions"]), *notes, *more))


# --------------------------------------------------------------------------------------------------------------- inputs


def _check(k: Any, leave_out: Any, target: Any, max_new_tokens: Any, batch_size: Any, seed: Any, n_boot: Any) -> None:
    whole = {"k": (k, 1), "max_new_tokens": (max_new_tokens, 1), "batch_size": (batch_size, 1), "seed": (seed, 0)}
    whole["n_boot"] = (n_boot, LEAST_BOOT)  # now, not when the model has run
    for name, (value, least) in whole.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number from {least}, got {value!r}")
    for name, value in {"leave_out": leave_out, "target_error": target}.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value!r}")


def _retriever(documents: Any, size: Any) -> Retriever:
    if isinstance(documents, Retriever):
        return documents
    listed = documents if isinstance(documents, str) or not isinstance(documents, Sequence) else list(documents)
    if isinstance(listed, list) and listed and all(isinstance(each, Passage) for each in listed):
        return BM25Retriever(listed)
    return BM25Retriever(passages_of(listed, size=size, overlap=0))


def drawn_questions(questions: Sequence[Question], n: int | Any, seed: int) -> list[int]:
    """Whole groups in a random order until n questions are there, in the order of the questions.

    Raises:
        ValueError: no questions, something else than questions, or an n that is no whole number from 1.
    """
    if not questions or not all(isinstance(each, Question) for each in questions):
        raise ValueError("expected questions with options: load_questions('questions') or a file gives them")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ValueError(f"n_questions must be a whole number from 1, got {n!r}")
    if n is None or n >= len(questions):
        return list(range(len(questions)))
    groups: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        groups.setdefault(group_of(question, index), []).append(index)
    chosen: list[int] = []
    for name in sorted(groups, key=lambda name: drawn(seed, "question", name)):
        if len(chosen) + len(groups[name]) <= n:
            chosen += groups[name]
    if not chosen:
        raise ValueError(f"no group of questions has {n} or fewer: raise n_questions")
    return sorted(chosen)


def _gold(gold: Sequence[Sequence[int]], questions: Sequence[Question]) -> Sequence[Sequence[int]]:
    if len(gold) != len(questions):
        raise ValueError(
            f"there are {len(questions)} questions and {len(gold)} lists of gold passages: give one for each"
        )
    return gold


def _conditions(wanted: Any, gold: Sequence[Sequence[int]], questions: Sequence[Question]) -> list[str]:
    lacking = [i for i, own in enumerate(gold) if not own]
    if wanted is None:
        return [each for each in CONDITIONS if each not in NEED_GOLD or not lacking]
    given = [wanted] if isinstance(wanted, str) else list(wanted)
    unknown = [each for each in given if each not in CONDITIONS]
    if unknown:
        raise ValueError(f"unknown condition {unknown[0]!r}: there are {', '.join(CONDITIONS)}")
    needing = [each for each in given if each in NEED_GOLD]
    if needing and lacking:
        raise ValueError(
            f"{len(lacking)} of {len(questions)} questions have no known passage (the first: "
            f"{questions[lacking[0]].prompt[:60]!r}), which {', '.join(needing)} need: give documents with the questions' "
            "groups, pass gold=, or leave these conditions out"
        )
    return [each for each in CONDITIONS if each in {*given, NONE, "retrieved"}]


def _encoder_of(encoder: Any) -> Any:
    """What tells encoders apart: what one says of itself, weights and all, else its name."""
    if encoder is None or not hasattr(encoder, "describe"):
        return None if encoder is None else encoder_name(encoder)
    return encoder.describe()


def _left_out(questions: Sequence[Question], share: float, seed: int) -> frozenset[str]:
    names = {group_of(question, index) for index, question in enumerate(questions)}
    order = sorted(names, key=lambda name: drawn(seed, "left out", name))
    return frozenset(order[: round(share * len(order))])
