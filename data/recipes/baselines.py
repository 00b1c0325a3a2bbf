"""What the text alone gives away, without any model: the figures that every probe is compared with."""

from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from interp.dataset import grouped_folds


def words(texts: Sequence[str], labels: Sequence[int], groups: Sequence[str] | None) -> float:
    """AUROC of a logistic regression on which words a text has, over 5 held-out folds; groups None splits by rows."""
    folds = grouped_folds(range(len(texts)) if groups is None else groups, n=5, seed=0)
    truth, scores = np.asarray(labels), np.zeros(len(texts))
    for held_out in folds:
        train = np.setdiff1d(np.arange(len(texts)), held_out)
        counter = CountVectorizer(token_pattern=r"\w+", binary=True)
        model = LogisticRegression(max_iter=1000)
        model.fit(counter.fit_transform([texts[i] for i in train]), truth[train])
        scores[held_out] = model.decision_function(counter.transform([texts[i] for i in held_out]))
    # Balanced words leave weights that are zero but for rounding; without this their order would look like a result.
    return auroc(scores.round(6), labels)


def length(texts: Sequence[str], labels: Sequence[int]) -> float:
    """AUROC of the number of characters."""
    return auroc([len(text) for text in texts], labels)


def surface_match(
    entities: Sequence[str], answers: Sequence[str], affirmed: Sequence[bool], labels: Sequence[int]
) -> float:
    """AUROC of how many first letters a word of the answer has in common with one of the entity, signed by polarity."""
    shared = [max(_common(a, b) for a in e.split() for b in o.split()) for e, o in zip(entities, answers, strict=True)]
    return auroc([count if yes else -count for count, yes in zip(shared, affirmed, strict=True)], labels)


def auroc(scores: Sequence[float] | np.ndarray, labels: Sequence[int]) -> float:
    """Area under the ROC curve to three digits; ties count half."""
    return round(float(roc_auc_score(labels, scores)), 3)


def _common(one: str, other: str) -> int:
    pairs = zip(one.casefold(), other.casefold())
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
