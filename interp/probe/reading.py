"""What a probe reads of a store: places, and for each place rows with the frame of the texts that they come from.

1. A *place* is a whole site (`blocks.5.hook_resid_post`) or one head of a site that has heads (`blocks.5.attn.hook_z.3`,
   in short `z:5.3`). `expand_places` turns what a user types into places: `z:5.3`, `z:5.*`, `z:4-6.*`, `z:*.*`.
2. `read_place` reads one. What `tokens` says decides what a row is: the last, first or mean token of each text, a rule that
   was recorded, or with "every" each token. Of every token the typical ones are read, by the store's own rule: not the
   first of a text, not special, no outlier. How many were left out stands in `frame.attrs["left_out"]`.
3. Probes that read a text's tokens together (attention) get them as `TokenRows`.
4. Labels that were not recorded are joined by `joining`, which also compares a store with a data set.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float32, Int, Int64
from torch import Tensor

from interp import sites as site_names
from interp.probe.joining import check_texts, join_labels
from interp.store.pooling import PICKS, RULE, recorded_rules

EVERY = "every"
"""The value of `tokens` that makes each typical token a row; "every:answer" those of a recorded rule."""
LEFT_OUT = ("first", "special", "outlier")
"""Why a token is not typical, by the first reason that holds."""

__all__ = [
    "EVERY", "LEFT_OUT", "ActivationSource", "TokenRows", "TokenSource", "asked_places", "check_texts", "expand_places",
    "join_labels", "place_layer", "place_name", "read_place", "site_of", "store_facts",
]  # fmt: skip


@runtime_checkable
class ActivationSource(Protocol):
    """What a sweep reads of a store: one row a text."""

    card: dict[str, Any]

    @property
    def sites(self) -> list[str]:
        """Full names."""
        ...

    def pooled(self, site: str, tokens: str = "last") -> tuple[Tensor, pd.DataFrame]:
        """X [text d] and the frame of texts."""
        ...


@runtime_checkable
class TokenSource(ActivationSource, Protocol):
    """What is read of a store for heads and for single tokens; `interp.Store` is one."""

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def examples(self) -> pd.DataFrame:
        """A row per text, indexed by its number."""
        ...

    @property
    def tokens(self) -> pd.DataFrame:
        """A row per row of the sites."""
        ...

    def typical(self, site: str) -> Bool[np.ndarray, " row"]:
        """Which rows are typical."""
        ...

    def rows(self, site: str, index: Any) -> Float32[Tensor, "n d"]:
        """Rows of a site."""
        ...


@dataclass(frozen=True, eq=False)
class TokenRows:
    """The tokens of several texts, one text after the other. `len()` is the number of texts.

    Raises:
        ValueError: a text without a token, or bounds that do not fit the tokens.
    """

    X: Float32[Tensor, "token d"]
    """Activations."""
    starts: Int64[Tensor, " bound"]
    """[texts + 1]: the tokens of text i are starts[i]:starts[i + 1]."""

    def __post_init__(self) -> None:
        bounds = self.starts.tolist()
        if not bounds or bounds[0] != 0 or bounds[-1] != len(self.X):
            raise ValueError(
                f"starts go from 0 to the number of tokens, {len(self.X)}; got {bounds[:1]} to {bounds[-1:]}"
            )
        if bool((self.lengths < 1).any()):
            raise ValueError(f"text {int((self.lengths < 1).nonzero()[0])} has no token: leave it out")

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Int64[Tensor, " row"]:
        """Tokens of each text."""
        return self.starts.diff()

    @property
    def text(self) -> Int64[Tensor, " token"]:
        """The text of each token, counted from 0."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    def take(self, rows: Any) -> "TokenRows":
        """Some of the texts, in the order given: integers, or a mask over all."""
        wanted = np.asarray(rows)
        numbers = np.flatnonzero(wanted) if wanted.dtype == bool else wanted.astype(np.int64)
        chosen = torch.from_numpy(np.atleast_1d(numbers))
        lengths = self.lengths[chosen]
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        # Token j of the result is its text's first token there, and so many after it.
        index = torch.repeat_interleave(self.starts[:-1][chosen] - starts[:-1], lengths) + torch.arange(int(starts[-1]))
        return TokenRows(self.X[index], starts)

    def padded(self) -> tuple[Float32[Tensor, "row most d"], Bool[Tensor, "row most"]]:
        """One row a text, as long as the longest: (values, zeros behind each text's end; which are tokens)."""
        mask = torch.arange(int(self.lengths.max()))[None] < self.lengths[:, None]
        values = self.X.new_zeros(*mask.shape, self.X.shape[1])
        values[mask] = self.X
        return values, mask


