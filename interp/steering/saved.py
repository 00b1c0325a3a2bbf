"""Experiments and vectors from what a report wrote down."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from interp.dataset import ContrastPair, Question
from interp.intervene import Where
from interp.intervene.targets import Target, TargetSet, default_unit, targets_of
from interp.model import HookedTransformer
from interp.steering.head_value import HeadVectors
from interp.steering.measures import measure_of, measures_of
from interp.steering.measures.passes import PREFERENCE
from interp.steering.report import SteeringReport, load_steering_report
from interp.steering.vector import SteeringVector, refuse_other_model
from interp.steering.vectors import SteeringVectors

TARGETS = "targets"
READERS = {"steering vector": SteeringVector, "steering vectors": SteeringVectors, "head vectors": HeadVectors}


def vector_to_dict(vector: Any) -> dict[str, Any]:
    """Anything that `Steer` takes, as JSON; `vector_from_dict` reads it."""
    if type(vector) in READERS.values():
        return vector.to_dict()
    parts = [
        {
            **each.describe(),
            "direction": each.direction.tolist(),
            "dtype": str(each.direction.dtype).removeprefix("torch."),
        }
        for each in targets_of(vector)
    ]
    return {"kind": TARGETS, "unit": default_unit(vector), "targets": parts, "card": dict(getattr(vector, "card", {}))}


def vector_from_dict(value: Mapping[str, Any] | Any) -> SteeringVector | SteeringVectors | HeadVectors | TargetSet:
    """What `vector_to_dict` wrote, or the `to_dict` of a steering vector, of several, or of directions of heads.

    Raises:
        ValueError: anything else.
    """
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind == TARGETS:
        parts = []
        for each in value["targets"]:
            known = {name: each[name] for name in each if name not in ("direction", "dtype")}
            parts.append(
                Target(direction=torch.tensor(each["direction"], dtype=getattr(torch, each["dtype"])), **known)
            )
        return TargetSet(tuple(parts), value["unit"], dict(value["card"]))
    if kind not in READERS:
        raise ValueError(f"this is no steering vector ({kind!r}); known are {', '.join(READERS)}")
    return READERS[kind].from_dict(value)


def experiment_arguments(
    report: SteeringReport | str | os.PathLike[str] | Any,
    model: HookedTransformer,
    measure: Any = None,
    when: Any = None,
) -> dict[str, Any]:
    """The arguments of `steering_experiment` that made a report.

    Args:
        report: a SteeringReport, or its file.
        model: whose experiment it must be.
        measure: measures that the report cannot hold, by their names there.
        when: the condition, where there was one.

    Raises:
        ValueError: a report without its inputs, of another model, or with parts that must be given again; the message names
            them.
    """
    report = report if isinstance(report, SteeringReport) else load_steering_report(report)
    inputs = report.inputs
    if not inputs or not inputs.get("vector"):
        raise ValueError(
            "this report does not hold what it was made from, so that it cannot be run again: make a new one"
        )
    refuse_other_model(report.card, model, "the report was measured")
    options, settings = dict(inputs["options"]), inputs["settings"]
    condition = options.pop("when")
    if condition != (None if when is None else when.describe()):
        what = (
            "which a report cannot hold: give it again, when="
            if when is None
            else f"and when= is another one: {condition}"
        )
        raise ValueError(f"this experiment steered under a condition, {what}"[:300])
    where = options["where"]
    options["where"] = where if isinstance(where, str) else Where(**where)
    pairs = [ContrastPair(prompt, yes, no, group=group) for prompt, yes, no, group in inputs["pairs"]]
    given = {each.name: each for each in measures_of(measure, ())}
    # The preference on the pairs comes with them.
    wanted = [
        each
        for each in inputs["measures"]
        if not (pairs and (each["measure"], each["name"]) == ("pair_preference", PREFERENCE))
    ]
    for each in wanted:
        own = given.get(each["name"])
        if own is not None and own.describe() != each:
            raise ValueError(
                f"the measure {each['name']!r} that is given is another than the report's: {own.describe()}"[:300]
            )
    choices = [Question(e["prompt"], tuple(e["options"]), e["answer"], group=e["group"]) for e in inputs["choices"]]
    return {
        "vector": vector_from_dict(inputs["vector"]), "prompts": inputs["prompts"], "pairs": pairs, "texts": inputs["texts"],
        "choices": choices, "measure": [given.get(each["name"]) or measure_of(each) for each in wanted], "when": when,
        **options, **settings,
    }  # fmt: skip
