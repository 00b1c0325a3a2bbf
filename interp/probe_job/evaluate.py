"""A kept probe on new texts: its figure there, beside what the texts alone give.

1. Rows whose text or group the probe was fitted on would measure memory. They are refused, or left out; what the probe was
   fitted on its card says in hashes.
2. Nothing is chosen: threshold and sign are the probe's own, so an AUROC below 1/2 stays below 1/2.
3. One figure can hide two: where texts have a polarity, topic or language, each part has its own.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy.special import expit

from interp import artifact
from interp.dataset import Dataset
from interp.model import HookedTransformer
from interp.probe.controls import text_baseline
from interp.probe.figures import Figure, Resamples
from interp.probe.fit import Probe, load_probe
from interp.probe.joining import overlap
from interp.probe.labelled import Labelled, of_tokens
from interp.probe.methods import method
from interp.probe.reading import EVERY, place_name, read_place
from interp.probe_job.stores import recorded_sites
from interp.recording import record
from interp.store import Store

TOKENS = "last"
"""What a probe reads whose card does not say."""
PARTS = ("polarity", "topic", "language")
"""Columns whose values have a figure each."""
CLEARLY = 0.4
"""An AUROC below it, with its interval below 1/2, is called the wrong way round where nothing is known of parts."""


@dataclass(frozen=True, eq=False)
class ProbeEvaluation:
    """How a probe does on texts that it was not fitted on."""

    figure: Figure
    """Of the probe."""
    baselines: dict[str, Figure]
    """bag_of_words and text_length, fitted on the new texts themselves by grouped folds; none where they are too few."""
    predictions: pd.DataFrame = field(repr=False)
    """text, label, group, probability, guess."""
    parts: pd.DataFrame = field(repr=False)
    """part, value, and a figure, for each polarity, topic and language that has both labels."""
    card: dict[str, Any] = field(repr=False)
    """Probe, place, tokens, texts, how the overlap was checked, rows left out."""

    def to_frame(self) -> pd.DataFrame:
        """A row for the probe and for each baseline."""
        rows = [{"what": self.card["kind"], **asdict(self.figure)}]
        return pd.DataFrame(rows + [{"what": name, **asdict(each)} for name, each in self.baselines.items()])

    def summary(self) -> str:
        """What was found, and what to read it beside."""
        own = self.figure
        lines = [] if self.card["checked"] else [self.card["overlap"]]
        lines += [
            f"{self.card['kind']} at {place_name(self.card['place'])}: AUROC {_interval(own)}, accuracy {own.accuracy:.3f} at "
            f"its own threshold, Brier {own.brier:.3f}, n = {own.n:,} in {own.n_groups:,} groups."
        ]
        lines += [
            f"{name.replace('_', ' ').capitalize()} of these texts, fitted on them: {_interval(each)}."
            for name, each in self.baselines.items()
        ]
        lines += [
            f"{row['part']} {row['value']}: AUROC {row['auroc']:.3f} (95 % {row['low']:.3f} to {row['high']:.3f}), "
            f"n = {row['n']:,}."
            for row in self.parts.to_dict("records")
        ]
        lines += self._direction()
        if self.card["checked"]:
            lines.append(self.card["overlap"])
        return "\n".join(lines)

    def _direction(self) -> list[str]:
        """Whether it goes against the label; of an average over parts that disagree nothing is said."""
        rows = self.parts.to_dict("records")
        above, below = ([row for row in rows if sign(row)] for sign in (_is_above, _is_below))
        if above and below:
            named = [", ".join(f"{row['part']} {row['value']}" for row in part) for part in (above, below)]
            return [
                f"The parts disagree: the probe goes with the label in {named[0]}, and against it in {named[1]}. The figure over "
                "all is an average of the two and says nothing of either."
            ]
        everywhere = bool(rows) and len(below) == len(rows)
        if self.figure.high < 0.5 and (everywhere or self.figure.auroc < CLEARLY):
            return ["The probe is the wrong way round here: what it reads goes against the label in these texts."]
        return []


def evaluate_probe(
    probe: Probe | str | Path,
    data: Store | Dataset | Any,
    model: HookedTransformer | None = None,
    n_boot: int = 1000,
    seed: int = 0,
    groups: str | None = None,
    drop_seen: bool = False,
) -> ProbeEvaluation:
    """Judge a probe on new labelled texts.

    Args:
        probe: the probe, or its file.
        data: a store that holds the probe's place, or a data set, which `model` then reads.
        model: with a data set, the model that the probe was fitted on.
        n_boot: bootstrap draws of groups.
        seed: of the draws and of the baselines' folds.
        groups: column with the groups; None for `group`, "rows" for each row a group of its own, on purpose.
        drop_seen: leave out the rows whose text or group the probe was fitted on; False refuses them.

    Raises:
        ValueError: a probe that does not say what it reads; another model; a data set without a model; texts or groups that
            the probe was fitted on, or none left without them; labels or groups that are missing.
    """
    probe = probe if isinstance(probe, Probe) else load_probe(probe)
    if probe.site is None:
        raise ValueError("the probe does not say which site it reads: fit it with site=, or by a job")
    place = probe.site if getattr(probe, "head", None) is None else f"{probe.site}.{probe.head}"
    tokens = str(probe.card.get("tokens", TOKENS))
    reads = method(probe.kind).reads
    data, seen = _unseen(probe, data, groups, drop_seen=drop_seen)
    store = data if isinstance(data, Store) else _recorded(data, model, place, tokens if reads == "row" else EVERY)
    _same_model(probe, store.model_fingerprint)
    X, frame = read_place(store, place, tokens, reads)
    labelled = of_tokens(frame, groups, 2) if "text_index" in frame else Labelled.of(frame, groups, n_folds=2)
    # Of the log-odds: probabilities in single precision are 1 from 17 on, and rows that are all 1 have no order.
    score = probe.slope * probe.score(X).double().numpy() + probe.intercept
    p = expit(score)
    guess = p > probe.threshold
    resamples = Resamples.of(np.unique(labelled.groups, return_inverse=True)[1], n_boot, seed)
    return ProbeEvaluation(
        figure=resamples.figure(score, labelled.y, guess),
        baselines=_baselines(labelled, seed),
        predictions=pd.DataFrame(
            {"text": labelled.texts, "label": labelled.y, "group": labelled.group_names, "probability": p, "guess": guess}
        ),
        parts=_parts(labelled, resamples, score, guess),
        card={
            "kind": probe.kind, "place": place, "tokens": tokens, "texts": artifact.hash_texts(labelled.texts),
            **seen,
            "groups_from": labelled.groups_from, "probe": probe.card.get("figure"), "provenance": artifact.provenance(seed=seed),
        },
    )  # fmt: skip


def _recorded(data: Any, model: HookedTransformer | None, place: str, tokens: str) -> Store:
    if not isinstance(data, Dataset):
        raise ValueError(f"give a store or a data set (load_dataset reads files), got {type(data).__name__}")
    if model is None:
        raise ValueError("a data set needs the model that reads it: give model=, or a recorded store")
    rule = "all" if tokens.partition(":")[0] == EVERY else tokens
    return record(model, data, recorded_sites(model, [place]), rule, long="error", progress=False)


def _same_model(probe: Probe, fingerprint: str) -> None:
    trained = probe.card.get("provenance", {}).get("fingerprint")
    if trained is not None and trained != fingerprint:
        raise ValueError(
            f"the probe was fitted on activations of another model ({trained[:12]}, here {fingerprint[:12]}): directions of one "
            "mean nothing in the other"
        )


def _unseen(
    probe: Probe, data: Store | Dataset | Any, groups: str | None, *, drop_seen: bool
) -> tuple[Store | Dataset | Any, dict[str, Any]]:
    """The texts that the probe was not fitted on, and what is known of that, for the card."""
    if not isinstance(data, Store | Dataset):
        return data, {}
    frame = data.examples if isinstance(data, Store) else data.to_frame()
    known = probe.card.get("trained_on") or {}
    if not known.get("texts") and not known.get("groups"):
        said = (
            "The probe's card does not say what it was fitted on: it may have been trained on these texts, and then the figures "
            "measure memory."
        )
        return data, {"overlap": said, "checked": False, "left_out": 0}
    texts = [str(text) for text in frame["text"]]
    column = groups if groups in frame else "group"
    named = column in frame and groups in (column, None) and bool(frame[column].notna().all())
    names = [str(name) for name in frame[column]] if named else None
    shared_texts, shared_groups = overlap(known, texts, names)
    without = "" if known.get("texts") else " Its card names no texts: a text under another group's name is not found."
    if not shared_texts and not shared_groups:
        of_groups = f", and none of the {len(set(names)):,} groups," if names and known.get("groups") else ""
        what = f"None of the {len(set(texts)):,} texts{of_groups}" if known.get("texts") else ""
        what = what or f"None of the {len(set(names or ())):,} groups"
        return data, {
            "overlap": f"{what} is among those that the probe was fitted on.{without}",
            "checked": True,
            "left_out": 0,
        }
    counted = f"{shared_texts:,} of {len(set(texts)):,} texts"
    counted += f" and {shared_groups:,} of {len(set(names)):,} groups" if names else ""
    unseen = ~_seen(known, texts, names)
    if not drop_seen:
        raise ValueError(
            f"{counted} are among those that the probe was fitted on: figures on them would measure memory. Leave them out "
            f"(--drop-seen, or drop_seen=True: {unseen.sum():,} of {len(texts):,} rows are left), or quote the nested figure of "
            "the probe's card"
        )
    if not unseen.any():
        raise ValueError(f"{counted} are among those that the probe was fitted on, and no row is left without them")
    rows = np.flatnonzero(unseen).tolist()
    said = (
        f"{counted} are among those that the probe was fitted on. Their {len(texts) - len(rows):,} rows were left out: n = "
        f"{len(rows):,} of {len(texts):,} rows are left.{without}"
    )
    # A store numbers its texts by the frame's index.
    left = data.select(texts=[int(frame.index[row]) for row in rows]) if isinstance(data, Store) else data.take(rows)
    return left, {"overlap": said, "checked": True, "left_out": len(texts) - len(rows)}


def _seen(known: Mapping[str, Any], texts: list[str], names: list[str] | None) -> Bool[np.ndarray, " row"]:
    """Which rows share their text or their group with what a probe was fitted on."""
    rows = zip(texts, names or [None] * len(texts), strict=True)
    return np.array([any(overlap(known, [text], None if name is None else [name])) for text, name in rows], dtype=bool)


def _parts(
    labelled: Labelled, resamples: Resamples, score: Float[np.ndarray, " row"], guess: Bool[np.ndarray, " row"]
) -> pd.DataFrame:
    rows = []
    for name in PARTS:
        values = labelled.frame[name].to_numpy() if name in labelled.frame else np.array([])
        known = list(dict.fromkeys(value for value in values if isinstance(value, str) and value))
        for value in known if len(known) > 1 else []:
            chosen = np.flatnonzero(values == value)
            if len(set(labelled.y[chosen].tolist())) == 2:
                figure = resamples.take(chosen).figure(score[chosen], labelled.y[chosen], guess[chosen])
                rows.append({"part": name, "value": value, **asdict(figure)})
    return pd.DataFrame(rows, columns=pd.Index(["part", "value", *Figure.__dataclass_fields__]))


def _is_above(row: Mapping[str, Any]) -> bool:
    return row["low"] > 0.5


def _is_below(row: Mapping[str, Any]) -> bool:
    return row["high"] < 0.5


def _baselines(labelled: Labelled, seed: int) -> dict[str, Figure]:
    if labelled.n_groups < 5:
        return {}
    return {
        kind: text_baseline(labelled.texts, labelled.y, labelled.groups, seed=seed, kind=kind)
        for kind in ("bag_of_words", "text_length")
    }


def _interval(figure: Figure) -> str:
    return f"{figure.auroc:.3f} (95 % {figure.low:.3f} to {figure.high:.3f})"