# ----------------------------------------------------------------------------------------------------------- places


def site_of(place: str) -> tuple[str, int | None]:
    """(full site name, head) of a place; the head is None where the place is a whole site."""
    found = re.fullmatch(r"(.+)\.(\d+)", place)
    return (found[1], int(found[2])) if found else (place, None)


def place_name(place: str) -> str:
    """Short name: `z:5.3`, `resid_post:6`. A name that is no site's stays."""
    site, head = site_of(place)
    try:
        short = site_names.short_name(site)
    except ValueError:
        return place
    return short if head is None else f"{short}.{head}"


def place_layer(place: str) -> int | None:
    """The layer of a place, None outside the blocks."""
    return site_names.layer_of(place)


def expand_places(sites: str | Sequence[Any] | Any, store: ActivationSource) -> list[str]:
    """Names, shorthand and patterns of sites and heads as places, in the model's order, each once.

    Args:
        sites: one or several of: what `interp.sites` understands (`resid_post:*`, `z:5`, full names and globs over them);
            heads as `z:5.3`, `z:5.0-4`, `z:5.*`, `z:*.*`, `blocks.5.attn.hook_z.3`, or a glob over such names.
        store: has the sites, and with their shapes the number of heads.

    Raises:
        ValueError: nothing fits; the message holds the nearest names.
    """
    one = isinstance(sites, str) or _is_pair(sites)
    wanted = [sites] if one else list(sites) if isinstance(sites, Iterable) else None
    if not wanted:
        raise ValueError(f"say which sites are read, for example 'resid_post:*' or 'z:5.3'; got {sites!r}")
    found: set[str] = set()
    for each in wanted:
        found.update(_heads(each, store) if isinstance(each, str) else site_names.expand([each], store.sites))
    return [place for site in store.sites for place in (site, *_heads_of(site, store)) if place in found]


def asked_places(sites: str | Sequence[Any] | Any, store: ActivationSource) -> list[str]:
    """`expand_places`, where None is "resid_post:*", or all sites of a store that has none of these."""
    if sites is None:
        return [site for site in store.sites if re.fullmatch(r"blocks\.\d+\.hook_resid_post", site)] or store.sites
    return expand_places(sites, store)


def _is_pair(sites: Any) -> bool:
    return isinstance(sites, tuple) and len(sites) in (2, 3) and isinstance(sites[1], int)


def _n_heads(site: str, store: ActivationSource) -> int:
    """Heads of a recorded site, 0 where a row is one vector."""
    shape = getattr(store, "shapes", {}).get(site, ())
    return shape[0] if len(shape) == 2 else 0


def _heads_of(site: str, store: ActivationSource) -> list[str]:
    return [f"{site}.{head}" for head in range(_n_heads(site, store))]


def _heads(wanted: str, store: ActivationSource) -> list[str]:
    """Places that one name, shorthand or pattern stands for."""
    available = store.sites
    shorthand = re.fullmatch(r"([^:]+:[^.]+)\.(\*|\d+|\d+-\d+)", wanted)
    if shorthand:
        chosen = [selector.name for selector in site_names.select(shorthand[1], available)]
        return [f"{site}.{head}" for site in chosen for head in _head_numbers(wanted, site, shorthand[2], store)]
    site, _, head = wanted.rpartition(".")
    if site in available and re.fullmatch(r"\*|\d+|\d+-\d+", head):
        return [f"{site}.{number}" for number in _head_numbers(wanted, site, head, store)]
    if ":" not in wanted and any(sign in wanted for sign in "*?["):
        # A pattern means sites where it fits any, else heads: "*" is not meant to read every head as well.
        fits = [name for name in available if fnmatch.fnmatchcase(name, wanted)]
        heads = (name for site in available for name in _heads_of(site, store))
        fits = fits or [name for name in heads if fnmatch.fnmatchcase(name, wanted)]
        if fits:
            return fits
    return site_names.expand(wanted, available)


