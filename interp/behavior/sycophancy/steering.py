"""Steering against sycophancy: what a vector does to the shift and the flips, beside random directions of its norm.

1. `sycophancy_vector` fits a mean difference from prompts with an opinion against prompts that mention the same option
   without one, on other questions than those of the report, which refuses a vector that saw a group of its questions.
2. For each strength all conditions that count run under the vector and under random directions: no opinion (its accuracy is
   the damage), the stated wrong option by one opinion, and by the mentions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.behavior.sycophancy.figures import Scores, flip_share, mean_over, names_of
from interp.behavior.sycophancy.wordings import (
    MENTION,
    OPINION,
    Wording,
    checked_questions,
    checked_wordings,
    drawn_wrong,
    prompt_with,
    uses_chat,
)
from interp.dataset import ContrastPair, Question
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.steering import SteeringVector, steering_vector
from interp.steering.randoms import random_directions
from interp.steering.vector import refuse_other_model

VECTOR, UNSTEERED = "vector", "none"
STRENGTHS = (-0.2, -0.1, 0.1)
"""In typical norms of the site: against the opinion's direction, and along it."""
N_RANDOM = 2
"""Random directions: an isotropic one and one with the covariance of activations."""


def sycophancy_vector(
    model: HookedTransformer,
    questions: Sequence[Question] | Any,
    *,
    wordings: Sequence[Wording] | Any = None,
    n_questions: int | Any = None,
    site: str | Any = None,
    chat: bool | Any = False,
    seed: int | Any = 0,
    batch_size: int | Any = 32,
) -> SteeringVector:
    """The mean difference between prompts with a user's opinion and prompts that mention the same option without one.

    Read at the last token of each prompt (Rimsky et al. 2024, arXiv 2312.06681, take answers; here nothing is answered yet).
    Both sides name the same wrong option, so that the vector is about whose opinion it is, not about the option. A negative
    strength steers against the opinion. Its card keeps the groups, and `sycophancy_report` refuses questions of these.

    Args:
        model: a decoder with a tokenizer.
        questions: other ones than the report's: divide them by group, `interp.grouped_split`.
        wordings: as for the report; third persons are left out.
        n_questions: so many of them, drawn by the seed; None for all.
        site: where; None for the stream after the middle layer.
        chat: as for the report.
        seed: of the stated options and the folds.
        batch_size: prompts in a pass.

    Raises:
        ValueError: as `sycophancy_report` for questions and wordings; as `steering_vector`.
    """
    chosen, chat = checked_wordings(wordings), uses_chat(model, chat)
    asked = checked_questions(questions, n_questions, seed)
    opinions, mentions = ([each for each in chosen if each.kind == kind] for kind in (OPINION, MENTION))
    pairs = []
    for question in asked:
        option = question.options[drawn_wrong(question, seed)]
        for index, opinion in enumerate(opinions):
            both = (opinion, mentions[index % len(mentions)])
            texts = [prompt_with(model, question.prompt, each.line(option), chat) for each in both]
            pairs.append(ContrastPair("", *texts, group=question.group))
    place = site or f"resid_post:{model.cfg.n_layers // 2}"
    found = steering_vector(pairs, model=model, site=place, tokens="last", batch_size=batch_size, seed=seed)
    about = {
        "about": "opinion against mention",
        "n_questions": len(asked),
        "wordings": [each.name for each in opinions],
    }
    return replace(found, card={**found.card, **about, "chat": chat})


@dataclass(frozen=True, eq=False)
class SteerPlan:
    """What is steered, and with what."""

    vector: SteeringVector
    steers: dict[str, Steer]
    """Name of a setting -> intervention."""
    settings: list[tuple[str, str, float]]
    """(name, direction, strength)."""
    opinion: str
    """The opinion that is measured."""


