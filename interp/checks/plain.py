"""The rest of the transformer from its definitions, in fp64: embedding, norms, MLPs, experts, blocks, unembedding.

`PlainModel` reads the weights by name and computes one text, one layer at a time, so that a check can start each layer
from the model's own recorded stream: then the first site that is off is where the mistake is. See `plain_attention`.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks.plain_attention import Weights, attention, linear
from interp.model import HookedTransformer
from interp.model.config import Experts, ModelConfig


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_new": _gelu_tanh,
    "relu": lambda x: torch.where(x > 0, x, 0.0),
}


class PlainModel:
    """One model, from definitions. Values are [pos ...] in fp64, keyed by full site name.

    Args:
        model: whose weights and configuration, and in whose precision a fixed position table is rounded.
    """

    def __init__(self, model: HookedTransformer) -> None:
        self.cfg: ModelConfig = model.cfg
        self.weights = Weights(model)
        self.dtype = model.dtype

    # ------------------------------------------------------------------------------------------------------- parts

    def norm(self, name: str, x: Tensor, kind: str | None = None) -> dict[str, Tensor]:
        """`scale`, `normalized` (x / scale, before the gain) and `out` of a norm by its prefix."""
        cfg, kind = self.cfg, kind or self.cfg.norm
        if kind == "none":
            return {"out": x}
        centred = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        scale = (centred.pow(2).mean(-1, keepdim=True) + cfg.norm_eps).sqrt()
        gain = self.weights[f"{name}.weight"] + (1.0 if cfg.norm_offset and kind == "rms" else 0.0)
        out = centred / scale * gain
        out = out + self.weights[f"{name}.bias"] if kind == "layer" else out
        return {"scale": scale, "normalized": centred / scale, "out": out}

    def embed(self, ids: Int[Tensor, "pos"]) -> dict[str, Tensor]:
        """The embedding sites, and `resid`, the stream that the first block reads."""
        cfg, positions = self.cfg, torch.arange(len(ids))
        token = self.weights.raw("embed.weight")[ids].cpu().double()
        if cfg.embed_scale is not None:
            token = token * float(torch.tensor(cfg.embed_scale, dtype=self.dtype))
        if cfg.embed_norm == "token":
            token = self.norm("embed_norm", token, "layer")["out"]
        found, resid = {"hook_embed": token}, token
        if cfg.positional in ("learned", "sinusoidal"):
            place = self._places(positions)
            found["hook_pos_embed"], resid = place, resid + place
        if cfg.n_token_types:
            kind = self.weights["type_embed.weight"][0].expand_as(resid)
            found["hook_token_type_embed"], resid = kind, resid + kind
        if cfg.embed_norm == "sum":
            found["hook_full_embed"] = resid = self.norm("embed_norm", resid, "layer")["out"]
        return found | {"resid": resid}

    def _places(self, positions: Tensor) -> Tensor:
        if self.cfg.positional == "learned":
            return self.weights.raw("pos_embed.weight")[positions].cpu().double()
        return _sinusoids(len(positions), self.cfg.d_model).to(self.dtype).double()

    def mlp(self, layer: int, x: Float[Tensor, "pos d_model"]) -> dict[str, Tensor]:
        """`pre`, `pre_linear`, `post` of a plain MLP, the router's sites of experts, and `out`."""
        if self.cfg.has_experts(layer):
            assert self.cfg.experts is not None
            return self._experts(layer, x, self.cfg.experts)
        return self._feed_forward(f"blocks.{layer}.mlp", x)

    def _feed_forward(self, prefix: str, x: Tensor) -> dict[str, Tensor]:
        act = ACTIVATION[self.cfg.act_fn]
        up = linear(self.weights, f"{prefix}.up", x)
        if not self.cfg.gated_mlp:
            return {"pre": up, "post": act(up), "out": linear(self.weights, f"{prefix}.down", act(up))}
        gate = linear(self.weights, f"{prefix}.gate", x)
        post = act(gate) * up
        return {"pre": gate, "pre_linear": up, "post": post, "out": linear(self.weights, f"{prefix}.down", post)}

    def _experts(self, layer: int, x: Tensor, experts: Experts) -> dict[str, Tensor]:
        prefix = f"blocks.{layer}.mlp"
        logits = x @ self.weights[f"{prefix}.router.weight"].T
        scores = logits.softmax(-1) if experts.score == "softmax" else logits.sigmoid()
        wanted = scores + self.weights[f"{prefix}.router.bias"] if experts.bias else scores
        out = torch.zeros_like(x)
        if experts.n_shared:
            out = out + self._feed_forward(f"{prefix}.shared", x)["out"]
        for row in range(len(x)):
            chosen = _chosen(wanted[row].tolist(), experts)
            total = sum(float(scores[row, expert]) for expert in chosen) if experts.normalize else 1.0
            for expert in chosen:
                part = self._feed_forward(f"{prefix}.experts.{expert}", x[row : row + 1])["out"][0]
                out[row] += part * scores[row, expert] / total * experts.scale
        return {"router_logits": logits, "expert_weights": scores, "out": out}

    # ------------------------------------------------------------------------------------------------------- passes

    def block(self, layer: int, resid: Float[Tensor, "pos d_model"]) -> dict[str, Tensor]:
        """Every site of one block by full name, from the stream that it reads; `next` is what the next block reads."""
        cfg, prefix = self.cfg, f"blocks.{layer}"
        found: dict[str, Tensor] = {f"{prefix}.hook_resid_pre": resid}
        before, after = cfg.norm_placement in ("pre", "sandwich"), cfg.norm_placement in ("post", "sandwich")
        read = self._normed(found, f"{prefix}.ln1", resid) if before else resid
        inner = attention(self.weights, cfg, layer, read)
        attn_out = inner.pop("out")
        found |= {f"{prefix}.attn.hook_{name}": value for name, value in inner.items()}
        attn_out = self._normed(found, f"{prefix}.ln1_post", attn_out) if after else attn_out
        found[f"{prefix}.hook_attn_out"] = attn_out
        middle = resid + attn_out
        if not cfg.parallel:
            found[f"{prefix}.hook_resid_mid"] = middle
        if cfg.norm_placement == "post_ln":
            middle = self._normed(found, f"{prefix}.ln1", middle)
        if not cfg.d_mlp and not cfg.has_experts(layer):
            return found | {f"{prefix}.hook_resid_post": resid + attn_out, "next": middle}
        source = resid if cfg.parallel else middle
        if before:
            source = read if cfg.shared_norm else self._normed(found, f"{prefix}.ln2", source)
        inner = self.mlp(layer, source)
        mlp_out = inner.pop("out")
        found |= {f"{prefix}.mlp.hook_{name}": value for name, value in inner.items()}
        mlp_out = self._normed(found, f"{prefix}.ln2_post", mlp_out) if after else mlp_out
        end = middle + mlp_out
        found |= {f"{prefix}.hook_mlp_out": mlp_out, f"{prefix}.hook_resid_post": end}
        if cfg.norm_placement == "post_ln":
            end = self._normed(found, f"{prefix}.ln2", end)
            found[f"{prefix}.hook_normalized_resid_post"] = end
        return found | {"next": end}

    def _normed(self, found: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        parts = self.norm(name, x)
        out = parts.pop("out")
        found |= {f"{name}.hook_{part}": value for part, value in parts.items()}
        return out

    def head(self, resid: Float[Tensor, "pos d_model"]) -> dict[str, Tensor]:
        """`ln_final`'s sites and `logits`, from the stream after the last block."""
        cfg, found = self.cfg, {}
        x = self._normed(found, "ln_final", resid) if cfg.final_norm else resid
        if cfg.mlm_head:
            x = ACTIVATION[cfg.act_fn](linear(self.weights, "mlm.dense", x))
            x = self.norm("mlm.norm", x, "layer")["out"]
        matrix = self.weights.raw("embed.weight" if cfg.tie_embeddings else "unembed.weight")
        # In pieces: the whole matrix in fp64 may be larger than the model.
        logits = torch.cat([x @ part.cpu().double().T for part in matrix.split(8192)], -1)
        logits = logits + self.weights["unembed_bias"] if cfg.unembed_bias else logits
        if cfg.final_softcap is not None:
            logits = cfg.final_softcap * torch.tanh(logits / cfg.final_softcap)
        return found | {"logits": logits}

    def streams(self, ids: Int[Tensor, "pos"]) -> tuple[list[Tensor], Tensor]:
        """(what each block reads and what the head reads, logits) of the whole pass."""
        found = [self.embed(ids)["resid"]]
        for layer in range(self.cfg.n_layers):
            found.append(self.block(layer, found[-1])["next"])
        return found, self.head(found[-1])["logits"]


def _chosen(wanted: list[float], experts: Experts) -> list[int]:
    """The experts of one token: the best of the open groups, whose score is the sum of their best two."""
    size = experts.n_experts // experts.n_groups
    groups = [list(range(start, start + size)) for start in range(0, experts.n_experts, size)]
    groups.sort(key=lambda group: -sum(sorted((wanted[expert] for expert in group), reverse=True)[:2]))
    open_to = [expert for group in groups[: experts.top_groups] for expert in group]
    return sorted(open_to, key=lambda expert: -wanted[expert])[: experts.top_k]


def _sinusoids(n: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """Vaswani et al. 2017: sin and cos of position / 10000^(2i / d_model), side by side."""
    table = torch.zeros(n, d_model, dtype=torch.float64)
    for pos in range(n):
        for dimension in range(d_model):
            angle = pos / 10000 ** (2 * (dimension // 2) / d_model)
            table[pos, dimension] = math.cos(angle) if dimension % 2 else math.sin(angle)
    return table
