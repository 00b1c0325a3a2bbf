"""One setting of a steering experiment at a time: what is asked, what decides the answer, and how it is found.

`ExperimentPlan` is everything that an experiment needs, checked before anything runs. A *setting* is a direction at a
strength; settings know nothing of each other, so they can run in any order, on any worker, and be kept as files. The
experiment puts their results together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from interp import artifact
from interp.dataset import ContrastPair, Question
from interp.intervene import Steer
from interp.intervene.targets import default_unit, targets_of
from interp.model import HookedTransformer
from interp.steering.damage import ChoiceQuestions, DamageTexts, TextDamage
from interp.steering.measures import Framing, Measure, Reader, Setup, measures_of
from interp.steering.randoms import RandomDirections, random_directions
from interp.steering.runner import first_layer

STRENGTHS = (-0.1, 0.1)
"""In typical norms, where nobody says."""
AT = ("all", "largest")
VECTOR, INSTRUCTION, NEUTRAL = "vector", "instruction", "no instruction"


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
        """All settings: the vector on the grid, the random directions, the instruction and what it is compared with."""
        found = [Setting(VECTOR, "vector", strength) for strength in self.strengths]
        wanted = [strength for strength in self.strengths if strength] if self.measures or self.texts else []
        if self.random_strengths == "largest" and wanted:
            wanted = [max(wanted, key=lambda strength: (abs(strength), strength))]
        for strength in wanted:
            for index in range(self.n_random):
                kind = ("isotropic", "covariance")[index % 2]
                found.append(Setting(f"random {index} ({kind})", kind, strength, index))
        if self.instruction is not None:
            found += [Setting(INSTRUCTION, "instruction", 0.0), Setting(NEUTRAL, "neutral", 0.0)]
        return found

    @property
    def where_part(self) -> str:
        """all, prompt or generated."""
        where = self.options.get("where", "all")
        return where if isinstance(where, str) else where.part

    def steer(self, setting: Setting) -> Steer:
        """The intervention of a setting."""
        direction = self.vector if setting.kind == "vector" else self.randoms[setting.index]
        return Steer(direction, setting.strength, **self.options)

    def interventions(self, setting: Setting) -> list[Steer]:
        """What is attached in a setting."""
        return [] if setting.kind in ("instruction", "neutral") else [self.steer(setting)]

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """All that decides the results, as JSON; `steering_experiment_again` reads it."""
        where = self.options.get("where", "all")
        when = self.options.get("when")
        return {
            "vector": self.vector.to_dict() if hasattr(self.vector, "to_dict") else None,
            "prompts": list(self.prompts), "texts": list(self.texts),
            "pairs": [[pair.prompt, pair.positive, pair.negative, pair.group] for pair in self.pairs],
            "choices": [
                {"prompt": each.prompt, "options": list(each.options), "answer": each.answer, "group": each.group}
                for each in self.choices
            ],
            "measures": [each.describe() for each in self.measures],
            "options": {
                "kind": self.options.get("kind", "add"), "unit": self.options.get("unit"), "site": self.options.get("site"),
                "where": where if isinstance(where, str) else where.describe(),
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
        decides = {name: value for name, value in self.inputs.items() if name != "settings"}
        settings = {name: value for name, value in self.inputs["settings"].items() if name not in _FREE}
        directions = [[*each.direction.tolist(), each.length, each.norm] for each in targets_of(self.vector)]
        this = [setting.name, setting.kind, setting.strength, setting.index]
        return artifact.hash_json([decides, settings, directions, this, self.model.fingerprint, artifact.provenance()])

    # What is computed once -----------------------------------------------------------------------------------------

    @cached_property
    def layer(self) -> int:
        """The first block that is changed."""
        strength = next((each for each in self.strengths if each), 0.0)
        return first_layer(self.model, [Steer(self.vector, strength, **self.options)])

    @cached_property
    def randoms(self) -> list[RandomDirections]:
        """The random directions."""
        texts = [pair.prompt + side for pair in self.pairs for side in (pair.positive, pair.negative)]
        items = [prompt for measure in self.measures for prompt, _ in measure.items(self.prompts)]
        found = random_directions(
            self.model, self.vector, [*texts, *self.texts, *self.prompts, *items], self.n_random, self.seed
        )
        return [direction for _, direction in found]

    @cached_property
    def damage_texts(self) -> DamageTexts | None:
        """The damage texts, after their unsteered run."""
        if not self.texts:
            return None
        return DamageTexts(self.model, self.texts, self.layer, self.where_part, self.batch_size)

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
    strengths: Sequence[float] | Any = STRENGTHS,
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
    if random_strengths not in AT:
        raise ValueError(f"random_strengths={random_strengths!r} is unknown; choose from {', '.join(AT)}")
    card = getattr(vector, "card", {})
    if card.get("fingerprint") not in (None, model.fingerprint):
        raise ValueError(f"the vector was fitted on another model ({card.get('model')}), not on {model.cfg.name}")
    if kind == "clamp":
        raise ValueError(
            "clamp holds the coordinate at a value, so that strength 0 is no unsteered run: measure it inside "
            "model.intervene(Steer(..., kind='clamp')), or take another kind"
        )
    measures = measures_of(measure, pairs)
    if not prompts and not measures:
        raise ValueError("give prompts to continue, held-out pairs or another measure, or both")
    reading = [each.name for each in measures if each.reads_text]
    if reading and (not prompts or not max_new_tokens):
        raise ValueError(f"the measure {reading[0]!r} reads continuations: give prompts and max_new_tokens")
    options = {"kind": kind, "where": where}
    options |= {name: value for name, value in (("unit", unit), ("site", site), ("when", when)) if value is not None}
    grid = _grid(strengths)
    for strength in grid:
        Steer(vector, strength, **options)  # refuses what cannot be steered before anything runs
    return ExperimentPlan(
        model, vector, prompts, grid, tuple(measures), tuple(pairs), texts, tuple(choices), options, n_random,
        random_strengths, instruction, max_new_tokens, temperature, seed, batch_size,
    )  # fmt: skip


def run_setting(model: HookedTransformer, plan: ExperimentPlan, setting: Setting) -> SettingResult:
    """Everything that is measured under one setting.

    Raises:
        ValueError: NaN in the steered model, an intervention that reached no token, a measure that gives no numbers.
    """
    assert model is plan.model
    interventions, framed = plan.interventions(setting), setting.kind in ("instruction", "neutral")
    random = setting.kind in ("isotropic", "covariance")
    writes = any(each.reads_text for each in plan.measures) or not random
    written = _continuations(plan, setting, interventions) if plan.prompts and plan.max_new_tokens and writes else ()
    texts = [each.text for each in written]
    values = {
        measure.name: reader.read(interventions, texts) for measure, reader in zip(plan.measures, plan.readers(setting))
    }
    damage = right = None
    if not framed:
        damage = None if plan.damage_texts is None else plan.damage_texts.read(interventions)
        right = None if plan.questions is None else plan.questions.read(interventions)
    return SettingResult(values, damage, right, written)


def _continuations(plan: ExperimentPlan, setting: Setting, interventions: list[Steer]) -> tuple[Written, ...]:
    frame = plan.framing(setting)
    prompts = [frame(prompt) for prompt in plan.prompts]
    with plan.model.intervene(*interventions):
        out = plan.model.generate(prompts, plan.max_new_tokens, temperature=plan.temperature, seed=plan.seed)
    return tuple(Written(row.text, row.tokens, math.fsum(row.logprobs)) for row in out.rows)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else list(given)
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
    return tuple(sorted({0.0, *map(float, several)}))


def unit_of(plan: ExperimentPlan) -> str:
    """What strengths are counted in."""
    return plan.options.get("unit") or default_unit(plan.vector)
