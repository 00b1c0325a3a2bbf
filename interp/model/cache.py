"""The KV cache: what attention keeps of the tokens seen so far, allocated once for the whole generation.

Three layouts with one interface. Usual layers keep every key (after rotation) and value. Layers with a window keep the
window's alone: a buffer with some slack, in which the last window moves to the front when the end is reached, so that
keys always lie in the order of their positions. Latent attention keeps one small vector a token and the shared rotated
key, from which keys and values are made anew.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.model.config import ModelConfig
from interp.model.mask import Places
from interp.tokens import Tokens


@dataclass
class _Window:
    """State that all layers with a window share: how many tokens their buffers hold, and what the next append does."""

    size: int
    capacity: int
    before: int = 0
    """Tokens held when the pass began, after the move to the front."""
    after: int = 0
    """Tokens held when the pass ends."""
    moved: int = 0
    """Tokens that were moved to the front as the pass began; 0 for none."""
    spills: bool = False
    """The new tokens do not fit: attention sees old and new ones once, and the last window is kept."""
    held: int = 0
    """Tokens held before the move."""

    def plan(self, n_new: int) -> None:
        """Decide what an append of n_new tokens does."""
        self.held = self.before = self.after
        self.moved, self.spills = 0, False
        if self.before + n_new > self.capacity:
            keep = min(self.before, self.size - 1)
            if keep + n_new <= self.capacity:
                self.moved = self.before = keep
            else:
                self.spills = True
        self.after = min(self.before + n_new, self.size) if self.spills else self.before + n_new


class KVCache:
    """Keys and values by layer, and where the tokens stand.

    Args:
        cfg: the architecture.
        batch: texts.
        n_tokens: prompt and new tokens, pads counted.
        dtype: of the model.
        device: of the model.
    """

    def __init__(self, cfg: ModelConfig, batch: int, n_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        if cfg.latent is not None:
            heads, widths = 1, (cfg.latent.kv_rank, cfg.latent.d_rope)
        else:
            heads, widths = cfg.kv_heads, (cfg.d_head, cfg.d_head)
        capacities = [cfg.cache_capacity(layer, n_tokens) for layer in range(cfg.n_layers)]
        self.first, self.second = (
            [torch.empty(batch, heads, places, width, dtype=dtype, device=device) for places in capacities]
            for width in widths
        )
        """Keys and values, or latent vectors and rotated keys: [batch kv_head place width] for each layer."""
        small = min(capacities)
        self.window = _Window(cfg.window, small) if cfg.window is not None and small < n_tokens else None
        self.mask = torch.zeros(batch, n_tokens, dtype=torch.bool, device=device)
        self.positions = torch.zeros(batch, n_tokens, dtype=torch.long, device=device)
        self.ids = torch.zeros(batch, n_tokens, dtype=torch.long, device=device)
        self.length = 0
        self.copies = 1
        """Rows of each prompt."""
        self.memory: dict[Any, Any] = {}
        """What hooks remember from one pass of the generation to the next."""
        self.expanded: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of latent layers whose hooks changed them: the latent vector no longer says what they are."""

    @property
    def capacity(self) -> int:
        """Tokens that the cache can hold."""
        return self.mask.shape[1]

    def extend(
        self, ids: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"], positions: Int[Tensor, "batch pos"]
    ) -> None:
        """Announce the tokens of the next pass; each layer's `append` follows."""
        end = self.length + mask.shape[1]
        assert end <= self.capacity, f"KV cache of {self.capacity} places cannot hold {end}"
        self.ids[:, self.length : end] = ids
        self.mask[:, self.length : end] = mask
        self.positions[:, self.length : end] = positions
        if self.window is not None:
            self.window.plan(mask.shape[1])
        self.length = end

    def restart(self, tokens: Tokens) -> Tokens:
        """Forget everything; all tokens so far and these new ones, to be run again."""
        ids = torch.cat((self.ids[:, : self.length], tokens.ids), 1)
        mask = torch.cat((self.mask[:, : self.length], tokens.mask), 1)
        self.length, self.expanded = 0, {}
        if self.window is not None:
            self.window = _Window(self.window.size, self.window.capacity)
        return Tokens(ids, mask)

    def keys(self, n_new: int, *, local: bool) -> Places:
        """Where the keys stand that a layer's queries see in this pass; `local` for layers with a window."""
        n = self.length if self.window is None or not local else self.window.before + n_new
        return Places(self.positions[:, self.length - n : self.length], self.mask[:, self.length - n : self.length])

    def append(
        self, layer: int, first: Float[Tensor, "batch kv_head pos d_1"], second: Float[Tensor, "batch kv_head pos d_2"]
    ) -> tuple[Float[Tensor, "batch kv_head key d_1"], Float[Tensor, "batch kv_head key d_2"]]:
        """Store the new tokens' values; all that the layer's queries see, in the order of positions."""
        return self._append(self.first[layer], first), self._append(self.second[layer], second)

    def past(self, layer: int, n_new: int) -> tuple[Tensor, Tensor]:
        """What a layer without a window held before this pass."""
        return self.first[layer][:, :, : self.length - n_new], self.second[layer][:, :, : self.length - n_new]

    def _append(self, buffer: Tensor, new: Tensor) -> Tensor:
        n_new, window = new.shape[2], self.window
        if window is None or buffer.shape[2] >= self.capacity:
            buffer[:, :, self.length - n_new : self.length] = new
            return buffer[:, :, : self.length]
        if window.spills:
            seen = torch.cat((buffer[:, :, : window.held], new), 2)
            buffer[:, :, : window.after] = seen[:, :, seen.shape[2] - window.after :]
            return seen
        if window.moved:
            buffer[:, :, : window.moved] = buffer[:, :, window.held - window.moved : window.held].clone()
        buffer[:, :, window.before : window.after] = new
        return buffer[:, :, : window.after]

    def taken(self, rows: Int[Tensor, " row"]) -> "KVCache":
        """A cache of these rows, any of them several times. Places that hold no token yet are not copied."""
        new, window = copy.copy(self), self.window

        def of(buffer: Tensor) -> Tensor:
            n = self.length if window is None or buffer.shape[2] >= self.capacity else window.after
            taken = buffer.new_empty(len(rows), *buffer.shape[1:])
            taken[:, :, :n] = buffer[rows, :, :n]
            return taken

        new.first, new.second = [of(held) for held in self.first], [of(held) for held in self.second]
        new.ids, new.mask, new.positions = self.ids[rows], self.mask[rows], self.positions[rows]
        new.window = copy.copy(window)
        new.expanded = {layer: (k[rows], v[rows]) for layer, (k, v) in self.expanded.items()}
        return new

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(held.numel() * held.element_size() for held in (*self.first, *self.second))
