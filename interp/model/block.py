"""One sequential pre-norm block: stream -> + attention(norm(stream)) -> + MLP(norm(stream))."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks import HookPoint, RunState
from interp.model.attention import Attention, PassInputs, SplitInputs
from interp.model.config import ModelConfig
from interp.model.mlp import MLP
from interp.model.norm import Norm


class Block(nn.Module):
    """resid_pre + attn_out = resid_mid; resid_mid + mlp_out = resid_post."""

    def __init__(self, cfg: ModelConfig, layer: int, run: RunState, dtype: torch.dtype) -> None:
        super().__init__()
        prefix = f"blocks.{layer}"
        self.n_heads, self.kv_heads = cfg.n_heads, cfg.kv_heads
        self.ln1 = Norm(cfg, f"{prefix}.ln1", run, dtype)
        self.attn = Attention(cfg, layer, run, dtype)
        self.ln2 = Norm(cfg, f"{prefix}.ln2", run, dtype)
        self.mlp = MLP(cfg, layer, run, dtype)
        self.hook_resid_pre = HookPoint(f"{prefix}.hook_resid_pre", run)
        self.hook_attn_in = HookPoint(f"{prefix}.hook_attn_in", run)
        self.hook_q_input = HookPoint(f"{prefix}.hook_q_input", run)
        self.hook_k_input = HookPoint(f"{prefix}.hook_k_input", run)
        self.hook_v_input = HookPoint(f"{prefix}.hook_v_input", run)
        self.hook_attn_out = HookPoint(f"{prefix}.hook_attn_out", run)
        self.hook_resid_mid = HookPoint(f"{prefix}.hook_resid_mid", run)
        self.hook_mlp_in = HookPoint(f"{prefix}.hook_mlp_in", run)
        self.hook_mlp_out = HookPoint(f"{prefix}.hook_mlp_out", run)
        self.hook_resid_post = HookPoint(f"{prefix}.hook_resid_post", run)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        inputs = [self.hook_attn_in, self.hook_q_input, self.hook_k_input, self.hook_v_input]
        attention = [*self.ln1.points(), *self.attn.points(), self.hook_attn_out, self.hook_resid_mid]
        mlp = [self.hook_mlp_in, *self.ln2.points(), *self.mlp.points(), self.hook_mlp_out]
        return [self.hook_resid_pre, *inputs, *attention, *mlp, self.hook_resid_post]

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"], shared: PassInputs
    ) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid), shared, self._split(resid)))
        resid = self.hook_resid_mid(resid + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(self.hook_mlp_in(resid))))
        return self.hook_resid_post(resid + mlp_out)

    def _split(self, resid: Float[Tensor, "batch pos d_model"]) -> SplitInputs | None:
        """The streams that heads read apart from each other, None while no hook made them differ."""
        points = (self.hook_attn_in, self.hook_q_input, self.hook_k_input, self.hook_v_input)
        if not any(point.handles for point in points):
            return None
        queries = resid[:, :, None].expand(-1, -1, self.n_heads, -1)
        keys = resid[:, :, None].expand(-1, -1, self.kv_heads, -1)
        shared = self.hook_attn_in.edited(queries) if self.hook_attn_in.handles else None
        if shared is not None and self.kv_heads != self.n_heads:
            raise ValueError(
                f"{self.hook_attn_in.name} was edited by query head, but this model shares keys and values between "
                "heads; edit hook_q_input, hook_k_input and hook_v_input instead"
            )
        streams = []
        for point, own in ((self.hook_q_input, queries), (self.hook_k_input, keys), (self.hook_v_input, keys)):
            stream = own if shared is None else shared
            new = point.edited(stream) if point.handles else None
            changed = shared if new is None else new
            streams.append(None if changed is None else self.ln1.silent(changed))
        return SplitInputs(*streams)