def _head_numbers(wanted: str, site: str, which: str, store: ActivationSource) -> range:
    """The heads of a site that "*", "3" or "0-4" names."""
    n = _n_heads(site, store)
    if not n:
        shape = getattr(store, "shapes", {}).get(site)
        raise ValueError(
            f"{wanted!r} asks for heads, but {site_names.short_name(site)!r} has none here (a row has the shape "
            f"{list(shape) if shape else 'of one vector'}): leave the head out, or record a site with heads such as 'z:*'"
        )
    if which == "*":
        return range(n)
    low, _, high = which.partition("-")
    first, last = int(low), int(high or low)
    if not first <= last < n:
        raise ValueError(f"{wanted!r}: {site_names.short_name(site)!r} has heads 0 to {n - 1}")
    return range(first, last + 1)


# ---------------------------------------------------------------------------------------------------------- reading


def read_place(
    store: ActivationSource, place: str, tokens: str | Any = "last", reads: str = "row", labels: Any = None
) -> tuple[Float32[Tensor, "row d"] | TokenRows, pd.DataFrame]:
    """Rows of a place, and the frame that they are aligned with.

    Args:
        store: recorded texts. Heads and "every" need a `TokenSource`, which every store is.
        place: a full name, as `expand_places` gives it; shorthand of one place does too.
        tokens: one row a text: "last", "first", "mean", a recorded rule or "mean:rule" (see `Store.pooled`). "every": a row
            for each typical token that was kept; "every:rule": of those of one recorded rule.
        reads: "row", or "tokens" for all typical tokens of a text together, whatever row `tokens` would pick of them:
            "last" and "every" then read the same, and so do "last:answer" and "every:answer".
        labels: labels that were not recorded, see `join_labels`.

    Returns:
        Float32 [row d] and a frame with a row for each: the texts' columns, indexed by the text's number; with "every"
        numbered from 0, with `text_index` (the text's number) and `position`. With `reads="tokens"` TokenRows and a row
        per text. Of "every" and tokens `frame.attrs["left_out"]` says how many tokens were first, special or outliers.

    Raises:
        ValueError: an unknown place, tokens that were not recorded, a text without a typical token, NaN.
    """
    if reads not in ("row", "tokens"):
        raise ValueError(f"reads is 'row' or 'tokens', got {reads!r}")
    if place not in store.sites:
        found = expand_places(place, store)
        if len(found) != 1:
            raise ValueError(f"{place!r} names {len(found)} places, one is read at a time, for example {found[0]!r}")
        place = found[0]
    if tokens == "all" and reads == "row":
        raise ValueError(
            "tokens='all' are many rows a text, and which of them are read must be said: 'last', 'first' or 'mean' for one a "
            f"text, {EVERY!r} for each token a row"
        )
    site, head = site_of(place)
    lengths = None
    if reads == "row" and not (isinstance(tokens, str) and tokens.partition(":")[0] == EVERY):
        rows, frame = store.pooled(site, tokens=tokens)
        assert len(rows) == len(frame), f"{site}: {len(rows)} rows and {len(frame)} texts"
    else:
        rows, frame, lengths = _read_tokens(store, site, tokens, reads)
    rows = rows if head is None else rows.view(len(rows), _n_heads(site, store), -1)[:, head].contiguous()
    frame = frame if labels is None else join_labels(frame, labels)
    if reads == "row":
        return rows, frame
    assert lengths is not None
    return TokenRows(rows, torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))), frame


