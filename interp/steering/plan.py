"""One setting of a steering experiment at a time: what is asked, what decides the answer, and how it is found.

`ExperimentPlan` is everything that an experiment needs, checked before anything runs. A *setting* is a direction at a
strength; settings know nothing of each other, so they can run in any order, on any worker, and be kept as files. The
experiment puts their results together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from interp import artifact
from interp.dataset import ContrastPair, Question
from interp.intervene import Steer, Where
from interp.intervene.place import described
from interp.intervene.targets import TargetSet, default_unit
from interp.model import HookedTransformer
from interp.steering.damage import ChoiceQuestions, DamageTexts, TextDamage
from interp.steering.fields import INSTRUCTION, RANDOM, VECTOR
from interp.steering.measures import Framing, Measure, PairPreference, Reader, Setup, measures_of
from interp.steering.measures.base import finite
from interp.steering.randoms import random_directions
from interp.steering.runner import first_layer, refuse_rows
from interp.steering.saved import vector_to_dict
from interp.steering.vector import refuse_other_model

STRENGTHS = (-0.1, 0.1)
"""In typical norms, where nobody says."""
USUAL = {"ablate": (1.0,)}
"""Those of kinds that are not counted so."""
RANDOM_STRENGTHS = ("all", "largest")
NEUTRAL = "no instruction"


@dataclass(frozen=True)
class Setting:
    """A direction at a strength, or the instruction in its place."""

    name: str
    """`vector`, `random 0 (isotropic)`, `instruction`, `no instruction` (what the instruction is compared with)."""
    kind: str
    """vector, isotropic, covariance, instruction or neutral."""
    strength: float
    """0 for instructions, under which nothing is steered."""
    index: int = -1
    """Number of the random direction."""


@dataclass(frozen=True, eq=False)
class Written:
    """One continuation."""

    text: str
    tokens: list[int]
    logprob: float
    """Sum over the new tokens, nats: differs where the model was changed at all, though it may say the same."""


@dataclass(frozen=True, eq=False)
class SettingResult:
    """What one setting gave."""

    values: dict[str, Float64[np.ndarray, " item"]]
    """Measure -> value of each item."""
    damage: TextDamage | None = None
    """On the damage texts."""
    right: Bool[np.ndarray, " question"] | None = None
    """Multiple choices answered rightly."""
    written: tuple[Written, ...] = ()
    """Continuations of the prompts."""

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays, and the rest as JSON."""
        arrays = {f"values.{index}": values for index, values in enumerate(self.values.values())}
        if self.damage is not None:
            arrays |= {f"damage.{name}": column for name, column in self.damage.arrays().items()}
        if self.right is not None:
            arrays["right"] = self.right
        written = [{"text": each.text, "tokens": each.tokens, "logprob": each.logprob} for each in self.written]
        return arrays, {"measures": list(self.values), "written": written}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], rest: dict[str, Any]) -> "SettingResult":
        """What `to_arrays` took apart."""
        values = {name: np.asarray(arrays[f"values.{index}"]) for index, name in enumerate(rest["measures"])}
        texts = {name[7:]: np.asarray(each) for name, each in arrays.items() if name.startswith("damage.")}
        right = np.asarray(arrays["right"]).astype(bool) if "right" in arrays else None
        return cls(values, TextDamage(**texts) if texts else None, right, tuple(Written(**e) for e in rest["written"]))


