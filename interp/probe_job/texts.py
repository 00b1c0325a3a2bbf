"""The texts of a job: bundled sets and files, joined, with the columns that probes and transfer go by.

1. Each set is read, its rows selected, and its groups taken from a column or from a rule.
2. The column `topic` is filled with the set's name where it has none, other columns as the set says.
3. Sets are joined in order. Groups keep their names: the same entity in two files is the same entity.
4. Of too many texts whole groups are drawn, so that no group is halved.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from interp.dataset import (
    ContradictoryLabelsWarning,
    Dataset,
    Example,
    Question,
    load_dataset,
    load_truthfulqa,
)
from interp.dataset.group_rule import groups_by_rule
from interp.probe.inputs import fold
from interp.probe_job.spec import ProbeSpec, TextSpec

_HEAD = 20_000
"""Characters of a file that tell whose it is."""
CONTROL = "control"
"""Column that says of a row whether its label means something else on purpose."""


def load_texts(spec: ProbeSpec) -> Dataset:
    """The labelled texts of a job; what was found wrong with their labels stands in `card["notes"]`, not in a warning.

    Raises:
        ValueError: a set that is not there or not given, no labels or groups, a rule that does not match, no row left.
    """
    with _contradictions_into(notes := []):
        parts = [_read(each, spec.select) for each in spec.datasets]
    examples = [example for part in parts for example in part]
    columns = dict.fromkeys(name for example in examples for name in example.meta)
    # Every row has every column: a store holds a rectangle.
    filled = [replace(each, meta={name: each.meta.get(name) for name in columns}) for each in examples]
    if spec.max_texts is not None and len(filled) > spec.max_texts:
        filled = _draw_groups(filled, spec.max_texts)
    if not notes:
        notes = _contradictions(filled)
    card = {"name": spec.name, "kind": "job", "sets": [part.name for part in parts], "notes": notes}
    return Dataset(spec.name, tuple(filled), card)


@contextlib.contextmanager
def _contradictions_into(notes: list[str]) -> Iterator[None]:
    """What the readers warn of, each sentence once; other warnings stay warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ContradictoryLabelsWarning)
        yield
    for each in caught:
        if not issubclass(each.category, ContradictoryLabelsWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        elif str(each.message) not in notes:
            notes.append(str(each.message))


def _contradictions(examples: Sequence[Example]) -> list[str]:
    """Texts of several sets that carry both labels: no reader of one set sees them."""
    labels: dict[str, set[int | None]] = {}
    for each in examples:
        labels.setdefault(fold(each.text or ""), set()).add(each.label)
    both = [text for text, found in labels.items() if len(found) > 1]
    if not both:
        return []
    return [
        f"{len(both)} texts carry both labels in the joined sets, case and spacing aside ({both[0]!r}, for example): nothing "
        "can be right on all of their rows"
    ]


def _read(spec: TextSpec, select: dict[str, Any]) -> Dataset:
    if spec.name is None and spec.path is None:
        raise ValueError("this job reads a file of yours: give it by --data FILE (or with_data(FILE) in Python)")
    source: str | Path = Path(spec.path) if spec.path is not None else str(spec.name)
    data = _statements(source, spec)
    for columns in (spec.select, select):
        data = data.select(**columns) if columns else data
    return Dataset(data.name, tuple(_completed(each, data.name, spec) for each in data.examples), data.card)


def _statements(source: str | Path, spec: TextSpec) -> Dataset:
    if spec.form is not None:
        return truthfulqa_statements(source, spec.form)
    data = load_dataset(source, text=spec.text, label=spec.label, group=spec.group, require_labels=True)
    if spec.group_rule is not None:
        data = _grouped(data, spec.group_rule)
    if data.groups is None:
        raise ValueError(
            f"{data.name} has no groups, and rows about the same entity would stand on both sides of a split: name their "
            "column (group), or a pattern that finds the entity in the text (group_rule)"
        )
    return data


def truthfulqa_statements(source: str | Path, form: str = "statements") -> Dataset:
    """TruthfulQA's own file as labelled texts. Each answer behind its question is a text; a question is a group."""
    found = load_truthfulqa(source, form)
    if isinstance(found, Dataset):
        return found
    examples = tuple(
        Example(question.prompt + option, int(at in question.meta["right"]), question.group, None, _about(question))
        for question in found
        for at, option in enumerate(question.options)
    )
    return Dataset(Path(source).stem, examples, {"name": Path(source).stem, "kind": "file"})


def is_truthfulqa(path: str | Path) -> bool:
    """Whether a file has the columns, or the keys, of TruthfulQA's own ones."""
    file = Path(path).expanduser()
    if not file.is_file() or file.suffix.lower() not in (".csv", ".json"):
        return False
    with file.open(encoding="utf-8", errors="replace") as opened:
        start = opened.read(_HEAD)
    if file.suffix.lower() == ".json":
        return start.lstrip().startswith("[") and '"question"' in start and '"mc1_targets"' in start
    head = start.splitlines()[0] if start else ""
    return all(name in head for name in ("Question", "Correct Answers", "Incorrect Answers"))


def _about(question: Question) -> dict[str, Any]:
    return {name: value for name, value in question.meta.items() if name in ("topic", "type")}


def _grouped(data: Dataset, rule: str) -> Dataset:
    """The same texts with groups by a rule; every row must have one."""
    groups = groups_by_rule(data.to_frame(), rule)
    missing = [data.texts[row] for row, group in enumerate(groups) if group is None]
    if missing:
        raise ValueError(
            f"{data.name}: group_rule {rule!r} finds no group in {len(missing)} of {len(groups)} rows, for example "
            f"{missing[0]!r}: widen the rule, or leave these rows out (interp probe lint shows what a rule does)"
        )
    examples = [replace(example, group=group) for example, group in zip(data.examples, groups, strict=True)]
    return Dataset(data.name, tuple(examples), data.card)


def _completed(example: Example, name: str, spec: TextSpec) -> Example:
    if spec.topic is not None and spec.topic not in example.meta:
        raise ValueError(f"{name} has no column {spec.topic!r}; it has {', '.join(example.meta) or 'no further ones'}")
    topic = example.meta.get(spec.topic or "topic") or spec.name or name
    filled = {column: value for column, value in spec.columns.items() if example.meta.get(column) is None}
    return replace(example, meta={**example.meta, **filled, "topic": str(topic), CONTROL: spec.control})


def control_topics(data: Dataset) -> list[str]:
    """Topics of the sets whose label means something else."""
    return list(dict.fromkeys(example.meta["topic"] for example in data if example.meta[CONTROL]))


def asked_rows(data: Dataset) -> list[int]:
    """Numbers of the texts whose label is the one asked about."""
    return [row for row, example in enumerate(data) if not example.meta[CONTROL]]


def _draw_groups(examples: list[Example], most: int) -> list[Example]:
    """Whole groups in random order, as long as they fit; the rows stay in their order."""
    rows: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        assert example.group is not None
        rows.setdefault(example.group, []).append(row)
    groups = list(rows.values())
    chosen: list[int] = []
    for index in np.random.default_rng(0).permutation(len(groups)):
        if len(chosen) + len(groups[index]) <= most:
            chosen += groups[index]
    return [examples[row] for row in sorted(chosen)]
