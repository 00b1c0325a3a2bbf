"""What interventions did, token by token: a record of every change that they made while a block ran.

1. `watch_interventions` applies interventions exactly as `model.intervene` does. Each of their functions is called with the
   value that it would get there, and what it returns goes on: the logits are the same, bit for bit.
2. Beside each call the value before is compared with the value after. A token whose value differs was *touched*: its row in
   the record says by which intervention, at which site and in which phase, by how much (the norm of the change), by what
   share of the value's own norm, and how far along the direction, where the intervention has one.
3. Rows are named by the text and the absolute position, so a pass over a whole text, a generation with a KV cache, several
   continuations and batches with pads give the same record. Pads are never in it, nor what passes in a row of a batch after
   its end-of-text token, while other rows go on.

Two interventions at one site each see what the one before left, and so does the record.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.intervene.place import HookFunction
from interp.intervene.steer import Steer
from interp.intervene.targets import Target
from interp.model import HookedTransformer
from interp.model.generate import Generation
from interp.model.transformer import Intervention
from interp.model.vocabulary import token_labels

COLUMNS = (
    "call", "row", "position", "token", "token_id", "phase", "site", "intervention", "kind", "size", "share", "along",
)  # fmt: skip
"""Of the frame of changes."""
TOKEN_COLUMNS = (
    "call", "row", "position", "token", "token_id", "phase", "n_changes", "size", "share", "along", "condition",
)  # fmt: skip
"""Of the frame of tokens."""
PLACE = ["pass", "row", "place"]
_NO_CHANGES = {name: np.zeros(0, np.int64) for name in (*PLACE, "number", "intervention")} | {
    "site": np.zeros(0, str), **{name: np.zeros(0) for name in ("size", "share", "along")}
}  # fmt: skip
_SHOWN = 8  # texts that str() shows


@dataclass(frozen=True, eq=False)
class _Change:
    """One call of one function of an intervention: the tokens that it touched."""

    intervention: int
    site: str
    token: Int[np.ndarray, " touched"]
    """Index among the real tokens of the pass."""
    size: Float64[np.ndarray, " touched"]
    share: Float64[np.ndarray, " touched"]
    along: Float64[np.ndarray, " touched"]

    @classmethod
    def between(
        cls,
        before: Tensor,
        after: Tensor,
        mask: Bool[Tensor, "batch pos"],
        *,
        intervention: int,
        site: str,
        targets: Sequence[Target],
    ) -> "_Change":
        """What differs between two values of a site at the tokens of the mask; measured in float64."""
        if site_names.kind_of(site).shape == "batch head query key":  # a token is the query here
            before, after = before.transpose(1, 2), after.transpose(1, 2)
        old, new = before[mask].double(), after[mask].double()
        moved = torch.where(new == old, 0.0, new - old)  # also where both are -inf
        size = moved.flatten(1).norm(dim=1)
        share = size / old.flatten(1).norm(dim=1)
        share = torch.where(share.isfinite(), share, torch.nan)
        along = torch.full_like(size, torch.nan)
        for target in targets:
            own = moved.flatten(1) if target.head is None else moved[:, target.head]
            step = own @ target.direction.to(own)
            along = torch.where(along.isnan(), step, along + step)
        token = size.nonzero()[:, 0]  # NaN is not zero
        found = (each.cpu().numpy() for each in (token, size[token], share[token], along[token]))
        return cls(intervention, site, *found)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One pass: its real tokens, and what was done to them."""

    begun: int
    """Number of the pass, as the model counts."""
    call: int
    phase: str
    n_rows: int
    mask: Bool[Tensor, "batch pos"]
    """The tokens that count."""
    row: Int[np.ndarray, " token"]
    place: Int[np.ndarray, " token"]
    """Number of the token in its row, pads not counted: what the position is, where a row is one text."""
    position: Int[np.ndarray, " token"]
    token_id: Int[np.ndarray, " token"]
    changes: list[_Change] = field(default_factory=list)
    held: dict[int, Bool[np.ndarray, " token"]] = field(default_factory=dict)
    """Intervention -> where its condition held."""