@dataclass(frozen=True, eq=False)
class ExperimentPlan:
    """An experiment, ready to run; made by `experiment_plan`."""

    model: HookedTransformer
    vector: Any
    prompts: tuple[str, ...]
    strengths: tuple[float, ...]
    """Ascending, with 0."""
    measures: tuple[Measure, ...]
    pairs: tuple[Any, ...]
    texts: tuple[str, ...]
    choices: tuple[Any, ...]
    options: dict[str, Any]
    """kind, where, site, unit, when: of `Steer`, where they were given."""
    n_random: int
    random_strengths: str
    instruction: str | None
    max_new_tokens: int
    temperature: float
    seed: int
    batch_size: int
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    # What is asked -------------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> list[Setting]:
        """All settings: strength 0, which all others are held against, the vector on the rest of the grid, the random
        directions, the instruction and what it is compared with."""
        found = [self.base, *(Setting(VECTOR, "vector", strength) for strength in self.strengths if strength)]
        wanted = [strength for strength in self.strengths if strength] if self.measures or self.texts else []
        if self.random_strengths == "largest" and wanted:
            wanted = [max(wanted, key=lambda strength: (abs(strength), strength))]
        for strength in wanted:
            for index in range(self.n_random):
                kind = RANDOM[index % 2]
                found.append(Setting(f"random {index} ({kind})", kind, strength, index))
        if self.instruction is not None:
            found += [Setting(INSTRUCTION, "instruction", 0.0), Setting(NEUTRAL, "neutral", 0.0)]
        return found

    @property
    def pairs_read(self) -> list[ContrastPair]:
        """The pairs of all measures."""
        return [pair for each in self.measures if isinstance(each, PairPreference) for pair in each.pairs]

    @property
    def base(self) -> Setting:
        """The model as it is."""
        return Setting(VECTOR, "vector", 0.0)

    def steer(self, setting: Setting) -> Steer:
        """The intervention of a setting."""
        direction = self.vector if setting.kind == "vector" else self.randoms[setting.index]
        return Steer(direction, setting.strength, **self.options)

    def interventions(self, setting: Setting, *, unprompted: bool = False) -> list[Steer]:
        """What is attached in a setting. `unprompted`: on texts and questions, which have no marker to steer after: all of them
        counts as what comes after it."""
        if setting.kind in ("instruction", "neutral"):
            return []
        steer, where = self.steer(setting), self.options["where"]
        if unprompted and isinstance(where, Where) and where.after is not None:
            steer = replace(steer, where=replace(where, after=None, occurrence="first", missing="error"))
        return [steer]

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """All that decides the results, as JSON; `steering_experiment_again` reads it."""
        when = self.options.get("when")
        return {
            "vector": vector_to_dict(self.vector),
            "prompts": list(self.prompts), "texts": list(self.texts),
            "pairs": [[pair.prompt, pair.positive, pair.negative, pair.group] for pair in self.pairs],
            "choices": [
                {"prompt": each.prompt, "options": list(each.options), "answer": each.answer, "group": each.group}
                for each in self.choices
            ],
            "measures": [each.describe() for each in self.measures],
            "options": {
                "kind": self.options.get("kind", "add"), "unit": self.options.get("unit"), "site": self.options.get("site"),
                "where": described(self.options["where"]),
                "when": None if when is None else when.describe(),
            },
            "settings": {
                "strengths": list(self.strengths), "n_random": self.n_random, "random_strengths": self.random_strengths,
                "instruction": self.instruction, "max_new_tokens": self.max_new_tokens, "temperature": self.temperature,
                "seed": self.seed, "batch_size": self.batch_size,
            },
        }  # fmt: skip

    def key(self, setting: Setting) -> str:
        """Hash of all that decides a setting's result. Other strengths of the grid do not."""
        return artifact.hash_json([self._shared, setting.name, setting.kind, setting.strength, setting.index])

    @cached_property
    def _shared(self) -> str:
        """Hash of what all settings have in common."""
        decides = {name: value for name, value in self.inputs.items() if name != "settings"}
        settings = {name: value for name, value in self.inputs["settings"].items() if name not in _FREE}
        return artifact.hash_json([decides, settings, self.model.fingerprint, artifact.provenance()])

    # What is computed once -----------------------------------------------------------------------------------------

    @cached_property
    def layer(self) -> int:
        """The first block that is changed."""
        strength = next((each for each in self.strengths if each), 0.0)
        return first_layer(self.model, [Steer(self.vector, strength, **self.options)])

    @cached_property
    def randoms(self) -> list[TargetSet]:
        """The random directions."""
        texts = [pair.prompt + side for pair in self.pairs_read for side in (pair.positive, pair.negative)]
        items = [prompt for measure in self.measures for prompt, _ in measure.items(self.prompts)]
        reading = [*texts, *self.texts, *self.prompts, *items]
        return [each for _, each in random_directions(self.model, self.vector, reading, self.n_random, self.seed)]

    @cached_property
    def damage_texts(self) -> DamageTexts | None:
        """The damage texts, after their unsteered run."""
        if not self.texts:
            return None
        return DamageTexts(
            self.model, self.texts, [self.layer], self.options["where"], self.batch_size, self.options.get("when")
        )

    @cached_property
    def questions(self) -> ChoiceQuestions | None:
        """The multiple choices, after their unsteered run."""
        return ChoiceQuestions(self.model, self.choices, self.layer, self.batch_size) if self.choices else None

    def framing(self, setting: Setting) -> Any:
        """What stands before prompts in a setting."""
        if setting.kind not in ("instruction", "neutral"):
            return str
        assert self.instruction is not None
        framing = Framing(self.model, self.instruction)
        return framing if setting.kind == "instruction" else framing.without

    def readers(self, setting: Setting) -> list[Reader]:
        """The measures, after their unsteered runs. Those under an instruction are read once and not kept."""
        framed = setting.kind in ("instruction", "neutral")
        if not framed and "readers" in self._cache:
            return self._cache["readers"]
        setup = Setup(self.model, self.layer, self.prompts, self.batch_size, self.framing(setting))
        found = [measure.prepare(setup) for measure in self.measures]
        if not framed:
            self._cache["readers"] = found
        return found


