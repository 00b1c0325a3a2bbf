"""Positions: rotary (Su et al. 2021, arXiv 2104.09864) with its stretchings, sinusoidal, ALiBi (arXiv 2108.12409).

Rotary frequencies are made in fp32, as every released checkpoint was trained; angles are made in fp32, or in fp64 in an
fp64 model. `dynamic` and `longrope` depend on the length of the text: each row of a batch has frequencies of its own, so
that a text means the same alone and in a batch.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model.config import ModelConfig, RopeScaling


class Rope:
    """The rotary frequencies of a model; `local` for the layers with a window, where those have a base of their own."""

    def __init__(self, cfg: ModelConfig, *, local: bool = False) -> None:
        own = local and cfg.rope_theta_local is not None
        self.theta = cfg.rope_theta_local if own and cfg.rope_theta_local is not None else cfg.rope_theta
        self.scaling: RopeScaling | None = None if own else cfg.rope_scaling
        self.width = cfg.rotary
        self.pairing = cfg.rope_pairing
        self.factor = 1.0 if self.scaling is None else _attention_factor(self.scaling)
        self.by_length = self.scaling is not None and self.scaling.kind in ("dynamic", "longrope")
        """The frequencies depend on how long the text is."""
        self.fixed = None if self.by_length else _frequencies(self.theta, self.width, self.scaling)

    def frequencies(self, lengths: Int[Tensor, " batch"]) -> Float[Tensor, "#batch half"]:
        """Radians per position of each pair of dimensions, for texts of these lengths."""
        if self.fixed is not None:
            return self.fixed[None]
        assert self.scaling is not None
        found = {n: _frequencies(self.theta, self.width, self.scaling, n) for n in set(lengths.tolist())}
        return torch.stack([found[n] for n in lengths.tolist()])

    def moves(self, old: Int[Tensor, " batch"], new: Int[Tensor, " batch"]) -> bool:
        """Whether texts that grow from these lengths to those get other frequencies."""
        if self.scaling is None or not self.by_length:
            return False
        limit = self.scaling.original_n_ctx
        grown = (new > limit) & (new != old)
        return bool((grown if self.scaling.kind == "dynamic" else grown & (old <= limit)).any())

    def angles(
        self, positions: Int[Tensor, "batch pos"], dtype: torch.dtype, lengths: Int[Tensor, " batch"] | None = None
    ) -> tuple[Float[Tensor, "batch pos 1 rotary"], Float[Tensor, "batch pos 1 rotary"]]:
        """(cos, sin) for every position, with an axis of size 1 for the heads, in the model's dtype.

        The sine of the first of each pair is negative: the first turns away from the second, and the second towards it.

        Args:
            positions: absolute positions.
            dtype: of the model.
            lengths: of the whole texts; None takes the largest position of each row.
        """
        lengths = positions.amax(1) + 1 if lengths is None else lengths
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        frequencies = self.frequencies(lengths).to(positions.device, wide)
        angles = positions[..., None].to(wide) * frequencies[:, None]
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        if self.pairing == "half":
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        else:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        return cos[:, :, None].to(dtype), sin[:, :, None].to(dtype)


def _frequencies(theta: float, width: int, scaling: RopeScaling | None, length: int = 0) -> Float[Tensor, " half"]:
    kind = None if scaling is None else scaling.kind
    if scaling is not None and kind == "ntk":
        theta *= scaling.factor ** (width / (width - 2))
    if scaling is not None and kind == "dynamic":
        times = scaling.factor * max(length, scaling.original_n_ctx) / scaling.original_n_ctx - (scaling.factor - 1)
        theta *= times ** (width / (width - 2))
    exponent = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    wavelengths = theta**exponent
    frequencies = 1.0 / wavelengths
    if scaling is None or kind in ("ntk", "dynamic"):
        return frequencies
    if kind == "linear":
        return frequencies / scaling.factor
    if kind == "longrope":
        factors = scaling.long_factor if length > scaling.original_n_ctx else scaling.short_factor
        if len(factors) != width // 2:
            raise ValueError(f"longrope has {len(factors)} factors for {width // 2} frequencies")
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * wavelengths)
    return _llama3(frequencies, scaling) if kind == "llama3" else _yarn(wavelengths, theta, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: long wavelengths are stretched, short ones stay, those between are blended."""
    wavelength = 2 * math.pi / frequencies
    longest = scaling.original_n_ctx / scaling.low_freq_factor
    shortest = scaling.original_n_ctx / scaling.high_freq_factor
    blend = (scaling.original_n_ctx / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelength > longest, frequencies / scaling.factor, frequencies)
    return torch.where((wavelength <= longest) & (wavelength >= shortest), between, stretched)


def _yarn(wavelengths: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs are blended by how often they turn in the original context."""
    half = len(wavelengths)

    def pair(turns: float) -> float:
        return 2 * half * math.log(scaling.original_n_ctx / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    stretched = ((torch.arange(half).float() - low) / max(high - low, 1e-3)).clamp(0, 1)
    return 1.0 / (scaling.factor * wavelengths) * stretched + 1.0 / wavelengths * (1 - stretched)


def yarn_strength(factor: float, mscale: float = 1.0) -> float:
    """By how much YaRN raises attention at a stretching factor (its section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _attention_factor(scaling: RopeScaling) -> float:
    """What cos and sin are multiplied by."""
    if scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.kind == "longrope":
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_n_ctx)) if scaling.factor > 1 else 1.0
    if scaling.mscale and scaling.mscale_all_dim:
        return yarn_strength(scaling.factor, scaling.mscale) / yarn_strength(scaling.factor, scaling.mscale_all_dim)
    return yarn_strength(scaling.factor)


def rotate(
    x: Float[Tensor, "batch pos head d_head"],
    cos: Float[Tensor, "rope_batch pos 1 rotary"],
    sin: Float[Tensor, "rope_batch pos 1 rotary"],
    pairing: str = "half",
) -> Float[Tensor, "batch pos head d_head"]:
    """Turn each pair of the leading dimensions by its angle; norms are kept, and q . k depends on the offset alone.

    `cos` and `sin` are those of `Rope.angles`, which know the sign of each dimension.
    """
    width = cos.shape[-1]
    if width < x.shape[-1]:
        turned = rotate(x[..., :width], cos, sin, pairing)
        return torch.cat((turned, x[..., width:]), -1)
    partner = x.roll(width // 2, -1) if pairing == "half" else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cos, partner, sin)


def sinusoids(n_ctx: int, d_model: int) -> Float[Tensor, "n_ctx d_model"]:
    """The fixed table of Vaswani et al. 2017 (arXiv 1706.03762): sines at even dimensions, cosines at odd ones."""
    steps = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(n_ctx, dtype=torch.float64)[:, None] * 10000.0 ** (-steps / d_model)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :d_model]


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """ALiBi's slope of each head: a geometric series, and every second step of a finer one beyond a power of two."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(n_heads - power)]
    return torch.tensor(slopes, dtype=torch.float64)


def alibi_bias(
    slopes: Float[Tensor, " head"], key_positions: Int[Tensor, "batch key"], dtype: torch.dtype, *, rounded: bool
) -> Float[Tensor, "batch head 1 key"]:
    """Slope times the key's position: with the softmax over keys it is the same as minus slope times the distance."""
    slopes, places = slopes.to(key_positions.device)[None, :, None], key_positions[:, None]
    if rounded:  # Falcon was trained with both factors and their product in bfloat16
        return (slopes.bfloat16() * places.bfloat16())[:, :, None].to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (slopes.to(wide) * places.to(wide))[:, :, None].to(dtype)
