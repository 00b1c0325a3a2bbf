"""A network with one hidden layer: what a linear reader cannot see, such as "exactly one of two things holds".

1. Standardise the features; mean and scale are those of the training part.
2. log-odds = output . gelu(hidden z + hidden_bias) + bias, trained by `network.descend` for all problems together.
3. C weights the rows against the squared weights of both layers and is chosen like that of the linear kinds, by held-out
   log loss: a network that is sure of what it does not know loses there, so its log-odds need no calibration.

Networks on hidden states as lie detectors are those of Azaria & Mitchell 2023, "The Internal State of an LLM Knows When It's
Lying", arXiv 2304.13734: three layers, few epochs and no penalty. Here the layer is narrow and the penalty chosen, and sixty
steps stop short of the minimum, which held-out rows do not mind. There is no direction: a network is no steering vector.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor
from torch.nn.functional import gelu

from interp.probe.network import base_log_odds, blocks, descend
from interp.probe.solver import Design

WIDTH = 32
"""Hidden units."""
STEPS = 60
"""Steps of full-batch Adam."""
_RATE = 0.25  # largest step relative to the size of a starting weight


@dataclass(frozen=True, eq=False)
class Networks:
    """One network a problem, acting on raw activations."""

    hidden: Float32[Tensor, "problem width d"]
    """Weights of the hidden layer, on standardised features."""
    hidden_bias: Float32[Tensor, "problem width"]
    """Biases of the hidden layer."""
    output: Float32[Tensor, "problem width"]
    """What each hidden unit adds to the log-odds."""
    bias: Float32[Tensor, "problem"]
    """Log-odds of hidden units at rest."""
    mean: Float32[Tensor, "d"]
    """Subtracted from the activations."""
    scale: Float32[Tensor, "d"]
    """The activations are divided by it."""

    def logit(self, X: Float[Tensor, "row d"]) -> Float64[Tensor, "problem row"]:
        """Log-odds of the positive label."""
        z = standardised(X, self.mean, self.scale)
        weights = {"hidden": self.hidden, "hidden_bias": self.hidden_bias, "output": self.output, "bias": self.bias}
        cuts = blocks(len(self.bias), len(z) * self.output.shape[1])
        return torch.cat([_logit({k: w[cut] for k, w in weights.items()}, z) for cut in cuts]).double()

    def one(self, i: int) -> dict[str, Any]:
        """Problem i alone, as a `Probe` holds it."""
        return {
            "direction": None,
            "bias": float(self.bias[i]),
            "slope": 1.0,
            "intercept": 0.0,
            "mean": self.mean,
            "scale": self.scale,
            "tensors": {
                "hidden": self.hidden[i].clone(),
                "hidden_bias": self.hidden_bias[i].clone(),
                "output": self.output[i].clone(),
            },
        }


@torch.inference_mode(False)  # autograd keeps no tensor that was made in inference mode
def fit_mlp(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
    seed: int = 0,
) -> Networks:
    """Train a network for each problem; `mask` is 1 for the rows that a problem may see, `seed` that of the starting weights."""
    mean, scale = design.mean.float(), design.scale.float()
    z = standardised(design.X, mean, scale)
    d = z.shape[1]
    generator = torch.Generator().manual_seed(seed)
    start = {
        "hidden": torch.randn(1, WIDTH, d, generator=generator) / d**0.5,
        "hidden_bias": torch.zeros(1, WIDTH),
        "output": torch.randn(1, WIDTH, generator=generator) / WIDTH**0.5,
    }
    small = _RATE / WIDTH**0.5
    rates = {"hidden": _RATE / d**0.5, "hidden_bias": small, "output": small, "bias": small}
    parts = [
        descend(
            {name: weight.expand(cut.stop - cut.start, *weight.shape[1:]) for name, weight in start.items()}
            | {"bias": base_log_odds(y[cut], mask[cut])},
            lambda weights: _logit(weights, z),
            y[cut],
            mask[cut],
            C[cut],
            rates=rates,
            steps=STEPS,
        )
        for cut in blocks(len(y), len(z) * WIDTH)
    ]
    return Networks(mean=mean, scale=scale, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def network_of(bias: float, mean: Tensor, scale: Tensor, tensors: dict[str, Tensor]) -> Networks:
    """The network of a saved probe."""
    return Networks(mean=mean, scale=scale, bias=torch.tensor([bias]), **{k: part[None] for k, part in tensors.items()})


def standardised(X: Tensor, mean: Float32[Tensor, "d"], scale: Float32[Tensor, "d"]) -> Float32[Tensor, "row d"]:
    """(X - mean) / scale. The difference is taken in float64: a stream's mean can be a thousand times its spread."""
    return ((X.double() - mean.double()) / scale.double()).float()


def _logit(weights: dict[str, Tensor], z: Float32[Tensor, "row d"]) -> Float32[Tensor, "problem row"]:
    problems, width, d = weights["hidden"].shape
    # The rows are the same for all problems: one product of matrices, [problem * width, d] @ [d, row].
    inner = (weights["hidden"].reshape(-1, d) @ z.T).view(problems, width, -1) + weights["hidden_bias"][:, :, None]
    return torch.bmm(weights["output"][:, None], gelu(inner))[:, 0] + weights["bias"][:, None]
