"""One training step: loss, gradients, clipping, update; and the same without an update where a number is not finite."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from interp import sites
from interp.hooks import HookContext, Request, attached
from interp.model import HookedTransformer
from interp.model.moe import update_balance_bias
from interp.tokens import Tokens
from interp.train.config import TrainConfig


@dataclass(frozen=True)
class ForwardResult:
    """What a forward pass gives."""

    loss: Tensor | None
    """With its graph; None where it is not finite."""
    value: float
    """The loss as a number."""
    loads: pd.DataFrame | None
    """Where the routers sent the tokens (layer, expert, share), if that was asked for."""


class _NotFinite(Exception):
    """The stream of a real token is NaN or infinite."""


def has_targets(tokens: Tokens) -> bool:
    """Whether a real token follows another one of the same document anywhere in the batch."""
    follows = tokens.mask[:, 1:] & tokens.mask[:, :-1]
    if tokens.documents is not None:
        follows &= tokens.documents[:, 1:] == tokens.documents[:, :-1]
    return bool(follows.any())


def forward(model: HookedTransformer, tokens: Tokens, config: TrainConfig) -> ForwardResult:
    """The loss of a batch. Not finite is a result here, where the model itself would refuse to go on."""
    counts: dict[int, Tensor] = {}
    readers = [(_last_site(model), _require_finite, "read")]
    if config.balance_rate:
        readers += [(name, _count(counts), "read") for name in model.hook_dict if name.endswith("hook_expert_indices")]
    with torch.autocast(model.device.type, torch.bfloat16, enabled=config.autocast):
        try:
            with attached(model.hook_dict, Request(readers), model.run):
                loss = model.loss(tokens, balance=config.balance)
        except _NotFinite:
            return ForwardResult(None, math.nan, None)
    value, experts = float(loss.detach()), model.cfg.experts
    loads = _loads(counts, experts.n_experts) if experts is not None and counts else None
    return ForwardResult(loss if math.isfinite(value) else None, value, loads)


def update(
    model: HookedTransformer,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    result: ForwardResult,
    config: TrainConfig,
    lr: float,
) -> float:
    """Gradients, clipping and AdamW; the gradients' norm before clipping. Where that is not finite, nothing changes."""
    assert result.loss is not None
    optimizer.zero_grad()
    result.loss.backward()
    limit = math.inf if config.grad_clip is None else config.grad_clip
    norm = float(nn.utils.clip_grad_norm_(list(parameters.values()), limit))
    if math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        if result.loads is not None:
            update_balance_bias(model, result.loads, config.balance_rate)
    optimizer.zero_grad()
    return norm


def _last_site(model: HookedTransformer) -> str:
    """The last place of the last block: what the final norm reads."""
    return [name for name in model.hook_dict if sites.layer_of(name) == model.cfg.n_layers - 1][-1]


def _require_finite(value: Tensor, ctx: HookContext) -> None:
    if not bool(torch.isfinite(value.detach()).all(-1)[ctx.mask].all()):
        raise _NotFinite


def _count(counts: dict[int, Tensor]) -> Callable[[Tensor, HookContext], None]:
    def read(indices: Tensor, ctx: HookContext) -> None:
        assert ctx.layer is not None
        counts[ctx.layer] = indices[ctx.mask].flatten()

    return read


def _loads(counts: Mapping[int, Tensor], n_experts: int) -> pd.DataFrame:
    """As `interp.model.moe.expert_load` gives them, of the pass that was made anyway."""
    shares = {layer: torch.bincount(chosen, minlength=n_experts) / len(chosen) for layer, chosen in counts.items()}
    rows = [(layer, expert, each) for layer, share in shares.items() for expert, each in enumerate(share.tolist())]
    return pd.DataFrame(rows, columns=pd.Index(["layer", "expert", "share"]))