_FREE = ("strengths", "n_random", "random_strengths")
"""Settings of the grid, which change no result of a setting that stays."""


def experiment_plan(
    model: HookedTransformer,
    vector: Any,
    prompts: str | Sequence[str] | Any = (),
    *,
    strengths: Sequence[float] | Any = None,
    measure: Any = None,
    pairs: Sequence[ContrastPair] | Any = (),
    texts: str | Sequence[str] | Any = (),
    choices: Sequence[Question] | Any = (),
    n_random: int | Any = 19,
    random_strengths: str | Any = "all",
    kind: str | Any = "add",
    where: Any = "all",
    unit: str | Any = None,
    site: str | Any = None,
    when: Any = None,
    instruction: str | Any = None,
    max_new_tokens: int | Any = 30,
    temperature: float | Any = 0.0,
    seed: int | Any = 0,
    batch_size: int | Any = 32,
) -> ExperimentPlan:
    """Check an experiment and lay it out; the arguments are those of `steering_experiment`.

    Raises:
        ValueError: as `steering_experiment` does.
    """
    prompts, texts = _texts("prompts", prompts), _texts("texts", texts)
    _whole("n_random", n_random, 0)
    _whole("max_new_tokens", max_new_tokens, 0)
    _whole("seed", seed, 0)
    _whole("batch_size", batch_size, 1)
    if random_strengths not in RANDOM_STRENGTHS:
        raise ValueError(f"random_strengths={random_strengths!r} is unknown; choose from {', '.join(RANDOM_STRENGTHS)}")
    refuse_other_model(getattr(vector, "card", {}), model)
    refuse_rows(where)
    if kind == "clamp":
        raise ValueError(
            "clamp holds the coordinate at a value, so that strength 0 is no unsteered run: measure it inside "
            "model.intervene(Steer(..., kind='clamp')), or take another kind"
        )
    measures = measures_of(measure, pairs)
    if not (measures or texts or len(choices) or (prompts and max_new_tokens)):
        raise ValueError("nothing is measured: give pairs or another measure, prompts to continue, texts or choices")
    reading = [each.name for each in measures if each.reads_text]
    if reading and (not prompts or not max_new_tokens):
        raise ValueError(f"the measure {reading[0]!r} reads continuations: give prompts and max_new_tokens")
    pairs_read = [pair for each in measures if isinstance(each, PairPreference) for pair in each.pairs]
    if instruction is not None:
        items = [prompt for measure in measures for prompt, _ in measure.items(prompts)]
        Framing(model, instruction).refuse_chats([*prompts, *items])
        if not all(pair.prompt for pair in pairs_read):
            raise ValueError(
                "an instruction stands before a prompt, and these pairs have none: give pairs with prompts, or no instruction"
            )
    options = {"kind": kind, "where": where}
    options |= {name: value for name, value in (("unit", unit), ("site", site), ("when", when)) if value is not None}
    grid = _grid(USUAL.get(kind, STRENGTHS) if strengths is None else strengths)
    for strength in grid:
        Steer(vector, strength, **options)  # refuses what cannot be steered before anything runs
    return ExperimentPlan(
        model, vector, prompts, grid, tuple(measures), tuple(pairs), texts, tuple(choices), options, n_random,
        random_strengths, instruction, max_new_tokens, temperature, seed, batch_size,
    )  # fmt: skip