def steer_plan(
    model: HookedTransformer, vector: Any, strengths: Any, n_random: Any, questions: Sequence[Question],
    wordings: Sequence[Wording], seed: int,
) -> SteerPlan:  # fmt: skip
    """The settings: the vector and the random directions at each strength.

    Raises:
        ValueError: no steering vector, one of another model or that was fitted on groups of the questions, strengths that are
            not finite numbers other than 0.
    """
    if not isinstance(vector, SteeringVector):
        raise ValueError(
            f"vector= takes a SteeringVector: sycophancy_vector(...) fits one; got {type(vector).__name__}"
        )
    refuse_other_model(vector.card, model)
    seen = set(vector.card.get("group_hashes") or ())
    shared = [each.group for each in questions if artifact.hash_texts([str(each.group)]) in seen]
    if shared:
        raise ValueError(
            f"the vector was fitted on groups of {len(shared)} of the {len(questions)} questions ({shared[0]!r}): divide them by "
            "group, for example interp.grouped_split([q.group for q in questions], (0.4, 0.6)), and fit on one part"
        )
    if isinstance(strengths, str) or not isinstance(strengths, Sequence) or not strengths:
        raise ValueError("strengths= takes a list of numbers, in typical norms of the site")
    odd = [each for each in strengths if not isinstance(each, int | float) or not math.isfinite(each) or each == 0]
    if odd or len(set(strengths)) < len(strengths):
        raise ValueError(f"strengths must be different finite numbers other than 0; got {list(strengths)}")
    if not isinstance(n_random, int) or isinstance(n_random, bool) or n_random < 0:
        raise ValueError(f"n_random must be a whole number, 0 or more; got {n_random!r}")
    texts = [question.prompt for question in questions]
    controls = random_directions(model, vector, texts, n_random, seed) if n_random else []
    steers, settings = {}, []
    directions = [(VECTOR, vector), *((f"{kind} {i + 1}", each) for i, (kind, each) in enumerate(controls))]
    for direction, each in directions:
        for strength in strengths:
            name = f"{direction} at {strength:g}"
            steers[name] = Steer(each, float(strength))
            settings.append((name, direction, float(strength)))
    return SteerPlan(vector, steers, settings, names_of(wordings, OPINION)[0])


def steered_conditions(
    conditions: Sequence[tuple[str, str]], plan: SteerPlan, wordings: Sequence[Wording]
) -> list[int]:
    """Places of the conditions that run under each setting."""
    wanted = [plan.opinion, *names_of(wordings, MENTION)]
    return [0, *(list(conditions).index((name, "wrong")) for name in wanted)]


def steering_row(scores: Scores, plan: SteerPlan, wordings: Sequence[Wording]) -> dict[str, Any]:
    """Figures of one setting."""
    right = scores.chosen[:, 0] == scores.answer
    shift = scores.shift(plan.opinion, "wrong")
    mentions = names_of(wordings, MENTION)
    (flips, could), (plain, _) = (flip_share(scores, names, "wrong") for names in ([plan.opinion], mentions))
    excess = shift - mean_over(scores.shift, mentions, "wrong")
    found = {**scores.mean(shift, "shift"), **scores.mean(excess, "excess"), **scores.share(flips, could, "flip")}
    found |= scores.difference(flips - plain, could, "flip_excess")
    return {**found, **scores.share(right, None, "accuracy"), "n_flip": int(could.sum()), "n": len(right)}


def steering_table(
    base: Scores, steered: Sequence[Scores], plan: SteerPlan, wordings: Sequence[Wording]
) -> pd.DataFrame:
    """A row for each direction and strength, the unsteered model first; `change` is that of the shift, question by question."""
    rows = [{"direction": UNSTEERED, "strength": 0.0, **steering_row(base, plan, wordings)}]
    plain = base.shift(plan.opinion, "wrong")
    for (_, direction, strength), scores in zip(plan.settings, steered, strict=True):
        change = scores.mean(scores.shift(plan.opinion, "wrong") - plain, "change")
        rows.append({"direction": direction, "strength": strength, **steering_row(scores, plan, wordings), **change})
    return pd.DataFrame(rows)


def restricted(base: Scores, conditions: Sequence[int], logprobs: np.ndarray | None = None) -> Scores:
    """The same questions in some of the conditions, with other scores where they are given."""
    chosen = base.logprobs[:, list(conditions)] if logprobs is None else logprobs
    return replace(base, logprobs=chosen, conditions=[base.conditions[i] for i in conditions])
