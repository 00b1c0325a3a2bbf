"""Texts with labels and groups: one type, many sources, the bundled sets, and splits that cannot leak.

1. `types`: a `Dataset` is a tuple of `Example`s and a card that says where they come from. Labels are 0, 1 or absent.
2. `files`, `rows`: a file becomes rows, and the rows are checked. What is wrong is a `ValueError` that names them;
   nothing is dropped or guessed.
3. `load`: rows become examples, contrast pairs or questions. `datasets()` lists what is bundled; each bundled set has a
   card with its source, its licence and its known traps.
4. `sources`, `stream`: `iter_examples` gives the examples of any source one at a time, whatever its size: files, folders,
   hub data sets, iterators, conversations.
5. `split`: rows of one *group* (an entity, a question, a document) share facts, so a split by rows hands the answers to
   the training part. `grouped_split` and `grouped_folds` never divide a group.
"""

from interp.dataset.group_rule import groups_by_rule
from interp.dataset.load import (
    datasets,
    load_corpus,
    load_dataset,
    load_pairs,
    load_questions,
    read_table,
    write_dataset,
)
from interp.dataset.split import grouped_folds, grouped_split
from interp.dataset.stream import iter_examples
from interp.dataset.truthfulqa import load_truthfulqa
from interp.dataset.types import ContradictoryLabelsWarning, ContrastPair, Dataset, Example, Question

__all__ = [
    "ContradictoryLabelsWarning",
    "ContrastPair",
    "Dataset",
    "Example",
    "Question",
    "datasets",
    "grouped_folds",
    "grouped_split",
    "groups_by_rule",
    "iter_examples",
    "load_corpus",
    "load_dataset",
    "load_pairs",
    "load_questions",
    "load_truthfulqa",
    "read_table",
    "write_dataset",
]
