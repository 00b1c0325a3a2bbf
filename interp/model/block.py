"""One block: attention and MLP around the residual stream, in the arrangements that released models have.

- `pre`: stream + f(norm(stream)), twice. `post`: stream + norm(f(stream)). `sandwich`: both norms.
- parallel: stream + attention(norm(stream)) + MLP(norm(stream)).
- `post_ln`: norm(stream + f(stream)), twice: the stream itself is normed.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks import HookPoint, RunState
from interp.model.attention import Attention, PassInputs, SplitInputs
from interp.model.config import ModelConfig
from interp.model.latent import LatentAttention
from interp.model.linear import Direct
from interp.model.mlp import MLP
from interp.model.moe import MixtureOfExperts
from interp.model.norm import Norm


class Block(Direct):
    """What is added to the stream is `hook_attn_out` and `hook_mlp_out` in every arrangement."""

    ln1: Norm | None
    ln2: Norm | None
    ln1_post: Norm | None
    ln2_post: Norm | None
    mlp: MLP | MixtureOfExperts | None

    def __init__(self, cfg: ModelConfig, layer: int, run: RunState, dtype: torch.dtype) -> None:
        super().__init__()
        prefix = f"blocks.{layer}"
        self.n_heads, self.kv_heads = cfg.n_heads, cfg.kv_heads
        self.placement, self.parallel, self.local = cfg.norm_placement, cfg.parallel, cfg.has_window(layer)

        def norm(name: str) -> Norm:
            options = {"offset": cfg.norm_offset, "name": f"{prefix}.{name}", "run": run}
            return Norm(cfg.d_model, cfg.norm, cfg.norm_eps, dtype, **options)

        before = self.placement in ("pre", "sandwich", "post_ln")
        after = self.placement in ("post", "sandwich")
        has_mlp = cfg.d_mlp > 0 or cfg.has_experts(layer)
        self.ln1 = norm("ln1") if before else None
        self.attn = (Attention if cfg.latent is None else LatentAttention)(cfg, layer, run, dtype)
        self.ln1_post = norm("ln1_post") if after else None
        self.ln2 = norm("ln2") if before and has_mlp and not cfg.shared_norm else None
        kind = MixtureOfExperts if cfg.has_experts(layer) else MLP
        self.mlp = kind(cfg, layer, run, dtype) if has_mlp else None
        self.ln2_post = norm("ln2_post") if after and has_mlp else None
        names = ("resid_pre", "attn_in", "q_input", "k_input", "v_input", "attn_out", "resid_mid", "mlp_in", "mlp_out")
        point = {name: HookPoint(f"{prefix}.hook_{name}", run) for name in names}
        self.hook_resid_pre, self.hook_attn_in = point["resid_pre"], point["attn_in"]
        self.hook_q_input, self.hook_k_input, self.hook_v_input = point["q_input"], point["k_input"], point["v_input"]
        self.hook_attn_out, self.hook_resid_mid = point["attn_out"], point["resid_mid"]
        self.hook_mlp_in, self.hook_mlp_out = point["mlp_in"], point["mlp_out"]
        self.hook_resid_post = HookPoint(f"{prefix}.hook_resid_post", run)
        self.hook_normalized_resid_post = HookPoint(f"{prefix}.hook_normalized_resid_post", run)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        post_ln = self.placement == "post_ln"
        found = [self.hook_resid_pre]
        if not isinstance(self.attn, LatentAttention):
            found += [self.hook_attn_in, self.hook_q_input, self.hook_k_input, self.hook_v_input]
        found += [] if post_ln else _points(self.ln1)
        found += [*self.attn.points(), *_points(self.ln1_post), self.hook_attn_out]
        if self.mlp is not None:
            found += [] if self.parallel else [self.hook_resid_mid]
            found += _points(self.ln1) if post_ln else []
            found += [self.hook_mlp_in, *([] if post_ln else _points(self.ln2))]
            found += [*self.mlp.points(), *_points(self.ln2_post), self.hook_mlp_out]
        found += [self.hook_resid_post]
        if post_ln:
            found += [*_points(self.ln2 or self.ln1), self.hook_normalized_resid_post]
        return found

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"], shared: PassInputs
    ) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        if self.placement == "post_ln":
            return self._post_ln(resid, shared)
        normed = resid if self.ln1 is None else self.ln1(resid)
        attn_out = self.attn(normed, shared, self._split(resid))
        attn_out = self.hook_attn_out(attn_out if self.ln1_post is None else self.ln1_post(attn_out))
        if self.mlp is None:
            return self.hook_resid_post(resid + attn_out)
        if self.parallel:
            return self.hook_resid_post(resid + attn_out + self._mlp_out(self.mlp, resid, normed))
        resid = self.hook_resid_mid(resid + attn_out)
        return self.hook_resid_post(resid + self._mlp_out(self.mlp, resid, None))

    def _mlp_out(self, mlp: nn.Module, resid: Tensor, normed: Tensor | None) -> Tensor:
        """What the MLP adds to the stream; `normed` is the stream as attention's norm has it."""
        if self.ln2 is not None:
            read = self.ln2(self.hook_mlp_in(resid))
        elif normed is None:
            read = self.hook_mlp_in(resid)
        else:  # one norm for both
            assert self.ln1 is not None
            changed = self.hook_mlp_in.edited(resid) if self.hook_mlp_in.handles else None
            read = normed
            if changed is not None:
                self._refuse_both(self.hook_mlp_in.name)
                read = self.ln1.silent(changed)
        out = mlp(read)
        return self.hook_mlp_out(out if self.ln2_post is None else self.ln2_post(out))

    def _post_ln(self, resid: Tensor, shared: PassInputs) -> Tensor:
        assert self.ln1 is not None
        mixed = resid + self.hook_attn_out(self.attn(resid, shared, self._split(resid)))
        if self.mlp is None:
            return self.hook_normalized_resid_post(self.ln1(self.hook_resid_post(mixed)))
        assert self.ln2 is not None
        normed = self.ln1(self.hook_resid_mid(mixed))
        resid = self.hook_resid_post(normed + self.hook_mlp_out(self.mlp(self.hook_mlp_in(normed))))
        return self.hook_normalized_resid_post(self.ln2(resid))

    def _split(self, resid: Float[Tensor, "batch pos d_model"]) -> SplitInputs | None:
        """The streams that heads read apart from each other, None while no hook made them differ."""
        attn_in, q, k, v = self.hook_attn_in, self.hook_q_input, self.hook_k_input, self.hook_v_input
        if not (attn_in.handles or q.handles or k.handles or v.handles):
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
            normed = self.ln1 is not None and self.placement != "post_ln"
            if changed is not None and normed:
                assert self.ln1 is not None
                changed = self.ln1.silent(changed)
                self._refuse_both(point.name)
            streams.append(changed)
        return SplitInputs(*streams)

    def _refuse_both(self, name: str) -> None:
        """A copy of the stream that was edited is normed by itself: functions on the norm's own sites would not see it."""
        points = [] if self.ln1 is None else self.ln1.points()
        if any(handle.style != "read" for point in points for handle in point.handles):
            raise ValueError(
                f"{name} has a norm of its own once it is edited or asked for its gradient, which hooks on "
                f"{points[0].name.removesuffix('.hook_scale')} do not reach; use one of the two in a pass"
            )


def _points(norm: Norm | None) -> list[HookPoint]:
    return [] if norm is None else norm.points()