class Applied:
    """The record of a block; made by `watch_interventions`, filled while its block runs, readable afterwards.

    Attributes:
        interventions: those that were applied, in order; the frames name them by their number here.
    """

    def __init__(self, model: HookedTransformer, interventions: Sequence[Any], *, stop_at_eos: bool) -> None:
        """As `watch_interventions` makes it."""
        self.interventions = tuple(interventions)
        self._model = model
        tokenizer = model.tokenizer
        self._eos = tokenizer.eos_id if tokenizer is not None and stop_at_eos else None
        self._passes: list[_Pass] = []
        self._kinds = [_kind(each) for each in self.interventions]

    def __repr__(self) -> str:
        return f"Applied({', '.join(self._kinds)}: {len(self._passes)} passes)"

    def __str__(self) -> str:
        """A line for each intervention, then the texts of the last call with their marks."""
        if not self._passes:
            return f"{self!r}"
        call, lines = self._passes[-1].call, []
        tokens, changes = _where(self.to_frame("token"), call=call), _where(self.to_frame(), call=call)
        for number, kind in enumerate(self._kinds):
            mine = _where(changes, intervention=number)
            touched = len(mine[["row", "position"]].drop_duplicates())
            size, share, n = mine["size"].median(), mine["share"].median(), len(set(mine["site"]))
            places = f"{n} site{'s' if n > 1 else ''}"
            figures = f" at {places}, median size {size:.3g}, share {share:.3g}" if touched else ""
            lines.append(f"{number} {kind}: {touched} of {len(tokens)} tokens{figures}")
        rows = sorted(set(tokens["row"]))
        if min(tokens["token_id"].tolist(), default=0) < 0:
            return "\n".join([*lines, "the last pass began from a stream and was not told its tokens"])
        for row in rows[:_SHOWN]:
            mine = _where(tokens, row=row)
            lines.append(f"row {row}: {self._marked(mine, mine['token_id'].tolist())}")
        return "\n".join([*lines, *([f"... and {len(rows) - _SHOWN} rows"] if len(rows) > _SHOWN else [])])

    # Reading ------------------------------------------------------------------------------------------------------

    def to_frame(self, by: str = "change", generation: Generation | None = None) -> pd.DataFrame:
        """The record as a frame. `call` counts passes over texts and generations of the block from 0.

        With `n_samples` a row is a continuation, as in `Generation.rows`.

        Args:
            by: "change": a row for each token, site and intervention that touched it: call, row, position, token, token_id,
                phase, site (short), intervention (its number), kind, size (norm of the change, in activations; infinite for
                scores that were cut to -inf), share (of the norm of the value before), along (change of the coordinate along
                the direction; over several heads their sum; NaN where there is no direction). "token": a row for each token,
                touched or not: n_changes, sums of size and along over sites and interventions, the largest share, and
                condition (whether that of any intervention held; NA where none has one).
            generation: the one that ran inside the block: its rows, and of each the tokens of the result alone.

        Raises:
            ValueError: another `by`; no pass has run; not exactly one generation of so many rows.
        """
        if by not in ("change", "token"):
            raise ValueError(f"by={by!r} is unknown; choose from change, token")
        tokens = self._tokens(generation)
        changes = tokens.merge(self._changes(), on=PLACE)
        if by == "change":
            changes = changes.sort_values(["call", "row", "place", "intervention", "number"], ignore_index=True)
            return changes.assign(kind=[self._kinds[i] for i in changes["intervention"]]).loc[:, list(COLUMNS)]
        summed = changes.groupby(PLACE, sort=False).agg(
            n_changes=("number", "count"), size=("size", "sum"), share=("share", "max"), along=("along", _sum_of_known)
        )
        found = tokens.merge(summed, on=PLACE, how="left").sort_values(["call", "row", "place"], ignore_index=True)
        found.loc[found["n_changes"].isna(), ["n_changes", "size", "share"]] = 0.0
        return found.astype({"n_changes": "int64"}).loc[:, list(TOKEN_COLUMNS)]

    def text(self, row: int = 0, *, call: int | None = None, generation: Generation | None = None) -> str:
        """One text with the touched tokens in brackets: `The film was[+ truly great].`

        `+` further along the direction, `-` against it, `~` changed where there is no direction.

        Args:
            row: of the batch; with `n_samples` the continuation.
            call: which pass or generation of the block; None for the last one.
            generation: the one that ran inside the block; its last token, which was chosen and not fed, then stands there
                too.

        Raises:
            ValueError: no such row or call, a pass that was not told its tokens, and as `to_frame`.
        """
        frame = self.to_frame("token", generation)
        call = int(max(frame["call"].tolist())) if call is None else call
        frame = _where(frame, call=call, row=row)
        if frame.empty:
            raise ValueError(f"nothing was recorded of row {row} in call {call}: see to_frame('token')")
        ids = frame["token_id"].tolist() if generation is None else generation.rows[row].all_tokens
        if min(ids) < 0:
            raise ValueError(f"call {call} began from a stream and was not told its tokens: pass tokens= to the model")
        return self._marked(frame, ids)

    def _marked(self, tokens: pd.DataFrame, ids: Sequence[int]) -> str:
        """The text of some ids, of which `tokens` has a row for the first ones."""
        marks = [
            "" if not n else "~" if np.isnan(along) or not along else "+" if along > 0 else "-"
            for n, along in zip(tokens["n_changes"], tokens["along"], strict=True)
        ]
        marks += [""] * (len(ids) - len(marks))
        pieces = []
        for mark, run in groupby(zip(marks, self._texts(ids), strict=True), key=lambda pair: pair[0]):
            joined = "".join(text for _, text in run)
            pieces.append(f"[{mark}{joined}]" if mark else joined)
        return "".join(pieces)

    def _texts(self, ids: Sequence[int]) -> list[str]:
        """What each token adds to the text."""
        if self._model.tokenizer is None:
            return [f" {each}" for each in ids]
        return [view.piece if view.kind == "special" else view.text for view in self._model.tokenizer.views(list(ids))]

    def _tokens(self, generation: Generation | None) -> pd.DataFrame:
        """A row for each token of each call, with the last pass that it was in."""
        if not self._passes:
            raise ValueError("no pass has run inside the block of this watch: call the model, or generate, in it")
        parts = []
        for number, each in enumerate(self._passes):
            held = (
                np.any(list(each.held.values()), axis=0).astype(float) if each.held else np.full(len(each.row), np.nan)
            )
            columns = {"call": each.call, "row": each.row, "place": each.place, "position": each.position}
            parts.append((number, columns | {"token_id": each.token_id, "phase": each.phase, "condition": held}))
        # Where a longer text turns all rotations anew, its tokens pass once more: the last pass is the one that counts.
        frame = self._stacked(parts).drop_duplicates(["call", "row", "place"], keep="last")
        if generation is not None:
            frame = self._of_generation(frame, generation)
        frame = frame.sort_values(["call", "row", "place"], ignore_index=True).astype({"condition": "boolean"})
        return frame.assign(token=self._labels(frame))

    def _changes(self) -> pd.DataFrame:
        """A row for each change, named by pass, row and place; `number` is its order in the pass."""
        parts = []
        for number, each in enumerate(self._passes):
            for order, change in enumerate(each.changes):
                columns = {"row": each.row[change.token], "place": each.place[change.token], "number": order}
                columns |= {"site": site_names.short_name(change.site), "intervention": change.intervention}
                parts.append((number, columns | {"size": change.size, "share": change.share, "along": change.along}))
        return self._stacked(parts) if parts else pd.DataFrame(_NO_CHANGES)

    def _stacked(self, parts: Sequence[tuple[int, dict[str, Any]]]) -> pd.DataFrame:
        """Columns of passes, given with the pass's number, one below the other.

        A prompt that was continued several times stands there for each continuation.
        """
        n_rows: dict[int, int] = {}
        for each in self._passes:
            n_rows[each.call] = max(each.n_rows, n_rows.get(each.call, 0))
        stacks: dict[str, list[np.ndarray]] = {}
        for number, columns in parts:
            each = self._passes[number]
            copies = n_rows[each.call] // each.n_rows
            for copy in range(copies):
                for name, values in (columns | {"pass": number, "row": columns["row"] * copies + copy}).items():
                    stacks.setdefault(name, []).append(np.broadcast_to(values, columns["row"].shape))
        return pd.DataFrame({name: np.concatenate(stack) for name, stack in stacks.items()})

    def _of_generation(self, frame: pd.DataFrame, generation: Generation) -> pd.DataFrame:
        calls = list({each.call for each in self._passes if each.phase == "prefill"})
        n_rows = len(generation.rows)
        if len(calls) != 1 or frame.loc[frame["call"] == calls[0], "row"].nunique() != n_rows:
            raise ValueError(
                f"{len(calls)} generations ran in the block of this watch, and this one has {n_rows} rows: give the one that "
                "ran there, and let one run in a block"
            )
        lengths = np.array([len(row.all_tokens) for row in generation.rows])
        frame = frame.loc[(frame["call"] == calls[0]).to_numpy()]
        return frame.loc[frame["place"].to_numpy() < lengths[frame["row"].to_numpy()]]

    def _labels(self, frame: pd.DataFrame) -> pd.Series:
        found = pd.Series("", index=frame.index, dtype=object)
        for _, text in frame.groupby(["call", "row"], sort=False):
            known = text[text["token_id"] >= 0]
            found[known.index] = token_labels(self._model, known["token_id"].tolist())
        return found

    # During a pass ------------------------------------------------------------------------------------------------

    def recording(self, number: int, fn: HookFunction, targets: Sequence[Target]) -> HookFunction:
        """A function of an intervention, with a record of what it does."""

        def record(value: Tensor, ctx: HookContext) -> Tensor | None:
            before = value.detach().clone()  # the function may write into the value
            new = fn(value, ctx)
            now = self._current(ctx)
            held = getattr(fn, "last_condition", None)
            if held is not None:
                now.held[number] = held[now.mask].cpu().numpy()
            after = value if new is None else new
            if after.shape == before.shape:  # another shape is refused by who called this
                about = {"intervention": number, "site": ctx.name, "targets": targets}
                change = _Change.between(before, after.detach(), now.mask, **about)
                if len(change.token):
                    now.changes.append(change)
            return new

        return record

    def _current(self, ctx: HookContext) -> _Pass:
        """The pass that is under way; made when the first function is called in it."""
        begun, texts = self._model.run.begun, ctx.texts
        if self._passes and self._passes[-1].begun == begun:
            return self._passes[-1]
        assert texts is not None
        call = texts.call.setdefault(self, 1 + max((each.call for each in self._passes), default=-1))
        width = ctx.mask.shape[1]
        ids = torch.full_like(ctx.positions, -1) if texts.ids is None else texts.ids[:, -width:]
        mask = ctx.mask
        if ctx.phase == "decode" and self._eos is not None and texts.ids is not None:
            new = texts.ids == self._eos
            new[:, : new.shape[1] - ctx.step] = False  # an end-of-text token of the prompt ends nothing
            mask = mask & ~new.cumsum(1).bool()[:, -width:]
        place = (texts.real.cumsum(1) - 1)[:, -width:]
        row = mask.nonzero()[:, 0].cpu().numpy()
        places, positions, known = (each[mask].cpu().numpy() for each in (place, ctx.positions, ids))
        self._passes.append(_Pass(begun, call, ctx.phase, len(mask), mask, row, places, positions, known))
        return self._passes[-1]


