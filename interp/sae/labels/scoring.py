"""Detection: does a label say in which passages its latent fires? (Paulo et al. 2024, https://arxiv.org/abs/2410.13928)

1. Of each latent take passages in which it fires (its strongest ones, and some of every strength) and random passages in
   which it never does. Texts that the explainer was shown are left out on both sides, with the other pieces of their
   documents.
2. A judge reads the label and a passage, without activations, and says how probable it is that the latent fires in it.
3. Count: balanced accuracy and F1 at probability one half, AUROC over all. A label that says nothing gets 1/2.

For a text label the judge is any function, `endpoint_judge` for one. A label that is a `Rule` is its own judge.

The top tokens that a page shows are counted over all rows of its features, those of the held-out passages included. For
figures on rows that labelling never saw, score with the features of other rows: `sae_features(..., rows=...)`.
"""

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int

from interp.artifact import provenance
from interp.bootstrap import mean_interval
from interp.calibration import wilson_interval
from interp.model import HookedTransformer
from interp.probe.figures import auroc
from interp.sae.evaluate import METRIC_VERSION
from interp.sae.features import SAEFeatures
from interp.sae.labels.files import Journal, read_table, write_table
from interp.sae.labels.identity import function_card, require_callable, require_identified
from interp.sae.labels.labelling import SAELabels, features_id, giving_up
from interp.sae.labels.page import POOL, latent_numbers
from interp.sae.labels.passages import AFTER, BEFORE, Context, Passage, PassageReader
from interp.sae.labels.statistics import Rule
from interp.store import Store
from interp.tokens import Tokenizer

log = logging.getLogger("interp.sae.labels")

Judge = Callable[[str, Sequence[Passage]], Sequence[bool | float | int]]
"""(label, passages) -> for each passage the probability that the latent fires in it, or whether it does."""
MIN_PASSAGES = 5
"""Of each kind that a score needs: with fewer, one answer moves it by more than an eighth."""
FIGURES = ("balanced_accuracy", "low", "high", "f1", "auroc")


