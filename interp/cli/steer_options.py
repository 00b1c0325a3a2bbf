"""What the commands of `interp steer` share: how strengths, places and vectors are given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from interp.intervene.edits import KINDS
from interp.intervene.place import PLACES, Where
from interp.intervene.targets import UNITS
from interp.steer_job import load_vector
from interp.steer_job.spec import SWEPT


class Numbers(click.ParamType):
    """Numbers between commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """`-0.1,0.1` -> (-0.1, 0.1)."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers, such as --strengths=-0.1,0.1", param, ctx)


_EDIT = (
    click.option("--kind", type=click.Choice(KINDS), help="What is done along the direction; default: add."),
    click.option(
        "--unit",
        type=click.Choice(UNITS),
        help="Of strengths: typical norms (default), sd along the direction, as fitted.",
    ),
    click.option(
        "--site",
        help="Where it acts, if not where it was fitted: a place, a range such as resid_post:4-12, or writes for everything that "
        "writes to the stream.",
    ),
)
_PLACE = (
    click.option("--where", type=click.Choice(PLACES), help="Which tokens; default: all."),
    click.option("--after", metavar="TEXT", help="Only tokens from the end of this marker on."),
)


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """To which tokens."""
    for option in reversed(_PLACE):
        command = option(command)
    return command


def edit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is done, in which unit, where in the model, to which tokens."""
    for option in reversed((*_EDIT, *_PLACE)):
        command = option(command)
    return command


def sweepable(kind: str | None) -> None:
    """UsageError for what cannot be swept."""
    if kind is not None and kind not in SWEPT:
        raise click.UsageError(
            f"--kind {kind} cannot be swept, its strength 0 is no unsteered run: use interp steer apply"
        )


def place_of(where: str | None, after: str | None) -> str | Where:
    """The options as `Steer` takes them."""
    return (where or "all") if after is None else Where(where or "all", after=after)


def vector_of(word: str) -> Any:
    """FILE, or FILE:FACTOR.

    Raises:
        click.BadParameter: no file, or one that holds no vector.
    """
    path, colon, factor = word.rpartition(":")
    try:
        number = float(factor) if colon else None
    except ValueError:
        number = None
    try:
        found = load_vector(Path(word if number is None else path))
        return found if number is None else found * number
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