@dataclass(frozen=True, eq=False)
class _Recorded:
    """An intervention as `model.intervene` takes it, with a record of what it does."""

    number: int
    intervention: Intervention
    applied: Applied

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, Callable[..., Any]]]:
        """The functions of the intervention, each with its record."""
        found = list(self.intervention.hook_functions(model))
        placed = self.intervention.placed(model) if isinstance(self.intervention, Steer) else {}
        return [(name, self.applied.recording(self.number, fn, placed.get(name, ()))) for name, fn in found]


@contextmanager
def watch_interventions(model: HookedTransformer, *interventions: Any, stop_at_eos: bool = True) -> Iterator[Applied]:
    """Apply interventions for the length of the block, in the order given, and record what they do to each token.

        with watch_interventions(model, Steer(vector, 0.1, where="generated")) as applied:
            out = model.generate("The film was", max_new_tokens=20)
        print(applied.text(generation=out))
        applied.to_frame("token", out)

    Args:
        model: the model.
        interventions: `Steer`, `Ablate`, `Patch` and their like.
        stop_at_eos: leave out what passes in a row after its end-of-text token; False where `generate` runs with False.

    Raises:
        ValueError: no intervention, and as `model.intervene` does.
    """
    if not interventions:
        raise ValueError("there is no intervention to watch: watch_interventions(model, Steer(...), ...)")
    applied = Applied(model, interventions, stop_at_eos=stop_at_eos)
    recorded = [
        _Recorded(number, each, applied) if isinstance(each, Intervention) else each
        for number, each in enumerate(interventions)
    ]
    with model.intervene(*recorded):
        yield applied


def _kind(intervention: Any) -> str:
    """What an intervention is, as its own description says it, else the name of its class."""
    described = intervention.describe() if hasattr(intervention, "describe") else {}
    named = [described.get("intervention"), described.get("kind")]
    return " ".join(str(each) for each in named if each) or type(intervention).__name__.lower()


def _where(frame: pd.DataFrame, **values: int) -> pd.DataFrame:
    """The rows of a frame with these values in these columns."""
    return frame.loc[np.logical_and.reduce([frame[name].to_numpy() == value for name, value in values.items()])]


def _sum_of_known(values: pd.Series) -> float:
    """The sum without the NaN of what has no direction; NaN where nothing has one."""
    return float(values.sum(min_count=1))
