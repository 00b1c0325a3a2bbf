"""Attention written down once more, from the definitions alone, in fp64: what the model's own is held against.

Nothing here is taken from `interp.model` but the configuration and the weights by name. It is written another way on
purpose, so that one mistake is not made twice: pairs of dimensions turn as complex numbers, heads find their keys and
values by an index in a loop, and the mask is a loop over queries and keys. One text, no batch, no cache.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.model.config import ModelConfig, RopeScaling


class Weights:
    """A model's weights by name, each in fp64 on the CPU when it is read, and not kept."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def raw(self, name: str) -> Tensor:
        """The weight as the model has it; int8 rows come as the values that they stand for."""
        found = self._find(name)
        assert found is not None, f"there is no weight {name}"
        return found.detach()

    def __getitem__(self, name: str) -> Tensor:
        return self.raw(name).cpu().double()

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> Tensor | None:
        parent, _, leaf = name.rpartition(".")
        try:
            return getattr(self.model.get_submodule(parent), leaf, None)
        except AttributeError:  # no such module
            return None


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x W^T + b."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


SMALL_EPS = 1e-6
"""DeepSeek's norms of the small vectors have an epsilon of their own."""


def rms(x: Tensor, gain: Tensor, eps: float, *, offset: bool = False) -> Tensor:
    """RMSNorm over the last axis, with the gain 1 + weight where the model has that variant."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (gain + 1 if offset else gain)


def may_attend(cfg: ModelConfig, layer: int, n: int) -> Bool[Tensor, "query key"]:
    """Who may attend to whom in one text without pads."""
    allowed = torch.zeros(n, n, dtype=torch.bool)
    for query in range(n):
        for key in range(n):
            future = cfg.causal and key > query
            lost = cfg.window is not None and cfg.has_window(layer) and query - key >= cfg.window
            allowed[query, key] = not (future or lost)
    return allowed


def frequencies(cfg: ModelConfig, layer: int, n: int) -> tuple[Float[Tensor, "half"], float]:
    """Radians per position of each pair in a text of n tokens, and what rotated values are multiplied by."""
    local = cfg.rope_theta_local is not None and cfg.has_window(layer)
    base = cfg.rope_theta_local if local and cfg.rope_theta_local is not None else cfg.rope_theta
    scaling, width = None if local else cfg.rope_scaling, cfg.rotary
    if scaling is not None and scaling.kind == "ntk":
        base = base * scaling.factor ** (width / (width - 2))
    if scaling is not None and scaling.kind == "dynamic" and n > scaling.original_n_ctx:
        grown = scaling.factor * n / scaling.original_n_ctx - (scaling.factor - 1)
        base = base * grown ** (width / (width - 2))
    # In fp32: released checkpoints were trained with a table of that precision.
    plain = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    if scaling is None or scaling.kind in ("ntk", "dynamic"):
        return plain.double(), 1.0
    return _stretched(plain, scaling, base, n).double(), _strength(scaling)


def _stretched(plain: Tensor, scaling: RopeScaling, base: float, n: int) -> Tensor:
    """The frequencies after the scaling's own rule, pair by pair."""
    half, found = len(plain), []
    for pair, frequency in enumerate(plain.tolist()):
        slow = frequency / scaling.factor
        turns = scaling.original_n_ctx * frequency / (2 * math.pi)
        if scaling.kind == "linear":
            found.append(slow)
        elif scaling.kind == "longrope":
            factors = scaling.long_factor if n > scaling.original_n_ctx else scaling.short_factor
            found.append(frequency / factors[pair])
        elif scaling.kind == "llama3":
            blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            blend = min(max(blend, 0.0), 1.0)
            found.append(blend * frequency + (1 - blend) * slow)
        else:
            low, high = (_pair_with(turns, scaling, base, half) for turns in (scaling.beta_fast, scaling.beta_slow))
            low, high = (math.floor(low), math.ceil(high)) if scaling.truncate else (low, high)
            low, high = max(low, 0), min(high, 2 * half - 1)
            blend = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
            found.append(blend * slow + (1 - blend) * frequency)
    return torch.tensor(found, dtype=torch.float64)


def _pair_with(turns: float, scaling: RopeScaling, base: float, half: int) -> float:
    """The (fractional) pair that makes this many turns in the original context."""
    return half * math.log(scaling.original_n_ctx / (2 * math.pi * turns)) / math.log(base)


def _strength(scaling: RopeScaling) -> float:
    """YaRN's and longrope's factor on cosines and sines."""
    if scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    stretch = max(math.log(scaling.factor), 0.0)
    if scaling.kind == "longrope":
        return math.sqrt(1 + stretch / math.log(scaling.original_n_ctx))
    if scaling.mscale and scaling.mscale_all_dim:
        return (0.1 * scaling.mscale * stretch + 1) / (0.1 * scaling.mscale_all_dim * stretch + 1)
    return 0.1 * stretch + 1


def turned(x: Float[Tensor, "pos head d"], cfg: ModelConfig, layer: int) -> Float[Tensor, "pos head d"]:
    """The first `cfg.rotary` dimensions of every head turned by position x frequency, as complex numbers."""
    rates, strength = frequencies(cfg, layer, len(x))
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * rates[None]
    turn = torch.polar(torch.full_like(angles, strength), angles)[:, None]
    half, new = cfg.rotary // 2, x.clone()
    first = slice(0, half) if cfg.rope_pairing == "half" else slice(0, cfg.rotary, 2)
    second = slice(half, cfg.rotary) if cfg.rope_pairing == "half" else slice(1, cfg.rotary, 2)
    pairs = torch.complex(x[..., first], x[..., second]) * turn
    new[..., first], new[..., second] = pairs.real, pairs.imag
    return new