def _read_tokens(
    store: ActivationSource, site: str, tokens: str | Any, reads: str
) -> tuple[Float32[Tensor, "token d"], pd.DataFrame, Int[np.ndarray, " text"]]:
    """(every typical token of a site, a frame with a row per token or per text, tokens of each text)."""
    if not isinstance(store, TokenSource):
        raise ValueError(
            f"tokens={tokens!r} reads single tokens, and a {type(store).__name__} has one row a text: give a recorded store"
        )
    table, examples = store.tokens, store.examples
    kept, typical = _kept_tokens(store, tokens), store.typical(site)
    chosen = np.flatnonzero(kept & typical)
    text, position = table["text"].to_numpy()[chosen], table["position"].to_numpy()[chosen]
    lengths = pd.Series(text).value_counts().reindex(examples.index, fill_value=0).to_numpy()
    if not lengths.all():
        raise ValueError(
            f"text {examples.index[int(np.argmin(lengths))]} has no typical token (each is special, its first one or an "
            f"outlier) among tokens={tokens!r}: leave it out, or use tokens='last'"
        )
    assert (np.diff(text) >= 0).all(), "the rows of a store stand in the order of its texts"
    assert (np.unique(text) == examples.index).all(), "the tokens and the texts of a store are not aligned"
    rows = store.rows(site, chosen)
    if not bool(torch.isfinite(rows).all()):
        raise ValueError(f"{site} holds NaN or infinite values: store.verify() lists what is damaged")
    if reads == "row":
        own = {name: f"example_{name}" for name in ("text_index", "position") if name in examples}
        frame = examples.rename(columns=own).loc[text].reset_index(drop=True)
        frame = frame.assign(text_index=text, position=position)
    else:
        frame = examples.copy()
    frame.attrs["left_out"] = _left_out(table, kept & ~typical)
    return rows, frame, lengths


def _left_out(table: pd.DataFrame, rows: Bool[np.ndarray, " row"]) -> dict[str, int]:
    """How many of these tokens, none of which is typical, are so for which reason: the first that holds."""
    first, special = (table[name].to_numpy(dtype=bool)[rows] for name in ("is_first", "is_special"))
    counts = int(first.sum()), int((special & ~first).sum()), int((~first & ~special).sum())
    return dict(zip(LEFT_OUT, counts, strict=True))


def _kept_tokens(store: TokenSource, tokens: str | Any) -> Bool[np.ndarray, " row"]:
    """Which rows are single tokens of the rule that `tokens` names after its pick."""
    rules, table = recorded_rules(store.card), store.tokens
    spans = [rule for rule in rules if rule.partition(":")[0] not in PICKS]
    if not spans:
        raise ValueError(
            f"tokens={tokens!r} reads every token of a text, and this store kept one row a text "
            f"(tokens={store.card['tokens']!r}): record with tokens='all'"
        )
    pick, colon, rule = tokens.partition(":") if isinstance(tokens, str) else ("", "", "")
    if not colon and pick in (EVERY, *PICKS):
        rule = "all" if "all" in spans else spans[0]
        if rule != "all" and len(spans) > 1:
            raise ValueError(
                f"the store kept several rules: say {' or '.join(repr(f'{EVERY}:{name}') for name in spans)}"
            )
    elif not colon:
        rule = pick
    rule = "all" if rule == "text" else rule
    if rule not in spans or (colon and pick not in (EVERY, *PICKS)):
        choices = [EVERY, *(f"{EVERY}:{name}" for name in spans)]
        raise ValueError(
            f"tokens={tokens!r} cannot be read from a store that kept tokens={store.card['tokens']!r}: every token is read "
            f"as {', '.join(map(repr, choices))}"
        )
    single = table["position"].to_numpy() >= 0
    return single & table[RULE + rule].to_numpy(dtype=bool) if len(rules) > 1 else single


def store_facts(store: ActivationSource) -> dict[str, Any]:
    """What the card of a result says about the store that it was read from."""
    names = ("model", "tokenizer", "tokens", "dtype", "texts", "sae")
    return {name: store.card[name] for name in names if name in store.card}
