"""Self-attention: multi-head, grouped-query or multi-query, fused unless somebody looks inside.

Steps: project to q, k, v; norm q and k where the model does; rotate them; mix the values by softmax(q k * scale), with
ALiBi's bias or a soft-cap on the scores where the model has them; project back. A fused kernel does the mixing. When a
hook sits on the scores, the pattern or the per-head results, the explicit value is computed beside it; only if the hook
changed it does the explicit value replace the fused one, so looking never moves the logits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.hooks import HookPoint, RunState
from interp.model.cache import KVCache
from interp.model.config import ModelConfig
from interp.model.kernels import fused_attention
from interp.model.linear import Direct, Linear
from interp.model.mask import masked_softmax
from interp.model.norm import Norm
from interp.model.position import rotate


@dataclass(frozen=True)
class Angles:
    """Cosines and sines of one side of the scores."""

    cos: Float[Tensor, "rope_batch pos 1 rotary"]
    sin: Float[Tensor, "rope_batch pos 1 rotary"]
    pairing: str

    def __call__(self, x: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        return rotate(x, self.cos, self.sin, self.pairing)


@dataclass(frozen=True)
class PassInputs:
    """What all layers of one kind (with or without a window) share in one forward pass."""

    angles: Angles | None
    """Rotation of the new queries and keys, None without rotary positions."""
    mask: Bool[Tensor, "batch 1 query key"] | None
    """Who may attend to whom; None means plain causal attention without padding, or that every query sees all keys."""
    causal: bool
    """With mask None: whether the causal triangle still has to be cut."""
    bias: Float[Tensor, "batch head 1 key"] | None = None
    """ALiBi's bias on the scores."""
    kv: KVCache | None = None
    """Keys and values of earlier tokens."""


@dataclass(frozen=True)
class SplitInputs:
    """Normed streams of their own for each head's queries, keys and values, where a hook made them differ."""

    q: Float[Tensor, "batch pos head d_model"] | None = None
    k: Float[Tensor, "batch pos kv_head d_model"] | None = None
    v: Float[Tensor, "batch pos kv_head d_model"] | None = None


