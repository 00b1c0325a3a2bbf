"""Which dictionaries `interp sae train` makes of its options, what they are called, and where their files go.

An option that is given several times is a sweep: every combination is trained, in one pass over the rows. What is not
given follows from the number of rows.
"""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from interp.sae.config import KINDS, SAEConfig, config_class

_WANTED_STEPS = 200
"""A run of fewer steps has smaller batches."""
_BATCHES = (256, 4096)
"""Smallest and largest batch that is chosen."""
_MANY_ROWS = 1_000_000
"""From here on once over the rows is enough."""


@dataclass(frozen=True)
class Pace:
    """Epochs and batches of a run over some rows."""

    epochs: int
    batch_size: int
    n_steps: int
    """About."""

    @classmethod
    def of(cls, n_rows: int, epochs: int | None, batch_size: int | None) -> "Pace":
        """What suits so many rows, where it is not given."""
        epochs = epochs or (1 if n_rows >= _MANY_ROWS else 2)
        if batch_size is None:
            least, batch_size = _BATCHES
            while batch_size > least and n_rows * epochs < _WANTED_STEPS * batch_size:
                batch_size //= 2
        return cls(epochs, batch_size, epochs * math.ceil(n_rows / batch_size))


def sweep(kinds: Sequence[str], swept: Mapping[str, Sequence[Any]], common: Mapping[str, Any]) -> dict[str, SAEConfig]:
    """Name -> configuration, one for each combination of the values in `swept`; the name says what differs.

    Raises:
        click.UsageError: an option that none of the kinds takes.
        ValueError: an unknown kind, or values that a configuration refuses.
    """
    given = {name: list(dict.fromkeys(values)) for name, values in swept.items() if values}
    kinds = list(dict.fromkeys(config_class(kind).kind for kind in kinds))
    fields = {kind: set(KINDS[kind].__dataclass_fields__) for kind in kinds}
    for name in [*given, *common]:
        if not any(name in own for own in fields.values()):
            takers = [kind for kind, each in KINDS.items() if name in each.__dataclass_fields__]
            why = f"it goes with {', '.join(takers)}" if takers else "there is no such choice"
            raise click.UsageError(f"--kind {', '.join(kinds)} takes no {name}: {why}")
    found: dict[str, SAEConfig] = {}
    for kind in kinds:
        axes = {name: values for name, values in given.items() if name in fields[kind]}
        shared = {name: value for name, value in common.items() if name in fields[kind]}
        for values in itertools.product(*axes.values()):
            choice = dict(zip(axes, values, strict=True))
            differs = [_part(name, value) for name, value in choice.items() if len(given[name]) > 1]
            label = "-".join([kind] * (len(kinds) > 1) + differs)
            found[label or "sae"] = SAEConfig(kind=kind, **shared, **choice)
    return found


def _part(name: str, value: Any) -> str:
    """A choice as a part of a file name: k32, width8x, l0_40."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name}{'_' if name[-1].isdigit() else ''}{text}"


def width_of(word: str) -> int | str:
    """A number of latents, or a multiple of the rows' width."""
    return int(word) if word.isdigit() else word


def setting_of(word: str) -> tuple[str, Any]:
    """NAME=VALUE of --set; the value is JSON, such as 0.1, true or [0.5, 0.5]."""
    name, equals, text = word.partition("=")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not equals or value is None:
        raise click.BadParameter(f"{word!r} is not NAME=VALUE with a number, true or false", param_hint="--set")
    return name, tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Places:
    """The files of a run."""

    saes: dict[str, Path]
    """Name -> file."""
    checkpoint: Path
    log: Path

    @classmethod
    def of(cls, out: Path, names: Sequence[str]) -> "Places":
        """One dictionary goes to `out` itself; several into it where it is a folder or has no suffix, else beside it, with
        their names behind its stem."""
        if len(names) == 1:
            if out.is_dir():
                raise click.BadParameter(f"{out} is a folder; give the name of a file in it", param_hint="--out")
            files = {names[0]: out}
        elif out.is_dir() or not out.suffix:
            files = {name: out / f"{name}.safetensors" for name in names}
            return cls(files, out / "checkpoint.safetensors", out / "metrics.jsonl")
        else:
            files = {name: out.with_name(f"{out.stem}-{name}{out.suffix}") for name in names}
        stem = out.name.removesuffix(".safetensors")
        return cls(files, out.with_name(f"{stem}.checkpoint.safetensors"), out.with_name(f"{stem}.metrics.jsonl"))

    def check(self, *, force: bool) -> None:
        """Refuse what would be lost. A checkpoint shows that these files are of a run under way, which may write them again.

        Raises:
            click.BadParameter: a file that exists, or a folder that cannot be made or written.
        """
        there = [str(path) for path in self.saes.values() if path.exists()]
        if there and not force and not self.checkpoint.exists():
            raise click.BadParameter(
                f"{', '.join(there)} exists already: choose another place, or overwrite with --force",
                param_hint="--out",
            )
        above = next(folder for folder in self.checkpoint.absolute().parents if folder.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            why = "is a file" if not above.is_dir() else "cannot be written"
            raise click.BadParameter(f"{self.checkpoint.parent}: {above} {why}", param_hint="--out")

    def prepare(self, *, restart: bool) -> None:
        """Make the folder; with `restart` forget a run under way."""
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        if restart:
            self.checkpoint.unlink(missing_ok=True)
