"""`steering_experiment`: what a vector does, what it breaks, and what a push that means nothing does in its place.

On one grid of strengths, with 0 on it:

1. *effect*: the change of each measure on prompts that the vector never saw, item by item, with intervals;
2. *damage*: loss and KL on other text, accuracy on multiple choices, repetition in what is written;
3. *controls*: random directions of the same norm at the same strengths, and an instruction in the vector's place;
4. *text*: continuations side by side, by the same random numbers, parted where they first differ.

An effect without the random band may be nothing but a push; one without its damage may be a broken model; and a mean hides
the prompts that move the wrong way (Tan et al. 2024, arXiv 2407.12404).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from interp import artifact
from interp.dataset import ContrastPair, Question
from interp.intervene.targets import targets_of
from interp.model import HookedTransformer
from interp.probe.completions import common_prefix
from interp.steering import figures
from interp.steering.damage import choice_figures, damage_figures
from interp.steering.fields import VECTOR
from interp.steering.measures import ProbeScore
from interp.steering.plan import (
    NEUTRAL,
    ExperimentPlan,
    Setting,
    SettingResult,
    experiment_plan,
    run_setting,
    unit_of,
)
from interp.steering.report import DAMAGE, EFFECTS, GENERATIONS, VALUES, SteeringReport
from interp.steering.saved import experiment_arguments
from interp.steering.seen import refuse_seen
from interp.tokens import Tokenizer


@runtime_checkable
class Kept(Protocol):
    """Results that are there already."""

    def get(self, setting: Setting) -> SettingResult | None: ...
    def put(self, setting: Setting, result: SettingResult) -> None: ...


def steering_experiment(
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
    kept: Kept | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SteeringReport:
    """Measure effect and damage of a vector on a grid of strengths, beside controls, and write side by side.

    Args:
        model: the one that the vector is for.
        vector: what `Steer` takes: a steering vector, vectors of several layers, directions of heads, a latent's direction.
        prompts: continued without and with the vector; measures without prompts of their own read these.
        strengths: 0 is always measured too. None: -0.1 and 0.1, for an ablation the whole (1).
        measure: what is read: `PairPreference`, `TargetTokens`, `ProbeScore`, `PhraseRate`, `TextScore`, a function of (model,
            prompts) that gives a number for each prompt, or a list of them, or a dict name -> function.
        pairs: held-out contrasts: the measure "preference", log p(positive | prompt) - log p(negative | prompt) in nats, is
            added. The vector must not have been fitted on them, nor on their words.
        texts: other text, for the rise of loss and KL.
        choices: questions for the accuracy.
        n_random: random directions at each strength, half isotropic, half with the covariance of activations, orthogonal
            to the vector; 19 give p <= .05.
        random_strengths: "all", or "largest" to save time.
        kind, where, unit, site, when: as in `Steer`.
        instruction: a system prompt in the vector's place, for example "Be enthusiastic.". Its effect is that on the same
            prompts in a conversation with it and without it (a paragraph before the prompt, where the model has no chat
            template), and stands in the report as a direction of its own.
        max_new_tokens: of each continuation; 0 writes none.
        temperature: of the continuations; 0 is greedy. The same prompt draws with the same random numbers at every strength.
        seed: of random directions, continuations and intervals.
        batch_size: texts in a pass.
        kept: results of an earlier run, and where to keep new ones.
        progress: called with (done, total) settings.

    Raises:
        ValueError: a vector of another model, nothing to measure, a pair that the vector was fitted on, or a measure that
            does not see the vector at all: all its values at some strength are those without it, bit for bit.
    """
    plan = experiment_plan(
        model, vector, prompts, strengths=strengths, measure=measure, pairs=pairs, texts=texts, choices=choices,
        n_random=n_random, random_strengths=random_strengths, kind=kind, where=where, unit=unit, site=site, when=when,
        instruction=instruction, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, batch_size=batch_size,
    )  # fmt: skip
    when_read = None if when is None else when.describe()
    if kept is not None and when_read is not None and when_read.get("hash") is None:
        raise ValueError(
            "what this condition reads has no hash, so that kept results cannot be told from those of another one"
        )
    refuse_seen(getattr(vector, "card", {}), plan.pairs_read)
    found: dict[Setting, SettingResult] = {}
    for done, setting in enumerate(plan.settings):
        result = None if kept is None else kept.get(setting)
        if result is None:
            result = run_setting(plan, setting)
            if kept is not None:
                kept.put(setting, result)
        found[setting] = result
        refuse_blind(plan, setting, result, found.get(plan.base))
        if progress is not None:
            progress(done + 1, len(plan.settings))
    return assembled(plan, found)


def steering_experiment_again(
    report: SteeringReport | str | os.PathLike[str] | Any,
    model: HookedTransformer,
    *,
    measure: Any = None,
    when: Any = None,
    kept: Kept | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SteeringReport:
    """Run a report's experiment again, from what the report holds.

    Args:
        report: a SteeringReport, or its file.
        model: the one that it was made with.
        measure: the measures that no file can hold (functions, probes), by the names that they have in the report.
        when: the condition, where there was one.
        kept: as in `steering_experiment`.
        progress: called with (done, total) settings.

    Raises:
        ValueError: another model, a report of before format 2, or a measure that must be given again.
    """
    return steering_experiment(
        model, **experiment_arguments(report, model, measure, when), kept=kept, progress=progress
    )


# --------------------------------------------------------------------------------------------------------- the checks


def refuse_blind(plan: ExperimentPlan, setting: Setting, result: SettingResult, base: SettingResult | None) -> None:
    """ValueError for a path that does not see the vector: its figures would read "no effect" and "no damage".

    Args:
        plan: of the experiment.
        setting: what ran. A condition may rightly leave everything as it is, and random directions are not looked at.
        result: what it gave.
        base: what strength 0 gave, if that is there.
    """
    if base is None or "when" in plan.options or setting.kind != "vector" or not setting.strength:
        return
    at = (
        f"at strength {setting.strength:g} it gives what it gives without, bit for bit. Look at where= and at its layer"
    )
    for measure in plan.measures:
        values = result.values[measure.name]
        if not measure.reads_text and np.array_equal(values, base.values[measure.name]):
            raise ValueError(f"the measure {measure.name!r} does not see the vector: {at}")
    if result.written and all(a.logprob == b.logprob for a, b in zip(result.written, base.written)):
        raise ValueError(f"generation does not see the vector: {at}")
    if result.damage is not None and not result.damage.kl.any():
        raise ValueError(f"the damage on texts does not see the vector: {at}")


# ---------------------------------------------------------------------------------------------------------- the tables


def assembled(plan: ExperimentPlan, found: Mapping[Setting, SettingResult]) -> SteeringReport:
    """The report of an experiment whose settings have all run."""
    damage = _damage(plan, found)
    card = artifact.provenance(
        model=plan.model.cfg.name, fingerprint=plan.model.fingerprint, vector=getattr(plan.vector, "card", {}),
        sites=[target.place for target in targets_of(plan.vector)], site=targets_of(plan.vector)[0].site, unit=unit_of(plan),
        kind=plan.options["kind"], where=plan.inputs["options"]["where"], n_pairs=len(plan.pairs), n_texts=len(plan.texts),
        notes=_notes(plan, found),
        n_choices=len(plan.choices), n_random=plan.n_random if plan.measures or plan.texts else 0, seed=plan.seed,
    )  # fmt: skip
    return SteeringReport(
        effects=_effects(plan, found, damage),
        damage=damage,
        values=_values(plan, found),
        generations=_generations(plan, found),
        card=card,
        inputs=plan.inputs,
    )


def _notes(plan: ExperimentPlan, found: Mapping[Setting, SettingResult]) -> list[str]:
    """What a reader must know beside the figures."""
    steered = {target.site for target in targets_of(plan.vector)}
    notes = [
        f"The probe of {each.name!r} reads a site that is steered, so it sees the push itself, and random directions are "
        "orthogonal to it by construction."
        for each in plan.measures
        if isinstance(each, ProbeScore) and set(plan.model.expand_sites(each.probe.site)) & steered
    ]
    own = [result for setting, result in found.items() if setting.kind == "vector" and setting.strength]
    if "when" in plan.options and any(each.damage is not None and not each.damage.kl.any() for each in own):
        notes.append(
            "The condition held on none of the damage texts: their figures say nothing of what steering breaks."
        )
    return notes


def item_groups(items: Sequence[tuple[str, str | None]]) -> list[str | None]:
    """The group of each item: its own, or its prompt, for the same prompt twice is not twice the evidence."""
    return [group if group is not None else (f"prompt: {prompt}" if prompt else None) for prompt, group in items]


def _base(setting: Setting) -> Setting:
    """What a setting is compared with."""
    return Setting(NEUTRAL, "neutral", 0.0) if setting.kind == "instruction" else Setting(VECTOR, "vector", 0.0)


def _effects(plan: ExperimentPlan, found: Mapping[Setting, SettingResult], damage: pd.DataFrame) -> pd.DataFrame:
    cost = {(row["direction"], row["strength"]): row for row in damage.to_dict("records")}
    rows = []
    for setting, result in found.items():
        if setting.kind == "neutral":
            continue
        broken = cost[setting.name, setting.strength]
        about = {
            "direction": setting.name, "kind": setting.kind, "strength": setting.strength,
            **{name: broken[name] for name in ("loss_rise", "kl_last", "kl_mean")},
        }  # fmt: skip
        for measure in plan.measures:
            groups = item_groups(measure.items(plan.prompts))
            told = setting.kind == "instruction"
            change = figures.mean_change(
                result.values[measure.name], found[_base(setting)].values[measure.name], 1.0 if told else setting.strength,
                way=1.0 if told else figures.way_of(plan.options["kind"]), groups=groups, seed=plan.seed,
            )  # fmt: skip
            measured = {"measure": measure.name, "unit": measure.unit, **vars(change), **about}
            rows.append({name: measured[name] for name in EFFECTS})
        if not plan.measures:
            rows.append({"measure": "", "unit": "", "n": 0, **about})
    return pd.DataFrame(rows, columns=pd.Index(EFFECTS))


def _damage(plan: ExperimentPlan, found: Mapping[Setting, SettingResult]) -> pd.DataFrame:
    base = found[plan.base]
    rows = []
    for setting, result in found.items():
        if setting.kind == "neutral":
            continue
        row = {"direction": setting.name, "kind": setting.kind, "strength": setting.strength}
        if result.damage is not None and base.damage is not None:
            row |= damage_figures(result.damage, base.damage, plan.seed)
        if result.right is not None:
            row |= choice_figures(result.right, plan.questions.groups if plan.questions else None)
        if result.written:
            tokens = [each.tokens for each in result.written]
            row |= {f"distinct_{n}": figures.distinct_n(tokens, n) for n in (1, 2, 3)}
            row["repetition"] = figures.repetition(tokens)
        rows.append(row)
    return pd.DataFrame(rows, columns=pd.Index(DAMAGE))


def _values(plan: ExperimentPlan, found: Mapping[Setting, SettingResult]) -> pd.DataFrame:
    rows = [
        (measure.name, setting.name, setting.strength, item, prompt, group, float(value))
        for setting, result in found.items()
        if setting.kind in ("vector", "instruction", "neutral")
        for measure in plan.measures
        for item, ((prompt, group), value) in enumerate(zip(measure.items(plan.prompts), result.values[measure.name]))
    ]
    return pd.DataFrame(rows, columns=pd.Index(VALUES))


def _generations(plan: ExperimentPlan, found: Mapping[Setting, SettingResult]) -> pd.DataFrame:
    rows = []
    for setting, result in found.items():
        if setting.kind not in ("vector", "instruction"):
            continue
        for prompt, now, before in zip(plan.prompts, result.written, found[_base(setting)].written):
            first, same = divergence(plan.model.tokenizer, before.tokens, before.text, now.tokens, now.text)
            rows.append((prompt, setting.strength, setting.name, now.text, first, same, now.text[len(same) :]))
    return pd.DataFrame(rows, columns=pd.Index(GENERATIONS))


def divergence(
    tokenizer: Tokenizer | None, before: list[int], plain: str, after: list[int], text: str
) -> tuple[int | None, str]:
    """Index of the first new token that differs (None for none), and the text up to there."""
    if before == after:
        return None, text
    places = [index for index, (a, b) in enumerate(zip(before, after)) if a != b]
    first = places[0] if places else min(len(before), len(after))
    shared = "" if tokenizer is None else tokenizer.decode(after[:first])
    if not (text.startswith(shared) and plain.startswith(shared)):
        # A character may be cut between tokens: what both texts begin with is then the most that is the same.
        shared = text[: common_prefix(plain, text)]
    return first, shared
