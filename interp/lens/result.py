"""What a lens found: the distribution at every place and token, reduced to what a person or a chart asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact, plot
from interp import sites as site_names
from interp.lens.intervals import mean_by_text
from interp.sites import kind_of, layer_of

_TENSORS = (
    "text", "pos", "token_ids", "top_ids", "top_probs", "entropy", "kl", "loss", "target_ids", "target_probs", "target_rank",
    "answer_ids", "answer_probs", "answer_rank",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class LensResult:
    """Predictions by site and token. A row is one real token of one text."""

    sites: tuple[str, ...]
    """Full site names, in the order of computation; the last is the stream that the model itself unembeds."""
    text: Int[Tensor, "row"]
    """Which text the token belongs to."""
    pos: Int[Tensor, "row"]
    """Its position there."""
    token_ids: Int[Tensor, "row"]
    """The token itself."""
    labels: tuple[str, ...]
    """The token as a person reads it."""
    top_ids: Int[Tensor, "site row k"]
    """Most probable next tokens, best first."""
    top_probs: Float[Tensor, "site row k"]
    """Their probabilities."""
    entropy: Float[Tensor, "site row"]
    """Of the predicted distribution, nats."""
    kl: Float[Tensor, "site row"]
    """KL(final || lens), nats."""
    loss: Float[Tensor, "site row"]
    """-log p of the true next token, nats; NaN where that is not known, as at each text's last token."""
    target_ids: Int[Tensor, "row"]
    """The token whose probability is followed: the first answer that was named, else the final layer's top prediction."""
    target_probs: Float[Tensor, "site row"]
    """Its probability."""
    target_rank: Int[Tensor, "site row"]
    """Its rank, 0 is the top."""
    answer_ids: Int[Tensor, "answer"]
    """The answers that were named, in that order; none if none was."""
    answer_probs: Float[Tensor, "site row answer"]
    """The probability of each."""
    answer_rank: Int[Tensor, "site row answer"]
    """Its rank, 0 is the top."""
    vocabulary: dict[int, str]
    """Readable form of every token id that occurs."""
    card: dict[str, Any]
    """Provenance; `lens` is what was put before the final norm: "logit" for nothing."""

    @property
    def layers(self) -> list[int]:
        """Layer of each site, -1 for the embedding."""
        return [-1 if (layer := layer_of(site)) is None else layer for site in self.sites]

    @property
    def settle_layer(self) -> Int[Tensor, "row"]:
        """First layer from which the top prediction is the final one at every later layer; the last layer at the latest.

        Layers are judged at their ends, so it is the same with and without the middles of blocks among the sites: those
        count only where no other layer's end is there. Layers that were not asked for are not judged.
        """
        # What a block reads is the end of the one before it.
        ends = {
            i: layer - (kind_of(s).kind == "resid_pre") for i, (s, layer) in enumerate(zip(self.sites, self.layers))
        }
        judged = {i: layer for i, layer in ends.items() if kind_of(self.sites[i]).kind != "resid_mid"}
        if len(judged) == 1:
            judged = ends
        top = self.top_ids[list(judged), :, 0]
        stays = (top == top[-1]).flip(0).cumprod(0).flip(0)
        return torch.tensor(list(judged.values()))[stays.argmax(0)]

    def to_frame(self) -> pd.DataFrame:
        """One line for each site and token: site, layer, text, pos, token, top1, p_top1, entropy, kl, loss, target,
        p_target, rank, settle_layer."""
        n_sites, _ = self.entropy.shape
        read = self.vocabulary.__getitem__
        columns = self._places() | {
            "top1": [read(i) for i in self.top_ids[:, :, 0].flatten().tolist()],
            "p_top1": self.top_probs[:, :, 0].flatten().numpy(),
            "entropy": self.entropy.flatten().numpy(),
            "kl": self.kl.flatten().numpy(),
            "loss": self.loss.flatten().numpy(),
            "target": [read(i) for i in self.target_ids.tolist()] * n_sites,
            "p_target": self.target_probs.flatten().numpy(),
            "rank": self.target_rank.flatten().numpy(),
            "settle_layer": np.tile(self.settle_layer.numpy(), n_sites),
        }
        return pd.DataFrame(columns)

    def followed(self) -> pd.DataFrame:
        """One line for each site, token and followed token: site, layer, text, pos, token, answer, answer_id, probability,
        rank (0 is the top). Followed are the answers that were named, else the final top prediction of each token."""
        if len(self.answer_ids):
            ids = self.answer_ids.expand(*self.answer_probs.shape)
            probs, ranks = self.answer_probs, self.answer_rank
        else:
            ids = self.target_ids.expand(*self.target_probs.shape)[..., None]
            probs, ranks = self.target_probs[..., None], self.target_rank[..., None]
        frame = pd.DataFrame({name: np.repeat(column, ids.shape[-1]) for name, column in self._places().items()})
        return frame.assign(
            answer=[self.vocabulary[i] for i in ids.flatten().tolist()],
            answer_id=ids.flatten().numpy(),
            probability=probs.flatten().numpy(),
            rank=ranks.flatten().numpy(),
        )

    def summary(self, n_boot: int | Any = 1000, seed: int | Any = 0) -> pd.DataFrame:
        """One line for each site, over all rows: site, layer, lens, kl, kl_low, kl_high, loss, entropy, agrees, n, n_texts.

        kl, loss (where the next token is known) and entropy are means in nats; agrees is the share of rows whose top token
        is the final one. The interval holds 95 % of a bootstrap over texts, and is NaN with a single one. Position 0 is a
        row like any other here; a store's `select` leaves it out.

        Args:
            n_boot: draws of the texts.
            seed: of the draws.
        """
        kl, low, high = mean_by_text(self.kl.double().numpy(), self.text.numpy(), n_boot=n_boot, seed=seed)
        known = ~self.loss[0].isnan()
        loss = self.loss[:, known].double().mean(1) if known.any() else torch.full((len(self.sites),), torch.nan)
        columns = {
            "site": [site_names.short_name(site) for site in self.sites],
            "layer": self.layers,
            "lens": self.card["lens"],
            "kl": kl,
            "kl_low": low,
            "kl_high": high,
            "loss": loss.numpy(),
            "entropy": self.entropy.double().mean(1).numpy(),
            "agrees": (self.top_ids[:, :, 0] == self.top_ids[-1, :, 0]).double().mean(1).numpy(),
            "n": len(self.text),
            "n_texts": len(self.text.unique()),
        }
        return pd.DataFrame(columns)

    def top(self, site: str, pos: int, text: int = 0) -> pd.DataFrame:
        """The top tokens at one place: token, probability."""
        found = ((self.text == text) & (self.pos == pos)).nonzero()
        if not len(found):
            there = self.pos[self.text == text]
            if not len(there):
                raise ValueError(f"there is no text {text}; there are {', '.join(map(str, self._first_texts()))}")
            raise ValueError(
                f"there is no position {pos} in text {text}; it has {int(there.min())} to {int(there.max())}"
            )
        row, name = int(found[0, 0]), site_names.full_name(site)
        if name not in self.sites:
            raise ValueError(f"{site} was not read; there are {', '.join(map(site_names.short_name, self.sites))}")
        index = self.sites.index(name)
        ids, probs = self.top_ids[index, row].tolist(), self.top_probs[index, row].tolist()
        return pd.DataFrame({"token": [self.vocabulary[i] for i in ids], "probability": probs})

    def plot(self, statistic: str = "p_top1", text: int = 0) -> alt.LayerChart | alt.Chart:
        """Tokens down, layers across, coloured by the statistic. Each layer is shown at its end, where that was read."""
        frame = self.to_frame()
        frame = frame.loc[frame["text"] == text]
        kinds = frame["site"].str.partition(":")[0]
        return plot.lens_grid(frame.loc[kinds != "resid_mid"] if (kinds != "resid_mid").any() else frame, statistic)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_lens` reads it."""
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        # Where the next token is not known the loss is written as -1, for a file holds no NaN.
        tensors["loss"] = tensors["loss"].nan_to_num(-1.0)
        vocabulary = {str(key): value for key, value in self.vocabulary.items()}
        card = self.card | {"sites": list(self.sites), "labels": list(self.labels), "vocabulary": vocabulary}
        return artifact.save_artifact(Path(path), "lens", tensors, card)

    def _places(self) -> dict[str, Any]:
        """The columns that say which site and token a line is of."""
        n_sites, n_rows = self.entropy.shape
        return {
            "site": np.repeat([site_names.short_name(site) for site in self.sites], n_rows),
            "layer": np.repeat(self.layers, n_rows),
            "text": np.tile(self.text.numpy(), n_sites),
            "pos": np.tile(self.pos.numpy(), n_sites),
            "token": list(self.labels) * n_sites,
        }

    def _first_texts(self) -> Sequence[int | str]:
        texts = self.text.unique().tolist()
        return texts if len(texts) <= 8 else [*texts[:8], "..."]


def load_lens(path: str | Path) -> LensResult:
    """Read what `LensResult.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "lens")
    if "answer_ids" not in tensors:  # older files followed one token
        nothing = tensors["target_probs"].new_empty(*tensors["target_probs"].shape, 0)
        ids = torch.empty(0, dtype=torch.long)
        tensors |= {"answer_ids": ids, "answer_probs": nothing, "answer_rank": nothing.long()}
    tensors["loss"] = tensors["loss"].masked_fill(tensors["loss"] < 0, torch.nan)
    vocabulary = {int(key): value for key, value in card.pop("vocabulary").items()}
    sites, labels = tuple(card.pop("sites")), tuple(card.pop("labels"))
    card.setdefault("lens", "logit")
    return LensResult(sites=sites, labels=labels, vocabulary=vocabulary, card=card, **tensors)
