"""Attention pooling: a probe that reads all tokens of a text and learns where to look.

1. Standardise the features over the tokens of the training part's texts.
2. Each token says how much it matters, s_t = query . z_t, and what it says, u_t = value . z_t. Within a text the weights
   are a_t = softmax(s)_t, and log-odds = sum_t a_t u_t + bias.
3. Start at query = value = 0, which is the mean over the tokens, and let the query learn more slowly than the value: it
   settles on tokens once it is known what they say. At equal rates it settles on whichever token came first to differ.
4. The strength C acts on query and value as it does on a logistic regression's weights.

The formula is that of attention pooling for classification (Ilse, Tomczak & Welling 2018, "Attention-based Deep Multiple
Instance Learning", arXiv 1802.04712) with a linear score. Nothing is drawn: the seed does not matter.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from interp.probe.kinds.mlp import standardised
from interp.probe.network import base_log_odds, blocks, descend
from interp.probe.reading import TokenRows
from interp.probe.solver import Design

STEPS = 60
"""Steps of full-batch Adam."""
_RATE = {
    "value": 0.2,
    "query": 0.04,
}  # largest change of the score of a token that points along the weights, in sqrt(d)


@dataclass(frozen=True, eq=False)
class Poolers:
    """One attention-pooling reader a problem, acting on the raw activations of whole texts."""

    query: Float32[Tensor, "problem d"]
    """How much a token matters, on standardised features."""
    value: Float32[Tensor, "problem d"]
    """What a token says, on standardised features."""
    bias: Float32[Tensor, "problem"]
    """Added to the weighted mean of what the tokens say."""
    mean: Float32[Tensor, "d"]
    """Subtracted from the activations."""
    scale: Float32[Tensor, "d"]
    """The activations are divided by it."""

    def logit(self, X: TokenRows) -> Float64[Tensor, "problem row"]:
        """Log-odds of the positive label, one a text."""
        z, text = standardised(X.X, self.mean, self.scale), X.text
        cuts = list(blocks(len(self.bias), 4 * len(z)))
        return torch.cat([_logit(self._weights(cut), z, text, len(X)) for cut in cuts]).double()

    def attention(self, X: TokenRows) -> Float64[Tensor, "problem token"]:
        """Weight of each token; those of a text sum to 1."""
        z, text = standardised(X.X, self.mean, self.scale), X.text
        e, total = _softmax_parts(self.query @ z.T, text, len(X))
        return (e.double() / total.double()[:, text]).double()

    def one(self, i: int) -> dict[str, Any]:
        """Problem i alone, as a `Probe` holds it."""
        return {
            "direction": None,
            "bias": float(self.bias[i]),
            "slope": 1.0,
            "intercept": 0.0,
            "mean": self.mean,
            "scale": self.scale,
            "tensors": {"query": self.query[i].clone(), "value": self.value[i].clone()},
        }

    def _weights(self, cut: slice) -> dict[str, Tensor]:
        return {"query": self.query[cut], "value": self.value[cut], "bias": self.bias[cut]}


@torch.inference_mode(False)  # autograd keeps no tensor that was made in inference mode
def fit_attention(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
    seed: int = 0,  # noqa: ARG001 (one signature for every kind)
) -> Poolers:
    """Train a reader for each problem; `design.X` are `TokenRows`, and rows of y and mask are texts."""
    rows: TokenRows = design.X
    tokens = Design(rows.X.double())
    mean, scale = tokens.mean.float(), tokens.scale.float()
    z, text, n = standardised(rows.X, mean, scale), rows.text, len(rows)
    d = z.shape[1]
    rates = {name: rate / d**0.5 for name, rate in _RATE.items()} | {"bias": _RATE["value"] / d**0.5}
    parts = [
        descend(
            {
                "query": torch.zeros(cut.stop - cut.start, d),
                "value": torch.zeros(cut.stop - cut.start, d),
                "bias": base_log_odds(y[cut], mask[cut]),
            },
            lambda weights: _logit(weights, z, text, n),
            y[cut],
            mask[cut],
            C[cut],
            rates=rates,
            steps=STEPS,
        )
        for cut in blocks(len(y), 4 * len(z))
    ]
    return Poolers(mean=mean, scale=scale, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def pooler_of(bias: float, mean: Tensor, scale: Tensor, tensors: dict[str, Tensor]) -> Poolers:
    """The reader of a saved probe."""
    return Poolers(mean=mean, scale=scale, bias=torch.tensor([bias]), **{k: part[None] for k, part in tensors.items()})


def _logit(
    weights: dict[str, Tensor], z: Float32[Tensor, "token d"], text: Int64[Tensor, " token"], n: int
) -> Float32[Tensor, "problem text"]:
    both = torch.cat([weights["query"], weights["value"]]) @ z.T
    matters, says = both.chunk(2)
    e, total = _softmax_parts(matters, text, n)
    return torch.zeros_like(total).index_add(1, text, e * says) / total + weights["bias"][:, None]


def _softmax_parts(
    matters: Float32[Tensor, "problem token"], text: Int64[Tensor, " token"], n: int
) -> tuple[Float32[Tensor, "problem token"], Float32[Tensor, "problem text"]]:
    """exp(s - the text's largest s) of each token, and its sum over each text: no text is padded to the longest."""
    fixed = matters.detach()
    largest = fixed.new_full((len(fixed), n), -torch.inf).scatter_reduce(1, text.expand_as(fixed), fixed, "amax")
    e = (matters - largest[:, text]).exp()
    return e, torch.zeros_like(largest).index_add(1, text, e)
