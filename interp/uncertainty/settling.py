"""When a prediction forms: what a lens says of one place, layer after layer.

1. The *settle layer* is the first layer from which the top prediction is the final one at every later layer. Layers are
   read from the last one down, and only as long as they agree: most places need a few layers, not all.
2. At a few layers in the middle of the model the whole distribution is read: its entropy, and KL(final || lens). A model
   that holds the answer early is sure of it there; a guess is made late.

Layers are judged at their ends, the embedding is layer -1, and a lens other than the logit lens may be given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.lens.places import EMBED, FIRST, lens_sites
from interp.lens.read import log_probabilities, rows_at_once
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.sites import layer_of

MIDDLE = (0.25, 0.75)
"""Which part of the depth counts as the middle."""
MIDDLE_LAYERS = 4
"""So many layers of it are read, evenly spaced."""


@dataclass(frozen=True, eq=False)
class Settled:
    """How the prediction at each place forms."""

    layer: Int[np.ndarray, " place"]
    """First layer from which the top prediction stays; -1 is the embedding."""
    depth: Float[np.ndarray, " place"]
    """(layer + 1) / number of layers: the share of blocks that had to run. 0 at the embedding, 1 in the last block."""
    entropy: Float[np.ndarray, " place"]
    """Of the lens, nats, mean over the middle layers."""
    kl: Float[np.ndarray, " place"]
    """KL(final || lens), nats, mean over the middle layers."""


def sites_by_layer(model: HookedTransformer, lens: Translator | None = None) -> dict[str, str]:
    """Name of each place that the lens reads, in order, the final one last -> the site that holds its stream."""
    return {name: FIRST if name == EMBED else name for name in lens_sites(model, None, model.site_names, lens)}


def layer_number(name: str) -> int:
    """Layer of a place of `sites_by_layer`; -1 for the embedding."""
    layer = layer_of(name)
    return -1 if layer is None else layer


def middle_places(names: Sequence[str], n_layers: int) -> list[str]:
    """At most four places of the middle half of the model, the final one left out; the nearest where it has none."""
    inner = [name for name in names[:-1] if MIDDLE[0] * n_layers <= layer_number(name) + 1 <= MIDDLE[1] * n_layers]
    inner = inner or list(names[:-1])[-1:]
    if not inner:
        return []
    chosen = np.unique(np.linspace(0, len(inner) - 1, min(MIDDLE_LAYERS, len(inner))).round().astype(int))
    return [inner[i] for i in chosen]


@torch.inference_mode()
def settling(
    model: HookedTransformer, streams: Mapping[str, Float[Tensor, "place d_model"]], lens: Translator | None = None
) -> Settled:
    """Settle layer and what the middle layers say, at each place.

    Args:
        model: whose final norm and unembedding are read through.
        streams: name (as `sites_by_layer` gives them, the final one last) -> the stream at each place.
        lens: what translates the streams first; None for the logit lens.
    """
    names = list(streams)
    n = len(streams[names[-1]])
    middle = middle_places(names, model.cfg.n_layers)
    layer = np.empty(n, dtype=np.int64)
    entropy, kl = np.full(n, np.nan), np.full(n, np.nan)
    step = rows_at_once(model.cfg.d_vocab)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        part = {name: stream[rows] for name, stream in streams.items()}
        final = log_probabilities(model, part[names[-1]])
        layer[rows] = _settle_layer(model, part, final.argmax(-1), lens).cpu().numpy()
        read = [_read(model, part[name], name, final, lens) for name in middle]
        if read:
            entropy[rows] = torch.stack([each[0] for each in read]).mean(0).cpu().numpy()
            kl[rows] = torch.stack([each[1] for each in read]).mean(0).cpu().numpy()
    return Settled(layer, (layer + 1) / model.cfg.n_layers, entropy, kl)


def _settle_layer(
    model: HookedTransformer, streams: Mapping[str, Tensor], final: Int[Tensor, " place"], lens: Translator | None
) -> Int[Tensor, " place"]:
    names = list(streams)
    found = torch.full_like(final, layer_number(names[-1]))
    agrees = torch.arange(len(final), device=final.device)
    for name in reversed(names[:-1]):
        top = _logits(model, streams[name][agrees], name, lens).argmax(-1)
        agrees = agrees[top == final[agrees]]
        if not len(agrees):
            break
        found[agrees] = layer_number(name)
    return found


def _read(
    model: HookedTransformer, stream: Tensor, name: str, final: Float[Tensor, "place d_vocab"], lens: Translator | None
) -> tuple[Float[Tensor, " place"], Float[Tensor, " place"]]:
    """Entropy and KL(final || lens), nats."""
    logp = log_probabilities(model, stream if lens is None else lens.translate(stream, name))
    divergence = (final.exp() * (final - logp)).sum(-1)
    return torch.special.entr(logp.exp()).sum(-1), divergence.clamp(min=0.0)


def _logits(model: HookedTransformer, stream: Tensor, name: str, lens: Translator | None) -> Tensor:
    return model.unembed_logits(stream if lens is None else lens.translate(stream, name))
