"""`ExplainerPage`: all that an explainer may read of one latent, and nothing that scoring will use.

1. The latent's row of the feature tables: how often and how strongly it fires, its top tokens, the tokens it raises.
2. Examples: passages in which it fires, the strongest and some of every strength, with the activation of each token.
   With `hold_out` every second one only, so that a label can be scored on the rest.
3. Others: random passages in which it never fires. What is common in them explains nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from interp.model import HookedTransformer
from interp.sae.features import SAEFeatures
from interp.sae.labels.passages import AFTER, BEFORE, Context, PassageReader
from interp.store import Store
from interp.tokens import Tokenizer

N_OTHERS = 20
"""Passages without the latent on a page."""
POOL = 300
"""Random passages that all latents choose theirs from."""


@dataclass(frozen=True)
class ExplainerPage:
    """What an explainer reads of a latent."""

    latent: int
    sites: tuple[str, ...]
    """What the SAE reads."""
    density: float
    """Share of rows in which it fires."""
    max: float
    """Its largest activation."""
    n_rows: int
    """Rows that density, maximum and top tokens were taken over."""
    top_tokens: tuple[str, ...]
    """Tokens by summed activation, strongest first."""
    top_token_share: float
    """Share of the summed activation that falls on the first of them."""
    up_tokens: tuple[str, ...]
    """Tokens that its decoder row raises most; empty where the feature tables were made without a model."""
    down_tokens: tuple[str, ...]
    """Tokens that it lowers most."""
    examples: tuple[Context, ...]
    """Its strongest passages, strongest first."""
    quantiles: tuple[Context, ...]
    """Passages of all strengths, where the feature tables have them."""
    others: tuple[Context, ...]
    """Random passages in which it never fires."""

    @property
    def shown_texts(self) -> tuple[int, ...]:
        """Numbers of the store's texts that the page quotes."""
        return tuple(sorted({context.text_number for context in (*self.examples, *self.quantiles, *self.others)}))


def explainer_page(
    features: SAEFeatures,
    store: Store,
    latent: int | Any,
    model: HookedTransformer | Tokenizer,
    **settings: Any,
) -> ExplainerPage:
    """The page of one latent; settings and errors as in `explainer_pages`."""
    return next(explainer_pages(features, store, [latent], model, **settings))


def explainer_pages(
    features: SAEFeatures,
    store: Store,
    latents: Sequence[int] | Any,
    model: HookedTransformer | Tokenizer,
    *,
    hold_out: bool = True,
    before: int | Any = BEFORE,
    after: int | Any = AFTER,
    n_others: int | Any = N_OTHERS,
    seed: int = 0,
) -> Iterator[ExplainerPage]:
    """The pages of some latents, one after the other.

    Args:
        features: what `sae_features` made of the store.
        store: that store.
        latents: numbers of latents.
        model: the model or its tokenizer, for the texts of tokens.
        hold_out: show every second example only, and leave the rest to scoring.
        before, after: tokens of a passage on both sides of the token that fires.
        n_others: passages without the latent, at most: one that fires everywhere has none.
        seed: of the choice of these.

    Raises:
        ValueError: a latent that does not exist or never fires; no tokenizer, or another one than the store's.
    """
    if n_others < 0:
        raise ValueError(f"n_others={n_others} is no number of passages: give 0 or more")
    chosen = check_latents(features, latents)
    reader = PassageReader(features, store, model, before=before, after=after)
    return _pages(features, reader, chosen, 2 if hold_out else 1, n_others, seed)


def _pages(
    features: SAEFeatures, reader: PassageReader, latents: Sequence[int], step: int, n_others: int, seed: int
) -> Iterator[ExplainerPage]:
    pool = reader.random_rows(max(POOL, n_others) if n_others else 0, seed)
    top, drawn = (
        dict(iter(table.groupby("latent", sort=False))) for table in (features.examples, features.interval_examples)
    )
    rows = features.latents.set_index("latent", drop=False)
    for latent in latents:
        strongest = top[latent]["row"].to_numpy()[::step]
        parts = (
            [part["row"].to_numpy()[::step] for _, part in drawn[latent].groupby("interval")] if latent in drawn else []
        )
        yield ExplainerPage(
            latent=latent,
            sites=features.sites,
            n_rows=features.n_rows,
            examples=tuple(reader.contexts(latent, strongest)),
            quantiles=tuple(reader.contexts(latent, np.concatenate([np.empty(0, np.int64), *parts]))),
            others=tuple(reader.contexts(latent, pool[reader.silent(latent, pool)][:n_others])),
            **_columns(rows.loc[latent], reader.tokenizer),
        )


def check_latents(features: SAEFeatures, latents: Sequence[int] | Any) -> list[int]:
    """Numbers of latents that fire, as a list; ValueError for one that does not exist or never fires."""
    chosen = latent_numbers(latents)
    known, fires = set(features.latents["latent"].tolist()), set(features.examples["latent"].tolist())
    for latent in chosen:
        if latent not in known:
            raise ValueError(f"there is no latent {latent}: this SAE has {len(known)}")
        if latent not in fires:
            raise ValueError(f"latent {latent} never fires in these rows: there is nothing to explain, leave it out")
    return chosen


def latent_numbers(latents: Any) -> list[int]:
    """A list, range, array or tensor of latents as a list. ValueError for a single number, or entries that are none."""
    given = latents.tolist() if hasattr(latents, "tolist") else latents
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValueError(f"latents={latents!r} is no list of latents: give their numbers, such as [3]")
    found = list(given)
    odd = [each for each in found if isinstance(each, bool) or not isinstance(each, Integral)]
    if odd:
        raise ValueError(f"latents holds {odd[0]!r}: a latent is a whole number")
    return [int(each) for each in found]


def _columns(row: Any, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a page takes over from the table of latents."""
    found: dict[str, Any] = {name: float(row[name]) for name in ("density", "max", "top_token_share")}
    for name in ("top", "up", "down"):
        ids = row.get(f"{name}_token_ids")
        found[f"{name}_tokens"] = () if ids is None else tuple(tokenizer.to_str_tokens([int(i) for i in ids]))
    return found
