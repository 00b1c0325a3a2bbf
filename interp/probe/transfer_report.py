"""`TransferReport`: a transfer matrix as tables, sentences, charts and a folder on the disk.

folder/
  transfer.json          card
  cells.parquet          a row per place, kind, train set and test set
  selected.parquet       a row per kind, train set and test set: the place chosen on the train set's folds
  baselines.parquet      the wording alone, a row per train set and test set
  predictions.parquet    a row per kind, train set and text: held-out probabilities of the selected procedure
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from interp import artifact
from interp.plot.probes import layer_transfer, transfer_matrix
from interp.probe.labelled import tied_sentence

FORMAT = 1
TABLES = ("cells", "selected", "baselines", "predictions")


@dataclass(frozen=True, eq=False)
class TransferReport:
    """Probes of every train set judged on every test set, on groups that they never saw; see `probe_transfer`."""

    cells: pd.DataFrame = field(repr=False)
    """A row per place, kind, train and test set."""
    selected: pd.DataFrame
    """A row per kind, train and test set: the figures to quote. The place was chosen on the train set's own folds."""
    baselines: pd.DataFrame = field(repr=False)
    """The same matrix from the wording alone (bag of words)."""
    predictions: pd.DataFrame = field(repr=False)
    """Held-out predictions of the selected procedure: kind, train, row, text, label, fold, place, probability, threshold."""
    card: dict[str, Any] = field(repr=False)
    """Sets, places, folds, seeds, store, provenance."""

    def to_frame(self) -> pd.DataFrame:
        """A row per place, kind, train and test set. The figures to quote are those of `selected`.

        Columns: place, layer, kind, train, test; auroc, low, high (95 %, the test set's groups resampled), accuracy at
        the threshold that the train set chose, brier, smooth_ece, n, n_groups of the test set; chance: the interval
        covers 1/2; n_train: rows of the train set; bag_of_words: AUROC of the wording alone in the same cell;
        recovered: (auroc - 1/2) over that of the test set's own probe (1 is all of it, 0 none, below 0 inverted; NaN
        where that probe is not told from chance, or was not asked for).
        """
        return self.cells.copy()

    def matrix(self, kind: str | None = None, value: str = "auroc") -> pd.DataFrame:
        """The selected figures of one kind as a square: train sets down, test sets across."""
        if value not in self.selected.select_dtypes("number"):
            numbers = ", ".join(self.selected.select_dtypes("number"))
            raise ValueError(f"there is no figure {value!r}: there is {numbers}")
        table = self._of(self.selected, kind).pivot(index="train", columns="test", values=value)
        return table.loc[self._trained(table.index), self.card["test_order"]]

    def explain(self) -> list[str]:
        """What the cells mean that do not speak for themselves: inverted ones, failed ones, wording, controls."""
        lines = []
        words = {(str(line["train"]), str(line["test"])): line for line in self.baselines.to_dict("records")}
        for kind in self.card["kinds"]:
            table = self._of(self.selected, kind)
            cells = {(str(line["train"]), str(line["test"])): line for line in table.to_dict("records")}
            for (train, test), cell in cells.items():
                control = train in self.card["controls"] and train != test
                said = _control(cell) if control else _inverted(cell, words[train, test]) or _failed(cell)
                if said and not control and train != test:
                    said += _mended(cell, cells, self.card["holds"])
                said = said or _wording(cell)
                lines += [f"{kind}: {said}"] if said else []
        return lines

    def summary(self) -> str:
        """The matrix of each kind, how it was made, and `explain`."""
        lines = []
        for kind in self.card["kinds"]:
            table = self._of(self.selected, kind)
            width = max(len(str(name)) for name in table["train"])
            lines.append(f"{kind}, AUROC (95 %): trained on (down), tested on {', '.join(self.card['test_order'])}")
            for train in self._trained(table["train"]):
                row = table[table["train"] == train].set_index("test").loc[self.card["test_order"]]
                said = "   ".join(_interval(line) for line in row.to_dict("records"))
                lines.append(f"  {train:<{width}}   {said}")
        card = self.card
        for gap in card["left_out"]:
            lines.append(f"{gap['kind']} was not trained on {gap['train']}: {gap['why']}.")
        lines.append(
            f"{card['n']:,} rows in {card['n_groups']:,} groups ({card['groups_from']}), {card['n_folds']} folds: no cell "
            "shares a group between training and test rows. C, threshold and place were chosen on the train set alone."
        )
        if tied := tied_sentence(card):
            lines.append(tied)
        return "\n".join([*lines, *self.explain()])

    def plot(self, kind: str | None = None) -> alt.LayerChart:
        """The matrix of one kind (None: the first) at the selected places."""
        return transfer_matrix(
            self._of(self.selected, kind), train_order=self.card["train_order"], test_order=self.card["test_order"]
        )

    def plot_layers(self, kind: str | None = None) -> alt.VConcatChart:
        """AUROC over layers of one kind: a panel for each test set, a line for each train set."""
        frame = self._of(self.cells, kind).dropna(subset=["layer"]).astype({"layer": int})
        places = frame.drop_duplicates(["layer", "place"])
        if frame.empty or len(places) > len(set(places["layer"])):
            raise ValueError("curves over layers need one place a layer: to_frame() has the figures")
        return layer_transfer(frame, train_order=self.card["train_order"], test_order=self.card["test_order"])

    def save(self, folder: str | Path) -> Path:
        """Write the folder, whole or not at all; `load_transfer_report` reads it. ValueError where it exists already."""
        with artifact.atomic_folder(folder) as place:
            for name in TABLES:
                getattr(self, name).to_parquet(place / f"{name}.parquet", index=False)
            content = {"kind": "transfer report", "format": FORMAT, "card": self.card}
            artifact.write_json(place / "transfer.json", content)
        return Path(folder)

    def _trained(self, names: Iterable[str]) -> list[str]:
        """Train sets in their order, those that a kind was trained on."""
        known = set(names)
        return [name for name in self.card["train_order"] if name in known]

    def _of(self, table: pd.DataFrame, kind: str | None) -> pd.DataFrame:
        kinds = self.card["kinds"]
        if kind is not None and kind not in kinds:
            raise ValueError(f"this report has no {kind!r} probes: it has {', '.join(kinds)}")
        return table.loc[table["kind"] == (kind or kinds[0])]


