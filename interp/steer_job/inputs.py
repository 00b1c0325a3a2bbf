"""What a sweep measures on, read and checked before a model is loaded.

1. Files and bundled sets become pairs, texts, questions and measures.
2. Pairs that the vector was fitted on, or that share a group with one of them, are left out, and a note says how many. An
   effect on words that the vector has seen would say little.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interp import artifact
from interp.dataset import ContrastPair, Question, load_corpus, load_pairs, load_questions
from interp.intervene.place import Where
from interp.probe import load_probe
from interp.steer_job.spec import MeasureSpec, SteerSpec
from interp.steer_job.vectors import Source, load_vector, read_source
from interp.steering.measures import Measure, PhraseRate, ProbeScore, TargetTokens, measures_of
from interp.steering.seen import SEEN, was_seen


@dataclass(frozen=True, eq=False)
class Inputs:
    """Everything that a sweep needs beside the model."""

    spec: SteerSpec
    """What is asked."""
    vector: Any
    """A vector that was read from a file; None where it is fitted."""
    source: Source | None
    """What it is fitted on; None where it was read."""
    pairs: list[ContrastPair]
    """Those that the vector has not seen."""
    measures: list[Measure]
    """Beside the preference of pairs."""
    texts: list[str]
    """Other text."""
    choices: list[Question]
    """Questions."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and what is not known, as sentences."""

    @property
    def hash(self) -> str:
        """Of all contents, for the files' names alone do not decide a figure."""
        vector = self.vector_hash if self.source is None else self.source.hash
        measures = [each.describe() for each in self.measures]
        pairs = [[pair.prompt, pair.positive, pair.negative, pair.group] for pair in self.pairs]
        choices = [[each.prompt, list(each.options), each.answer, each.group] for each in self.choices]
        return artifact.hash_json([vector, measures, pairs, self.texts, choices])

    @property
    def vector_hash(self) -> str:
        """Of the vector that was read. Its file may change, or be moved aside, while the sweep runs."""
        return artifact.hash_json(self.vector.to_dict())

    def arguments(self) -> dict[str, Any]:
        """Of `steering_experiment`, beside model and vector."""
        spec = self.spec
        where = spec.where if spec.after is None else Where(spec.where, after=spec.after)
        return {
            "prompts": list(spec.prompts), "strengths": spec.strengths, "measure": self.measures or None,
            "pairs": self.pairs, "texts": self.texts, "choices": self.choices, "n_random": spec.n_random,
            "random_strengths": spec.random_strengths, "kind": spec.kind, "where": where, "unit": spec.unit, "site": spec.site,
            "instruction": spec.instruction, "max_new_tokens": spec.max_new_tokens, "temperature": spec.temperature,
            "seed": spec.seed, "batch_size": spec.batch_size,
        }  # fmt: skip


def read_inputs(spec: SteerSpec) -> Inputs:
    """Read what a sweep names.

    Raises:
        ValueError: a set or file that is not there or of another kind, an option that does not go with the vector's data, or
            pairs that the vector has all seen.
    """
    vector = None if spec.vector.file is None else load_vector(spec.vector.file)
    source = None if vector is not None else read_source(spec.vector)
    card = source.card if source is not None else getattr(vector, "card", {})
    pairs, notes = unseen_pairs([] if spec.pairs is None else load_pairs(spec.pairs), card)
    measures = [measure_from(each) for each in spec.measures]
    measures_of(measures, pairs)  # refuses two of one name
    return Inputs(spec, vector, source, pairs, measures, _texts(spec), _choices(spec), notes)


def unseen_pairs(pairs: Sequence[ContrastPair], card: Mapping[str, Any]) -> tuple[list[ContrastPair], list[str]]:
    """Pairs that a vector was not fitted on, by text and by group, and what there is to say about it.

    Raises:
        ValueError: none is left.
    """
    if not pairs:
        return [], []
    groups = set(card.get("group_hashes") or ())
    if not any(card.get(name) for name in SEEN):
        return list(pairs), [
            "the vector's card does not say which pairs it was fitted on: an effect on pairs that it has seen, or that share "
            "their words, is no finding"
        ]
    left = [
        pair
        for pair in pairs
        if not was_seen(card, pair) and (pair.group is None or artifact.hash_texts([pair.group]) not in groups)
    ]
    if not left:
        raise ValueError(
            f"the vector was fitted on all {len(pairs)} pairs or their groups: give other pairs, or make it without a part of "
            "them (interp steer make --held-out 0.2)"
        )
    n_seen = len(pairs) - len(left)
    said = f"{n_seen} of {len(pairs)} pairs were left out: the vector was fitted on them or their groups"
    return left, [said] if n_seen else []


def measure_from(spec: MeasureSpec) -> Measure:
    """The measure that a table describes. ValueError for a probe that is not there, or tokens on both sides."""
    own: dict[str, Any] = {} if spec.name is None else {"name": spec.name}
    if spec.tokens:
        return TargetTokens(list(spec.tokens), list(spec.against), spec.kind, **own)
    if spec.phrases:
        return PhraseRate(list(spec.phrases), **own)
    assert spec.probe is not None
    return ProbeScore(load_probe(spec.probe), **own)


def _texts(spec: SteerSpec) -> list[str]:
    """The first texts, cut at a word."""
    if spec.texts is None:
        return []
    return [cut(text, spec.text_length) for text in load_corpus(spec.texts).texts[: spec.n_texts]]


def cut(text: str, length: int) -> str:
    """At most so many characters, whole words of them."""
    if len(text) <= length:
        return text
    return text[:length].rsplit(None, 1)[0] or text[:length]


def _choices(spec: SteerSpec) -> list[Question]:
    """Questions, of too many some drawn by the seed; they keep their order."""
    if spec.choices is None:
        return []
    found = load_questions(spec.choices)
    chosen = sorted(random.Random(spec.seed).sample(range(len(found)), min(spec.n_choices, len(found))))
    return [found[index] for index in chosen]
