"""What is known of the rows that a probe reads: labels, groups, and the columns that tell one kind of statement from another.

Everything is checked once, before an activation is read. Three columns have a meaning: `polarity` (affirmative or
negated), `topic` (the set or subject that a row comes from), `pair` (a negated row and its affirmative one have the same).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int
from torch import Tensor

from interp.probe.inputs import MIN_GROUPS, ROWS, Column, check_groups, check_labels, names_of, tie_texts

POLARITIES = {"affirmative": 1, "negated": -1}
"""What stands in the column `polarity`."""
MEANINGS = ("polarity", "topic", "pair")
"""The columns that a kind of probe may need."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows with labels and groups; it knows no activation."""

    texts: list[str]
    """One a row."""
    y: Int[np.ndarray, " row"]
    """0 or 1."""
    groups: Int[np.ndarray, " row"]
    """Numbers from 0; rows of a group are never divided. Groups that share a text are one."""
    groups_from: str
    """Where the groups come from, in words."""
    frame: pd.DataFrame
    """Every column of the rows."""
    polarity: Int[np.ndarray, " row"] | None = None
    """+1 affirmative, -1 negated, 0 where a row says neither; None without the column."""
    topic: list[str] | None = None
    """Set or subject; None without the column."""
    pair: list[str | None] | None = None
    """The same for a negated row and its affirmative one, None for a row of no pair; None without the column."""
    own_names: list[str] | None = None
    """Each row's group as the data names it, before groups were tied; None where rows, or texts, are groups of their own."""
    repeated: int = 0
    """Texts, case and spacing aside, that stood in more than one group before these were tied."""
    tied: tuple[int, int] = (0, 0)
    """Groups that share a text with another one, and the groups that they were tied into."""

    @classmethod
    def of(cls, frame: pd.DataFrame, groups: Column | str | None = None, n_folds: int = 5) -> "Labelled":
        """The rows of a frame with the columns `text`, `label` and, unless `groups` are given, `group`.

        Groups that share a text are tied into one, also where every row is its own group: the activations of a text are
        the same wherever it stands, and a probe would be tested on what it was trained on.

        Raises:
            ValueError: missing or strange labels; too few groups, before they are tied or after; a polarity that is none;
                rows without a topic among rows with one; pairs whose two rows do not have opposite labels or stand in two
                groups, or whose group has one label only.
        """
        values, groups_from = _groups(frame, groups)
        frame = frame.reset_index(drop=True)
        texts = list(frame["text"])
        codes, repeated, tied = tie_texts(check_groups(values, len(frame), n_folds), texts)
        _check_left(codes, repeated, tied, n_folds)
        found = cls(
            texts=texts,
            y=check_labels(list(frame["label"]), len(frame)),
            groups=codes,
            groups_from=groups_from,
            frame=frame,
            own_names=None if groups_from == BY_ROWS else names_of(values),
            repeated=repeated,
            tied=tied,
            **meanings(frame, len(frame)),
        )
        found.check_pairs()
        return found

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.y)

    @property
    def n_groups(self) -> int:
        """Groups."""
        return len(np.unique(self.groups))

    @cached_property
    def group_names(self) -> list[str]:
        """Of each row's group: the name of its first row where the frame has one for it, else its number."""
        column = self.groups_from.removeprefix("column '").removesuffix("'")
        if column not in self.frame:
            return [str(number) for number in self.groups]
        first: dict[int, str] = {}
        for number, name in zip(self.groups.tolist(), self.frame[column]):
            first.setdefault(number, str(name))
        return [first[number] for number in self.groups.tolist()]

    @property
    def by_rows(self) -> bool:
        """Whether every row is its own group, said on purpose."""
        return self.groups_from == BY_ROWS

    @cached_property
    def partner(self) -> Int[np.ndarray, " row"]:
        """For each row the row of the same pair with the other polarity; -1 where there is none."""
        found = np.full(self.n, -1)
        if self.pair is None or self.polarity is None:
            return found
        place: dict[tuple[str, int], int] = {}
        for row, (pair, polarity) in enumerate(zip(self.pair, self.polarity.tolist(), strict=True)):
            if pair is None or not polarity:
                continue
            key = pair, polarity
            if key in place:
                raise ValueError(
                    f"the pair {pair!r} has two rows of the same polarity, rows {place[key]} and {row}: give every "
                    "affirmative row and its negation a pair of their own"
                )
            place[key] = row
        for (pair, polarity), row in place.items():
            found[row] = place.get((pair, -polarity), -1)
        return found

    def check_pairs(self) -> None:
        """A pair promises that its rows contradict each other and are never divided, and its group that it holds both labels."""
        rows = np.flatnonzero(self.partner >= 0)
        same = rows[self.y[rows] == self.y[self.partner[rows]]]
        if len(same):
            assert self.pair is not None
            raise ValueError(
                f"the two rows of pair {self.pair[same[0]]!r} have the same label, as have {len(same) // 2 - 1} pairs more: a "
                "negated row must have the opposite label of its affirmative one; mend the labels, or drop the column 'pair'"
            )
        if self.pair is None or self.by_rows:
            return
        divided = rows[self.groups[rows] != self.groups[self.partner[rows]]]
        if len(divided):
            raise ValueError(
                f"the two rows of pair {self.pair[divided[0]]!r} stand in two groups, as do those of {len(divided) // 2 - 1} "
                "pairs more: a probe would be tested on the negation of a row it was trained on; give both rows one group"
            )
        paired = np.array([name is not None for name in self.pair])
        share = np.bincount(self.groups, weights=self.y) / np.maximum(np.bincount(self.groups), 1)
        single = np.isin(share, (0.0, 1.0))[self.groups] & paired
        if single.any():
            row = int(single.argmax())
            raise ValueError(
                f"{len(np.unique(self.groups[single]))} groups of paired rows have one label only (the first holds row {row}: "
                f"{self.texts[row]!r}), and then the group tells the label: keep an entity's true and false statements in "
                "one group, or drop the column 'pair'"
            )

    def is_of(self, frame: pd.DataFrame) -> bool:
        """Whether the frame of another place holds these rows. Tokens that are outliers at one place only make other rows,
        maybe as many of the same texts."""
        same = "position" not in self.frame or self.frame["position"].equals(frame.get("position"))
        return same and list(frame["text"]) == self.texts

    def take(self, rows: Int[np.ndarray, " taken"]) -> "Labelled":
        """Some of the rows, in the order given. Groups keep their numbers."""
        return replace(
            self,
            texts=[self.texts[row] for row in rows],
            y=self.y[rows],
            groups=self.groups[rows],
            frame=self.frame.iloc[rows].reset_index(drop=True),
            polarity=None if self.polarity is None else self.polarity[rows],
            topic=None if self.topic is None else [self.topic[row] for row in rows],
            pair=None if self.pair is None else [self.pair[row] for row in rows],
            own_names=None if self.own_names is None else [self.own_names[row] for row in rows],
        )

    def need(self, kind: str, columns: Sequence[str]) -> None:
        """ValueError where a kind of probe needs a column that is not there."""
        lacking = [name for name in columns if getattr(self, name) is None]
        if "polarity" in columns and self.polarity is not None and not self.polarity.all():
            raise ValueError(
                f"kind={kind!r} needs to know of every row whether it is affirmative or negated, and "
                f"{(self.polarity == 0).sum()} have no polarity: fill the column, or leave these rows or this kind out"
            )
        if lacking:
            meaning = {
                "polarity": "affirmative or negated",
                "topic": "the set or subject of a row",
                "pair": "the same for a negated row and its affirmative one",
            }
            named = ", ".join(f"{name!r} ({meaning[name]})" for name in lacking)
            raise ValueError(f"kind={kind!r} needs the column {named}: give it with the texts, or leave this kind out")


