"""Classic tasks for whatever tokenizer the model has.

- `indirect_objects` (Wang et al. 2022, arXiv 2211.00593): who receives. The corrupted prompt swaps the giver.
- `capitals`: of countries and states. The corrupted prompt asks for another one.
- `greater_than` (Hanna et al. 2023, arXiv 2305.00586): a war's last year. The corrupted one began in the year `01`. The
  answer is the set of numbers above, measured against those not above; for tokenizers that part numbers into digits, the
  next digit.
- `repeats`: random tokens, then the same again up to the last. In the corrupted prompt another token stood at the answer's
  place.

The words come from the bundled data. Each builder keeps what makes pairs of equal length with answers of one token, and
says so when too little is left.
"""

import random
import tomllib
from collections.abc import Callable
from typing import Any

from interp.content import content_folder
from interp.dataset import load_dataset
from interp.model import HookedTransformer
from interp.task.pairs import PromptPairs, prompt_pairs
from interp.tokens import Tokenizer

SPARE = 8
"""Pairs that are made for each one that is kept: those of the commonest length are."""


def task_pairs(model: HookedTransformer, task: str, n: int | Any = 16, seed: int = 0) -> PromptPairs:
    """Prompt pairs of a task, all of one length.

    Args:
        model: its tokenizer decides which words can be used.
        task: a name of `TASKS`.
        n: pairs.
        seed: of the choice of words.

    Raises:
        ValueError: an unknown task, or a tokenizer that leaves fewer than n pairs.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r} is unknown; choose from {', '.join(TASKS)}")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r}: the number of pairs is at least 1")
    if model.tokenizer is None and task != "repeats":
        raise ValueError(f"{task} is made of words, but this model has no tokenizer; take repeats")
    columns = TASKS[task](model, SPARE * n, random.Random(seed))
    lengths = [len(row) if isinstance(row, list) else len(_tokenizer(model).encode(row)) for row in columns[0]]
    usual = max(lengths, key=lengths.count) if lengths else 0
    kept = [row for row, length in enumerate(lengths) if length == usual][:n]
    if len(kept) < n:
        raise ValueError(
            f"the tokenizer of {model.cfg.name} leaves {len(kept)} pairs of one length for {task}; ask for at most as many"
        )
    clean, corrupted, answers, againsts = ([column[row] for row in kept] for column in columns)
    pairs = prompt_pairs(model, clean, corrupted, answers, againsts, name=task)
    pairs.card["seed"] = seed
    return pairs


Columns = tuple[list[Any], list[Any], list[Any], list[Any]]
"""Clean and corrupted prompts, answers and what they are measured against."""


def _words(task: str) -> dict[str, Any]:
    return tomllib.loads((content_folder("data") / "tasks.toml").read_text("utf-8"))[task]


def _tokenizer(model: HookedTransformer) -> Tokenizer:
    assert model.tokenizer is not None
    return model.tokenizer


def _single(model: HookedTransformer, words: list[str]) -> list[str]:
    """The words that are one token behind a space."""
    return [word for word in words if len(_tokenizer(model).encode(f" {word}", False)) == 1]


def _indirect_objects(model: HookedTransformer, n: int, rng: random.Random) -> Columns:
    words = _words("indirect_objects")
    names, places, objects = (_single(model, words[kind]) for kind in ("names", "places", "objects"))
    if len(names) < 2 or not places or not objects:
        return [], [], [], []
    columns: Columns = ([], [], [], [])
    seen: set[str] = set()
    for _ in range(50 * n):
        first, second = rng.sample(names, 2)
        template, place, thing = (rng.choice(kind) for kind in (words["templates"], places, objects))
        clean, corrupted = (
            template.format(first=first, second=second, giver=giver, place=place, object=thing)
            for giver in (second, first)
        )
        if clean not in seen and len(columns[0]) < n:
            seen |= {clean}
            _add(columns, clean, corrupted, f" {first}", f" {second}")
    return columns


def _capitals(model: HookedTransformer, n: int, rng: random.Random) -> Columns:
    words, tokenizer = _words("capitals"), _tokenizer(model)
    facts = {
        str(example.meta["entity"]): str(example.meta["answer"])
        for example in load_dataset(words["dataset"])
        if example.label == 1 and example.meta["polarity"] == "affirmative"
    }
    by_length: dict[int, list[str]] = {}
    for entity, answer in facts.items():
        if len(tokenizer.encode(f" {answer}", False)) == 1:
            by_length.setdefault(len(tokenizer.encode(f" {entity}", False)), []).append(entity)
    pairs = [
        (one, other) for alike in by_length.values() for one in alike for other in alike if facts[one] != facts[other]
    ]
    rng.shuffle(pairs)
    columns: Columns = ([], [], [], [])
    used: set[str] = set()
    for round_ in (True, False):  # every entity once before one comes again
        for one, other in pairs:
            prompt = words["template"].format(entity=one)
            if len(columns[0]) < n and not (round_ and one in used) and prompt not in columns[0]:
                used.add(one)
                _add(columns, prompt, words["template"].format(entity=other), f" {facts[one]}", f" {facts[other]}")
    return columns


def _greater_than(model: HookedTransformer, n: int, rng: random.Random) -> Columns:
    words, tokenizer = _words("greater_than"), _tokenizer(model)
    columns: Columns = ([], [], [], [])
    choices = [
        (noun, century, start) for noun in words["nouns"] for century in words["centuries"] for start in range(12, 89)
    ]
    rng.shuffle(choices)
    for noun, century, start in choices:
        if len(columns[0]) == n:
            break
        clean, corrupted = (
            words["template"].format(noun=noun, century=century, start=f"{year:02d}") for year in (start, 1)
        )
        before = tokenizer.encode(clean)
        whole, digits = (_next_tokens(tokenizer, clean, before, texts) for texts in (_YEARS, _DIGITS))
        ids, bound = (whole, start) if whole else (digits, start // 10)
        if ids and len(before) == len(tokenizer.encode(corrupted)) and 0 < bound < len(ids) - 1:
            # The tens digit of the first year may come again, with any unit: it belongs to neither side.
            _add(columns, clean, corrupted, ids[bound + 1 :], ids[: bound + 1] if whole else ids[:bound])
    return columns


_YEARS = [f"{year:02d}" for year in range(100)]
_DIGITS = [str(digit) for digit in range(10)]


def _next_tokens(tokenizer: Tokenizer, prompt: str, before: list[int], texts: list[str]) -> list[int]:
    """The token of each text right after the prompt; nothing if one of them is no token of its own there."""
    found = [tokenizer.encode(prompt + text) for text in texts]
    whole = all(ids[:-1] == before for ids in found)
    return [ids[-1] for ids in found] if whole else []


def _repeats(model: HookedTransformer, n: int, rng: random.Random) -> Columns:
    period = min(16, (model.cfg.n_ctx - 1) // 2)
    low, high = min(1000, model.cfg.d_vocab // 4), min(40000, model.cfg.d_vocab)
    known = model.tokenizer.bos_id if model.tokenizer is not None else None
    columns: Columns = ([], [], [], [])
    for _ in range(n):
        *copy, answer, other = rng.sample(range(low, high), period + 1)
        start = [] if known is None else [known]
        _add(columns, start + copy + [answer] + copy, start + copy + [other] + copy, answer, other)
    return columns


def _add(columns: Columns, *values: Any) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


TASKS: dict[str, Callable[[HookedTransformer, int, random.Random], Columns]] = {
    "indirect_objects": _indirect_objects,
    "capitals": _capitals,
    "greater_than": _greater_than,
    "repeats": _repeats,
}
"""Tasks by name."""