@dataclass(frozen=True, eq=False, repr=False)
class DetectionScores:
    """How well labels tell the passages in which their latents fire."""

    frame: pd.DataFrame
    """A row per latent: latent, n_firing and n_silent (passages judged), balanced_accuracy with the ends of its 95 %
    interval (low, high), f1, auroc, score_error (why there are no figures, else None)."""
    card: Mapping[str, Any]
    """Judge, labels, features, settings, counts, versions."""

    def __repr__(self) -> str:
        return f"DetectionScores({self.summary().removesuffix('.')})"

    def to_frame(self) -> pd.DataFrame:
        """A row per latent."""
        return self.frame

    @property
    def mean(self) -> tuple[float, float, float]:
        """Mean balanced accuracy over latents, and its 95 % bootstrap interval; NaN where no latent has a score."""
        values = self.frame["balanced_accuracy"].dropna().to_numpy(float)
        if len(values) == 0:
            return math.nan, math.nan, math.nan
        low, high = mean_interval(values, seed=self.card["settings"]["seed"])
        return float(values.mean()), float(low), float(high)

    def summary(self) -> str:
        """The mean over latents, and how many have no score."""
        reasons = Counter(reason for reason in self.frame["score_error"].tolist() if reason is not None)
        n = len(self.frame) - reasons.total()
        mean, low, high = self.mean
        said = f"balanced accuracy {mean:.3f} ({low:.3f} to {high:.3f}), mean over {n:,} latents; 0.5 says nothing"
        said = said if n else "no latent has a score"
        if not reasons:
            return said + "."
        ((reason, times), *_) = reasons.most_common(1)
        return f"{said}. {reasons.total():,} have no score, {times} of them: {reason}."

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `table.parquet` and `card.json` into a new folder, which `load_detection_scores` reads."""
        return write_table(path, "detection scores", self.frame, self.card)


def load_detection_scores(path: str | os.PathLike[str]) -> DetectionScores:
    """Read what `DetectionScores.save` wrote. ValueError for no such folder, another kind, or a newer format."""
    return DetectionScores(*read_table(path, "detection scores"))


def detection_score(
    features: SAEFeatures,
    store: Store,
    model: HookedTransformer | Tokenizer,
    labels: SAELabels,
    judge: Judge | Any | None = None,
    *,
    latents: Sequence[int] | Any | None = None,
    n_firing: int | Any = 20,
    n_silent: int | Any = 20,
    before: int | Any = BEFORE,
    after: int | Any = AFTER,
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
    judge_id: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DetectionScores:
    """Score labels by detection on passages that their explainer was not shown.

    Args:
        features: of the store; those that were labelled, or of other rows.
        store: that store.
        model: the model or its tokenizer.
        labels: what `label_latents` gave.
        judge: any function (label, passages) -> probabilities or truth values. None: the labels must be rules.
        latents: which of the labelled ones, None for all that have a label.
        n_firing, n_silent: passages of each kind, at most.
        before, after: tokens of a passage on both sides of its token.
        seed: of the choice of passages.
        path: a JSONL file that takes each result as it comes, for costly judges; a run with the same labels, judge and
            settings goes on with it.
        judge_id: a name for the judge, as explainer_id of `label_latents`.
        progress: called with (latents done, latents in all).

    Returns:
        A row per latent. One with fewer than MIN_PASSAGES of a kind (or n_firing, n_silent, where those are fewer), or on
        which the judge failed, has no figures but a reason.

    Raises:
        ValueError: a label that is no rule and no judge, a judge that cannot be called, a latent without label, labels of
            another SAE, counts below 1, a path with the results of another run, or a path for a judge that cannot be told
            from others, without judge_id.
        RuntimeError: the judge failed GIVE_UP times in a row; what was judged before is in `path`.
    """
    if labels.card.get("sae", features.card["sae"]) != features.card["sae"]:
        raise ValueError("these labels are of another SAE than the features: label its own latents")
    if judge is not None:
        require_callable("judge", judge, "a label and passages, or endpoint_judge(...)")
    if n_firing < 1 or n_silent < 1:
        raise ValueError(f"n_firing={n_firing} and n_silent={n_silent} must be at least 1")
    asked_for, rules = _labelled(labels, latents, features, judge), labels.rules()
    judged_by = {"judge": "the labels' own rules"} if judge is None else function_card(judge, judge_id)
    if path is not None:
        require_identified(judged_by, "judge_id")
    identity = {
        "judge": judged_by,
        "labels": {name: labels.card.get(name) for name in ("explainer", "features", "settings")},
        "features": features_id(features),
        "settings": {"n_firing": n_firing, "n_silent": n_silent, "before": before, "after": after, "seed": seed},
    }
    journal = None if path is None else Journal(path, identity)
    done = {} if journal is None else {row["latent"]: row for row in journal.rows if row["error"] is None}
    reader = PassageReader(features, store, model, before=before, after=after)
    passages = _Passages(features, reader, n_firing, n_silent, seed)
    missing = [label for label in asked_for if label["latent"] not in done]
    found = (_row(label, judge or _RuleJudge(rules[label["latent"]]), passages) for label in missing)
    for number, row in enumerate(giving_up(found, "judge"), len(asked_for) - len(missing) + 1):
        done[row["latent"]] = row
        if journal is not None:
            journal.add(row)
        if progress is not None:
            progress(number, len(asked_for))
    other_rows = labels.card.get("features") != features_id(features)
    card = {**identity, "other_rows": other_rows, "metric_version": METRIC_VERSION, "provenance": provenance()}
    return DetectionScores(_frame([done[label["latent"]] for label in asked_for]), card)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    dtypes = {"latent": "int64", "n_firing": "int64", "n_silent": "int64"} | dict.fromkeys(FIGURES, "float64")
    columns = {name: pd.Series([row[name] for row in rows], dtype=dtype) for name, dtype in dtypes.items()}
    reasons = [row["error"] or row["reason"] for row in rows]
    # A text column of pandas would make NaN of None.
    return pd.DataFrame({**columns, "score_error": pd.Series(reasons, dtype="object")})


class _Passages:
    """The passages that latents are judged on."""

    def __init__(self, features: SAEFeatures, reader: PassageReader, n_firing: int, n_silent: int, seed: int) -> None:
        self.reader, self.n_firing, self.n_silent, self.seed = reader, n_firing, n_silent, seed
        self._pool = reader.random_rows(POOL + 4 * n_silent, seed + 1)
        columns = ["latent", "rank", "row"]
        parts = [features.examples[columns].assign(interval=0), features.interval_examples[[*columns, "interval"]]]
        # By rank first: some of every strength, however few are taken.
        both = (
            pd.concat(parts)
            .sort_values(["latent", "rank", "interval"], kind="stable")
            .drop_duplicates(["latent", "row"])
        )
        self._examples = dict(iter(both.groupby("latent", sort=False)))

    def too_few(self, n_firing: int, n_silent: int) -> str | None:
        """Why so many passages make no score; None where they do. Whoever asks for fewer gets fewer."""
        for n, wanted, does in ((n_firing, self.n_firing, "fires"), (n_silent, self.n_silent, "is silent")):
            if n < (least := min(MIN_PASSAGES, wanted)):
                left = "no passage is" if n == 0 else f"{n} passage{'s are' if n > 1 else ' is'}"
                return f"{left} left in which the latent {does}, {least} are needed"
        return None

    def of(self, latent: int, shown: Sequence[int]) -> Iterator[tuple[Context, int]]:
        """(passage, 1 where the latent fires in it) of one latent, in random order, without the documents that were shown."""
        examples = self._examples.get(latent)
        firing = np.empty(0, np.int64)
        if examples is not None:
            firing = examples["row"].to_numpy()
            firing = firing[~self.reader.in_documents_of(firing, shown)][: self.n_firing]
        pool = self._pool[~self.reader.in_documents_of(self._pool, shown)]
        pool = np.random.default_rng((self.seed, latent)).permutation(pool)
        silent = pool[self.reader.silent(latent, pool)][: self.n_silent] if len(pool) else pool
        found = [(context, 1) for context in self.reader.contexts(latent, firing)]
        found += [(context, 0) for context in self.reader.contexts(latent, silent)]
        order = np.random.default_rng((self.seed, latent, 1)).permutation(len(found))
        return (found[at] for at in order)


def _labelled(
    labels: SAELabels, latents: Sequence[int] | Any | None, features: SAEFeatures, judge: Judge | None
) -> list[dict[str, Any]]:
    """The rows of the labels to score, which can be scored."""
    if labels.card.get("sae", features.card["sae"]) != features.card["sae"]:
        raise ValueError("these labels are of another SAE than the features: label its own latents")
    found = {row["latent"]: row for row in labels.frame.to_dict("records") if row["label"] is not None}
    wanted = list(found) if latents is None else latent_numbers(latents)
    if missing := [latent for latent in wanted if latent not in found]:
        raise ValueError(f"latent {missing[0]} has no label: there is nothing to score")
    if judge is None and (texts := [latent for latent in wanted if found[latent]["rule"] is None]):
        raise ValueError(
            f"the label of latent {texts[0]} is a text that cannot be tested: give judge=, for example endpoint_judge()"
        )
    return [found[latent] for latent in wanted]


@dataclass(frozen=True)
class _RuleJudge:
    """A label that judges by itself."""

    rule: Rule

    def __call__(self, _: str, passages: Sequence[Passage]) -> list[bool]:
        return [self.rule.holds(passage) for passage in passages]


def _row(label: Mapping[str, Any], judge: Judge, passages: _Passages) -> dict[str, Any]:
    """A line of the journal: figures, or the reason why there cannot be any, or the judge's error."""
    found = list(passages.of(label["latent"], label["shown_texts"]))
    y = np.array([truth for _, truth in found], dtype=np.int64)
    row: dict[str, Any] = {"latent": label["latent"], "n_firing": int(y.sum()), "n_silent": int((1 - y).sum())}
    row |= dict.fromkeys((*FIGURES, "reason", "error"))
    if reason := passages.too_few(row["n_firing"], row["n_silent"]):
        return row | {"reason": reason}
    try:
        answers = _checked_answers(judge(label["label"], [context.passage for context, _ in found]), len(found))
    except Exception as error:  # whatever somebody's function raises belongs to its latent, and is shown there
        log.warning("latent %d has no score: %s", label["latent"], error)
        return row | {"error": f"{type(error).__name__}: {error}"}
    return row | detection_figures(answers, y)


