"""The parts of a model as notebooks reach for them: `model.blocks[3].attn.W_Q`, `model.unembed.W_U`, `model.ln_final(x)`.

A part holds nothing: it shows the weights of the native model by TransformerLens' names and in its orientation, y = x W.
A weight that is read is a view that writes through; one that is assigned is copied into its place. A bias that the
model lacks reads as zeros. Keys and values are shown for every query head, as TransformerLens expands them; `_W_K` and
`_W_V` are those that are kept.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.compat.transformer_lens.hook_points import Hooks, LensPoint
from interp.model import HookedTransformer
from interp.model.block import Block
from interp.model.factored import FactoredMatrix
from interp.model.linear import Linear
from interp.model.mlp import MLP
from interp.model.norm import Norm


class Weight:
    """A weight by name: reading gives a view of the native one, assigning copies into it."""

    def __init__(
        self, read: Callable[[Any], Tensor | None], shape: Callable[[Any], tuple[int, ...]] | None = None
    ) -> None:
        self.read, self.shape = read, shape
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type) -> Tensor:
        weight = self.read(part)
        if weight is None:
            if self.shape is None:
                raise AttributeError(f"this model has no {self.name}")
            return part.zeros(*self.shape(part))
        return weight

    def __set__(self, part: Any, value: Tensor) -> None:
        weight = self.read(part)
        if weight is None:
            raise ValueError(f"this model has no {self.name} that could be assigned; its architecture leaves it out")
        if weight.shape != value.shape:
            raise ValueError(f"{self.name} has shape {tuple(weight.shape)}, the value {tuple(value.shape)}")
        with torch.no_grad():
            weight.copy_(value)


class GroupWeight(Weight):
    """A weight of keys or values, shown for every query head: where heads share them it is a copy."""

    def __set__(self, part: Any, value: Tensor) -> None:
        if part.groups > 1:
            raise ValueError(
                f"{self.name} shows each key and value head several times, once for each query head; assign _{self.name}"
            )
        super().__set__(part, value)


class Part:
    """Some of the native model, and the points that lie in it as attributes (`attn.hook_z`)."""

    def __init__(self, native: HookedTransformer, hooks: Hooks, prefix: str) -> None:
        self.native, self.hooks, self.prefix = native, hooks, prefix

    def zeros(self, *shape: int) -> Tensor:
        """What a bias that does not exist reads as."""
        return self.native.embed.weight.new_zeros(shape)

    def __getattr__(self, name: str) -> LensPoint:
        full = f"{self.prefix}.{name}" if self.prefix else name
        if name.startswith("hook_") and full in self.native.hook_dict:
            return LensPoint(self.native.hook_dict[full], self.hooks)
        raise AttributeError(f"{type(self).__name__} {self.prefix or 'of the model'} has no {name!r}")


class Embed(Part):
    """`model.embed`: ids -> rows."""

    W_E = Weight(lambda part: part.native.embed.weight)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.native.embed(tokens)


class PosEmbed(Part):
    """`model.pos_embed`."""

    W_pos = Weight(lambda part: part.native.W_pos)


class Unembed(Part):
    """`model.unembed`: normed stream -> logits."""

    W_U = Weight(lambda part: part.native.W_U)
    b_U = Weight(lambda part: part.native.unembed_bias, lambda part: (part.native.cfg.d_vocab,))

    def __call__(self, residual: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_vocab"]:
        return nn.functional.linear(residual, self.native.unembedding(), self.native.unembed_bias)


class NormPart(Part):
    """`model.ln_final`, `block.ln1` ...: x -> normed x."""

    def __init__(self, native: HookedTransformer, hooks: Hooks, prefix: str, norm: Norm | None) -> None:
        super().__init__(native, hooks, prefix)
        self.norm = norm

    w = Weight(lambda part: part.norm.weight if part.norm is not None else None)
    b = Weight(lambda part: part.norm.bias if part.norm is not None else None)

    def __call__(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        return x if self.norm is None else self.norm(x)


def _heads(linear: Linear, heads: int) -> Tensor:
    return linear.weight.unflatten(0, (heads, -1)).transpose(1, 2)


def _bias(linear: Linear, heads: int) -> Tensor | None:
    return None if linear.bias is None else linear.bias.unflatten(0, (heads, -1))


class AttentionPart(Part):
    """`block.attn`."""

    def __init__(self, native: HookedTransformer, hooks: Hooks, prefix: str, block: Block) -> None:
        super().__init__(native, hooks, prefix)
        self.attn, self.cfg = block.attn, native.cfg
        self.groups = native.cfg.n_heads // native.cfg.kv_heads

    W_Q = Weight(lambda part: _heads(part.attn.q, part.cfg.n_heads))
    W_K = GroupWeight(lambda part: part.expanded(_heads(part.attn.k, part.cfg.kv_heads)))
    W_V = GroupWeight(lambda part: part.expanded(_heads(part.attn.v, part.cfg.kv_heads)))
    _W_K = Weight(lambda part: _heads(part.attn.k, part.cfg.kv_heads))
    _W_V = Weight(lambda part: _heads(part.attn.v, part.cfg.kv_heads))
    _b_K = Weight(lambda part: _bias(part.attn.k, part.cfg.kv_heads), lambda part: (part.cfg.kv_heads, part.cfg.d_head))
    _b_V = Weight(lambda part: _bias(part.attn.v, part.cfg.kv_heads), lambda part: (part.cfg.kv_heads, part.cfg.d_head))
    W_O = Weight(lambda part: part.attn.W_O)
    b_Q = Weight(lambda part: _bias(part.attn.q, part.cfg.n_heads), lambda part: part.by_head)
    b_K = GroupWeight(lambda part: part.expanded(_bias(part.attn.k, part.cfg.kv_heads)), lambda part: part.by_head)
    b_V = GroupWeight(lambda part: part.expanded(_bias(part.attn.v, part.cfg.kv_heads)), lambda part: part.by_head)
    b_O = Weight(lambda part: part.attn.o.bias, lambda part: (part.cfg.d_model,))

    @property
    def by_head(self) -> tuple[int, int]:
        """Shape of a bias of queries, keys and values."""
        return self.cfg.n_heads, self.cfg.d_head

    def expanded(self, by_group: Tensor | None) -> Tensor | None:
        """A weight of each kv head for each query head: a view where they are the same."""
        return by_group if by_group is None or self.groups == 1 else by_group.repeat_interleave(self.groups, dim=0)

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every head."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T of every head."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))


class MLPPart(Part):
    """`block.mlp`."""

    def __init__(self, native: HookedTransformer, hooks: Hooks, prefix: str, mlp: nn.Module) -> None:
        super().__init__(native, hooks, prefix)
        self.module = mlp

    @property
    def mlp(self) -> MLP:
        """The native MLP; experts have their weights apart."""
        if not isinstance(self.module, MLP):
            raise AttributeError(f"{self.prefix} has experts, each with weights of its own: model.native.{self.prefix}")
        return self.module

    W_in = Weight(lambda part: part.mlp.up.weight.T)
    W_out = Weight(lambda part: part.mlp.down.weight.T)
    W_gate = Weight(lambda part: None if part.mlp.gate is None else part.mlp.gate.weight.T)
    b_in = Weight(lambda part: part.mlp.up.bias, lambda part: (part.native.cfg.d_mlp,))
    b_out = Weight(lambda part: part.mlp.down.bias, lambda part: (part.native.cfg.d_model,))

    def __call__(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return self.module(x)


class BlockPart(Part):
    """`model.blocks[l]`."""

    def __init__(self, native: HookedTransformer, hooks: Hooks, layer: int) -> None:
        super().__init__(native, hooks, f"blocks.{layer}")
        block = list(native.iter_blocks())[layer]
        self.attn = AttentionPart(native, hooks, f"{self.prefix}.attn", block)
        self.ln1 = NormPart(native, hooks, f"{self.prefix}.ln1", block.ln1)
        if block.mlp is not None:
            self.mlp = MLPPart(native, hooks, f"{self.prefix}.mlp", block.mlp)
            self.ln2 = NormPart(native, hooks, f"{self.prefix}.ln2", block.ln2)
