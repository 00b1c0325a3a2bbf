"""Checkpoints of a training run: everything that the next step depends on, whole or not at all.

A run's folder holds `steps.jsonl`, a line of metrics a step, and a folder `step-00000100` a checkpoint, with

- `config.json`, the architecture, and `model.safetensors`, the weights: `load_checkpoint` makes a model of them;
- `tokenizer.json` where the model has a tokenizer;
- `training.safetensors`, AdamW's moments, with counters and choices of the run in its card.

There is no state of random generators or data: both follow from the number of the batch. A checkpoint's folder appears by
one rename, so a process killed at any moment leaves whole ones.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from interp import artifact
from interp.model import HookedTransformer, ModelConfig
from interp.tokens import Tokenizer

LOG = "steps.jsonl"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a run needs to go on from a step."""

    weights: dict[str, Tensor]
    """The model's state dict."""
    moments: dict[str, Tensor]
    """AdamW's state by parameter and key."""
    card: dict[str, Any]
    """`identity`, what the run is, and `progress`, where it stands."""


@dataclass
class MemoryCheckpoints:
    """Checkpoints of a run without a folder: what a loss spike can go back to."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Keep copies."""
        weights, moments = _copies(snapshot.weights), _copies(snapshot.moments)
        self.snapshots[step] = Snapshot(weights, moments, snapshot.card)

    def load(self, step: int) -> Snapshot:
        """What was saved at a step."""
        return self.snapshots[step]

    def steps(self) -> list[int]:
        """Steps that are there, in order."""
        return sorted(self.snapshots)

    def drop(self, step: int) -> None:
        """Forget one."""
        del self.snapshots[step]


class FolderCheckpoints:
    """Checkpoints in a run's folder. One process writes it at a time."""

    def __init__(self, folder: Path, cfg: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self.folder, self.cfg, self.tokenizer = folder, cfg, tokenizer

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Write one checkpoint atomically."""
        with artifact.atomic_folder(checkpoint_path(self.folder, step)) as folder:
            artifact.write_json(folder / "config.json", self.cfg.to_dict())
            artifact.save_artifact(folder / "model.safetensors", "model weights", snapshot.weights, {"step": step})
            artifact.save_artifact(folder / "training.safetensors", "training state", snapshot.moments, snapshot.card)
            if self.tokenizer is not None:
                self.tokenizer.save(folder)

    def load(self, step: int) -> Snapshot:
        """Read one checkpoint, on the CPU.

        Raises:
            ValueError: it is damaged. The message says what to remove, and where the run goes on then.
        """
        try:
            return self._read(step)
        except (ValueError, OSError) as error:
            raise ValueError(self._mend(step, error)) from error

    def _read(self, step: int) -> Snapshot:
        folder = checkpoint_path(self.folder, step)
        weights, _ = artifact.load_artifact(folder / "model.safetensors", "model weights")
        moments, card = artifact.load_artifact(folder / "training.safetensors", "training state")
        if not {"identity", "progress"} <= set(card):
            raise ValueError(f"{folder / 'training.safetensors'} does not say what run it is of")
        return Snapshot(weights, moments, card)

    def _mend(self, step: int, error: Exception) -> str:
        """What to do about a damaged checkpoint: go back to the newest whole one before it, if there is one."""
        doomed = [step]
        for earlier in reversed([each for each in self.steps() if each < step]):
            try:
                self._read(earlier)
            except (ValueError, OSError):
                doomed.append(earlier)
                continue
            remove = " and ".join(str(checkpoint_path(self.folder, each)) for each in doomed)
            return (
                f"the checkpoint of step {step} is damaged: {error}. The one of step {earlier} is whole: remove {remove} "
                f"to go on from there"
            )
        return (
            f"the checkpoint of step {step} is damaged: {error}. No whole one comes before it: remove {self.folder} to "
            "begin anew, or choose another folder"
        )

    def steps(self) -> list[int]:
        """Steps that are there, in order."""
        return checkpoint_steps(self.folder)

    def drop(self, step: int) -> None:
        """Remove one; a reader never sees a part of it."""
        path = checkpoint_path(self.folder, step)
        doomed = path.with_name(f".{path.name}.dropped.part")  # what `sweep` removes after a kill
        os.replace(path, doomed)
        shutil.rmtree(doomed)

    def sweep(self) -> None:
        """Remove what a killed process left half written. Only for the holder of the folder."""
        for leftover in self.folder.glob(".step-*.part"):
            shutil.rmtree(leftover)


def require_place(folder: str | os.PathLike[str]) -> Path:
    """Make a folder for a run, or see that one that is there holds a run or nothing.

    Raises:
        ValueError: it is a file, it cannot be made or written, or other things lie in it.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; checkpoints need a folder: choose another path")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ValueError(f"{folder} cannot be made or read ({error.strerror}): choose another path") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} cannot be written: choose another path, or change its permissions")
    # What a process leaves that was killed before its first checkpoint is no reason to refuse.
    foreign = [name for name in names if name != ".lock" and not (name.startswith(".step-") and name.endswith(".part"))]
    if foreign and not checkpoint_steps(folder):
        raise ValueError(
            f"{folder} has no checkpoints and is not empty ({foreign[0]!r} lies there): choose another path"
        )
    return folder


def checkpoint_path(folder: str | os.PathLike[str], step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return Path(folder) / f"step-{step:08d}"


def checkpoint_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Steps that a run's folder has checkpoints of, in order."""
    found = [_NAME.fullmatch(path.name) for path in Path(folder).iterdir()] if Path(folder).is_dir() else []
    return sorted(int(match[1]) for match in found if match is not None)


def load_checkpoint(folder: str | os.PathLike[str], step: int | None = None) -> HookedTransformer:
    """A model as it was at a checkpoint, in eval mode.

    Args:
        folder: a run's folder, or one checkpoint in it.
        step: which checkpoint of a run; None is the newest.

    Raises:
        ValueError: no checkpoint there, or a damaged one.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        steps = checkpoint_steps(folder)
        if not steps or step not in (None, *steps):
            has = f"it has steps {', '.join(map(str, steps))}" if steps else "train_model(checkpoint=) makes them"
            raise ValueError(f"{folder} has no checkpoint{'' if step is None else f' of step {step}'}: {has}")
        folder = checkpoint_path(folder, steps[-1] if step is None else step)
    elif step is not None:
        raise ValueError(f"{folder} is one checkpoint: leave step={step} out, or give the run's folder")
    cfg = ModelConfig.from_dict(artifact.read_json(folder / "config.json"))
    weights, _ = artifact.load_artifact(folder / "model.safetensors", "model weights")
    if "embed.weight" not in weights:
        raise ValueError(f"{folder / 'model.safetensors'} holds no embed.weight: it is not the weights of a checkpoint")
    tokenizer = Tokenizer.from_folder(folder) if (folder / "tokenizer.json").is_file() else None
    model = HookedTransformer(cfg, tokenizer, dtype=weights["embed.weight"].dtype, blank=True)
    restore_weights(model, weights, str(folder))
    return model


def restore_weights(model: HookedTransformer, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model. ValueError where names or shapes are not the model's own."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights of {where} do not fit the model: {' '.join(str(error).split())}") from None


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
