"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values from one small vector a token.

1. Queries: stream (-> small vector -> norm) -> heads of d_nope + d_rope dimensions, of which the last d_rope turn.
2. Keys and values: stream -> [latent vector | shared rotary key]; the normed latent vector expands to each head's
   d_nope key dimensions and its value.
3. The cache keeps the latent vector and the rotated shared key, and makes keys and values anew at each step. Where a hook
   changes keys or values, the vector no longer says what they are; the cache then keeps those.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks import HookPoint
from interp.model.attention import Attention, PassInputs, SplitInputs
from interp.model.config import ModelConfig
from interp.model.linear import Linear
from interp.model.norm import Norm


class LatentAttention(Attention):
    """Latent attention with the sites of `Attention`; hook_v and hook_z have heads of width d_v."""

    q_down: Linear | None

    def _add_weights(self, cfg: ModelConfig, dtype: torch.dtype) -> None:
        assert cfg.latent is not None
        latent, bias = cfg.latent, cfg.qkv_bias
        self.kv_rank, self.d_rope, self.d_nope = latent.kv_rank, latent.d_rope, cfg.d_head - latent.d_rope
        reads = latent.q_rank or cfg.d_model
        self.q_down = Linear(cfg.d_model, latent.q_rank, bias, dtype) if latent.q_rank is not None else None
        # The small vectors' norms have an epsilon of their own in the released code.
        self.q_norm = Norm(reads, "rms", 1e-6, dtype) if latent.q_rank is not None else None
        self.q = Linear(reads, cfg.n_heads * cfg.d_head, False, dtype)
        self.kv_down = Linear(cfg.d_model, latent.kv_rank + latent.d_rope, bias, dtype)
        self.kv_norm = Norm(latent.kv_rank, "rms", 1e-6, dtype)
        self.kv = Linear(latent.kv_rank, cfg.n_heads * (self.d_nope + latent.d_v), False, dtype)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation: queries are rotated before the latent vector is expanded."""
        inner = [self.hook_attn_scores, self.hook_pattern, self.hook_z, self.hook_result]
        return [self.hook_q, self.hook_rot_q, self.hook_k, self.hook_v, self.hook_rot_k, *inner]

    def _queries_keys_values(
        self, x: Float[Tensor, "batch pos d_model"], shared: PassInputs, split: SplitInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        if split.q is not None or split.k is not None or split.v is not None:
            raise ValueError(
                f"blocks.{self.layer}: latent attention makes all heads' keys and values from one vector, so their inputs "
                "cannot be edited head by head; edit hook_q, hook_k or hook_v instead"
            )
        assert shared.angles is not None
        q = self.q(x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x)))
        q = self.hook_q(q.unflatten(-1, (self.n_heads, self.d_head)))
        q = torch.cat((q[..., : self.d_nope], shared.angles(q[..., self.d_nope :])), -1)
        q = self.hook_rot_q(q).transpose(1, 2)
        latent, key = self.kv_down(x).split((self.kv_rank, self.d_rope), -1)
        latent, key = self.kv_norm(latent)[:, None], key[:, :, None]
        points, kv = (self.hook_k, self.hook_v, self.hook_rot_k), shared.kv
        if any(point.handles for point in points) or (kv is not None and self.layer in kv.expanded):
            return q, *self._expanded(latent, key, shared)
        key = shared.angles(key).transpose(1, 2)
        return q, *self._expand(*((latent, key) if kv is None else kv.append(self.layer, latent, key)))

    def _expanded(
        self, latent: Float[Tensor, "batch 1 pos kv_rank"], key: Float[Tensor, "batch pos 1 d_rope"], shared: PassInputs
    ) -> tuple[Tensor, Tensor]:
        """Keys and values with hooks on them, and those of earlier tokens as their hooks left them."""
        assert shared.angles is not None
        k, v = self._expand(latent, key.transpose(1, 2))
        k, v = self.hook_k(k.transpose(1, 2)), self.hook_v(v.transpose(1, 2)).transpose(1, 2)
        k = torch.cat((k[..., : self.d_nope], shared.angles(k[..., self.d_nope :])), -1)
        k, kv = self.hook_rot_k(k).transpose(1, 2), shared.kv
        if kv is None:
            return k, v
        n_new = latent.shape[2]
        past = kv.expanded.get(self.layer) or self._expand(*kv.past(self.layer, n_new))
        kv.append(self.layer, latent, shared.angles(key).transpose(1, 2))
        kv.expanded[self.layer] = (torch.cat((past[0], k), 2), torch.cat((past[1], v), 2))
        return kv.expanded[self.layer]

    def _expand(
        self, latent: Float[Tensor, "batch 1 key kv_rank"], rope: Float[Tensor, "batch 1 key d_rope"]
    ) -> tuple[Float[Tensor, "batch head key d_head"], Float[Tensor, "batch head key d_v"]]:
        both = self.kv(latent[:, 0]).unflatten(-1, (self.n_heads, self.d_nope + self.d_value)).transpose(1, 2)
        nope, v = both.split((self.d_nope, self.d_value), -1)
        return torch.cat((nope, rope.expand(-1, self.n_heads, -1, -1)), -1), v

    @property
    def W_Q(self) -> Tensor:
        """Not defined: a norm stands between the two query matrices."""
        raise self._no_weight("W_Q", "q")

    @property
    def W_K(self) -> Tensor:
        """Not defined: a norm stands between the two key matrices."""
        raise self._no_weight("W_K", "kv")

    @property
    def W_V(self) -> Tensor:
        """Not defined: a norm stands between the two value matrices."""
        raise self._no_weight("W_V", "kv")

    def _no_weight(self, name: str, own: str) -> ValueError:
        return ValueError(
            f"latent attention has no {name}: it makes it in two steps with a norm between; see blocks[l].attn.{own}.weight"
        )