def slopes(n_heads: int) -> list[float]:
    """ALiBi's slopes (arXiv 2108.12409): 2^(-8 i / n), filled up from twice as many heads beyond a power of two."""

    def series(n: int) -> list[float]:
        return [2 ** (-8 * (head + 1) / n) for head in range(n)]

    power = 1 << (n_heads.bit_length() - 1)
    return series(power) + series(2 * power)[0::2][: n_heads - power]


def projected(weights: Weights, cfg: ModelConfig, prefix: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) before QK-norm and rotation: [pos head d_head], keys and values of the usual kind by kv-head."""
    n = len(x)
    if cfg.latent is None:
        q = linear(weights, f"{prefix}.q", x).view(n, cfg.n_heads, cfg.d_head)
        k = linear(weights, f"{prefix}.k", x).view(n, cfg.kv_heads, cfg.d_head)
        return q, k, linear(weights, f"{prefix}.v", x).view(n, cfg.kv_heads, cfg.d_head)
    latent, d_nope = cfg.latent, cfg.d_head - cfg.latent.d_rope
    source = x
    if latent.q_rank is not None:
        source = rms(linear(weights, f"{prefix}.q_down", x), weights[f"{prefix}.q_norm.weight"], SMALL_EPS)
    q = linear(weights, f"{prefix}.q", source).view(n, cfg.n_heads, cfg.d_head)
    small = linear(weights, f"{prefix}.kv_down", x)
    normed = rms(small[:, : latent.kv_rank], weights[f"{prefix}.kv_norm.weight"], SMALL_EPS)
    both = linear(weights, f"{prefix}.kv", normed).view(n, cfg.n_heads, d_nope + latent.d_v)
    shared = small[:, None, latent.kv_rank :].expand(n, cfg.n_heads, latent.d_rope)
    return q, torch.cat((both[..., :d_nope], shared), -1), both[..., d_nope:]


def rotated(weights: Weights, cfg: ModelConfig, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as the scores read them: normed where the model does that, and turned."""
    prefix = f"blocks.{layer}.attn"
    if cfg.qk_norm != "none":
        q = _qk_normed(cfg, q, weights[f"{prefix}.q_norm.weight"])
        k = _qk_normed(cfg, k, weights[f"{prefix}.k_norm.weight"])
    if cfg.positional != "rope":
        return q, k
    if cfg.latent is None:
        return turned(q, cfg, layer), turned(k, cfg, layer)
    d_nope = cfg.d_head - cfg.latent.d_rope
    q, k = (torch.cat((x[..., :d_nope], turned(x[..., d_nope:], cfg, layer)), -1) for x in (q, k))
    return q, k


def _qk_normed(cfg: ModelConfig, x: Float[Tensor, "pos head d_head"], gain: Tensor) -> Tensor:
    """Over each head, or over all heads of a token together."""
    rows = x.flatten(1) if cfg.qk_norm == "full" else x
    return rms(rows, gain, cfg.norm_eps, offset=cfg.norm_offset).view(x.shape)


def attention(weights: Weights, cfg: ModelConfig, layer: int, x: Float[Tensor, "pos d_model"]) -> dict[str, Tensor]:
    """Every value of one attention layer by the site's short name; `out` is what it adds before any norm after it."""
    prefix, n = f"blocks.{layer}.attn", len(x)
    q, k, v = projected(weights, cfg, prefix, x)
    rot_q, rot_k = rotated(weights, cfg, layer, q, k)
    allowed = may_attend(cfg, layer, n)
    group, scores, patterns, mixed = cfg.n_heads // cfg.kv_heads, [], [], []
    for head in range(cfg.n_heads):
        score = rot_q[:, head] @ rot_k[:, head // group].T * cfg.scaling
        if cfg.positional == "alibi":
            score = score + _alibi(cfg, head, n)
        if cfg.attn_softcap is not None:
            score = cfg.attn_softcap * torch.tanh(score / cfg.attn_softcap)
        score = score.masked_fill(~allowed, -math.inf)
        weight = (score - score.amax(-1, keepdim=True)).exp()
        pattern = weight / weight.sum(-1, keepdim=True)
        scores.append(score)
        patterns.append(pattern)
        mixed.append(pattern @ v[:, head // group])
    z = torch.stack(mixed, 1)
    by_head = weights[f"{prefix}.o.weight"].T.view(cfg.n_heads, cfg.d_value, cfg.d_model)
    found = {"q": q, "k": k, "v": v, "attn_scores": torch.stack(scores), "pattern": torch.stack(patterns), "z": z}
    found |= {"result": torch.stack([z[:, head] @ by_head[head] for head in range(cfg.n_heads)], 1)}
    if cfg.positional == "rope":
        found |= {"rot_q": rot_q, "rot_k": rot_k}
    return found | {"out": linear(weights, f"{prefix}.o", z.flatten(1))}


def _alibi(cfg: ModelConfig, head: int, n: int) -> Float[Tensor, "key"]:
    """ALiBi's bias of each key, the same for all queries: softmax does not see a constant."""
    slope, places = torch.tensor(slopes(cfg.n_heads)[head]), torch.arange(n).float()
    if cfg.alibi_scaled:
        return (slope.bfloat16() * places.bfloat16()).double() * cfg.scaling
    return slope.double() * places.double()
