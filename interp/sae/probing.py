"""Sparse probing: does an SAE hold a concept in a few latents, where activations hold it in many dimensions?

1. One row a text: the last token's activation, or the mean over the tokens that are typical at every site that the SAE
   reads, and at those that it writes as far as the store has them. Of latents the mean is that of the latents, not the
   latents of the mean.
2. Texts are divided into folds by group. In each training part the k latents with the largest |mean of the positives -
   mean of the negatives| are chosen, and a logistic probe reads them; its strength and threshold are chosen inside the
   training part too.
3. The figures are of the held-out texts of all folds together, with intervals by drawing groups again.
4. Beside them: the k best dimensions of the activations by the same rule, and a probe on the whole activation, which is
   what there is to be read. A dictionary is worth its price where k latents do what k dimensions cannot.

Gurnee et al. 2023, Finding neurons in a haystack, https://arxiv.org/abs/2305.01610; on SAEs Karvonen et al. 2025, SAEBench,
https://arxiv.org/abs/2503.09532, with one split into two parts where folds stand here.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from interp.artifact import provenance, read_json, write_json
from interp.probe.figures import Figure, Resamples
from interp.probe.folds import Fold, nested_folds
from interp.probe.inputs import Column, check_activations, check_groups, check_labels
from interp.probe.methods import choose, fit_logistic
from interp.probe.solver import Design
from interp.sae.evaluate import METRIC_VERSION
from interp.sae.model import SAE
from interp.store import Store

LATENTS, DIMENSIONS, WHOLE = "latents", "dimensions", "activation"
"""What a probe reads: k latents, k dimensions of the activation, the whole activation."""
_ROWS = 4096
_CHOICE = "largest |mean of the positives - mean of the negatives| in the training part"


@dataclass(frozen=True, eq=False)
class SparseProbing:
    """What a few latents tell about a label, on groups that no choice saw."""

    figures: dict[tuple[str, int], Figure]
    """(what is read, k) -> figure; k is the width for the whole activation."""
    latents: dict[int, tuple[int, ...]]
    """k -> the latents chosen on all rows, most telling first: what to look at."""
    chosen: dict[tuple[str, int], dict[int, int]] = field(repr=False)
    """(what is read, k) -> {latent or dimension: in how many of the folds it was chosen}."""
    card: dict[str, Any] = field(repr=False)
    """Sites, pooling, folds, n, seed, provenance."""

    def to_frame(self) -> pd.DataFrame:
        """A row per probe: reads, k, auroc, low, high, accuracy, brier, n, n_groups, and `chosen`: the latents or dimensions
        that most folds chose, k of them; empty for the whole activation."""
        lines = []
        for (reads, k), figure in self.figures.items():
            counted = Counter(self.chosen.get((reads, k), {})).most_common(k)
            lines.append({"reads": reads, "k": k, **asdict(figure), "chosen": [number for number, _ in counted]})
        return pd.DataFrame(lines)

    def summary(self) -> str:
        """A sentence per k, and what the whole activation tells."""
        (whole,) = (figure for (reads, _), figure in self.figures.items() if reads == WHOLE)
        lines = []
        for k, found in self.latents.items():
            mine, rival = self.figures[LATENTS, k], self.figures[DIMENSIONS, k]
            names = ", ".join(map(str, found))
            lines.append(
                f"k = {k}: latents AUROC {_interval(mine)} (on all rows: {names}), dimensions AUROC {_interval(rival)}."
            )
        lines.append(
            f"The whole activation: AUROC {_interval(whole)}; n = {whole.n:,} in {whole.n_groups:,} groups, "
            f"{self.card['n_folds']} folds."
        )
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON; `load_sparse_probing` reads it."""
        probes = [
            {
                "reads": reads,
                "k": k,
                "figure": asdict(figure),
                "chosen": [[number, n] for number, n in self.chosen.get((reads, k), {}).items()],
            }
            for (reads, k), figure in self.figures.items()
        ]
        latents = [[k, list(found)] for k, found in self.latents.items()]
        return write_json(path, {"kind": "sparse_probing", "card": self.card, "probes": probes, "latents": latents})