def run_setting(plan: ExperimentPlan, setting: Setting) -> SettingResult:
    """Everything that is measured under one setting.

    Raises:
        ValueError: NaN in the steered model, an intervention that reached no token, a measure that gives no numbers.
    """
    interventions, framed = plan.interventions(setting), setting.kind in ("instruction", "neutral")
    random = setting.kind in RANDOM
    writes = any(each.reads_text for each in plan.measures) or not random
    written = _continuations(plan, setting, interventions) if plan.prompts and plan.max_new_tokens and writes else ()
    texts = [each.text for each in written]
    values = {}
    for measure, reader in zip(plan.measures, plan.readers(setting)):
        n = len(measure.items(plan.prompts))
        values[measure.name] = finite(reader.read(interventions, texts), n, measure.name)
    damage = right = None
    if not framed:
        unprompted = plan.interventions(setting, unprompted=True)
        damage = None if plan.damage_texts is None else plan.damage_texts.read(unprompted)
        right = None if plan.questions is None else plan.questions.read(unprompted)
    return SettingResult(values, damage, right, written)


def _continuations(plan: ExperimentPlan, setting: Setting, interventions: list[Steer]) -> tuple[Written, ...]:
    frame = plan.framing(setting)
    found: list[Written | None] = [None] * len(plan.prompts)
    with plan.model.intervene(*interventions):
        for rows in _chunks(plan.prompts, plan.batch_size):
            prompts = [frame(plan.prompts[row]) for row in rows]
            out = plan.model.generate(prompts, plan.max_new_tokens, temperature=plan.temperature, seed=plan.seed)
            for row, each in zip(rows, out.rows):
                found[row] = Written(each.text, each.tokens, math.fsum(each.logprobs))
    return tuple(each for each in found if each is not None)


def _chunks(prompts: Sequence[str], size: int) -> list[list[int]]:
    """Rows that are written together; equal prompts stay so, since the random numbers of each count its equals before it."""
    equal: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        equal.setdefault(prompt, []).append(row)
    chunks: list[list[int]] = [[]]
    for rows in equal.values():
        if chunks[-1] and len(chunks[-1]) + len(rows) > size:
            chunks.append([])
        chunks[-1] += rows
    return chunks


def _texts(name: str, given: Any) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else list(given or ())
    odd = [each for each in several if not isinstance(each, str) or not each.strip()]
    if odd:
        raise ValueError(f"{name} must be texts with something in them, got {odd[0]!r}")
    return tuple(several)


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be {least} or more, a whole number; got {value!r}")


def _grid(strengths: Any) -> tuple[float, ...]:
    """Ascending, with 0."""
    several = [strengths] if isinstance(strengths, int | float) else list(strengths)
    odd = [each for each in several if isinstance(each, bool) or not isinstance(each, int | float | np.number)]
    odd += [each for each in several if each not in odd and not math.isfinite(each)]
    if odd:
        raise ValueError(f"strengths must be finite numbers, got {odd[0]!r}")
    if not any(several):
        raise ValueError(f"give at least one strength that is not 0, got {several}")
    return tuple(sorted({0.0, *map(float, several)}))


def unit_of(plan: ExperimentPlan) -> str:
    """What strengths are counted in; an ablation takes out a share."""
    if plan.options["kind"] == "ablate":
        return "share"
    return plan.options.get("unit") or default_unit(plan.vector)
