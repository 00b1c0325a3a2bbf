"""Which tokens an intervention acts on.

`where` is a word (`"all"`, `"prompt"`, `"generated"`) or a `Where`, which also knows positions from the end, the place after
a marker, and rows of the batch. All that a `Where` names must hold of a token. What it says hangs on the text alone: it
chooses the same tokens in one teacher-forced pass, in a prefill and in cached decoding, alone and in a padded batch.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.marker import MarkerSearch

PLACES = ("all", "prompt", "generated")
PHASES = ("forward", "prefill", "decode")
OCCURRENCES = ("first", "last")
MISSING = ("error", "skip")
HookFunction = Callable[[Tensor, HookContext], Tensor | None]


@dataclass(frozen=True)
class Where:
    """Which tokens: those for which everything here holds. Pads are never touched.

        Steer(vector, where=Where(after="<|im_start|>assistant\\n"))
        Steer(vector, where=Where("prompt", positions=[-1]))

    Raises:
        ValueError: an unknown word, positions or rows that are no whole numbers or none at all, an empty marker.
    """

    part: str | Any = "all"
    """`all`; `prompt`, positions below the prompt's length; `generated`, from the prompt's last token on, whose output
    chooses the first new token."""
    positions: Sequence[int] | Any = None
    """Absolute positions, counted from each text's first token. Negative ones count from the end, of the prompt where the
    call has one, else of the text: -1 is the last token. A text that is too short has no such token."""
    phase: str | Any = None
    """`forward` (a plain pass), `prefill` or `decode` (of a generation)."""
    after: str | Any = None
    """A marker, as text: everything from the token that ends it, whose output chooses the first token after it. How it is
    cut into tokens makes no difference."""
    occurrence: str | Any = "first"
    """Which marker: the `first` of the text, or the `last`, of the prompt where the call has one."""
    missing: str | Any = "error"
    """A text without the marker, or a prompt where the call has one, is an `error`; `skip` leaves it alone, until the model
    writes the marker (where the first one counts)."""
    rows: Sequence[int] | Any = None
    """Rows of the batch, from 0; of the prompts, where each is continued several times."""

    def __post_init__(self) -> None:
        for name, words in (("part", PLACES), ("occurrence", OCCURRENCES), ("missing", MISSING)):
            _check_word("where" if name == "part" else name, getattr(self, name), words)
        if self.phase is not None:
            _check_word("phase", self.phase, PHASES)
        for name in ("positions", "rows"):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name)))
        if self.rows is not None and min(self.rows) < 0:
            raise ValueError(f"rows count from 0, got {list(self.rows)}")
        if self.after is None:
            given = [name for name in ("occurrence", "missing") if getattr(self, name) != getattr(Where, name)]
            if given:
                raise ValueError(f"{given[0]}={getattr(self, given[0])!r} is said of a marker: give after=")
        elif not isinstance(self.after, str) or not self.after:
            raise ValueError(f"after= is the text of a marker, such as '\\nAssistant:', got {self.after!r}")

    def describe(self) -> dict[str, Any]:
        """The fields as JSON, for the card of a result; `Where(**described)` is the same again."""
        lists = {
            name: None if (given := getattr(self, name)) is None else list(given) for name in ("positions", "rows")
        }
        return {**asdict(self), **lists}


def chosen_tokens(
    ctx: HookContext, where: str | Where, positions: Sequence[int] | None = None, phase: str | None = None
) -> Bool[Tensor, "batch pos"]:
    """True for the tokens of this pass that an intervention applies to; notes on the handle whether there are any.

    Several functions that choose alike work it out once a pass, so do not write into the result.

    Raises:
        ValueError: a part of a prompt in a call without one, a marker that cannot be found (see `Where`), or an end of texts
            that share one row.
    """
    place = _place(where, positions, phase)
    chosen = ctx.mask if place is EVERYWHERE else _of_pass(ctx, place)
    if ctx.handle is not None and not ctx.handle.reached:
        reached = bool(chosen.any())
        if reached or not _may_be_missing(ctx, place):
            ctx.handle.reached = reached
    return chosen


def check_place(where: str | Where | Any, positions: Sequence[int] | Any = None, phase: str | Any = None) -> None:
    """ValueError for what `chosen_tokens` does not take."""
    if isinstance(where, Where):
        if positions is not None or phase is not None:
            raise ValueError("where= is a Where: say positions and phase in it, Where(positions=..., phase=...)")
    else:
        Where(where, positions, phase)


def part_of(where: str | Where) -> str:
    """The word alone: `all`, `prompt` or `generated`."""
    return where.part if isinstance(where, Where) else where


def described(where: str | Where) -> str | dict[str, Any]:
    """A place as JSON: a word is itself, a `Where` a mapping."""
    return where.describe() if isinstance(where, Where) else where


def describe_place(
    where: str | Where, positions: Sequence[int] | None = None, phase: str | None = None
) -> dict[str, Any]:
    """The three options of an intervention as JSON; a `Where` is a mapping there."""
    return {
        "where": described(where),
        "positions": None if positions is None else list(positions), "phase": phase,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ checks


def _check_word(name: str, given: Any, words: Sequence[str]) -> None:
    if not isinstance(given, str) or given not in words:
        raise ValueError(f"{name}={given!r} is unknown; choose from {', '.join(words)}")


def _whole_numbers(name: str, given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        numbers = tuple(given)
        whole = tuple(int(number) for number in numbers)
    except (TypeError, ValueError):
        raise ValueError(f"{name} are whole numbers in a list, got {given!r}") from None
    if any(isinstance(number, bool | str) or number != int(number) for number in numbers):
        raise ValueError(f"{name} are whole numbers in a list, got {given!r}")
    if not whole:
        raise ValueError(f"{name}=[] names no token; None means all")
    return whole


# ----------------------------------------------------------------------------------------------------------- choosing

EVERYWHERE = Where()


def _place(where: str | Where, positions: Sequence[int] | None, phase: str | None) -> Where:
    if isinstance(where, Where):
        return EVERYWHERE if where == EVERYWHERE else where
    if where == "all" and positions is None and phase is None:
        return EVERYWHERE
    return _known_place(where, None if positions is None else tuple(positions), phase)


@functools.lru_cache(maxsize=256)
def _known_place(where: str, positions: tuple[int, ...] | None, phase: str | None) -> Where:
    return Where(where, positions, phase)


def _of_pass(ctx: HookContext, place: Where) -> Bool[Tensor, "batch pos"]:
    """Every function of a pass that asks for the same place gets the same answer."""
    if ctx.texts is None:
        return _chosen(ctx, place)
    if place not in ctx.texts.now:
        ctx.texts.now[place] = _chosen(ctx, place)
    return ctx.texts.now[place]


def _chosen(ctx: HookContext, place: Where) -> Bool[Tensor, "batch pos"]:
    if ctx.phase == "decode" and ctx.mask.shape[1] == 1 and _names_no_new_token(place):
        return torch.zeros_like(ctx.mask)
    chosen = ctx.mask
    if place.phase is not None:
        chosen = chosen & _in_phase(ctx, place.phase)
        if ctx.phase != place.phase and ctx.phase != "decode":
            return chosen
    if place.positions is not None:
        chosen = chosen & _at(ctx, place.positions)
    if place.rows is not None:
        copies = 1 if ctx.texts is None else ctx.texts.copies
        rows = torch.arange(len(ctx.mask), device=ctx.mask.device) // copies
        chosen = chosen & torch.isin(rows, torch.tensor(place.rows, device=rows.device))[:, None]
    if place.after is not None:
        chosen = chosen & (ctx.positions >= _search(ctx, place).starts(ctx))
    if place.part == "all":
        return chosen
    if ctx.prompt_len is None:
        raise ValueError(
            f"where={place.part!r} needs to know the prompt: pass prompt_len= to the forward call (generate knows it)"
        )
    length = ctx.prompt_len[:, None]
    return chosen & (ctx.positions < length if place.part == "prompt" else ctx.positions >= length - 1)


def _names_no_new_token(place: Where) -> bool:
    """Whether no token that a generation added can be meant: its steps need not look."""
    from_end = place.positions is not None and max(place.positions) < 0
    return from_end or place.part == "prompt" or place.phase not in (None, "decode")


def _in_phase(ctx: HookContext, phase: str) -> Bool[Tensor, "batch pos"]:
    """A decode pass that runs over all tokens again, as some rotations need it, holds the tokens of the prefill too."""
    if ctx.phase == "decode" and phase != "forward" and ctx.mask.shape[1] > 1:
        assert ctx.prompt_len is not None
        prefilled = ctx.positions < ctx.prompt_len[:, None]
        return prefilled if phase == "prefill" else ~prefilled
    return torch.full_like(ctx.mask, ctx.phase == phase)


def _at(ctx: HookContext, positions: Sequence[int]) -> Bool[Tensor, "batch pos"]:
    def named(places: Tensor, wanted: list[int]) -> Tensor:
        return torch.isin(places, torch.tensor(wanted, dtype=places.dtype, device=places.device))

    from_start, from_end = ([p for p in positions if (p >= 0) is side] for side in (True, False))
    found = named(ctx.positions, from_start)
    return found | named(ctx.positions - _ends(ctx), from_end) if from_end else found


def _ends(ctx: HookContext) -> Int[Tensor, "batch #pos"]:
    """Where positions from the end begin to count: the prompt's length, or the text's."""
    if ctx.prompt_len is not None:
        return ctx.prompt_len[:, None]
    if ctx.texts is not None and (ctx.texts.documents is not None or ctx.texts.parents is not None):
        raise ValueError(
            "positions from the end are not known where a row holds several texts: give the texts one by one, or prompt_len="
        )
    return ctx.mask.sum(1, keepdim=True)


def _search(ctx: HookContext, place: Where) -> MarkerSearch:
    """The search of this call, which remembers what was found in the prompt."""
    last, needed = place.occurrence == "last", place.missing == "error"
    made = MarkerSearch(place.after, last=last, needed=needed, rows=place.rows)
    if ctx.texts is None:
        return made
    return ctx.texts.call.setdefault((MarkerSearch, place), made)


def _may_be_missing(ctx: HookContext, place: Where) -> bool:
    """Whether nothing was chosen because no text has the marker, as the caller allows."""
    return place.missing == "skip" and not _search(ctx, place).found
