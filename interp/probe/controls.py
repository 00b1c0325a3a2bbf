"""What a probe must beat: the wording alone, the length, the larger class, random directions, and permuted labels.

All of them are fitted on the training parts and read on the test parts of the same folds as the probes.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from interp.probe.figures import Figure, Resamples, smooth_error
from interp.probe.folds import held_out
from interp.probe.inputs import Column, check_groups, check_labels
from interp.probe.readers import Readers
from interp.probe.solver import Design, calibrate

TEXT_BASELINES = ("bag_of_words", "text_length")
WORD = r"\w+|[^\w\s]"  # single characters and signs as well: in "2 + 2 = 4." they are all there is


def text_baseline(
    texts: Column,
    y: Column,
    groups: Column | str,
    kind: str = "bag_of_words",
    n_folds: int = 5,
    seed: int = 0,
    n_boot: int = 1000,
) -> Figure:
    """How well labels are told from the text alone, without any model, on groups that were not trained on.

    A probe's AUROC means nothing unless it is above this. Nothing is chosen: words have C = 1, the threshold is 1/2.

    Args:
        texts: one string a row.
        y: 0 or 1 for each row.
        groups: the entity of each row, or "rows" to split by row on purpose. On paired statements (an entity stands
            once in a true and once in a false one) a row split gives figures far *below* 1/2: the partner leaks.
        kind: "bag_of_words" (counts of words and signs, logistic regression) or "text_length" (characters).
        n_folds: folds, by group.
        seed: of the folds and the bootstrap.
        n_boot: draws for the interval.

    Raises:
        ValueError: an unknown kind, an empty text, or labels and groups that `fit_probe` would refuse.
    """
    if kind not in TEXT_BASELINES:
        raise ValueError(f"unknown text baseline {kind!r}: use {' or '.join(map(repr, TEXT_BASELINES))}")
    listed = list(texts)
    labels = check_labels(y, len(listed))
    codes = check_groups(groups, len(listed), n_folds)
    empty = [i for i, text in enumerate(listed) if not isinstance(text, str) or not text.strip()]
    if empty:
        raise ValueError(
            f"{len(empty)} of {len(listed)} texts are empty (the first is row {empty[0]}): leave these rows out"
        )
    rows = np.arange(len(listed))
    folds = [(np.setdiff1d(rows, part), part) for part in held_out(labels, codes, n_folds, seed)]
    logit = text_logit(kind, listed, labels, folds)
    return Resamples.of(codes, n_boot, seed).figure(logit, labels, logit > 0)


def text_logit(
    kind: str, texts: list[str], y: Int[np.ndarray, " row"], folds: list[tuple[np.ndarray, np.ndarray]]
) -> Float[np.ndarray, " row"]:
    """Held-out log-odds from the text alone; `folds` holds (train, test) rows."""
    if kind == "text_length":
        return score_logit(np.array([float(len(text)) for text in texts]), y, folds)
    logit = np.zeros(len(y))
    for train, test in folds:
        words = CountVectorizer(token_pattern=WORD)
        model = LogisticRegression(C=1.0, max_iter=2000)
        model.fit(words.fit_transform([texts[i] for i in train]), y[train])
        logit[test] = model.decision_function(words.transform([texts[i] for i in test]))
    return logit


def score_logit(
    values: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"], folds: list[tuple[np.ndarray, np.ndarray]]
) -> Float[np.ndarray, " row"]:
    """Held-out log-odds from one number a row; its slope, with its sign, and its intercept are those of the training part."""
    logit = np.zeros(len(y))
    score = torch.tensor(values, dtype=torch.float64)[None]
    for train, test in folds:
        labels = torch.tensor(y[train], dtype=torch.float64)[None]
        slope, intercept = calibrate(score[:, train], labels, torch.ones_like(labels))
        logit[test] = (slope * score[0, test] + intercept).numpy()
    return logit


def majority(
    y: Int[np.ndarray, " row"], groups: Int[np.ndarray, " row"], folds: list[tuple[np.ndarray, np.ndarray]]
) -> Figure:
    """Always the training part's more frequent label, its share the probability; the AUROC is 1/2 by ties."""
    share = np.zeros(len(y))
    for train, test in folds:
        share[test] = y[train].mean()
    rows = np.concatenate([test for _, test in folds])
    share, truth = share[rows], y[rows]
    accuracy, brier = ((share >= 0.5) == (truth == 1)).mean(), ((share - truth) ** 2).mean()
    n_groups = len(np.unique(groups[rows]))
    return Figure(0.5, 0.5, 0.5, float(accuracy), float(brier), len(rows), n_groups, smooth_error(share, truth))


def random_directions(design: Design, y: Float64[Tensor, "row"], noise: Float64[Tensor, "draw d"]) -> Readers:
    """Readers along given directions of the standardised space; only slope (with its sign) and intercept are fitted."""
    direction = noise / design.scale
    bias = -direction @ design.mean
    labels = y.expand(len(noise), -1)
    score = direction @ design.X.T + bias[:, None]
    return Readers(direction, bias, *calibrate(score, labels, torch.ones_like(labels)))


def permuted_labels(
    y: Int[np.ndarray, " row"], groups: Int[np.ndarray, " row"], fold: Int[np.ndarray, " row"], n: int, seed: int
) -> Int[np.ndarray, "draw row"]:
    """Labels without meaning that keep how labels, groups and folds hang together.

    Groups with as many positives as negatives (paired statements) are flipped whole, at random. The labels of the others
    are dealt out again within each outer fold, group after group in another order, and shuffled within each group: runs of
    one label stay runs, and each fold keeps its number of positives. Without that a training part rich in positives would
    have a test part poor in them, and the control would lie below 1/2.
    """
    # A stream of its own: labels that were themselves drawn with this seed must not meet their own draws again.
    rng = np.random.default_rng([seed, 2])
    paired = (2 * np.bincount(groups, weights=y) == np.bincount(groups))[groups]
    drawn = np.empty((n, len(y)), dtype=y.dtype)
    for labels in drawn:
        labels[paired] = _flipped(y, groups, rng)[paired]
        if not paired.all():
            labels[~paired] = _dealt_again(y[~paired], groups[~paired], fold[~paired], rng)
    return drawn


def _flipped(y: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return y ^ rng.integers(0, 2, groups.max() + 1)[groups]


def _dealt_again(y: np.ndarray, groups: np.ndarray, fold: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    def in_order() -> np.ndarray:
        place = rng.permutation(groups.max() + 1)[groups]
        return np.lexsort((rng.random(len(y)), place, fold))  # by fold, then the group's new place, then by chance

    labels = np.empty_like(y)
    labels[in_order()] = y[in_order()]
    return labels
