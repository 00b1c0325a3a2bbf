"""What the residual stream is made of: the methods of ActivationCache that stack, split and attribute it.

A stream that blocks add to is a sum: embeddings + what every head, neuron and bias wrote. The methods hand out the terms
of that sum, with the names, order and shapes of TransformerLens' ActivationCache, and work out for every block kind
what a term is:

1. Sequential and parallel blocks: a head writes z W_O, a neuron its activation times its row of W_out.
2. Norms after attention or MLP (sandwich, post): what is added is norm(output). With the norm's scale held at what the
   pass computed, the norm is linear, so a head adds its own output, centred where the norm centres, times gain / scale.
3. Post-LN blocks (BERT) norm the stream itself, which is then no sum: an error says so.

A norm that reads the stream is held in the same way by `apply_ln_to_stack`. Differences of large terms (`remainder`) and
products with directions (`logit_attrs`) are summed in fp64: terms at the first position cancel from 100 to 1000 times
their sum.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.model.contributions import Contributions, take

Stack = Float[Tensor, "component *rows d_model"]
"""Terms by *rows: batch and pos, without the axes that were removed or indexed away."""


class Decomposition(Contributions):
    """Methods of ActivationCache. `layer` is where the stream is read: 0 to n_layers; None and -1 mean the unembedding.

    `pos_slice` everywhere: a position (its axis goes), a (start, stop) or (start, stop, step) tuple, a list or tensor of
    positions, or None for all.
    """

    @property
    def has_embed(self) -> bool:
        """Whether the token embedding was recorded."""
        return "hook_embed" in self.cache_dict

    @property
    def has_pos_embed(self) -> bool:
        """Whether a position embedding was recorded."""
        return "hook_pos_embed" in self.cache_dict

    # --------------------------------------------------------------------------------------------------------- stacks

    def stack_activation(
        self, activation_name: str, layer: int | None = -1, sublayer_type: str | None = None
    ) -> Float[Tensor, "layer *shape"]:
        """One kind of site from all layers before `layer`, for example `stack_activation("pattern")`."""
        depth = self._depth(layer)
        if not depth:
            raise ValueError("layer=0 has no layers before it; give 1 or more")
        return torch.stack([self[activation_name, index, sublayer_type] for index in range(depth)])

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Any = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> Stack | tuple[Stack, list[str]]:
        """The stream before every layer up to `layer`, labelled `0_pre`, `0_mid`, `1_pre` ... `final_post`.

        Args:
            layer: the last one to read.
            incl_mid: the stream between attention and MLP too.
            apply_ln: norm each stream for its reader at `layer`: the final norm anew for each (a logit lens), an earlier
                norm with the scale of the pass and without its gain.
            pos_slice: positions.
            mlp_input: end at the input of that layer's MLP.
            return_labels: give (stack, labels).
        """
        depth, n_layers = self._depth(layer, mlp_input), self._need_model().cfg.n_layers
        found: list[tuple[str, Tensor]] = []
        for index in range(min(depth + 1, n_layers)):
            found.append((f"{index}_pre", self["resid_pre", index]))
            if (incl_mid and index < depth) or (mlp_input and index == depth):
                found.append((f"{index}_mid", self["resid_mid", index]))
        if depth == n_layers:
            found.append(("final_post", self["resid_post", n_layers - 1]))
        stack = torch.stack([take(value, pos_slice, -2) for _, value in found])
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, depth, mlp_input, pos_slice, recompute_ln=depth == n_layers)
        return (stack, [label for label, _ in found]) if return_labels else stack

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: str = "all",
        apply_ln: bool = False,
        pos_slice: Any = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> Stack | tuple[Stack, list[str]]:
        """The stream at `layer` as embeddings and the outputs of attention and MLP of every layer before.

        Args:
            layer: where the stream is read.
            mlp_input: read it at that layer's MLP, after its attention.
            mode: "all", "attn" or "mlp".
            apply_ln: as the reader's norm scales it, without its gain.
            pos_slice: positions.
            incl_embeds: `embed` and `pos_embed` too.
            return_labels: give (stack, labels), such as `embed`, `0_attn_out`, `0_mlp_out`.
        """
        if mode not in ("all", "attn", "mlp"):
            raise ValueError(f"mode must be 'all', 'attn' or 'mlp', got {mode!r}")
        depth, cfg = self._depth(layer, mlp_input), self._need_sum().cfg
        found = self._embeds() if incl_embeds else []
        for index in range(depth + self._own_attention(mlp_input)):
            if mode != "mlp":
                found.append((f"{index}_attn_out", self["attn_out", index]))
            if mode != "attn" and index < depth and (cfg.d_mlp or cfg.has_experts(index)):
                found.append((f"{index}_mlp_out", self["mlp_out", index]))
        values = [take(value, pos_slice, -2) for _, value in found]
        stack = torch.stack(values) if values else self._no_rows(pos_slice)
        stack = self.apply_ln_to_stack(stack, depth, mlp_input, pos_slice) if apply_ln else stack
        return (stack, [label for label, _ in found]) if return_labels else stack

    def stack_head_results(
        self,
        layer: int | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: Any = None,
        apply_ln: bool = False,
    ) -> Stack | tuple[Stack, list[str]]:
        """What every head before `layer` writes into the stream, `L0H0`, `L0H1` ... in order.

        `incl_remainder` adds the rest of the stream as a last row, so that the rows sum to it. Output biases belong to no
        head. The heads' values `z` must be recorded; `hook_result` need not be.
        """
        depth, cfg = self._depth(layer), self._need_sum().cfg
        results = [self._head_results(index, pos_slice) for index in range(depth)]
        stack = torch.cat(results, -2).movedim(-2, 0) if results else self._no_rows(pos_slice)
        labels = [f"L{index}H{head}" for index in range(depth) for head in range(cfg.n_heads)]
        if incl_remainder:
            stack = _with_remainder(stack, take(self._stream(depth), pos_slice, -2))
            labels.append("remainder")
        stack = self.apply_ln_to_stack(stack, depth, pos_slice=pos_slice) if apply_ln else stack
        return (stack, labels) if return_labels else stack

    def stack_neuron_results(
        self,
        layer: int | None = -1,
        pos_slice: Any = None,
        neuron_slice: Any = None,
        return_labels: bool = False,
        incl_remainder: bool = False,
        apply_ln: bool = False,
        project_output_onto: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "component *shape"] | tuple[Float[Tensor, "component *shape"], list[str]]:
        """What every neuron before `layer` writes into the stream, `L0N0`, `L0N1` ... in order.

        All neurons of a model are many: slice positions and neurons, or read them in some directions only.

        Args:
            layer: where the stream is read.
            pos_slice: positions.
            neuron_slice: neurons of every layer, in the forms of `pos_slice`.
            return_labels: give (stack, labels).
            incl_remainder: the rest of the stream as a last row.
            apply_ln: as the reader's norm scales it, without its gain.
            project_output_onto: directions [d_model] or [d_model n]; the last axis becomes n, or goes. The vectors
                themselves are then never made.
        """
        depth = self._depth(layer)
        self._need_sum()
        neurons = [neuron_slice] if isinstance(neuron_slice, int) else neuron_slice
        onto = self._onto(project_output_onto, depth, False, apply_ln)
        results = [self.get_neuron_results(index, neurons, pos_slice, onto) for index in range(depth)]
        stack = torch.cat(results, -2).movedim(-2, 0) if results else _read(self._no_rows(pos_slice), onto)
        chosen = take(torch.arange(self._need_model().cfg.d_mlp), neurons, 0).tolist()
        labels = [f"L{index}N{neuron}" for index in range(depth) for neuron in chosen]
        if incl_remainder:
            stack = _with_remainder(stack, _read(take(self._stream(depth), pos_slice, -2), onto))
            labels.append("remainder")
        stack = self._scaled(stack, depth, False, pos_slice, onto is not None) if apply_ln else stack
        if project_output_onto is not None and project_output_onto.ndim == 1:
            stack = stack[..., 0]
        return (stack, labels) if return_labels else stack

    def get_full_resid_decomposition(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: Any = None,
        return_labels: bool = False,
        project_output_onto: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "component *shape"] | tuple[Float[Tensor, "component *shape"], list[str]]:
        """The stream at `layer` in its finest terms, which sum to it.

        In this order: every head, every neuron (or every MLP), `embed`, `pos_embed`, and `bias`, the sum of all biases
        that no head or neuron holds. Arguments as in `stack_neuron_results` and `decompose_resid`.
        """
        depth, model = self._depth(layer, mlp_input), self._need_sum()
        onto = self._onto(project_output_onto, depth, mlp_input, apply_ln)
        heads = depth + self._own_attention(mlp_input)
        labels = [f"L{index}H{head}" for index in range(heads) for head in range(model.cfg.n_heads)]
        parts = [_read(self._head_results(index, pos_slice).movedim(-2, 0), onto) for index in range(heads)]
        for index, block in enumerate(list(model.iter_blocks())[:depth]):
            if expand_neurons and block.mlp is not None:
                parts.append(self.get_neuron_results(index, None, pos_slice, onto).movedim(-2, 0))
                labels += [f"L{index}N{neuron}" for neuron in range(model.cfg.d_mlp)]
        rest = [] if expand_neurons else self._mlp_outs(depth)
        rest += self._embeds()
        parts += [_read(take(value, pos_slice, -2)[None], onto) for _, value in rest]
        bias = self._biases(depth, heads, expand_neurons, pos_slice)
        parts.append(_read(bias.expand_as(take(rest[-1][1], pos_slice, -2))[None], onto))
        labels += [label for label, _ in rest] + ["bias"]
        stack = torch.cat(parts)
        stack = self._scaled(stack, depth, mlp_input, pos_slice, onto is not None) if apply_ln else stack
        if project_output_onto is not None and project_output_onto.ndim == 1:
            stack = stack[..., 0]
        return (stack, labels) if return_labels else stack

    # ---------------------------------------------------------------------------------------------------------- terms

    def _embeds(self) -> list[tuple[str, Tensor]]:
        """What enters the stream before the first block."""
        cfg = self._need_model().cfg
        if cfg.embed_norm == "sum":
            return [("full_embed", self["full_embed"])]
        found = [("embed", self["embed"])]
        found += [("pos_embed", self["pos_embed"])] if cfg.positional in ("learned", "sinusoidal") else []
        return found + ([("token_type_embed", self["token_type_embed"])] if cfg.n_token_types else [])

    def _mlp_outs(self, depth: int) -> list[tuple[str, Tensor]]:
        blocks = list(self._need_model().iter_blocks())[:depth]
        return [(f"{i}_mlp_out", self["mlp_out", i]) for i, block in enumerate(blocks) if block.mlp is not None]

    def _own_attention(self, mlp_input: bool) -> bool:
        """Whether the MLP of a layer reads what the attention of that layer wrote: not in parallel blocks."""
        return mlp_input and not self._need_model().cfg.parallel

    def _stream(self, depth: int) -> Tensor:
        last = self._need_model().cfg.n_layers
        return self["resid_post", last - 1] if depth == last else self["resid_pre", depth]


def _read(value: Float[Tensor, "*rows d_model"], onto: Float[Tensor, "d_model n"] | None) -> Float[Tensor, "*rows n"]:
    return value if onto is None else value @ onto.to(value.device, value.dtype)


def _with_remainder(stack: Tensor, whole: Tensor) -> Tensor:
    """The stack and what it lacks of the whole, as a last row; summed in fp64."""
    rest = whole.double() - stack.double().sum(0)
    return torch.cat([stack, rest.to(stack.dtype)[None]])
