"""The KV cache: keys (after rotation) and values of the tokens seen so far, allocated once for the whole generation."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.model.config import ModelConfig


class KVCache:
    """Keys and values by layer, and which of the places hold real tokens."""

    def __init__(self, cfg: ModelConfig, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (batch, cfg.kv_heads, capacity, cfg.d_head)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(cfg.n_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(cfg.n_layers)]
        self.mask = torch.zeros(batch, capacity, dtype=torch.bool, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Tokens that the cache can hold."""
        return self.mask.shape[1]

    def extend(self, mask: Bool[Tensor, "batch pos"]) -> Bool[Tensor, "batch key"]:
        """Make room for new tokens; the mask of all places up to and with them."""
        end = self.length + mask.shape[1]
        assert end <= self.capacity, f"KV cache of {self.capacity} places cannot hold {end}"
        self.mask[:, self.length : end] = mask
        self.length = end
        return self.mask[:, :end]

    def append(
        self, layer: int, k: Float[Tensor, "batch kv_head pos d_head"], v: Float[Tensor, "batch kv_head pos d_head"]
    ) -> tuple[Float[Tensor, "batch kv_head key d_head"], Float[Tensor, "batch kv_head key d_head"]]:
        """Store the new tokens' keys and values in the places that `extend` made; all of the layer's so far."""
        start = self.length - k.shape[2]
        self.keys[layer][:, :, start : self.length] = k
        self.values[layer][:, :, start : self.length] = v
        return self.keys[layer][:, :, : self.length], self.values[layer][:, :, : self.length]

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))