def load_transfer_report(folder: str | Path) -> TransferReport:
    """Read what `TransferReport.save` wrote.

    Raises:
        ValueError: no such report, a newer format, or files that are missing or damaged.
    """
    folder = Path(folder)
    content = artifact.read_json(folder / "transfer.json")
    if not isinstance(content, dict) or content.get("kind") != "transfer report":
        raise ValueError(f"{folder} holds no transfer report")
    if content.get("format", FORMAT + 1) > FORMAT:
        raise ValueError(f"{folder} has format {content.get('format')!r}, newer than {FORMAT}: update interp")
    try:
        tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is not a whole transfer report ({error}): make it again") from None
    return TransferReport(**tables, card=content["card"])


# -------------------------------------------------------------------------------------------------------- sentences


def _interval(cell: dict[str, Any]) -> str:
    return f"{cell['auroc']:.3f} ({cell['low']:.3f} to {cell['high']:.3f})"


def _inverted(cell: dict[str, Any], words: dict[str, Any]) -> str:
    """A cell whose whole interval is below 1/2, beside that of the words alone."""
    if not cell["high"] < 0.5:
        return ""
    train, test = cell["train"], cell["test"]
    if train == test:
        return (
            f"{train} has {_interval(cell)} on its own unseen groups, below 1/2: the folds disagree about the sign, as where "
            "labels hang on the groups."
        )
    return (
        f"trained on {train}, tested on {test}: {_interval(cell)}, inverted. What was learnt goes with the label in {train} "
        f"and against it in {test}. Truth does not do that: {_suspects(words)}."
    )


def _suspects(words: dict[str, Any]) -> str:
    """What can turn a label round; the words are named where they are turned themselves."""
    if words["high"] < 0.5:
        return f"polarity and wording do (the words alone have {_interval(words)})"
    alone = f"; the words alone are not inverted, they have {_interval(words)}" if words["low"] > 0.5 else ""
    return f"polarity does, or whatever else goes along with the label{alone}"


def _failed(cell: dict[str, Any]) -> str:
    """A cell that is not told from chance."""
    if not cell["chance"]:
        return ""
    train, test = cell["train"], cell["test"]
    if train == test:
        return f"{train} has {_interval(cell)} on its own unseen groups: nothing to transfer was found."
    return f"trained on {train}, tested on {test}: {_interval(cell)}, not told from chance. What was learnt does not transfer."


def _mended(cell: dict[str, Any], cells: dict[tuple[str, str], dict[str, Any]], holds: dict[str, list[str]]) -> str:
    """Whether a larger train set, which holds this one and the test set, does what this one could not."""
    train, test = cell["train"], cell["test"]
    larger = [name for name, parts in holds.items() if name not in (train, test) and {train, test} <= set(parts)]
    found = [cells[name, test] for name in larger if (name, test) in cells]
    works = [other for other in found if other["low"] > 0.5]
    if works:
        best = max(works, key=lambda other: other["auroc"])
        return (
            f" Trained on {best['train']} it is {_interval(best)} there: the label can be read, and {train} alone does not "
            "tell it from what goes along with it."
        )
    own = cells.get((test, test))
    if own is not None and own["low"] > 0.5:
        return f" Trained on {test} itself it is {_interval(own)}: the label can be read there, by another direction."
    return ""


def _wording(cell: dict[str, Any]) -> str:
    """A cell in which the words alone do as well."""
    if not cell["low"] > 0.5 or cell["bag_of_words"] < cell["auroc"]:
        return ""
    return (
        f"trained on {cell['train']}, tested on {cell['test']}: {_interval(cell)}, and the words alone have "
        f"{cell['bag_of_words']:.3f}: this shows nothing about the model."
    )


def _control(cell: dict[str, Any]) -> str:
    """A cell of a train set whose label is not the one asked for."""
    train, test = cell["train"], cell["test"]
    start = f"trained on {train} (a control), tested on {test}: {_interval(cell)}"
    if cell["chance"]:
        return f"{start}. What separates {train} says nothing about {test}: probes of {test} read something else."
    side = "" if cell["low"] > 0.5 else ", inverted"
    own = cell["recovered"]
    share = f", {own:.0%} of what its own probe reads" if np.isfinite(own) else ""
    return f"{start}{side}{share}. So much of {test} can be told by what separates {train}, without its own label."