class Attention(Direct):
    """Self-attention of one block with TransformerLens' sites. k and v keep their kv_head axis."""

    q_norm: Norm | None
    k_norm: Norm | None

    def __init__(self, cfg: ModelConfig, layer: int, run: RunState, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.n_heads, self.kv_heads, self.d_head = layer, cfg.n_heads, cfg.kv_heads, cfg.d_head
        self.d_value, self.scaling, self.softcap = cfg.d_value, cfg.scaling, cfg.attn_softcap
        self.alibi_scaled, self.dropout = cfg.alibi_scaled, cfg.attention_dropout
        self.window = cfg.window if cfg.has_window(layer) else None
        self.rotary = cfg.positional == "rope"
        self._add_weights(cfg, dtype)
        self.o = Linear(cfg.n_heads * cfg.d_value, cfg.d_model, cfg.out_bias, dtype)
        names = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern", "z", "result")
        point = {name: HookPoint(f"blocks.{layer}.attn.hook_{name}", run) for name in names}
        self.hook_q, self.hook_k, self.hook_v = point["q"], point["k"], point["v"]
        self.hook_rot_q, self.hook_rot_k = point["rot_q"], point["rot_k"]
        self.hook_attn_scores, self.hook_pattern = point["attn_scores"], point["pattern"]
        self.hook_z, self.hook_result = point["z"], point["result"]

    def _add_weights(self, cfg: ModelConfig, dtype: torch.dtype) -> None:
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, cfg.qkv_bias, dtype)
        self.k = Linear(cfg.d_model, cfg.kv_heads * cfg.d_head, cfg.qkv_bias, dtype)
        self.v = Linear(cfg.d_model, cfg.kv_heads * cfg.d_head, cfg.qkv_bias, dtype)
        self.norm_by_head = cfg.qk_norm == "head"

        def norm(heads: int) -> Norm | None:
            width = cfg.d_head if self.norm_by_head else heads * cfg.d_head
            return None if cfg.qk_norm == "none" else Norm(width, "rms", cfg.norm_eps, dtype, offset=cfg.norm_offset)

        self.q_norm, self.k_norm = norm(cfg.n_heads), norm(cfg.kv_heads)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        rotated = [self.hook_rot_q, self.hook_rot_k] if self.rotary else []
        inner = [self.hook_attn_scores, self.hook_pattern, self.hook_z, self.hook_result]
        return [self.hook_q, self.hook_k, self.hook_v, *rotated, *inner]

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        shared: PassInputs,
        split: SplitInputs | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The normed stream -> what attention adds to the stream (before the post norm and `hook_attn_out`)."""
        q, k, v = self._queries_keys_values(x, shared, split or SplitInputs())
        z = self.hook_z(self._mix(q, k, v, shared).transpose(1, 2))
        out = self.o(z.flatten(2))
        if self.hook_result.handles:
            result = self.hook_result.edited(torch.einsum("bphe,hed->bphd", z, self.W_O))
            if result is not None:
                out = result.sum(2) if self.o.bias is None else result.sum(2) + self.o.bias
        return out

    def _queries_keys_values(
        self, x: Float[Tensor, "batch pos d_model"], shared: PassInputs, split: SplitInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [batch head query d_head], and k and v [batch kv_head key d] of all keys that the queries may see."""
        q = self.hook_q(self._project(self.q, x, split.q, self.n_heads))
        k = self.hook_k(self._project(self.k, x, split.k, self.kv_heads))
        v = self.hook_v(self._project(self.v, x, split.v, self.kv_heads)).transpose(1, 2)
        q, k = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        if shared.angles is None:
            k = k.transpose(1, 2)
            return q.transpose(1, 2), *(shared.kv.append(self.layer, k, v) if shared.kv is not None else (k, v))
        q = self.hook_rot_q(shared.angles(q)).transpose(1, 2)
        k = self.hook_rot_k(shared.angles(k)).transpose(1, 2)
        return q, *(shared.kv.append(self.layer, k, v) if shared.kv is not None else (k, v))

    def _normed(self, x: Float[Tensor, "batch pos head d_head"], norm: Norm | None) -> Tensor:
        if norm is None:
            return x
        return norm(x) if self.norm_by_head else norm(x.flatten(2)).view(x.shape)

    def _project(
        self,
        linear: Linear,
        x: Float[Tensor, "batch pos d_model"],
        by_head: Float[Tensor, "batch pos head d_model"] | None,
        heads: int,
    ) -> Float[Tensor, "batch pos head d_head"]:
        if by_head is None:
            return linear(x).view(*x.shape[:-1], heads, self.d_head)
        out = torch.einsum("bphd,hed->bphe", by_head, linear.weight.unflatten(0, (heads, self.d_head)))
        return out if linear.bias is None else out + linear.bias.view(heads, self.d_head)

    def _mix(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        v: Float[Tensor, "batch kv_head key d_v"],
        shared: PassInputs,
    ) -> Float[Tensor, "batch head query d_v"]:
        self._note_sums(q, k, shared)
        dropout = self.dropout if self.training else 0.0
        looked_at = bool(self.hook_attn_scores.handles or self.hook_pattern.handles)
        fused = None
        if not dropout or not looked_at:
            bias = None if shared.bias is None else shared.bias * (self.scaling if self.alibi_scaled else 1.0)
            fused = fused_attention(
                q, k, v, mask=shared.mask, causal=shared.causal, bias=bias, scale=self.scaling, softcap=self.softcap,
                window=self.window, dropout=dropout,
            )  # fmt: skip
        if fused is not None and not looked_at:
            return fused
        scores = self.scores(q, k, shared)
        edited_scores = self.hook_attn_scores.edited(scores) if self.hook_attn_scores.handles else None
        whole = shared.mask is None and edited_scores is None  # every query sees a key
        pattern = masked_softmax(scores if edited_scores is None else edited_scores, whole=whole)
        edited = self.hook_pattern.edited(pattern) if self.hook_pattern.handles else None
        if fused is not None and edited is None and edited_scores is None:
            return fused
        pattern = nn.functional.dropout(pattern if edited is None else edited, dropout, training=self.training)
        return pattern @ self._for_queries(v)

    def _note_sums(self, q: Tensor, k: Tensor, shared: PassInputs) -> None:
        """Leave a sum that is NaN if a query or key is. One token decoded with nothing attached cannot bring one in."""
        points = (self.hook_q, self.hook_k, self.hook_rot_q, self.hook_rot_k)
        if q.shape[2] > 1 or shared.kv is None or any(point.handles for point in points):
            wide = torch.promote_types(q.dtype, torch.float32)
            self.hook_q.run.sums.append(q.detach().sum(dtype=wide) + k.detach().sum(dtype=wide))

    def scores(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        shared: PassInputs,
    ) -> Float[Tensor, "batch head query key"]:
        """Scores as the softmax reads them: scaled, biased, capped, and -inf where a query may not look."""
        # In place where the product is ours alone: each copy of the scores costs as much as reading them once.
        scores = q @ self._for_queries(k).transpose(-1, -2)
        if shared.bias is not None and self.alibi_scaled:
            scores.add_(shared.bias)
        scores.mul_(self.scaling)
        if shared.bias is not None and not self.alibi_scaled:
            scores.add_(shared.bias)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if shared.mask is not None:
            return scores.masked_fill_(~shared.mask, -torch.inf)
        if shared.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            return scores.masked_fill_(future, -torch.inf)
        return scores

    def _for_queries(self, x: Float[Tensor, "batch kv_head key d"]) -> Float[Tensor, "batch head key d"]:
        """Keys or values repeated for the query heads that share them."""
        return x if self.kv_heads == self.n_heads else x.repeat_interleave(self.n_heads // self.kv_heads, dim=1)

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
    def W_O(self) -> Float[Tensor, "head d_v d_model"]:
        """Output weights by head, a view that writes through."""
        return self.o.weight.T.unflatten(0, (self.n_heads, self.d_value))
