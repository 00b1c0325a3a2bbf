"""AdamW with decoupled decay (Loshchilov and Hutter, arXiv 1711.05101), and the state of a model while it trains.

Matrices decay. Gains, biases and embeddings do not: decay shrinks what a layer computes with, and a norm after it makes
up for that, but nothing makes up for a smaller gain, and an embedding's row would shrink at every step that does not
use it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from interp.model import HookedTransformer
from interp.train.config import TrainConfig
from interp.train.data import batch_seed

EMBEDDINGS = ("embed.weight", "pos_embed.weight", "type_embed.weight")
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def trained_parameters(model: HookedTransformer) -> dict[str, nn.Parameter]:
    """What training changes, by name: the parameters that require gradients, or all of them where none does.

    The experts' choice bias has no gradient and moves by `TrainConfig.balance_rate` instead.
    """
    every = {name: weight for name, weight in model.named_parameters() if not name.endswith("mlp.router.bias")}
    chosen = {name: weight for name, weight in every.items() if weight.requires_grad}
    return chosen or every


def adamw(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over two groups: what decays (matrices, an unembedding of its own among them), and what does not."""
    decays = {name: weight.ndim >= 2 and name not in EMBEDDINGS for name, weight in parameters.items()}
    groups = [
        {"params": [parameters[name] for name in parameters if decays[name]], "weight_decay": config.weight_decay},
        {"params": [parameters[name] for name in parameters if not decays[name]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps)


def moments(optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """AdamW's state by parameter and key. A parameter that had no gradient yet has none."""
    return {
        f"{name}.{key}": optimizer.state[weight][key]
        for name, weight in parameters.items()
        for key in MOMENTS
        if weight in optimizer.state
    }


def restore_moments(
    optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter], found: Mapping[str, Tensor]
) -> None:
    """Put back what `moments` gave, as copies."""
    optimizer.state.clear()
    for name, weight in parameters.items():
        if f"{name}.step" in found:
            state = {key: found[f"{name}.{key}"].clone() for key in MOMENTS}
            # The count stays on the CPU, where AdamW itself makes it.
            optimizer.state[weight] = {k: v if k == "step" else v.to(weight.device) for k, v in state.items()}


@contextmanager
def training(model: HookedTransformer, config: TrainConfig) -> Iterator[dict[str, nn.Parameter]]:
    """Train mode and gradients for the length of the block; yields the trained parameters. All is put back after."""
    mode, recompute, parameters = model.training, model.checkpoint_blocks, trained_parameters(model)
    flags = {name: weight.requires_grad for name, weight in model.named_parameters()}
    try:
        model.train()
        model.checkpoint_blocks = config.recompute
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in parameters)
        with torch.enable_grad():
            yield parameters
    finally:
        model.train(mode)
        model.checkpoint_blocks = recompute
        for name, weight in model.named_parameters():
            weight.requires_grad_(flags[name])
            weight.grad = None


@contextmanager
def seeded(device: torch.device, seed: int, batch: int) -> Iterator[None]:
    """Torch's own generators seeded by (seed, batch) for the length of the block, and put back after.

    Dropout draws from them. Since their state follows from the number of the batch, a checkpoint need not hold it.
    """
    index = device.index or 0
    with torch.random.fork_rng(devices=[index] if device.type == "cuda" else []):
        number = batch_seed(seed, batch)
        torch.default_generator.manual_seed(number)  # torch.manual_seed would reach every device, forked or not
        if device.type == "cuda":
            torch.cuda.default_generators[index].manual_seed(number)
        yield
