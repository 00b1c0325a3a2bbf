"""Weights by the names that papers use (`W_Q`, `W_OV` ...), in TransformerLens' orientation: y = x W."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.model.block import Block
from interp.model.linear import Embedding


class NamedWeights(nn.Module):
    """The part of HookedTransformer that names its weights. Stacks are copies; the views of a block write through."""

    embed: Embedding
    unembed: Embedding | None
    blocks: nn.ModuleList

    def iter_blocks(self) -> Iterator[Block]:
        """The blocks, in order."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def unembedding(self) -> Float[Tensor, "d_vocab d_model"]:
        """Rows of the unembedding: the embedding's own where they are tied."""
        return self.embed.weight if self.unembed is None else self.unembed.weight

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """Embedding rows."""
        return self.embed.weight

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """Unembedding columns, a view."""
        return self.unembedding().T

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Stacked copy; `blocks[l].attn.W_Q` is the view that writes through."""
        return torch.stack([block.attn.W_Q for block in self.iter_blocks()])

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """Stacked copy with the kv_head axis."""
        return torch.stack([block.attn.W_K for block in self.iter_blocks()])

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """Stacked copy with the kv_head axis."""
        return torch.stack([block.attn.W_V for block in self.iter_blocks()])

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        """Stacked copy."""
        return torch.stack([block.attn.W_O for block in self.iter_blocks()])
