"""`steering_vector` and `steering_vectors`: directions from contrasts, at one site or at several in one pass.

1. Texts or a store become rows, one a text and site (`contrast`, `rows`); a probe and an SAE latent bring their direction.
2. A method makes a direction of the two sets of rows (`methods`), which is made a unit vector.
3. The site's typical rows give the units of strength: their median norm, and their standard deviation along the direction.
4. The card says the formula, what was read, and how well the direction separates groups of texts that it was not fitted on.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.intervene import Direction
from interp.model import HookedTransformer
from interp.probe.inputs import check_whole
from interp.probe.value import Probe
from interp.steering.contrast import encode_contrast, example_of, given_groups, read_contrast, tokenizer_of
from interp.steering.methods import METHODS, Sides, held_out_separation, method_of
from interp.steering.probed import vector_of_direction, vector_of_probe
from interp.steering.rows import TypicalRows, read_rows, stored_rows
from interp.steering.vector import SteeringVector
from interp.steering.vectors import SteeringVectors
from interp.store import Store

SITE = "resid_post:-1"
"""Where a vector is fitted if nothing is said."""


def steering_vector(
    data: object,
    *,
    model: HookedTransformer,
    method: str = "mean_difference",
    site: str | None = None,
    tokens: str | None = None,
    batch_size: int | Any = 32,
    reference: object = None,
    C: Any = None,
    seed: int | Any = 0,
    groups: Any = None,
) -> SteeringVector:
    """Fit a direction from contrasts, or take that of a probe or of an SAE latent.

    Args:
        data: one of

            - contrast pairs: ContrastPairs, (positive, negative) or (prompt, positive, negative) texts, mappings or a table
              with these keys;
            - labelled texts: a `Dataset`, `Example`s, or a table with text, label and perhaps group;
            - a store with labels 1 and 0;
            - a linear `Probe`: its direction, towards the label 1, at the site that it reads. That of a head's z becomes
              what the head adds to `attn_out`, through W_O;
            - any other direction, such as `interp.latent_direction(sae, 17)`.
        model: the model that the vector is for.
        method: `mean_difference`, `pca` (pairs only), `logistic`, `mass_mean` or `lda`; see `interp.steering.methods`.
        site: one place that holds a vector for each token, such as `resid_post:12`; None for `resid_post:-1`, or the
            probe's. Several places: `steering_vectors`.
        tokens: `response_mean` (mean over the response's tokens; the default for pairs with a prompt), `last` (the default
            otherwise) or `answer` (the token in which the responses of a pair differ, such as the letter of " (A)");
            special tokens and the first of a text are in no mean. Of a store "last" or what else `Store.pooled` takes.
        batch_size: texts in one forward pass. No figure depends on it.
        reference: for a probe or a direction, where the typical norm and the standard deviation come from: a store with the
            site, or texts; None for the rows that the probe was fitted on.
        C: for `logistic`: its strength as in scikit-learn, or several to choose from; None for those of `interp.fit_probe`.
        seed: of the folds, and of the sample of typical rows.
        groups: what texts are about, one value a pair (a labelled text, a text of the store): folds keep groups together.
            None for the groups of the data; pairs without one are groups of their own. "rows" for each its own.

    Raises:
        ValueError: fewer than two pairs, one label only, a store or probe of another model, a site that the model lacks or
            that holds a vector for each head, `pca` without pairs, a `logistic` without groups, or a probe of a kind that has
            no direction.
    """
    way = method_of(method)
    check_whole(1, batch_size=batch_size)
    check_whole(seed=seed)
    if isinstance(data, Probe | Direction):
        given = {
            "tokens": tokens,
            "C": C,
            "groups": groups,
            "method": None if way is METHODS["mean_difference"] else method,
        }
        said = [name for name, value in given.items() if value is not None]
        if said:
            raise ValueError(f"{type(data).__name__} is fitted already: leave {', '.join(said)} out")
        if isinstance(data, Probe):
            return vector_of_probe(data, model, site, reference, batch_size, seed)
        return vector_of_direction(data, model, site, reference, batch_size, seed)
    if reference is not None:
        raise ValueError("reference= says where a probe's typical norm comes from; pairs and stores bring their own")
    names = model.expand_sites(site or SITE)
    if len(names) != 1:
        raise ValueError(
            f"a steering vector is fitted at one site; {site!r} names {len(names)}: steering_vectors fits them all"
        )
    return _fitted(data, _Request(model, names, method, tokens, batch_size, C, seed, groups)).parts[0]


def steering_vectors(
    data: object,
    *,
    model: HookedTransformer,
    sites: Any = "resid_post:*",
    method: str = "mean_difference",
    tokens: str | None = None,
    batch_size: int | Any = 32,
    C: Any = None,
    seed: int | Any = 0,
    groups: Any = None,
) -> SteeringVectors:
    """Fit a direction at each of several sites, in one pass over the texts.

    Args:
        data: as for `steering_vector`: contrast pairs, labelled texts, or a store with labels.
        sites: `resid_post:8-12`, `resid_post:*`, or a list of names.
        model, method, tokens, batch_size, C, seed, groups: as there.

    Raises:
        ValueError: as there; and for a probe or a direction, which belongs to one site.
    """
    method_of(method)
    check_whole(1, batch_size=batch_size)
    check_whole(seed=seed)
    if isinstance(data, Probe | Direction):
        raise ValueError(f"a {type(data).__name__} stands at one site: use steering_vector")
    return _fitted(data, _Request(model, model.expand_sites(sites), method, tokens, batch_size, C, seed, groups))


@dataclass(frozen=True, eq=False)
class _Request:
    """What is asked for, once it is checked."""

    model: HookedTransformer
    sites: list[str]
    method: str
    tokens: str | None
    batch_size: int
    C: Any
    seed: int
    groups: Any

    def __post_init__(self) -> None:
        if self.C is not None and self.method != "logistic":
            raise ValueError(
                f"method={self.method!r} has no strength to set (C={self.C!r}): leave C out, or use method='logistic'"
            )
        for site in self.sites:
            shape = site_names.kind_of(site).shape.split()
            if len(shape) == 4:
                raise ValueError(
                    f"{site_names.short_name(site)} holds {' '.join(shape)}, a vector for each head; a steering vector is one "
                    "for each token: use attn_out or resid_post, or interp.head_vectors for directions of heads"
                )

    def sides(
        self, rows: Float[Tensor, "text d"], labels: np.ndarray, groups: list[str] | str | None, paired: bool
    ) -> Sides:
        """The rows of the two labels apart, and the groups in their order."""
        order = np.concatenate([np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)])
        n = int((labels == 1).sum())
        known = groups if groups is None or isinstance(groups, str) else [groups[i] for i in order]
        return Sides(rows[order[:n]], rows[order[n:]], paired, known, self.C, self.seed)


def _fitted(data: object, ask: _Request) -> SteeringVectors:
    sides, typical, facts = _of_store(data, ask) if isinstance(data, Store) else _of_texts(data, ask)
    origin = artifact.provenance(model=ask.model.cfg.name, fingerprint=ask.model.fingerprint)
    facts = {**facts, "groups": _n_groups(sides), "seed": ask.seed, **origin}
    parts = tuple(_vector(sides[site], typical[site], site, ask.method, facts) for site in ask.sites)
    shared = {"method": ask.method, "formula": METHODS[ask.method].formula}
    return SteeringVectors(parts, {**shared, "sites": [site_names.short_name(site) for site in ask.sites], **facts})


def _of_texts(data: object, ask: _Request) -> tuple[dict[str, Sides], dict[str, TypicalRows], dict[str, Any]]:
    contrast = read_contrast(data, ask.groups)
    tokens = ask.tokens or contrast.default_tokens
    encoded = encode_contrast(ask.model, contrast, tokens)
    rows, typical = read_rows(ask.model, encoded, ask.sites, ask.batch_size, ask.seed)
    paired = contrast.n_pairs is not None
    sides = {site: ask.sides(rows[site], contrast.labels, contrast.groups, paired) for site in ask.sites}
    example = example_of(tokenizer_of(ask.model), encoded)
    return sides, typical, {"tokens": tokens, **contrast.facts, "example": example}


def _of_store(store: Store, ask: _Request) -> tuple[dict[str, Sides], dict[str, TypicalRows], dict[str, Any]]:
    store.check_model(ask.model)
    tokens = ask.tokens or "last"
    rows, frame = {}, pd.DataFrame()
    for site in ask.sites:
        rows[site], frame = store.pooled(site, tokens=tokens)  # every site has the same texts
    labels = frame["label"].astype("float").to_numpy()
    if not ((labels == 1).any() and (labels == 0).any()):
        raise ValueError("the store needs texts of both labels, 1 and 0; record examples with labels")
    groups = given_groups(ask.groups, len(frame), "text of the store")
    if groups is None and "group" in frame and bool(frame["group"].notna().all()):
        groups = frame["group"].astype(str).tolist()
    sides = {site: ask.sides(rows[site], labels, groups, False) for site in ask.sites}
    said = [f"{label} {text}" for label, text in zip(labels, frame["text"], strict=True)]
    counts = {"n_positive": int((labels == 1).sum()), "n_negative": int((labels == 0).sum())}
    typical = {site: stored_rows(store, site, ask.seed) for site in ask.sites}
    return sides, typical, {"tokens": tokens, **counts, "data_hash": artifact.hash_texts(said)}


def _n_groups(sides: Mapping[str, Sides]) -> int | str | None:
    groups = next(iter(sides.values())).groups
    return groups if groups is None or isinstance(groups, str) else len(set(groups))


def _vector(sides: Sides, typical: TypicalRows, site: str, method: str, facts: dict[str, Any]) -> SteeringVector:
    way = METHODS[method]
    if not bool(torch.isfinite(sides.X).all()):
        raise ValueError(f"the activations at {site} are NaN or infinite: a hook wrote it, or the dtype is too narrow")
    found = way.fit(sides)
    size = float(found.direction.norm())
    if not size > 0 or not math.isfinite(size):
        raise ValueError(f"the two sides have the same mean at {site}: there is no direction")
    direction = (found.direction / size).float()
    card = {
        "method": method,
        "formula": way.formula,
        **facts,
        **found.facts,
        "n_typical_tokens": typical.n,
        "n_rows_of_sd": len(typical.rows),
        "held_out": held_out_separation(method, sides),
    }
    return SteeringVector(direction, site, typical.norm, 1.0, found.raw_norm, card, typical.sd(direction))
