"""Statements and their negations with a planted truth, for kinds of probe that need both."""

import numpy as np
import pandas as pd
import torch

from interp.probe.labelled import Labelled
from interp.probe.solver import Design


def unit(d: int, seed: int) -> np.ndarray:
    """A random direction."""
    drawn = np.random.default_rng(seed).normal(size=d)
    return drawn / np.linalg.norm(drawn)


def negated_pairs(
    n: int = 400,
    d: int = 48,
    truth: float = 3.0,
    turning: float = 0.0,
    polarity: float = 2.0,
    n_topics: int = 2,
    noise: np.ndarray | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, Labelled, np.ndarray]:
    """Rows t * truth * v + t p * turning * u + p * polarity * w + topic + noise; half of each polarity is true.

    Returns:
        rows [n d], labels, what is known of the rows, and v. u is `unit(d, 102)`, w is `unit(d, 103)`.
    """
    rng = np.random.default_rng(seed)
    pair = np.repeat(np.arange(n // 2), 2)
    first = rng.permutation(np.arange(n // 2) % 2)
    y, p, topic = np.stack([first, 1 - first], 1).ravel(), np.tile([1, -1], n // 2), pair % n_topics
    t = 2 * y - 1
    X = rng.normal(size=(n, d)) @ (np.eye(d) if noise is None else noise)
    X += (
        np.outer(t, truth * unit(d, 101))
        + np.outer(t * p, turning * unit(d, 102))
        + np.outer(p, polarity * unit(d, 103))
    )
    X += 3 * np.random.default_rng(104).normal(size=(n_topics, d))[topic]
    frame = pd.DataFrame(
        {
            "text": [f"text {i}" for i in range(n)],
            "label": y,
            "group": pair,
            "polarity": np.where(p > 0, "affirmative", "negated"),
            "topic": [f"topic {i}" for i in topic],
            "pair": pair,
        }
    )
    return X, y, Labelled.of(frame), unit(d, 101)


def problem(X: np.ndarray, y: np.ndarray, side: Labelled | None = None, C: float = 0.1) -> tuple[Design, ...]:
    """The arguments of a kind's fit, for one problem that sees every row."""
    labels = torch.tensor(y, dtype=torch.float64)[None]
    return Design(torch.tensor(X, dtype=torch.float64), side), labels, torch.ones_like(labels), labels.new_tensor([C])


def cosine(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> float:
    return float(torch.cosine_similarity(torch.as_tensor(a).double(), torch.as_tensor(b).double(), dim=0))