def _checked_answers(answers: Any, n: int) -> Float64[np.ndarray, " n"]:
    found = np.asarray(list(answers), dtype=np.float64)
    if found.shape != (n,):
        raise ValueError(f"the judge gave {found.shape} answers to {n} passages")
    if not ((found >= 0) & (found <= 1)).all():
        raise ValueError("the judge gave an answer that is no probability between 0 and 1")
    return found


def detection_figures(answers: Float64[np.ndarray, " passage"], y: Int[np.ndarray, " passage"]) -> dict[str, float]:
    """Balanced accuracy with its 95 % interval, F1 and AUROC of a judge's answers.

    Args:
        answers: probability that the latent fires; above one half counts as yes.
        y: 1 where it does, else 0; both occur.

    The interval joins Wilson's intervals of the two rates (the method of variance estimates recovery, Zou and Donner 2008,
    https://doi.org/10.1002/sim.3095): unlike the normal one it is no single point where all answers are right.
    """
    yes = answers > 0.5
    n_firing, n_silent = int(y.sum()), int((1 - y).sum())
    hits, false = int((yes & (y == 1)).sum()), int((yes & (y == 0)).sum())
    rates = np.array([hits / n_firing, 1 - false / n_silent])
    low, high = wilson_interval(rates, np.array([n_firing, n_silent]))
    balanced = float(rates.mean())
    return {
        "balanced_accuracy": balanced,
        "low": balanced - float(np.sqrt(((rates - low) ** 2).sum())) / 2,
        "high": balanced + float(np.sqrt(((high - rates) ** 2).sum())) / 2,
        "f1": 2 * hits / (hits + false + n_firing),
        "auroc": float(auroc(answers, y)[0]),
    }
