"""One place of a sweep: every kind of probe under the protocol, and the controls that need the activations.

The controls at a place: probes along random directions, probes fitted to permuted labels, and the *control task* (Hewitt
& Liang 2019, "Designing and Interpreting Probes with Control Tasks"): one random label for all rows of an entity, fitted
on half of each entity's rows and read on the other half. It says how much a probe can memorise about entities. This is the
one division by rows that is allowed, for there is nothing true to leak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float

from interp.probe.controls import random_directions
from interp.probe.figures import auroc
from interp.probe.inputs import check_activations
from interp.probe.methods import Choice, method
from interp.probe.nested import Part, Rows, held_out_logits, place_parts, take_rows
from interp.probe.plan import SweepPlan
from interp.probe.reading import ActivationSource, TokenRows, place_name, read_place
from interp.probe.solver import Design


@dataclass(frozen=True, eq=False)
class PlaceResult:
    """What one kind of probe gave at one place."""

    choices: list[Choice]
    """One an outer fold."""
    logit: Float[np.ndarray, " row"]
    """Held-out log-odds; NaN for rows that no fold tests."""
    permuted: Float[np.ndarray, "draw row"]
    """The same under permuted labels."""
    random: Float[np.ndarray, " draw"]
    """AUROC along random directions; the same for every kind. Empty where a place is read as whole texts only."""
    control: float | None
    """Accuracy in the control task; None where every group is a single row, and for kinds that learn from pairs: they are
    given no labels to memorise."""

    def fits(self, plan: SweepPlan) -> bool:
        """Whether it can be of this plan: as many rows, folds and controls, and the same rows tested."""
        shapes = len(self.logit) == plan.data.n and self.permuted.shape == plan.permuted.shape
        return shapes and len(self.choices) == len(plan.folds) and bool((~np.isnan(self.logit) == plan.judged).all())

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays without NaN, and JSON: what a file of a finished task holds."""
        judged = np.flatnonzero(~np.isnan(self.logit))
        arrays = {
            "judged": judged,
            "logit": self.logit[judged],
            "permuted": self.permuted[:, judged],
            "random": self.random,
        }
        choices = [asdict(choice) | {"losses": list(choice.losses.items())} for choice in self.choices]
        return arrays, {"choices": choices, "control": self.control, "n": len(self.logit)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> "PlaceResult":
        """What `to_arrays` gave."""
        judged, draws = arrays["judged"], len(arrays["permuted"])
        logit, permuted = np.full(values["n"], np.nan), np.full((draws, values["n"]), np.nan)
        logit[judged], permuted[:, judged] = arrays["logit"], arrays["permuted"]
        choices = [Choice(**choice | {"losses": dict(choice["losses"])}) for choice in values["choices"]]
        return cls(choices, logit, permuted, np.asarray(arrays["random"]), values["control"])


@runtime_checkable
class Kept(Protocol):
    """Finished tasks of a sweep, somewhere."""

    def get(self, place: str, kind: str) -> PlaceResult | None:
        """The result of a task, None where it is not finished."""
        ...

    def put(self, place: str, kind: str, result: PlaceResult) -> None:
        """Keep the result of a task."""
        ...


def fit_place(store: ActivationSource, place: str, kinds: Sequence[str], plan: SweepPlan) -> dict[str, PlaceResult]:
    """Every given kind at one place: one task of a sweep.

    Raises:
        ValueError: NaN or constant activations; texts that are not those of the plan.
    """
    results: dict[str, PlaceResult] = {}
    for reads in ("row", "tokens"):
        wanted = [kind for kind in kinds if method(kind).reads == reads]
        if wanted:
            X = _read(store, place, reads, plan)
            parts = place_parts(X, plan.data, plan.folds)
            random = _random(parts, plan) if isinstance(X, torch.Tensor) else np.empty(0)
            for kind in wanted:
                held = held_out_logits(
                    parts, plan.data, plan.folds, kind, plan.grid, permuted=plan.permuted, seed=plan.seed
                )
                control = None if "pair" in method(kind).needs else _control(X, kind, held.choices, plan)
                results[kind] = PlaceResult(held.choices, held.logit, held.permuted, random, control)
    return {kind: results[kind] for kind in kinds}


def _read(store: ActivationSource, place: str, reads: str, plan: SweepPlan) -> Rows:
    X, frame = read_place(store, place, plan.tokens, reads)
    if not plan.data.is_of(frame):
        raise ValueError(
            f"{place_name(place)} holds other rows than {place_name(plan.places[0])}: sweep the two one by one, for figures at "
            "different rows cannot be compared"
        )
    if isinstance(X, TokenRows):
        check_activations(X.X, place_name(place))
        return X
    return check_activations(X, place_name(place))


def _random(parts: Sequence[Part], plan: SweepPlan) -> Float[np.ndarray, " draw"]:
    """AUROC along random directions of the standardised space."""
    width = parts[0].design.X.shape[1]
    noise = torch.randn(
        len(plan.permuted), width, dtype=torch.float64, generator=torch.Generator().manual_seed(plan.seed)
    )
    logit = np.full((len(noise), plan.data.n), np.nan)
    for part in parts:
        labels = torch.tensor(plan.data.y[part.train], dtype=torch.float64)
        logit[:, part.test] = random_directions(part.design, labels, noise).logit(part.unseen).numpy()
    y = plan.data.y[plan.judged]
    return np.concatenate([auroc(row, y) for row in logit[:, plan.judged]])


def _control(X: Rows, kind: str, choices: Sequence[Choice], plan: SweepPlan) -> float | None:
    """Accuracy on the unseen half of each entity's rows, with the strength that the real labels chose most often."""
    if plan.data.by_rows:
        return None  # the only groups of several rows are copies of one text, which are no half and half
    several = plan.group_sizes > 1
    train = np.flatnonzero(several & plan.control_halves)
    test = np.flatnonzero(several & ~plan.control_halves)
    if not len(train):
        return None
    labels = torch.tensor(plan.control_labels[:, train], dtype=torch.float64)
    strengths = sorted(choice.C for choice in choices if choice.C is not None)
    C = torch.full((len(labels),), strengths[len(strengths) // 2] if strengths else 1.0, dtype=torch.float64)
    design = Design(take_rows(X, train), plan.data.take(train))
    readers = method(kind).fit(design, labels, torch.ones_like(labels), C, plan.seed)
    says = readers.logit(take_rows(X, test)).numpy() > 0
    return float((says == (plan.control_labels[:, test] == 1)).mean())