def load_sparse_probing(path: str | os.PathLike[str]) -> SparseProbing:
    """Read what `SparseProbing.save` wrote. ValueError for any other file."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "sparse_probing":
        raise ValueError(f"{path} holds no sparse probing")
    if {"card", "probes", "latents"} - set(content):
        raise ValueError(f"{path} is not a whole sparse probing: make it again")
    probes = {(one["reads"], one["k"]): one for one in content["probes"]}
    return SparseProbing(
        figures={key: Figure.of_json(one["figure"]) for key, one in probes.items()},
        latents={k: tuple(found) for k, found in content["latents"]},
        chosen={key: dict(one["chosen"]) for key, one in probes.items() if one["chosen"]},
        card=content["card"],
    )


def sparse_probing(
    sae: SAE,
    data: Any,
    y: Column | None = None,
    groups: Column | str | None = None,
    *,
    ks: Sequence[int] = (1, 2, 5),
    tokens: str = "last",
    n_folds: int = 5,
    n_boot: int = 1000,
    seed: int = 0,
) -> SparseProbing:
    """Probe k latents of an SAE for a label, against k dimensions and the whole of the activations that it reads.

    Args:
        sae: the SAE, transcoder or crosscoder.
        data: a store with labels and groups, or activations [row d_in], one row a text.
        y: 0 or 1 for each row; of a store the labels of its texts, where it is None.
        groups: the entity of each row, which never stands on both sides of a split, or "rows" to split by row on purpose;
            of a store the groups of its texts, where it is None.
        ks: numbers of latents.
        tokens: of a store, the row of each text: "last", or "mean" over its typical tokens.
        n_folds: outer folds; each training part is divided into one fewer for its choices.
        n_boot: draws for the intervals.
        seed: of the folds and the draws.

    Raises:
        ValueError: k below 1, above d_in or above the number of latents, no labels or groups, another width, NaN, a store
            without the SAE's sites or with other tokens, and what `fit_probe` refuses.
    """
    sizes, most = sorted(set(ks)), min(sae.d_in, sae.n_latents)
    if not sizes or not all(isinstance(k, int) for k in sizes) or not 1 <= sizes[0] <= sizes[-1] <= most:
        raise ValueError(
            f"ks lie between 1 and {most}, for there are {sae.n_latents} latents and {sae.d_in} dimensions; got {ks!r}"
        )
    if isinstance(data, Store):
        sae.require_raw()
        x, latents, y, groups = _of_store(sae, data, tokens, y, groups)
    else:
        x = check_activations(data, "the activations")
        latents = _encoded(sae, x)
    if y is None or groups is None:
        raise ValueError(
            "labels and groups are needed: give y= and groups= (the entity of each row, or 'rows' on purpose)"
        )
    labels, codes = check_labels(y, len(x)), check_groups(groups, len(x), n_folds)
    folds = nested_folds(labels, codes, n_folds, seed)
    resamples = Resamples.of(codes, n_boot, seed)
    figures, chosen = {}, {}
    for reads, table in ((LATENTS, latents), (DIMENSIONS, x)):
        for k in sizes:
            figures[reads, k], chosen[reads, k] = _figure(table, labels, folds, resamples, k)
    figures[WHOLE, sae.d_in], _ = _figure(x, labels, folds, resamples, None)
    card = {
        "sites": list(sae.sites),
        "tokens": tokens if isinstance(data, Store) else None,
        "model": sae.card.get("model"),
        "n": len(x),
        "positives": int(labels.sum()),
        "n_groups": int(codes.max()) + 1,
        "n_folds": n_folds,
        "n_boot": n_boot,
        "chosen_by": _CHOICE,
        "metric_version": METRIC_VERSION,
        "provenance": provenance(seed=seed),
    }
    best = {k: tuple(_most_telling(latents, labels, k).tolist()) for k in sizes}
    return SparseProbing(figures, best, chosen, card)


def _most_telling(
    table: Float64[Tensor, "row column"], y: Int[np.ndarray, " row"], k: int
) -> Int[np.ndarray, " chosen"]:
    """The k columns whose class means differ most, the largest first."""
    positive = torch.from_numpy(y == 1)
    return (table[positive].mean(0) - table[~positive].mean(0)).abs().topk(k).indices.numpy()


def _figure(
    table: Float64[Tensor, "row column"],
    y: Int[np.ndarray, " row"],
    folds: list[Fold],
    resamples: Resamples,
    k: int | None,
) -> tuple[Figure, dict[int, int]]:
    """The figure of probes on the k most telling columns (None: all), chosen and fitted in each training part."""
    logit, guess = np.zeros(len(y)), np.zeros(len(y), dtype=bool)
    counted: Counter[int] = Counter()
    for fold in folds:
        columns = slice(None) if k is None else _most_telling(table[fold.train], y[fold.train], k)
        if k is not None:
            counted.update(np.asarray(columns).tolist())
        design = Design(table[fold.train][:, columns])
        choice = choose("logistic", design, y[fold.train], fold.inner)
        target = torch.tensor(y[fold.train], dtype=torch.float64)[None]
        reader = fit_logistic(design, target, torch.ones_like(target), target.new_tensor([choice.C]))
        logit[fold.test] = reader.logit(table[fold.test][:, columns])[0].numpy()
        guess[fold.test] = logit[fold.test] > choice.threshold
    return resamples.figure(logit, y, guess), dict(counted)


@torch.no_grad()
def _encoded(sae: SAE, x: Float[Tensor, "row d_in"]) -> Float64[Tensor, "row latent"]:
    parts = [sae.encode(part.to(sae.W_enc)).double().cpu() for part in x.split(_ROWS)]
    return torch.cat(parts)


def _of_store(sae: SAE, store: Store, tokens: str, y: Column | None, groups: Column | str | None) -> tuple[Any, ...]:
    """Activations and latents of the texts of a store, and their labels and groups."""
    if not sae.sites:
        raise ValueError(
            "the SAE does not say its sites, so they cannot be read from a store: give activations instead"
        )
    if tokens not in ("last", "mean"):
        raise ValueError(f"tokens is 'last' or 'mean', got {tokens!r}")
    source = store if tokens == "last" else _typical_at_all(sae, store)
    pooled = [source.pooled(name, tokens) for name in sae.sites]
    x, texts = torch.cat([rows for rows, _ in pooled], dim=1), pooled[0][1]
    latents = _encoded(sae, x) if tokens == "last" else _mean_latents(sae, source)
    label = texts["label"] if y is None and "label" in texts else y
    group = texts["group"] if groups is None and "group" in texts else groups
    return check_activations(x, "the activations"), latents, label, group


def _typical_at_all(sae: SAE, store: Store) -> Store:
    """A view of the tokens that are typical at every site of the SAE that the store has. ValueError for a text without."""
    names = [*sae.sites, *(name for name in sae.targets if name in store.sites)]
    frame = store.tokens
    typical = np.logical_and.reduce([store.typical(name) for name in names]) & (frame["position"] >= 0).to_numpy()
    text = frame["text"].to_numpy()
    without = np.setdiff1d(text, text[typical])
    if len(without):
        raise ValueError(
            f"text {without[0]} has no typical token of its own in this store, so its latents have no mean: record with "
            "tokens='all', leave it out, or use tokens='last'"
        )
    return store.select(rows=typical)


@torch.no_grad()
def _mean_latents(sae: SAE, store: Store) -> Float64[Tensor, "text latent"]:
    """Mean of each latent over the rows of each text."""
    numbers, text = np.unique(store.tokens["text"].to_numpy(), return_inverse=True)
    counts = torch.from_numpy(np.bincount(text))
    sums = torch.zeros(len(numbers) * sae.n_latents, dtype=torch.float64)
    for start in range(0, store.n_rows, _ROWS):
        part = np.arange(start, min(start + _ROWS, store.n_rows))
        active = sae.active(torch.cat([store.rows(name, part) for name in sae.sites], dim=1).to(sae.W_enc))
        place = torch.from_numpy(text[part])[active.row.cpu()] * sae.n_latents + active.latent.cpu()
        sums.index_add_(0, place, active.values.double().cpu())
    return sums.view(len(numbers), sae.n_latents) / counts[:, None]


def _interval(figure: Figure) -> str:
    return f"{figure.auroc:.3f} (95 % {figure.low:.3f} to {figure.high:.3f})"
