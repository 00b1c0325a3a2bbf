"""Mixture of experts: a router sends each token to a few of many small MLPs (Shazeer et al. 2017, arXiv 1701.06538).

1. Router logits -> a score for each expert: softmax over all (Mixtral), or a sigmoid of each (DeepSeek-V3).
2. The top k by score, plus a bias that only the choice sees, from the best groups where experts come in groups.
3. The sum of the chosen experts' outputs by their scores (normalised, scaled), plus the shared experts' output.

Two ways to keep the load even: the auxiliary loss of Switch Transformers (arXiv 2101.03961), and a bias that is moved
after each step, without a loss (arXiv 2408.15664).
"""

from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.hooks import HookPoint, RunState
from interp.model.config import ModelConfig
from interp.model.linear import Direct, blank
from interp.model.mlp import FeedForward
from interp.model.norm import accumulate

if TYPE_CHECKING:
    from interp.model.transformer import HookedTransformer


class Router(nn.Module):
    """A logit for each expert, and the bias that the choice alone sees."""

    bias: nn.Parameter | None

    def __init__(self, cfg: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        assert cfg.experts is not None
        self.weight = blank(cfg.experts.n_experts, cfg.d_model, dtype=dtype)
        self.register_parameter("bias", blank(cfg.experts.n_experts, dtype=dtype) if cfg.experts.bias else None)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos expert"]:
        """Logits in at least fp32: the choice must not depend on rounding more than it has to."""
        return nn.functional.linear(accumulate(x), accumulate(self.weight))


class MixtureOfExperts(Direct):
    """Experts in place of one block's MLP, with the router's sites."""

    shared: FeedForward | None

    def __init__(self, cfg: ModelConfig, layer: int, run: RunState, dtype: torch.dtype) -> None:
        super().__init__()
        assert cfg.experts is not None
        self.options = cfg.experts
        self.router = Router(cfg, dtype)
        self.experts = nn.ModuleList(
            FeedForward(cfg, cfg.experts.d_expert, dtype) for _ in range(cfg.experts.n_experts)
        )
        width = cfg.experts.n_shared * cfg.experts.d_expert
        self.shared = FeedForward(cfg, width, dtype) if width else None
        self.hook_router_logits = HookPoint(f"blocks.{layer}.mlp.hook_router_logits", run)
        self.hook_expert_weights = HookPoint(f"blocks.{layer}.mlp.hook_expert_weights", run)
        self.hook_expert_indices = HookPoint(f"blocks.{layer}.mlp.hook_expert_indices", run)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        return [self.hook_router_logits, self.hook_expert_weights, self.hook_expert_indices]

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        logits = self.hook_router_logits(self.router(x))
        scores = self.hook_expert_weights(logits.softmax(-1) if self.options.score == "softmax" else logits.sigmoid())
        indices = self.hook_expert_indices(self.choose(scores))
        weights = scores.gather(-1, indices)
        if self.options.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = (weights * self.options.scale).to(x.dtype)
        out = self._mixed(x.flatten(0, 1), indices.flatten(0, 1), weights.flatten(0, 1)).view(x.shape)
        return out if self.shared is None else out + self.shared(x)

    def choose(self, scores: Float[Tensor, "batch pos expert"]) -> Int[Tensor, "batch pos k"]:
        """The experts of each token, the best first."""
        options = self.options
        choice = scores if self.router.bias is None else scores + self.router.bias
        if options.n_groups > 1:
            groups = choice.unflatten(-1, (options.n_groups, -1))
            best = groups.topk(min(2, groups.shape[-1]), -1).values.sum(-1)
            closed = torch.ones_like(best, dtype=torch.bool).scatter(
                -1, best.topk(options.top_groups, -1).indices, False
            )
            choice = groups.masked_fill(closed[..., None], -torch.inf).flatten(-2)
        return choice.topk(options.top_k, -1).indices

    def _mixed(
        self, x: Float[Tensor, "row d_model"], indices: Int[Tensor, "row k"], weights: Float[Tensor, "row k"]
    ) -> Float[Tensor, "row d_model"]:
        out = torch.zeros_like(x)
        for index in indices.unique().tolist():
            rows, which = (indices == index).nonzero(as_tuple=True)
            expert = self.experts[index]
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, which, None])
        return out


def balance_loss(
    weights: Float[Tensor, "*rows expert"],
    indices: Int[Tensor, "*rows k"],
    mask: Bool[Tensor, "*rows"] | None = None,
) -> Float[Tensor, ""]:
    """The load-balancing loss of one layer: n_experts * sum over experts of (share of choices) x (mean score).

    It is k where the load is even. Scores that do not sum to one (sigmoid) are divided by their sum first.

    Args:
        weights: scores of all experts (`hook_expert_weights`).
        indices: chosen experts (`hook_expert_indices`).
        mask: real tokens; None for all.
    """
    n_experts = weights.shape[-1]
    weights = weights / weights.sum(-1, keepdim=True)
    chosen = nn.functional.one_hot(indices, n_experts).sum(-2).to(weights.dtype)
    if mask is not None:
        weights, chosen = weights[mask], chosen[mask]
    return n_experts * (chosen.flatten(0, -2).mean(0) * weights.flatten(0, -2).mean(0)).sum()


def expert_load(model: "HookedTransformer", x: Any) -> pd.DataFrame:
    """How a model's routers spread the real tokens of some texts.

    Args:
        model: a model with experts.
        x: what `model.tokenize` takes.

    Returns:
        A row for each layer and expert: layer, expert, tokens, share (of the choices; even is 1 / n_experts), mean_score.

    Raises:
        ValueError: the model has no experts.
    """
    if model.cfg.experts is None:
        raise ValueError(f"{model.cfg.name} has no experts: its MLPs are dense")
    with torch.no_grad():
        _, cache = model.run_with_cache(x, ["*.hook_expert_weights", "*.hook_expert_indices"])
    rows, mask = [], cache.tokens.mask
    for layer in range(model.cfg.n_layers):
        if not model.cfg.has_experts(layer):
            continue
        scores, indices = cache["expert_weights", layer][mask], cache["expert_indices", layer][mask]
        counts = torch.bincount(indices.flatten(), minlength=model.cfg.experts.n_experts)
        for expert, (count, score) in enumerate(zip(counts.tolist(), scores.mean(0).tolist(), strict=True)):
            rows.append((layer, expert, count, count / indices.numel(), score))
    return pd.DataFrame(rows, columns=pd.Index(["layer", "expert", "tokens", "share", "mean_score"]))


@torch.no_grad()
def update_balance_bias(model: "HookedTransformer", loads: pd.DataFrame, rate: float) -> None:
    """One step of balancing without a loss: raise the bias of experts with too few tokens, lower that of the others.

    Args:
        model: a model whose routers have a bias (`Experts(bias=True)`); changed in place.
        loads: what `expert_load` gives.
        rate: size of the step.

    Raises:
        ValueError: the routers have no bias.
    """
    for layer, block in enumerate(model.iter_blocks()):
        if not isinstance(block.mlp, MixtureOfExperts):
            continue
        bias = block.mlp.router.bias
        if bias is None:
            raise ValueError("the routers have no bias to balance with; set Experts(bias=True)")
        share = torch.tensor(
            loads.loc[loads["layer"] == layer, "share"].to_numpy(), dtype=bias.dtype, device=bias.device
        )
        bias += rate * torch.sign(share.mean() - share)
