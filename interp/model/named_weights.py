"""Weights by the names that papers use (`W_Q`, `W_OV` ...), in TransformerLens' orientation: y = x W.

Stacks over layers are copies; the views of one block (`model.blocks[5].attn.W_Q`) write through. A bias that the model
lacks is zeros. Keys and values keep their kv_head axis. A weight that does not exist as one matrix (queries that are
made through a norm, neurons that are spread over experts) is an error that says why.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.model.block import Block
from interp.model.config import ModelConfig
from interp.model.factored import FactoredMatrix, composition_scores
from interp.model.linear import Embedding
from interp.model.mlp import MLP
from interp.model.norm import Norm


@runtime_checkable
class Affine(Protocol):
    """A linear map with or without a bias, however it stores its weights."""

    @property
    def weight(self) -> Tensor:
        """[d_out, d_in]."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """[d_out]."""
        ...


class NamedWeights(nn.Module):
    """The part of HookedTransformer that names its weights."""

    cfg: ModelConfig
    embed: Embedding
    pos_embed: Embedding | None
    unembed: Embedding | None
    unembed_bias: nn.Parameter | None
    blocks: nn.ModuleList
    ln_final: Norm | None

    def iter_blocks(self) -> Iterator[Block]:
        """The blocks, in order."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def unembedding(self) -> Float[Tensor, "d_vocab d_model"]:
        """Rows of the unembedding: the embedding's own where they are tied."""
        return self.embed.weight if self.unembed is None else self.unembed.weight

    # ------------------------------------------------------------------------------------------------ in and out

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """Embedding rows, before the embedding scale."""
        return self.embed.weight

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        """Rows of the learned position embedding."""
        if self.pos_embed is None:
            raise ValueError(f"there is no W_pos: the positions of this model are {self.cfg.positional}, not learned")
        return self.pos_embed.weight

    @property
    def W_E_pos(self) -> Float[Tensor, "d_vocab_n_ctx d_model"]:
        """Embedding rows, then position rows: everything that enters the stream. A copy."""
        return torch.cat([self.W_E, self.W_pos])

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """Unembedding columns, a view. The gain of the final norm is not in it."""
        return self.unembedding().T

    @property
    def b_U(self) -> Float[Tensor, "d_vocab"]:
        """Bias of the logits."""
        if self.unembed_bias is not None:
            return self.unembed_bias
        return self.embed.weight.new_zeros(self.cfg.d_vocab)

    # ------------------------------------------------------------------------------------------------- attention

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Query weights."""
        return self._stack_heads(lambda block: block.attn.q, self.cfg.n_heads, "W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """Key weights."""
        return self._stack_heads(lambda block: block.attn.k, self.cfg.kv_heads, "W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """Value weights."""
        return self._stack_heads(lambda block: block.attn.v, self.cfg.kv_heads, "W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head d_v d_model"]:
        """Output weights."""
        return torch.stack([head_output(block, self.cfg) for block in self.iter_blocks()])

    @property
    def b_Q(self) -> Float[Tensor, "layer head d_head"]:
        """Query biases."""
        return self._stack_head_biases(lambda block: block.attn.q, self.cfg.n_heads, "b_Q")

    @property
    def b_K(self) -> Float[Tensor, "layer kv_head d_head"]:
        """Key biases."""
        return self._stack_head_biases(lambda block: block.attn.k, self.cfg.kv_heads, "b_K")

    @property
    def b_V(self) -> Float[Tensor, "layer kv_head d_head"]:
        """Value biases."""
        return self._stack_head_biases(lambda block: block.attn.v, self.cfg.kv_heads, "b_V")

    @property
    def b_O(self) -> Float[Tensor, "layer d_model"]:
        """Biases of the attention output."""
        return torch.stack([bias_of(block.attn.o) for block in self.iter_blocks()])

    # ------------------------------------------------------------------------------------------------------- MLP

    @property
    def W_in(self) -> Float[Tensor, "layer d_model d_mlp"]:
        """Input weights of the MLPs: those without the activation where they are gated."""
        return torch.stack([mlp.up.weight.T for mlp in self._mlps("W_in")])

    @property
    def W_gate(self) -> Float[Tensor, "layer d_model d_mlp"] | None:
        """Gate weights, None where the MLPs have no gate."""
        gates = [mlp.gate for mlp in self._mlps("W_gate")]
        return torch.stack([gate.weight.T for gate in gates if gate is not None]) if gates[0] is not None else None

    @property
    def W_out(self) -> Float[Tensor, "layer d_mlp d_model"]:
        """Output weights of the MLPs: the row of a neuron is what it writes."""
        return torch.stack([mlp.down.weight.T for mlp in self._mlps("W_out")])

    @property
    def b_in(self) -> Float[Tensor, "layer d_mlp"]:
        """Input biases of the MLPs."""
        return torch.stack([bias_of(mlp.up) for mlp in self._mlps("b_in")])

    @property
    def b_out(self) -> Float[Tensor, "layer d_model"]:
        """Output biases of the MLPs."""
        return torch.stack([bias_of(mlp.down) for mlp in self._mlps("b_out")])

    # -------------------------------------------------------------------------------------------------- circuits

    def OV(self, layer: int | None = None, head: int | None = None) -> FactoredMatrix:
        """W_V W_O: what a head writes for what it reads, [d_model d_model] with inner size d_head.

        The value weights are those of the head's kv group. Without arguments a stack over [layer head], with a layer
        alone over [head]. Negative numbers count from the end.
        """

        def factors(block: Block) -> tuple[Tensor, Tensor]:
            return self._by_query_head(split_heads(block.attn.v, self.cfg.kv_heads)), head_output(block, self.cfg)

        return self._circuits("OV", factors, layer, head)

    def QK(self, layer: int | None = None, head: int | None = None) -> FactoredMatrix:
        """W_Q W_K^T: the score of what a query reads (left) with what a key reads (right), unscaled; indexed as `OV`.

        Rotary positions turn queries and keys between the two factors: this is the part at offset 0. QK-norms and
        biases are left out.
        """

        def factors(block: Block) -> tuple[Tensor, Tensor]:
            keys = self._by_query_head(split_heads(block.attn.k, self.cfg.kv_heads))
            return split_heads(block.attn.q, self.cfg.n_heads), keys.transpose(-2, -1)

        return self._circuits("QK", factors, layer, head)

    def all_composition_scores(self, mode: str) -> Float[Tensor, "layer head later_layer later_head"]:
        """How much of a later head's input is what an earlier one writes (Elhage et al. 2021); 0 for other pairs.

        Args:
            mode: "Q", "K" or "V": which input of the later head.

        The gain of the norm between the two belongs to the later head: `model.processed()` folds it in.
        """
        if mode not in ("Q", "K", "V"):
            raise ValueError(f"mode must be 'Q', 'K' or 'V', got {mode!r}")
        later = self.OV() if mode == "V" else self.QK() if mode == "Q" else self.QK().T
        scores = composition_scores(self.OV(), later)
        order = torch.arange(self.cfg.n_layers, device=scores.device)
        earlier = order[:, None, None, None] < order[None, None, :, None]
        return torch.where(earlier, scores, 0.0)

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, "d_model"]:
        """Sum of the biases that blocks before `layer` write into the stream.

        Args:
            layer: 0 to n_layers.
            mlp_input: count the attention bias of `layer` itself.
            include_mlp_biases: count b_out beside b_O.
        """
        if self.cfg.norm_placement != "pre":
            raise ValueError(
                f"the {self.cfg.norm_placement} norms of this model scale a bias by token; "
                "cache.get_full_resid_decomposition has its share for every token"
            )
        if not 0 <= layer <= self.cfg.n_layers - mlp_input:
            raise ValueError(f"layer={layer} with mlp_input={mlp_input}: the model has {self.cfg.n_layers} layers")
        total = self.b_O[: layer + mlp_input].double().sum(0)
        if include_mlp_biases and self.cfg.d_mlp:
            total = total + self.b_out[:layer].double().sum(0)
        return total.to(self.embed.weight.dtype)

    def all_head_labels(self) -> list[str]:
        """`L0H0`, `L0H1` ... in the order of stacks over heads."""
        return [f"L{layer}H{head}" for layer in range(self.cfg.n_layers) for head in range(self.cfg.n_heads)]

    # ---------------------------------------------------------------------------------------------------- checks

    def _circuits(
        self, name: str, factors: Callable[[Block], tuple[Tensor, Tensor]], layer: int | None, head: int | None
    ) -> FactoredMatrix:
        """Circuits of one head, one layer or all, as (left, right) factors of a block by head."""
        self._need_plain_attention(name)
        if layer is None and head is not None:
            raise ValueError(f"head={head} needs a layer: {name}(layer, head)")
        for number, size, what in ((layer, self.cfg.n_layers, "layer"), (head, self.cfg.n_heads, "head")):
            if number is not None and not -size <= number < size:
                raise ValueError(f"{what}={number}: there are {what}s 0 to {size - 1}")
        pairs = [factors(block) for block in self.iter_blocks()] if layer is None else []
        if layer is None:
            return FactoredMatrix(torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]))
        left, right = factors(list(self.iter_blocks())[layer])
        return FactoredMatrix(left, right) if head is None else FactoredMatrix(left[head], right[head])

    def _by_query_head(self, by_group: Float[Tensor, "kv_head d_model d_head"]) -> Float[Tensor, "head d_model d_head"]:
        return by_group.repeat_interleave(self.cfg.n_heads // self.cfg.kv_heads, dim=0)

    def _stack_heads(self, linear: Callable[[Block], Affine], heads: int, name: str) -> Tensor:
        self._need_plain_attention(name)
        return torch.stack([split_heads(linear(block), heads) for block in self.iter_blocks()])

    def _stack_head_biases(self, linear: Callable[[Block], Affine], heads: int, name: str) -> Tensor:
        self._need_plain_attention(name)
        return torch.stack([bias_of(linear(block)).unflatten(0, (heads, -1)) for block in self.iter_blocks()])

    def _need_plain_attention(self, name: str) -> None:
        if self.cfg.latent is not None:
            raise ValueError(
                f"there is no {name}: latent attention makes queries, keys and values through a small normed vector, so no "
                "one matrix takes the stream to them; the parts are in model.blocks[l].attn"
            )

    def _mlps(self, name: str) -> list[MLP]:
        if not self.cfg.d_mlp and self.cfg.experts is None:
            raise ValueError(f"there is no {name}: this model has attention alone")
        experts = [layer for layer in range(self.cfg.n_layers) if self.cfg.has_experts(layer)]
        if experts:
            raise ValueError(
                f"there is no {name}: layer {experts[0]} has {self.cfg.experts and self.cfg.experts.n_experts} experts with "
                "weights of their own; they are in model.blocks[l].mlp.experts"
            )
        return [block.mlp for block in self.iter_blocks() if isinstance(block.mlp, MLP)]


def split_heads(linear: Affine, heads: int) -> Float[Tensor, "head d_model d_head"]:
    """Weights of a projection by head, a view."""
    return linear.weight.unflatten(0, (heads, -1)).transpose(1, 2)


def head_output(block: Block, cfg: ModelConfig) -> Float[Tensor, "head d_v d_model"]:
    """Output weights of a block by head, a view."""
    return block.attn.o.weight.T.unflatten(0, (cfg.n_heads, cfg.d_value))


def bias_of(linear: Affine) -> Float[Tensor, "d_out"]:
    """A linear map's bias, zeros where it has none."""
    return linear.weight.new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias
