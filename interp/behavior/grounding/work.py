"""What is asked in a grounding report, and the work on one piece of it.

1. `items_of` searches for each question and writes down the evidence of each condition: JSON, before any model is run.
2. `work` scores the options under each condition, by their text; equal prompts are run once. For the option that was chosen it
   reads how much attention reaches the evidence, and where asked it lets the model answer freely.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from interp.behavior.grounding.measures import attention_shares, content_words
from interp.behavior.grounding.prompts import (
    Template,
    drawn,
    fitting,
    joined,
    needs_tokenizer,
    query_of,
    reading,
    said_otherwise,
    spelled,
)
from interp.behavior.pieces import Result
from interp.dataset import Question
from interp.meaning.retrieval import Retriever
from interp.model import HookedTransformer
from interp.uncertainty import score_options

NONE, RETRIEVED, MISSING, GOLD, DISTRACTOR, MISLEADING = CONDITIONS = (
    "none", "retrieved", "missing", "gold", "distractor", "misleading",
)  # fmt: skip
NEED_GOLD = (MISSING, GOLD, MISLEADING)


def gold_passages(
    questions: Sequence[Question], retriever: Retriever, gold: Sequence[Sequence[int]] | None
) -> list[list[int]]:
    """The passages that answer each question: as given, else, of those of its group that hold the right option's words, the ones
    that hold the most content words of the question."""
    if gold is not None:
        wrong = [i for own in gold for i in own if not 0 <= i < len(retriever.passages)]
        if wrong:
            raise ValueError(f"gold passage {wrong[0]} does not exist: there are {len(retriever.passages)} passages")
        return [list(own) for own in gold]
    words = [spelled(passage.text) for passage in retriever.passages]
    members = _members(retriever)
    found = []
    for question in questions:
        right = spelled(question.options[question.answer])
        own = [i for i in members.get(question.group or "", []) if right in words[i]]
        of_question = content_words(query_of(question.prompt))
        counts = [sum(f" {word} " in words[i] for word in of_question) for i in own]
        found.append([i for i, count in zip(own, counts) if count == max(counts)])
    return found


def _members(retriever: Retriever) -> dict[str, list[int]]:
    """Group -> its passages."""
    members: dict[str, list[int]] = {}
    for index, passage in enumerate(retriever.passages):
        if passage.group is not None:
            members.setdefault(passage.group, []).append(index)
    return members


def items_of(
    model: HookedTransformer,
    questions: Sequence[Question],
    retriever: Retriever,
    gold: Sequence[Sequence[int]],
    conditions: Sequence[str],
    *,
    template: Template,
    k: int,
    left_out: frozenset[str],
    room: int,
    seed: int,
) -> list[dict[str, Any]]:
    """A JSON-ready item per question: prompt, options, what was found, and the evidence of each condition."""
    tokenizer = needs_tokenizer(model)
    pool = [
        (len(tokenizer.encode(each.text, close=False)), each.group, spelled(each.text)) for each in retriever.passages
    ]
    items, members = [], _members(retriever)
    for index, (question, own) in enumerate(zip(questions, gold)):
        missing = group_of(question, index) in left_out
        scores = retriever.scores(query_of(question.prompt)).astype(float)
        # With every document there: what the search can do. Without: what is asked of the model.
        rank = _first_rank(scores, own) if own else None
        if missing:
            scores[[*own, *members.get(question.group or "", [])]] = -np.inf
        order = [int(i) for i in np.argsort(-scores, kind="stable") if np.isfinite(scores[i])]
        found, dropped = _fitted(model, template, retriever, order[:k], question, room)
        item: dict[str, Any] = {
            "question": index, "prompt": question.prompt, "options": list(question.options), "answer": question.answer,
            "group": group_of(question, index), "known": bool(own), "rank": rank, "dropped": dropped,
            "score": float(scores[order[0]]) if order else None,
            "gap": float(scores[order[0]] - scores[order[1]]) if len(order) > 1 else None,
            "pushed": _pushed(question, index, seed), "evidence": {NONE: ""},
        }  # fmt: skip
        evidence = item["evidence"]
        evidence[MISSING if missing else RETRIEVED] = joined([retriever.passages[i].text for i in found])
        if GOLD in conditions or MISLEADING in conditions:
            kept, _ = _fitted(model, template, retriever, own[:k], question, room)
            true = joined([retriever.passages[i].text for i in kept])
            if GOLD in conditions:
                evidence[GOLD] = true
            if MISLEADING in conditions:
                evidence[MISLEADING] = _misleading(true, question, index, item["pushed"])
        if DISTRACTOR in conditions:
            like = found or order[:1] or [0]
            chosen = _distractors(pool, question, {*own, *order[:k]}, like, drawn(seed, "distractor", index))
            kept, _ = _fitted(model, template, retriever, chosen, question, room)
            evidence[DISTRACTOR] = joined([retriever.passages[i].text for i in kept])
        items.append(item)
    return items


def group_of(question: Question, index: int) -> str:
    """Questions without a group are drawn one by one."""
    return question.group if question.group is not None else f"question {index}"


def _first_rank(scores: np.ndarray, own: Sequence[int]) -> int | None:
    """Rank of the best gold passage, from 1; None where the search finds none of them."""
    order = np.argsort(-scores, kind="stable")
    places = [place for place, i in enumerate(order, start=1) if int(i) in own and np.isfinite(scores[i])]
    return places[0] if places else None


def _fitted(
    model: HookedTransformer,
    template: Template,
    retriever: Retriever,
    which: Sequence[int],
    question: Question,
    room: int,
) -> tuple[list[int], int]:
    texts = [retriever.passages[i].text for i in which]
    kept, dropped = fitting(model, template, texts, question.prompt, question.options, room)
    return list(which[: len(kept)]), dropped


def _pushed(question: Question, index: int, seed: int) -> int:
    """The wrong option that misleading evidence says."""
    wrong = [i for i in range(len(question.options)) if i != question.answer]
    return wrong[drawn(seed, "pushed", index) % len(wrong)]


def _misleading(evidence: str, question: Question, index: int, pushed: int) -> str:
    right, wrong = (question.options[i].strip() for i in (question.answer, pushed))
    found = said_otherwise(evidence, right, wrong)
    if found is None:
        raise ValueError(
            f"question {index}: its gold passage does not spell the right option {right!r}, so it cannot be made to say "
            f"another one: leave out the condition {MISLEADING!r}, or spell options as the passages do"
        )
    return found


def _distractors(
    pool: Sequence[tuple[int, str | None, str]], question: Question, taken: set[int], like: Sequence[int], salt: int
) -> list[int]:
    """Passages of other groups that do not hold the right option, each as long as one of those found, as nearly as there are.

    Raises:
        ValueError: no such passage.
    """
    right = spelled(question.options[question.answer])
    free = {
        index
        for index, (_, group, words) in enumerate(pool)
        if index not in taken and (group is None or group != question.group) and right not in words
    }
    chosen: list[int] = []
    for length in [pool[index][0] for index in like]:
        if free:
            chosen.append(min(free, key=lambda i: (abs(pool[i][0] - length), drawn(salt, i))))
            free.discard(chosen[-1])
    if not chosen:
        raise ValueError(
            f"no passage is unrelated to {question.prompt[:60]!r} (of another group and without its answer): give more "
            f"documents, or leave out the condition {DISTRACTOR!r}"
        )
    return chosen


# ------------------------------------------------------------------------------------------------------------- the work


def work(model: HookedTransformer, settings: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]]) -> Result:
    """Scores of all options, attention and free answers for the questions of a piece, under each of their conditions.

    Returns:
        Arrays attention [row, layer] and even [row] of the rows with evidence, and a dictionary per row: question,
        condition, logprobs (nats, by option), free (text or None).
    """
    template = Template.of(settings["template"])
    rows = [(item, condition, text) for item in inputs for condition, text in item["evidence"].items()]
    prompts = [template.prompt(text, item["prompt"]) for item, _, text in rows]
    distinct: dict[tuple[str, tuple[str, ...]], int] = {}
    places = [
        distinct.setdefault((prompt, tuple(item["options"])), len(distinct))
        for (item, _, _), prompt in zip(rows, prompts)
    ]
    frame = score_options(
        model, [Question(prompt, options, 0) for prompt, options in distinct], batch_size=settings["batch_size"]
    )
    scores = [part.sort_values("option")["logprob_sum"].tolist() for _, part in frame.groupby("question", sort=True)]
    found = [
        {"question": item["question"], "condition": condition, "logprobs": scores[place], "free": None}
        for (item, condition, _), place in zip(rows, places)
    ]
    if settings["free"]:
        texts = _free_answers(model, [prompt for prompt, _ in distinct], settings)
        for row, place in zip(found, places):
            row["free"] = texts[place]
    return _attention(model, template, settings["batch_size"], rows, [scores[place] for place in places]), found


def _attention(
    model: HookedTransformer, template: Template, batch_size: int, rows: Sequence[Any], scores: Sequence[list[float]]
) -> dict[str, np.ndarray]:
    """Shares of the rows with evidence, for the options that they chose; equal prompts are read once."""
    tokenizer = needs_tokenizer(model)
    distinct: dict[tuple[Any, ...], int] = {}
    read, places = [], []
    for (item, _, text), own in zip(rows, scores):
        if text:
            key = (text, item["prompt"], tuple(item["options"]))
            if key not in distinct:
                distinct[key] = len(read)
                read.append(reading(tokenizer, template, text, item["prompt"], item["options"], int(np.argmax(own))))
            places.append(distinct[key])
    if not read:
        return {"attention": np.zeros((0, model.cfg.n_layers)), "even": np.zeros(0)}
    shares, even = attention_shares(model, read, batch_size=batch_size)
    return {"attention": shares[places], "even": even[places]}


def _free_answers(model: HookedTransformer, prompts: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The greedy answer to each prompt, up to the end of its line."""
    texts = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for begin in range(0, len(order), settings["batch_size"]):
        batch = order[begin : begin + settings["batch_size"]]
        out = model.generate([prompts[i] for i in batch], settings["max_new_tokens"], stop="\n")
        for index, row in zip(batch, out.rows):
            texts[index] = row.text.strip()
    return texts