BY_ROWS = "every row its own group"
BY_TEXTS = "every text its own group"


def tied_sentence(card: Mapping[str, Any]) -> str:
    """What a report says of texts that stood in several groups, by its card; "" where there are none."""
    repeated, tied = card.get("texts_in_several_groups", 0), card.get("groups_tied")
    if not repeated:
        return ""
    if tied is None:  # a report of before groups were tied
        return f"{repeated} texts stand in more than one group and can leak between the parts."
    what = {BY_ROWS: "row", BY_TEXTS: "copy"}.get(card["groups_from"], "group")
    many = "copies" if what == "copy" else f"{what}s"
    return (
        f"{repeated:,} texts stand in more than one {what}, case and spacing aside: {tied[0]:,} {many} that share a text were "
        f"tied into {tied[1]:,} groups, so that no text is on both sides of a split."
    )


def of_tokens(frame: pd.DataFrame, groups: Column | str | None, n_folds: int) -> Labelled:
    """`Labelled.of` where each row is a token (`tokens="every"`): tokens of one text are never divided.

    Args:
        frame: with `text_index`, the text of each token, one text after the other.
        groups: as in `Labelled.of`, but one value a text; "rows" is every text its own group.
        n_folds: folds that there must be groups for.
    """
    frame = frame.drop(columns="pair", errors="ignore")  # a pair is of two texts: no token has one partner
    if isinstance(groups, str) and groups == ROWS:
        return replace(Labelled.of(frame, list(frame["text_index"]), n_folds), groups_from=BY_TEXTS, own_names=None)
    return Labelled.of(frame, groups if groups is None or isinstance(groups, str) else spread(groups, frame), n_folds)


