"""What a run leaves on the disk to go on from: the tensors of its states, and the lines of its log."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.sae.step import TrainState

_ADAM = ("step", "exp_avg", "exp_avg_sq")


def state_tensors(states: Sequence[TrainState]) -> dict[str, Tensor]:
    """Parameters, Adam's moments and firing counters of each state, by "<number>.<name>"."""
    tensors: dict[str, Tensor] = {}
    for number, state in enumerate(states):
        for name, parameter in state.parameters.items():
            tensors[f"{number}.{name}"] = parameter
            tensors |= {f"{number}.adam.{name}.{key}": state.adam.state[parameter][key] for key in _ADAM}
        tensors[f"{number}.rows_since_fired"] = state.rows_since_fired
    return tensors


@torch.no_grad()
def put_tensors(states: Sequence[TrainState], tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `state_tensors`."""
    for number, state in enumerate(states):
        for name, parameter in state.parameters.items():
            parameter.copy_(tensors[f"{number}.{name}"])
            state.adam.state[parameter] = {key: tensors[f"{number}.adam.{name}.{key}"] for key in _ADAM}
        state.rows_since_fired = tensors[f"{number}.rows_since_fired"]


def require_same_run(path: Path, card: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """ValueError where a checkpoint's card is not of the run with this identity, with what differs."""
    differs: list[str] = []
    for what, ours in identity.items():
        theirs = card.get(what)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            differs += [f"{what}: {key}" for key, value in ours.items() if theirs.get(key) != value]
        elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            pairs = zip(ours, theirs)
            differs += sorted({key for mine, other in pairs for key, value in mine.items() if other.get(key) != value})
        elif ours != theirs:
            differs.append(what)
    if differs:
        raise ValueError(
            f"the checkpoint {path} belongs to another run ({', '.join(differs)} differ): remove it, "
            "or choose another path"
        )


def lines_up_to(log: Path, step: int) -> list[str]:
    """The whole lines of a metrics log that belong to the first `step` steps; a stopped run may have written more.

    Raises:
        ValueError: a file that is no metrics log, which must not be lost.
    """
    if not log.exists():
        return []
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            continue  # a killed run was writing it
        try:
            at = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{log} holds something else than metrics: choose another file for the log") from None
        if at <= step:
            kept.append(line)
    return kept
