"""Activations with a known truth in them, or known to have none, for tests of probes."""

import numpy as np
import pandas as pd
import torch

SITE = "blocks.{}.hook_resid_post"


class MemoryStore:
    """What a sweep reads of a store, held in memory: one array a layer."""

    def __init__(self, layers: list[np.ndarray], frame: pd.DataFrame) -> None:
        self.layers, self.frame, self.card = layers, frame, {"tokens": "last"}

    @property
    def sites(self) -> list[str]:
        return [SITE.format(layer) for layer in range(len(self.layers))]

    def pooled(self, site: str, tokens: str = "last") -> tuple[torch.Tensor, pd.DataFrame]:
        return torch.tensor(self.layers[self.sites.index(site)].copy(), dtype=torch.float32), self.frame


def frame_of(y: np.ndarray, groups: np.ndarray | None, texts: list[str] | None = None) -> pd.DataFrame:
    texts = texts or [f"text {i}" for i in range(len(y))]
    names = [None] * len(y) if groups is None else [f"entity {g}" for g in groups]
    return pd.DataFrame({"text": texts, "label": y, "group": names, "split": None})


def paired(n: int = 300, d: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n entities, each in one true and one false statement, at random: activations know the entity, not the truth."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n), 2)
    first = rng.integers(0, 2, n)
    y = np.stack([first, 1 - first], 1).ravel()
    X = rng.normal(size=(n, d))[groups] + 0.3 * rng.normal(size=(2 * n, d))
    return X, y, groups


def planted(
    n: int = 400, d: int = 24, strength: float = 1.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose mean along one direction is the label, in groups of four of one entity."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    direction = rng.normal(size=d)
    X = rng.normal(size=(n, d)) + strength * np.outer(y - 0.5, direction / np.linalg.norm(direction))
    return X, y, np.arange(n) // 4
