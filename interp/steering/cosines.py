"""`cosine_table`: how alike directions are, beside how alike two directions are that mean nothing.

In d dimensions two isotropic random directions have a cosine of about 1 / sqrt(d). Activations do not spread evenly: a few
directions hold most of their variance (Ethayarajh 2019, arXiv 1909.00512), and two random directions *with the activations'
covariance* often have cosines of 0.5 and more. Whatever is fitted to activations leans the same way, so a cosine means
something only beside that band.

1. A random direction is a normal combination of the centred typical rows of a site, which has exactly their covariance.
2. For each pair of vectors, one such direction is drawn at the site of each, independently, `n_random` times.
3. The band holds 95 % of their cosines; p is the share of them that are as large in absolute value, (1 + k) / (n + 1).
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from interp.model import HookedTransformer
from interp.probe.inputs import check_whole
from interp.steering.rows import TypicalRows, stored_rows, typical_of
from interp.steering.vector import SteeringVector, check_vectors, short
from interp.steering.vectors import SteeringVectors
from interp.store import Store

BAND = (0.025, 0.975)
"""Quantiles of the random cosines."""


def cosine_table(
    vectors: Mapping[str, SteeringVector] | Iterable[SteeringVector] | Any,
    *,
    reference: object = None,
    model: HookedTransformer | None = None,
    n_random: int | Any = 1000,
    seed: int | Any = 0,
) -> pd.DataFrame:
    """The cosine of every two of several vectors.

    Args:
        vectors: name -> vector, several vectors, or `SteeringVectors`.
        reference: where the typical rows come from: a store with the vectors' sites, or texts with `model=`. None for no
            band.
        model: for texts.
        n_random: random directions for each pair.
        seed: of the random directions.

    Returns:
        A row for each two vectors: a, b (names), cosine; with a reference also low, high (the band), p and n_random. The
        square form: `table.pivot(index="a", columns="b", values="cosine")`.

    Raises:
        ValueError: fewer than two vectors, or ones of different width; texts without a model; a reference without a site.
    """
    check_whole(100, n_random=n_random)
    check_whole(seed=seed)
    named = _named(vectors)
    check_vectors(list(named.values()))
    if len(named) < 2:
        raise ValueError(f"a table of cosines needs at least two vectors, got {len(named)}")
    rows = [{"a": a, "b": b, "cosine": named[a].cosine(named[b])} for a, b in itertools.combinations(named, 2)]
    if reference is not None:
        sites = list(dict.fromkeys(each.site for each in named.values()))
        typical = _typical(reference, model, sites, seed)
        drawn = [_directions(typical, sites, n_random, seed, side) for side in (0, 1)]
        for row in rows:
            one, other = drawn[0][named[row["a"]].site], drawn[1][named[row["b"]].site]
            row |= _band((one * other).sum(1).numpy(), row["cosine"])
    return pd.DataFrame(rows)


def _named(vectors: Any) -> dict[str, Any]:
    if isinstance(vectors, SteeringVectors):
        return {short(part.site): part for part in vectors}
    if isinstance(vectors, Mapping):
        return {str(name): each for name, each in vectors.items()}
    if isinstance(vectors, SteeringVector) or not isinstance(vectors, Iterable):
        raise ValueError(f"a table of cosines needs several vectors, got {type(vectors).__name__}")
    listed = list(vectors)
    check_vectors(listed)
    return {
        f"{index} {each.card.get('method', 'vector')} {short(each.site)}": each for index, each in enumerate(listed)
    }


def _typical(reference: object, model: HookedTransformer | None, sites: list[str], seed: int) -> dict[str, TypicalRows]:
    if model is not None:
        return typical_of(reference, model, sites, 32, seed)
    if not isinstance(reference, Store):
        raise ValueError("a reference of texts needs model=, which reads them; a store needs none")
    return {site: stored_rows(reference, site, seed) for site in sites}


def _directions(
    typical: Mapping[str, TypicalRows], sites: list[str], n: int, seed: int, side: int
) -> dict[str, Float64[Tensor, "draw d"]]:
    """Unit directions with the covariance of each site's rows; those of the two sides are independent."""
    found = {}
    for index, site in enumerate(sites):
        rows = typical[site].rows.double()
        if len(rows) < 2:
            raise ValueError(f"the reference has {len(rows)} typical rows at {short(site)}: a covariance needs more")
        numbers = np.random.default_rng([seed, index, side]).standard_normal((n, len(rows)))
        mixed = torch.from_numpy(numbers) @ (rows - rows.mean(0))
        found[site] = mixed / mixed.norm(dim=1, keepdim=True)
    return found


def _band(cosines: np.ndarray, own: float) -> dict[str, Any]:
    low, high = np.quantile(cosines, BAND)
    as_large = int((np.abs(cosines) >= abs(own)).sum())
    return {"low": float(low), "high": float(high), "p": (1 + as_large) / (len(cosines) + 1), "n_random": len(cosines)}