def spread(values: Column, frame: pd.DataFrame) -> list[Any]:
    """One value a text as one a token, where each row of the frame is a token; one value a token stays."""
    listed = values.tolist() if isinstance(values, Tensor | np.ndarray | pd.Series) else list(values)
    text = pd.factorize(frame["text_index"])[0]
    return [listed[each] for each in text] if len(listed) == text.max() + 1 else listed


def meanings(columns: Any, n: int) -> dict[str, Any]:
    """The columns that have a meaning, checked, as `Labelled` holds them.

    Args:
        columns: a frame or a dictionary of columns; a column that is absent or empty throughout gives None.
        n: rows.
    """
    found: dict[str, Any] = dict.fromkeys(MEANINGS)
    for name in MEANINGS:
        values = columns.get(name)
        if values is None:
            continue
        series = pd.Series(list(values), dtype=object)
        if len(series) != n:
            raise ValueError(f"{name} has {len(series)} values for {n} rows: give one a row, in the same order")
        missing = series.isna()
        if missing.all():
            continue
        if name == "pair":
            found[name] = [None if gap else str(value) for value, gap in zip(series, missing, strict=True)]
            continue
        if missing.any() and name == "topic":
            raise ValueError(
                f"{missing.sum()} of {n} rows have no {name} (the first is row {int(missing.argmax())}): fill the column, or "
                "leave these rows out"
            )
        found[name] = _polarity(series) if name == "polarity" else [str(value) for value in series]
    return found


def _polarity(values: pd.Series) -> Int[np.ndarray, " row"]:
    known = {**POLARITIES, 1: 1, -1: -1, 0: 0, "1": 1, "-1": -1, "": 0}
    values = values.where(values.notna(), 0)
    strange = [value for value in values if value not in known]
    if strange:
        raise ValueError(
            f"polarity must be 'affirmative' or 'negated' (or 1 and -1), got {strange[0]!r}: map the values, or name the "
            "column otherwise"
        )
    return np.array([known[value] for value in values])


def _check_left(codes: Int[np.ndarray, " row"], repeated: int, tied: tuple[int, int], n_folds: int) -> None:
    """ValueError where too few groups are left after tying."""
    left, needed = int(codes.max()) + 1, max(MIN_GROUPS, n_folds)
    if left < needed:
        raise ValueError(
            f"{left} groups are left after those that share a text were tied ({repeated} texts stand in more than one of "
            f"{left + tied[0] - tied[1]} groups), and at least {needed} are needed: keep one row of each text, or gather more"
        )


def _groups(frame: pd.DataFrame, groups: Column | str | None) -> tuple[Column | str, str]:
    """The groups, and the words that say where they come from."""
    if groups is None:
        values = list(frame["group"]) if "group" in frame else [None] * len(frame)
        if pd.isna(pd.Series(values, dtype=object)).all():
            raise ValueError(
                "the store's texts have no groups, and rows about the same entity would stand on both sides of a split:"
                " record examples with a group, or give groups= (a column's name, one value a text, or 'rows' to split "
                "by row on purpose)"
            )
        return values, "column 'group'"
    if isinstance(groups, str) and groups != ROWS:
        if groups not in frame:
            raise ValueError(f"the store has no column {groups!r}: it has {', '.join(map(str, frame.columns))}")
        return list(frame[groups]), f"column {groups!r}"
    return groups, BY_ROWS if isinstance(groups, str) else "given by the caller"
