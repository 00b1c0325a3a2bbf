"""The texts of a store against those of a data set, and labels that came after the recording.

A probe that is fitted on row i of a store and the label of row i of a data set is wrong in silence if the two do not hold
the same texts in the same order. `check_texts` refuses such a pair; `join_labels` brings labels to texts by what a text
is, or by an id of it, and never by its place in a list. `trained_on` is what a probe's card keeps of the texts and groups
that it was fitted on, so that `overlap` can tell whether new ones are among them.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.dataset import Dataset
from interp.probe.inputs import JOINS, fold
from interp.probe.labelled import MEANINGS

_SHOWN = 60
_DIGITS = 12  # 48 bits of a hash: enough to find the same text again, and a card stays small


def check_texts(store: Any, dataset: Dataset | Any) -> None:
    """Refuse a store whose texts are not those of a data set: the same texts, labels and groups in the same order.

    Polarity, topic and pair are compared where both have them. Chats are compared by label and group, for their text is
    what a model's template makes of them.

    Raises:
        ValueError: says what differs first, with the hashes of both, and the mend.
    """
    frame, rows = store.examples, dataset.to_frame()
    held = f"the store {str(getattr(store, 'path', '') or '') or 'given'}"
    mend = "record the data set again at another path, or give the data set that the store was recorded from"
    if "chunk" in frame and bool((frame["chunk"] > 0).any()):
        raise ValueError(f"{held} holds pieces of long texts, which are no rows of {dataset.name!r}: {mend}")
    mine, other = (artifact.hash_texts(map(str, part["text"])) for part in (frame, rows))
    hashes = f"(hash of its texts {mine[:12]}, of the data set's {other[:12]})"
    if len(frame) != len(rows):
        raise ValueError(
            f"{held} has {len(frame)} texts, the data set {dataset.name!r} has {len(rows)} {hashes}: {mend}"
        )
    chats = rows["messages"].notna().to_numpy() if "messages" in rows else np.zeros(len(rows), dtype=bool)
    for name in ("text", "label", "group", *MEANINGS):
        if name not in frame or name not in rows:
            continue
        differs = np.array([not _same(a, b) for a, b in zip(frame[name], rows[name], strict=True)], dtype=bool)
        differs &= ~chats if name == "text" else True
        if differs.any():
            row = int(np.argmax(differs))
            order = " in another order" if name == "text" and set(frame["text"]) == set(rows["text"]) else ""
            raise ValueError(
                f"{held} was not recorded from the data set {dataset.name!r} {hashes}: the {name} of {int(differs.sum())} of "
                f"{len(rows)} rows differs{order}, first of row {row}: {_short(frame[name].iloc[row])} there, "
                f"{_short(rows[name].iloc[row])} in the data set: {mend}"
                + ("; labels that came later are joined by labels=" if name in ("label", "group") else "")
            )


def join_labels(frame: pd.DataFrame, labels: Any, by: str = "text") -> pd.DataFrame:
    """A frame of texts with labels, and whatever comes with them, that were not recorded.

    Args:
        frame: of texts, as `read_place` gives it.
        labels: a mapping or Series, text -> label or the text's number in the store -> label; or a Dataset or DataFrame
            with the column `by`, whose other columns (label, group, polarity ...) take the place of those of the frame.
        by: the column that says which text a row of a Dataset or DataFrame is: "text", or an id that both have.

    Raises:
        ValueError: a plain list, which says nothing of the texts; a text without a label; two rows for one text that
            differ; rows for none of the texts.
    """
    table, keys = _label_table(frame, labels, by)
    twice = table.index[table.index.duplicated(keep=False)]
    for key in dict.fromkeys(twice):
        rows = table.loc[[key]]
        if not all(_same(*pair) for name in rows for pair in itertools.pairwise(rows[name])):
            raise ValueError(
                f"labels= has {len(rows)} different rows for {_short(key)}: which is meant? Keep one, or join by an id: "
                "join_labels(frame, labels, by=...)"
            )
    table = table[~table.index.duplicated()]
    missing = [key for key in keys if key not in table.index]
    if missing:
        raise ValueError(
            f"labels= has nothing for {len(missing)} of {len(keys)} rows, the first is {_short(missing[0])}: label every text, "
            "or leave texts out with store.select(texts=...)"
        )
    joined = table.loc[list(keys)].set_axis(frame.index)
    found = frame.assign(**{str(name): joined[name] for name in joined})
    found.attrs = dict(frame.attrs)
    return found


def trained_on(texts: Sequence[str], groups: Sequence[str] | None) -> dict[str, Any]:
    """What a card keeps of the rows that a probe was fitted on: short hashes, sorted, and nothing that can be read.

    Args:
        texts: of the rows. Case and spacing do not count.
        groups: the group of each row; None where rows were split one by one. Of "Oslo & Lima" the parts count too.

    Returns:
        "texts" and "groups", lists of 12 hex digits; `overlap` reads them.
    """
    return {"texts": sorted(map(_short_hash, set(map(fold, texts)))), "groups": sorted(_named(groups or ()))}


def overlap(card_entry: Mapping[str, Any], texts: Sequence[str], groups: Sequence[str] | None) -> tuple[int, int]:
    """(texts, groups) of new rows that a probe was fitted on, by what `trained_on` put into its card; each counts once."""
    known_texts, known_groups = (frozenset(card_entry.get(name) or ()) for name in ("texts", "groups"))
    shared = sum(_short_hash(text) in known_texts for text in set(map(fold, texts)))
    return shared, sum(not known_groups.isdisjoint(_named([group])) for group in set(map(str, groups or ())))


def _named(groups: Sequence[str]) -> set[str]:
    """Hashes of the names of groups, and of the parts of joined ones."""
    names = set(map(str, groups))
    return {_short_hash(part) for name in names for part in (name, *name.split(JOINS))}


def _short_hash(text: str) -> str:
    return artifact.hash_texts([text])[:_DIGITS]


def _label_table(frame: pd.DataFrame, labels: Any, by: str) -> tuple[pd.DataFrame, list[Any]]:
    """(a row per text that is labelled, indexed by its key; the key of each row of the frame)."""
    if isinstance(labels, Dataset):
        labels = labels.to_frame()
    if isinstance(labels, pd.DataFrame):
        lacking = [where for where, columns in (("labels=", labels), ("the store", frame)) if by not in columns]
        if lacking:
            raise ValueError(
                f"{' and '.join(lacking)} has no column {by!r}: by= names a column that says which text it is"
            )
        filled = labels.dropna(axis=1, how="all").drop(
            columns=["text", "split"] if by != "text" else ["split"], errors="ignore"
        )
        return filled.set_index(by), list(frame[by])
    if not isinstance(labels, Mapping | pd.Series):
        raise ValueError(
            f"labels= is a {type(labels).__name__}, which does not say which text each label belongs to: give {{text: label}}, "
            "{number of the text: label}, or a Dataset or DataFrame with the texts"
        )
    table = pd.DataFrame({"label": pd.Series(labels)})
    if all(isinstance(key, str) for key in table.index):
        return table, list(frame["text"])
    per_token = "text_index" in frame
    return table, list(frame["text_index"] if per_token else frame.index)


def _same(a: Any, b: Any) -> bool:
    """Whether two cells of a frame hold the same; two missing ones do."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    missing = [value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)) for value in (a, b)]
    return all(missing) if any(missing) else bool(a == b)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
