"""Causal self-attention: multi-head, grouped-query or multi-query, fused unless somebody looks inside.

Steps: project to q, k, v; rotate q and k; mix the values by softmax(q k / sqrt(d_head)); project back. PyTorch's fused
kernel does the mixing. When a hook sits on the scores, the pattern or the per-head results, the explicit value is
computed beside it; only if the hook changed it does the explicit value replace the fused one, so looking never moves
the logits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from interp.hooks import HookPoint, RunState
from interp.model.cache import KVCache
from interp.model.config import ModelConfig
from interp.model.linear import Linear
from interp.model.mask import masked_softmax
from interp.model.position import rotate


@dataclass(frozen=True)
class PassInputs:
    """What every block of one forward pass shares."""

    cos: Float[Tensor, "rope_batch pos 1 d_head"] | None
    """Rotary cosines, None without rotary positions."""
    sin: Float[Tensor, "rope_batch pos 1 d_head"] | None
    """Rotary sines."""
    mask: Bool[Tensor, "batch 1 query key"] | None
    """Who may attend to whom; None means plain causal attention without padding, or one query that sees all keys."""
    causal: bool
    """With mask None: whether the causal triangle still has to be cut."""
    kv: KVCache | None
    """Keys and values of earlier tokens."""


class Attention(nn.Module):
    """Self-attention of one block with TransformerLens' sites. k and v keep their kv_head axis."""

    def __init__(self, cfg: ModelConfig, layer: int, run: RunState, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.n_heads, self.kv_heads, self.d_head = layer, cfg.n_heads, cfg.kv_heads, cfg.d_head
        self.scaling = cfg.d_head**-0.5
        self.rotary = cfg.positional == "rope"
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, cfg.qkv_bias, dtype)
        self.k = Linear(cfg.d_model, cfg.kv_heads * cfg.d_head, cfg.qkv_bias, dtype)
        self.v = Linear(cfg.d_model, cfg.kv_heads * cfg.d_head, cfg.qkv_bias, dtype)
        self.o = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, cfg.out_bias, dtype)
        names = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern", "z", "result")
        point = {name: HookPoint(f"blocks.{layer}.attn.hook_{name}", run) for name in names}
        self.hook_q, self.hook_k, self.hook_v = point["q"], point["k"], point["v"]
        self.hook_rot_q, self.hook_rot_k = point["rot_q"], point["rot_k"]
        self.hook_attn_scores, self.hook_pattern = point["attn_scores"], point["pattern"]
        self.hook_z, self.hook_result = point["z"], point["result"]

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        rotated = [self.hook_rot_q, self.hook_rot_k] if self.rotary else []
        inner = [self.hook_attn_scores, self.hook_pattern, self.hook_z, self.hook_result]
        return [self.hook_q, self.hook_k, self.hook_v, *rotated, *inner]

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        shared: PassInputs,
        split: "SplitInputs | None" = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The normed stream -> what attention adds to the stream (before `hook_attn_out`)."""
        split = split or SplitInputs()
        q = self.hook_q(self._project(self.q, x, split.q, self.n_heads))
        k = self.hook_k(self._project(self.k, x, split.k, self.kv_heads))
        v = self.hook_v(self._project(self.v, x, split.v, self.kv_heads))
        if shared.cos is not None and shared.sin is not None:
            q = self.hook_rot_q(rotate(q, shared.cos, shared.sin))
            k = self.hook_rot_k(rotate(k, shared.cos, shared.sin))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if shared.kv is not None:
            k, v = shared.kv.append(self.layer, k, v)
        z = self.hook_z(self._mix(q, k, v, shared).transpose(1, 2))
        out = self.o(z.flatten(2))
        if self.hook_result.handles:
            result = self.hook_result.edited(torch.einsum("bphe,hed->bphd", z, self.W_O))
            if result is not None:
                out = result.sum(2) if self.o.bias is None else result.sum(2) + self.o.bias
        return out

    def _project(
        self,
        linear: Linear,
        x: Float[Tensor, "batch pos d_model"],
        by_head: Float[Tensor, "batch pos head d_model"] | None,
        heads: int,
    ) -> Float[Tensor, "batch pos head d_head"]:
        if by_head is None:
            return linear(x).unflatten(-1, (heads, self.d_head))
        out = torch.einsum("bphd,hed->bphe", by_head, linear.weight.unflatten(0, (heads, self.d_head)))
        return out if linear.bias is None else out + linear.bias.view(heads, self.d_head)

    def _mix(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        v: Float[Tensor, "batch kv_head key d_head"],
        shared: PassInputs,
    ) -> Float[Tensor, "batch head query d_head"]:
        grouped = self.kv_heads != self.n_heads
        fused = scaled_dot_product_attention(
            q, k, v, attn_mask=shared.mask, is_causal=shared.causal, scale=self.scaling, enable_gqa=grouped
        )
        if not (self.hook_attn_scores.handles or self.hook_pattern.handles):
            return fused
        scores = self.scores(q, k, shared)
        edited_scores = self.hook_attn_scores.edited(scores) if self.hook_attn_scores.handles else None
        pattern = masked_softmax(scores if edited_scores is None else edited_scores)
        edited = self.hook_pattern.edited(pattern) if self.hook_pattern.handles else None
        if edited is None and edited_scores is None:
            return fused
        values = v.repeat_interleave(self.n_heads // self.kv_heads, dim=1) if grouped else v
        return (pattern if edited is None else edited) @ values

    def scores(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        shared: PassInputs,
    ) -> Float[Tensor, "batch head query key"]:
        """Scaled scores with -inf where a query may not look."""
        keys = k.repeat_interleave(self.n_heads // self.kv_heads, dim=1) if self.kv_heads != self.n_heads else k
        scores = q @ keys.transpose(-1, -2) * self.scaling
        if shared.mask is not None:
            return scores.masked_fill(~shared.mask, -torch.inf)
        if shared.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            return scores.masked_fill(future, -torch.inf)
        return scores

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:
        """Query weights by head, a view that writes through."""
        return self.q.weight.unflatten(0, (self.n_heads, self.d_head)).transpose(1, 2)

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_model d_head"]:
        """Key weights by kv-head, a view that writes through."""
        return self.k.weight.unflatten(0, (self.kv_heads, self.d_head)).transpose(1, 2)

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_model d_head"]:
        """Value weights by kv-head, a view that writes through."""
        return self.v.weight.unflatten(0, (self.kv_heads, self.d_head)).transpose(1, 2)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        """Output weights by head, a view that writes through."""
        return self.o.weight.T.unflatten(0, (self.n_heads, self.d_head))


@dataclass(frozen=True)
class SplitInputs:
    """Normed streams of their own for each head's queries, keys and values, where a hook made them differ."""

    q: Float[Tensor, "batch pos head d_model"] | None = None
    k: Float[Tensor, "batch pos kv_head d_model"] | None = None
    v: Float[Tensor, "batch pos kv_head d_model"] | None = None
