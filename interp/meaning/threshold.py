"""The cosine from which two texts count as saying the same: chosen on one part of labelled pairs, judged on the other.

1. Cosines of all pairs, by the encoder.
2. On the part `choose`: the threshold with the best balanced accuracy, in the middle of the widest range that reaches it, to two
   digits.
3. On the part `judge`, whose groups are others: balanced accuracy, the share of same pairs that are found, and the share of
   different pairs that are told apart, by form and by what differs; each with n and an interval by resampling groups.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student

from interp import artifact
from interp.bootstrap import ENDS, N_BOOT, grouped_share
from interp.dataset import Dataset, load_dataset
from interp.meaning.encoder import SentenceEncoder

PARTS = ("choose", "judge")


@dataclass(frozen=True, eq=False)
class EmbeddingThreshold:
    """A threshold, and how well it does on pairs that it was not chosen on; made by `embedding_threshold`."""

    threshold: float
    """Cosine from which two texts count as the same."""
    chosen: float
    """Balanced accuracy on the pairs it was chosen on: too good by the choice."""
    table: pd.DataFrame = field(repr=False)
    """On the other pairs: form (all, or one), pairs (all, same, different, or what differs), right (share; for `all` the mean of
    same and different, the balanced accuracy), low, high (95 %), n, groups."""
    card: dict[str, Any] = field(repr=False)
    """Encoder, data, rule."""

    def right(self, form: str = "all", pairs: str = "all") -> dict[str, Any]:
        """One row of the table. ValueError where there is none."""
        rows = self.table[(self.table.form == form) & (self.table.pairs == pairs)]
        if rows.empty:
            raise ValueError(
                f"no pairs of form {form!r} and kind {pairs!r}: see the columns form and pairs of the table"
            )
        return rows.iloc[0].to_dict()

    def __str__(self) -> str:
        lines = [f"cosine from {self.threshold:.2f} counts as the same (balanced accuracy; 0.5 is chance)"]
        for form in dict.fromkeys(self.table.form):
            row = self.right(form)
            sure = "" if row["low"] > 0.5 else ": not told from chance"
            lines.append(
                f"{form}: {row['right']:.2f} [{row['low']:.2f}, {row['high']:.2f}], {row['n']} pairs in {row['groups']} groups"
                f"{sure}"
            )
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table.copy()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rows = artifact.records(self.table)
        return {"threshold": self.threshold, "chosen": self.chosen, "table": rows, "card": self.card}


def embedding_threshold(encoder: SentenceEncoder, pairs: Dataset | None = None, seed: int = 0) -> EmbeddingThreshold:
    """Choose a threshold for an encoder and judge it.

    Args:
        encoder: whose cosines are meant.
        pairs: labelled pairs, label 1 = same meaning, with groups, a split that is `choose` or `judge`, and the columns one and
            other (form and why where there are such); None for the bundled set `paraphrases`.
        seed: of the intervals.

    Raises:
        ValueError: pairs without labels, groups, columns or parts, a part without one of the labels, or a group in both parts.
    """
    data = load_dataset("paraphrases") if pairs is None else pairs
    label, part, group, columns = _checked(data)
    cosine = _cosines(encoder, columns["one"], columns["other"])
    choosing, judging = (np.flatnonzero(part == name) for name in PARTS)
    threshold = _best(cosine[choosing], label[choosing])
    chosen = _balanced((cosine[choosing] >= threshold) == label[choosing], label[choosing])
    right = (cosine >= threshold) == label
    rows = _judged(right[judging], label[judging], group[judging], {k: v[judging] for k, v in columns.items()}, seed)
    card = {
        **encoder.describe(),
        "data": data.name,
        "data_hash": data.hash,
        "n": {name: int((part == name).sum()) for name in PARTS},
        "rule": "best balanced accuracy on the part choose, in the middle of the range that reaches it",
        "seed": seed,
    }
    return EmbeddingThreshold(threshold, chosen, rows, card)


def _checked(data: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    if data.labels is None or data.groups is None:
        raise ValueError(f"{data.name} lacks labels or groups: pairs need both, label 1 for the same meaning")
    lacking = [name for name in ("one", "other") if any(name not in row.meta for row in data)]
    if lacking:
        raise ValueError(f"{data.name} has no column {lacking[0]!r}: pairs stand in the columns one and other")
    label, group = np.asarray(data.labels), np.asarray(data.groups)
    part = np.array([row.split for row in data], dtype=object)
    for name in PARTS:
        if set(label[part == name]) != {0, 1}:
            raise ValueError(f"{data.name} needs pairs of both labels whose split is {name!r}: divide it by groups")
    both = set(group[part == PARTS[0]]) & set(group[part == PARTS[1]])
    if both:
        raise ValueError(
            f"{data.name} has the group {min(both)!r} in both parts: a threshold would be judged on what chose it"
        )
    columns = {
        name: np.array([str(row.meta.get(name, "all")) for row in data]) for name in ("one", "other", "form", "why")
    }
    return label, part, group, columns


def _cosines(encoder: SentenceEncoder, one: np.ndarray, other: np.ndarray) -> Float[np.ndarray, " pair"]:
    texts = sorted({*one, *other})
    place = {text: index for index, text in enumerate(texts)}
    vectors = encoder(texts).numpy().astype(float)
    return (vectors[[place[text] for text in one]] * vectors[[place[text] for text in other]]).sum(1)


def _best(cosine: Float[np.ndarray, " pair"], label: Int[np.ndarray, " pair"]) -> float:
    grid = np.arange(-99, 100) / 100
    found = np.array([_balanced((cosine >= edge) == label, label) for edge in grid])
    best = np.flatnonzero(found >= found.max() - 1e-9)
    runs = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    widest = max(runs, key=len)
    return float(grid[widest[len(widest) // 2]])


def _balanced(right: Bool[np.ndarray, " pair"], label: Int[np.ndarray, " pair"]) -> float:
    return float((right[label == 1].mean() + right[label == 0].mean()) / 2)


def _judged(
    right: Bool[np.ndarray, " pair"],
    label: Int[np.ndarray, " pair"],
    group: np.ndarray,
    columns: dict[str, np.ndarray],
    seed: int,
) -> pd.DataFrame:
    rows = []
    for form in ["all", *sorted(set(columns["form"]) - {"all"})]:
        inside = np.ones(len(right), bool) if form == "all" else columns["form"] == form
        whys = sorted(set(columns["why"][inside & (label == 0)]) - {"all"})
        kinds = {"all": inside, "same": inside & (label == 1), "different": inside & (label == 0)}
        kinds |= {why: inside & (label == 0) & (columns["why"] == why) for why in whys}
        for kind, which in kinds.items():
            if not which.any() or (kind == "all" and len(set(label[which])) < 2):
                continue
            if kind == "all":
                share, (low, high) = _balanced(right[which], label[which]), _interval(right, label, group, which, seed)
            else:
                codes = np.unique(group[which], return_inverse=True)[1]
                low, high = (float(end) for end in grouped_share(right[which].astype(float), codes, seed))
                share = float(right[which].mean())
            counted = {"n": int(which.sum()), "groups": len(set(group[which]))}
            rows.append({"form": form, "pairs": kind, "right": share, "low": low, "high": high, **counted})
    return pd.DataFrame(rows)


def _interval(
    right: Bool[np.ndarray, " pair"],
    label: Int[np.ndarray, " pair"],
    group: np.ndarray,
    which: Bool[np.ndarray, " pair"],
    seed: int,
) -> tuple[float, float]:
    """95 % interval of the balanced accuracy, whole groups drawn; widened for few groups as `bootstrap.ratio_interval` is."""
    names, codes = np.unique(group[which], return_inverse=True)
    sums = np.zeros((4, len(names)))  # right and all pairs of label 1, the same of label 0
    for place, value in enumerate((1, 0)):
        of = label[which] == value
        np.add.at(sums[2 * place], codes[of], right[which][of])
        np.add.at(sums[2 * place + 1], codes[of], 1)
    draws = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), N_BOOT)
    drawn = draws @ sums.T
    usable = (drawn[:, 1] > 0) & (drawn[:, 3] > 0)
    balanced = (drawn[usable, 0] / drawn[usable, 1] + drawn[usable, 2] / drawn[usable, 3]) / 2
    n, estimate = len(names), _balanced(right[which], label[which])
    if n == 1:
        return 0.0, 1.0
    wider = student.ppf(ENDS[1], n - 1) / student.ppf(ENDS[1], np.inf) * math.sqrt(n / (n - 1))
    low, high = estimate + wider * (np.quantile(balanced, ENDS) - estimate)
    return max(float(low), 0.0), min(float(high), 1.0)
