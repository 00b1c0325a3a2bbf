"""A store read through an SAE: its rows are latents, so that probes are fitted to them as to any other place.

1. `latent_store(store, sae)` checks that the two belong together: model, site, width and scale of the activations.
2. It runs the SAE over the store once and notes which latents fire at all. The others are zero in every row; they are left
   out, and `latents` says which number each column has. Nothing else is kept: rows are encoded when they are read.
3. `probe_sweep(latent_store(store, sae))` then works as on the store. The one site has the name that the
   latents have inside the model (`model.splice`). The mean of a text is the mean of its latents, not the latents of its
   mean.
4. A probe of latents is of use outside: `widened_probe` reads all latents of a spliced model, `latents_to_stream` is what
   the decoder makes of its direction, for `Steer`.

What probes on a few latents say about the dictionary: `sparse_probing`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from interp import sites as site_names
from interp.probe.reading import TokenRows, read_place
from interp.probe.value import Probe
from interp.sae.edit import LatentDirection, check_latents
from interp.sae.features import fingerprint
from interp.sae.model import SAE
from interp.sae.roles import known_targets
from interp.store import Store
from interp.store.lookup import row_numbers

_ROWS = 4096
SCALE = 3.0
"""The typical norm of the store's rows may differ from that of the SAE's training by this factor. Texts of another kind
differ by tens of percent, activations that were scaled or normed by far more."""
_PER_FEATURE = ("hidden", "query", "value")
"""Weights of the network kinds that have a column for each feature."""


@dataclass(frozen=True, eq=False, repr=False)
class LatentStore:
    """The latents of an SAE at every row of a store; made by `latent_store`. Texts, rows and labels are the store's."""

    store: Store
    """The activations that the SAE reads."""
    sae: SAE
    """The SAE."""
    latents: Int64[np.ndarray, " column"]
    """Number of the latent that each column is, ascending: those that fire somewhere in the store."""
    site: str
    """Full name of the latents."""
    card: dict[str, Any] = field(default_factory=dict)
    """The store's card, with `sae`: fingerprint, site, number of latents, and which of them the columns are."""

    def __repr__(self) -> str:
        return f"LatentStore({self.store!r}, {len(self.latents)} of {self.sae.n_latents} latents fire)"

    @property
    def sites(self) -> list[str]:
        """The one site."""
        return [self.site]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of a row: a number for each latent that fires."""
        return {self.site: (len(self.latents),)}

    @property
    def examples(self) -> pd.DataFrame:
        """The texts, as in the store."""
        return self.store.examples

    @property
    def tokens(self) -> pd.DataFrame:
        """A row per row, as in the store."""
        return self.store.tokens

    @property
    def n_rows(self) -> int:
        """Rows of the store."""
        return self.store.n_rows

    def typical(self, site: str | None = None) -> Bool[np.ndarray, " row"]:
        """Which rows are typical at the site that the SAE reads."""
        self._check(site)
        return self.store.typical(self._reads)

    def rows(self, site: str | None, index: Any) -> Float32[Tensor, "n latent"]:
        """Latents of some rows, in the order asked for; `index` as in `Store.rows`."""
        self._check(site)
        numbers = row_numbers(index, self.n_rows)
        self._refuse_averages(numbers)
        found = torch.zeros(len(numbers), len(self.latents))
        for start in range(0, len(numbers), _ROWS):
            part = numbers[start : start + _ROWS]
            found[start : start + len(part)] = self._encoded(self.store.rows(self._reads, part))
        return found

    def pooled(
        self, site: str | None = None, tokens: str | Any = "last"
    ) -> tuple[Float32[Tensor, "text latent"], pd.DataFrame]:
        """One row a text, and the frame of texts; `tokens` as in `Store.pooled`.

        Raises:
            ValueError: another site, tokens that were not recorded, or an average that was made before the SAE read it.
        """
        self._check(site)
        if isinstance(tokens, str) and tokens.partition(":")[0] == "mean":
            texts, frame = read_place(self.store, self._reads, tokens, reads="tokens")
            assert isinstance(texts, TokenRows)
            return self._means(texts), frame
        x, frame = self.store.pooled(self._reads, tokens)
        return torch.cat([self._encoded(part) for part in x.split(_ROWS)]), frame

    @property
    def _reads(self) -> str:
        return self.sae.sites[0]

    def _check(self, site: str | None) -> None:
        if site is not None and site not in (self.site, site_names.short_name(self.site)):
            raise ValueError(f"{site!r} is not here: a latent store has one site, {self.site!r}")

    def _refuse_averages(self, numbers: Int64[np.ndarray, " n"]) -> None:
        averages = self.store.tokens["position"].to_numpy()[numbers] < 0
        if averages.any():
            raise ValueError(
                f"{int(averages.sum())} of the rows are averages over tokens, which no SAE was trained on: read single tokens"
            )

    def _encoded(self, x: Float32[Tensor, "row d_in"]) -> Float32[Tensor, "row latent"]:
        """The columns of some rows."""
        row, column, values = self._active(x)
        return torch.zeros(len(x), len(self.latents)).index_put((row, column), values)

    def _means(self, texts: TokenRows) -> Float32[Tensor, "text latent"]:
        """Mean of each column over the tokens of each text."""
        sums = torch.zeros(len(texts) * len(self.latents), dtype=torch.float64)
        of_token, start = texts.text, 0
        for part in texts.X.split(_ROWS):
            row, column, values = self._active(part)
            sums.index_add_(0, of_token[start + row] * len(self.latents) + column, values.double())
            start += len(part)
        return (sums.view(len(texts), -1) / texts.lengths[:, None]).float()

    @torch.no_grad()
    def _active(self, x: Float32[Tensor, "row d_in"]) -> tuple[Tensor, Tensor, Tensor]:
        """(row, column, value) of each latent that fires and has a column."""
        active = self.sae.active(x.to(self.sae.W_enc))
        column_of = torch.full((self.sae.n_latents,), -1)
        column_of[torch.from_numpy(self.latents)] = torch.arange(len(self.latents))
        row, column, values = active.row.cpu(), column_of[active.latent.cpu()], active.values.float().cpu()
        known = column >= 0
        return row[known], column[known], values[known]


@torch.no_grad()
def latent_store(store: Store | Any, sae: SAE | Any) -> LatentStore:
    """Read a store through an SAE.

    Args:
        store: has the site that the SAE reads, with single tokens.
        sae: an SAE or transcoder that reads one site.

    Raises:
        ValueError: no store or no SAE; an SAE of several sites or that does not say its site; another model, width or scale
            than the store's; a store without the site, or of averages alone; an SAE of which no latent fires.
    """
    for value, kind, mend in (
        (store, Store, "interp.record or open_store gives one"),
        (sae, SAE, "load_sae or train_sae gives one"),
    ):
        if not isinstance(value, kind):
            raise ValueError(f"latent_store(store, sae) needs a {kind.__name__}, got {type(value).__name__}: {mend}")
    _check_match(store, sae)
    reads, single = sae.sites[0], np.flatnonzero(store.tokens["position"].to_numpy() >= 0)
    if not len(single):
        raise ValueError(
            f"the store kept averages over tokens (tokens={store.card['tokens']!r}), and the latents of an average are not "
            "the average of latents: record with tokens='all' or 'last'"
        )
    fires = torch.zeros(sae.n_latents, dtype=torch.bool)
    for start in range(0, len(single), _ROWS):
        fires[sae.active(store.rows(reads, single[start : start + _ROWS]).to(sae.W_enc)).latent.cpu()] = True
    latents = fires.nonzero()[:, 0].numpy()
    if not len(latents):
        raise ValueError(
            f"no latent of this SAE fires in {len(single)} rows of {reads}: was it trained on such activations?"
        )
    site = f"{known_targets(sae)[0]}.hook_sae_acts_post"
    about = {"fingerprint": fingerprint(sae), "reads": reads, "n_latents": sae.n_latents, "latents": latents.tolist()}
    card = {**store.card, "sites": [{"name": site, "shape": [len(latents)]}], "sae": about}
    return LatentStore(store, sae, latents, site, card)


def _check_match(store: Store, sae: SAE) -> None:
    sae.require_raw()
    if len(sae.sites) != 1:
        said = f"reads {len(sae.sites)} sites" if sae.sites else "does not say its site"
        raise ValueError(
            f"a latent store needs an SAE that reads one known site, and this one {said}: see sparse_probing"
        )
    reads, model = sae.sites[0], sae.card.get("model")
    if reads not in store.sites:
        have = ", ".join(map(site_names.short_name, store.sites))
        raise ValueError(
            f"the SAE reads {reads}, which the store does not hold (it has {have}): record it, or add_sites"
        )
    if model and model != store.model_fingerprint:
        raise ValueError(
            f"the SAE was trained on a model with the fingerprint {model}, the store was recorded from "
            f"{store.card['model']['name']} with {store.model_fingerprint}: record with the SAE's model; to try it on a "
            "relative, take 'model' out of sae.card"
        )
    if store.width(reads) != sae.d_in:
        raise ValueError(
            f"the SAE reads rows of width {sae.d_in}, those of {reads} have {store.width(reads)}: another model"
        )
    own = (sae.card.get("typical_norms") or {}).get(reads) or sae.card.get("typical_norm")
    if own and store.stats(reads).typical.count:
        norm = store.stats(reads).typical_norm
        if not own / SCALE <= norm <= own * SCALE:
            raise ValueError(
                f"the SAE was trained on rows with a typical norm of {own:.4g}, those of the store at {reads} have {norm:.4g}: "
                "they were scaled or normed otherwise, or come from another model"
            )


# --------------------------------------------------------------------------------------------------- probes of latents


def widened_probe(sae: SAE, probe: Probe, latents: LatentStore | Sequence[int] | Any = None) -> Probe:
    """The same probe for rows of all latents: what `sae.encode` gives, and what stands in a spliced model.

        with model.splice(sae), watch_probe(model, widened_probe(sae, probe)) as watch: ...

    Args:
        sae: the SAE whose latents the probe reads.
        probe: of any kind, fitted on a `LatentStore`.
        latents: the store that it was fitted on, or the number of the latent that each of its features is; None for those
            on its card.

    Raises:
        ValueError: a probe of another SAE, or one whose features are not known.
    """
    numbers, n = _numbers(sae, probe, latents), sae.n_latents

    def wide(part: Tensor, rest: float = 0.0) -> Tensor:
        """The last axis over all latents; those that the probe does not know get `rest`."""
        return torch.full((*part.shape[:-1], n), rest).index_copy(-1, numbers, part)

    direction = None if probe.direction is None else wide(probe.direction)
    # Of a linear kind `tensors` is what it found on the way; of a network it is the probe.
    parts = {name: wide(part) if name in _PER_FEATURE else part for name, part in probe.tensors.items()}
    return replace(
        probe,
        direction=direction,
        mean=wide(probe.mean),
        scale=wide(probe.scale, 1.0),
        tensors=parts if direction is None else {},
        card={**probe.card, "widened": {"from": len(numbers), "to": n}},
    )


def latents_to_stream(sae: SAE, probe: Probe, latents: LatentStore | Sequence[int] | Any = None) -> LatentDirection:
    """What the decoder makes of a probe's direction: where the stream goes if each latent changes by its weight.

    It says how to write what the probe reads in the dictionary's own terms. It is not the gradient of the probe's score,
    which runs through the encoder.

    Args:
        sae: as in `widened_probe`, like the others.
        probe: a linear probe of its latents.
        latents: which latents its features are.

    Returns:
        A direction for `Steer`, at the place that the SAE writes to; `raw_norm` is the length of the decoded direction.

    Raises:
        ValueError: as `widened_probe`; a probe without a direction; an SAE that writes several sites, or whose card has no
            typical norm there.
    """
    if probe.direction is None:
        raise ValueError(f"a probe of kind {probe.kind!r} has no direction: fit a linear kind, such as 'logistic'")
    numbers = _numbers(sae, probe, latents)
    targets = known_targets(sae)
    if len(targets) != 1:
        raise ValueError(f"a direction stands at one site, this SAE writes {len(targets)}")
    own = None if sae.is_transcoder else sae.card.get("typical_norm")
    norm = (sae.card.get("typical_norms") or {}).get(targets[0], own)
    if not norm:
        raise ValueError(
            f"the SAE's card has no typical norm of {targets[0]}, the unit of Steer: put 'typical_norm' into it"
        )
    decoded = probe.direction.double() @ sae.W_dec.detach().cpu()[numbers].double()
    length = float(decoded.norm())
    if length == 0:
        raise ValueError("the decoder makes nothing of this probe's direction: its rows are zero, or cancel")
    return LatentDirection(targets[0], (decoded / length).float(), float(norm), length)


def _numbers(sae: SAE, probe: Probe, latents: Any) -> Tensor:
    """The latent that each feature of a probe is, after checks."""
    about = (probe.card.get("store") or {}).get("sae") or {}
    if about and about["fingerprint"] != fingerprint(sae):
        raise ValueError("this probe reads the latents of another SAE: give that one")
    if latents is None:
        known = about.get("latents")
        latents = range(sae.n_latents) if known is None and probe.width == sae.n_latents else known
    if latents is None:
        raise ValueError(
            f"the probe reads {probe.width} of {sae.n_latents} latents, and its card does not say which: give latents=, the "
            "latent store that it was fitted on"
        )
    numbers = latents.latents.tolist() if isinstance(latents, LatentStore) else list(latents)
    check_latents(sae, numbers)
    if len(numbers) != probe.width:
        raise ValueError(
            f"the probe reads {probe.width} features, latents= names {len(numbers)}: give those that it was fitted on"
        )
    return torch.tensor(numbers)
