"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), half pairing: dimension i turns with i + d_head/2.

Frequencies are made in fp32, as every released checkpoint was trained; angles are made in fp32, or in fp64 in an fp64
model.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model.config import ModelConfig, RopeScaling


def rope_frequencies(cfg: ModelConfig) -> Float[Tensor, "half_d_head"]:
    """Radians per position of each pair of dimensions, after the configuration's scaling."""
    exponent = torch.arange(0, cfg.d_head, 2, dtype=torch.int64).float() / cfg.d_head
    frequencies = 1.0 / (cfg.rope_theta**exponent)
    scaling = cfg.rope_scaling
    if scaling is None:
        return frequencies
    return frequencies / scaling.factor if scaling.kind == "linear" else _llama3(frequencies, scaling)


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


def rope_angles(
    frequencies: Float[Tensor, "half_d_head"], positions: Int[Tensor, "batch pos"], dtype: torch.dtype
) -> tuple[Float[Tensor, "batch pos 1 d_head"], Float[Tensor, "batch pos 1 d_head"]]:
    """(cos, sin) for every position, with an axis of size 1 for the heads, in the model's dtype."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    angles = positions[..., None].to(wide) * frequencies.to(positions.device, wide)
    both = torch.cat((angles, angles), dim=-1)[:, :, None]
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(
    x: Float[Tensor, "batch pos head d_head"],
    cos: Float[Tensor, "rope_batch pos 1 d_head"],
    sin: Float[Tensor, "rope_batch pos 1 d_head"],
) -> Float[Tensor, "batch pos head d_head"]:
    """Turn each pair of dimensions by its angle; norms are kept, and q . k depends on the offset alone."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
