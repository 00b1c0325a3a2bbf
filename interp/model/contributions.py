"""What one part of a block writes into the residual stream, and how the reader of a stream scales it.

Base of `Decomposition`, which stacks these contributions. A norm is linear once its scale is held at the value that the
pass computed. That is used twice: what a head or neuron writes passes a norm that follows it (sandwich and post
placement), and what a reader sees of a contribution passes the norm before it (`apply_ln_to_stack`).
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.model.lens_style import LensStyle, TokenLike
from interp.model.mlp import MLP
from interp.model.named_weights import bias_of, head_output
from interp.model.norm import Norm, accumulate
from interp.tokens import Tokens


class Contributions:
    """The methods of ActivationCache that know the blocks; `Decomposition` has the rules for `layer` and `pos_slice`."""

    cache_dict: dict[str, Tensor]
    tokens: Tokens
    model: LensStyle | None
    has_batch_dim: bool

    def __getitem__(self, site: Any) -> Tensor:
        raise KeyError(site)

    # ----------------------------------------------------------------------------------------------------- one layer

    def compute_head_results(self) -> None:
        """Add `hook_result` of every layer to the cache, from the recorded `z` and the weights."""
        model = self._need_model()
        for layer, block in enumerate(model.iter_blocks()):
            name = f"blocks.{layer}.attn.hook_result"
            if name not in self.cache_dict:
                self.cache_dict[name] = _by_head(self["z", layer], head_output(block, model.cfg))

    def get_neuron_results(
        self,
        layer: int,
        neuron_slice: Any = None,
        pos_slice: Any = None,
        project_output_onto: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """What each neuron of one layer writes into the stream [*rows neuron d_model].

        Args:
            layer: of the MLP.
            neuron_slice: neurons, in the forms of `pos_slice`; one number drops the axis.
            pos_slice: positions.
            project_output_onto: directions [d_model] or [d_model n]; the last axis goes, or becomes n. The vectors
                themselves are then never made.
        """
        block = list(self._need_model().iter_blocks())[layer]
        if not isinstance(block.mlp, MLP):
            what = "attention alone" if block.mlp is None else "experts, whose neurons are not recorded"
            raise ValueError(
                f"layer {layer} has {what}: there are no neuron results (expand_neurons=False does without)"
            )
        acts = take(take(self["post", layer], pos_slice, -2), neuron_slice, -1)
        writes = take(block.mlp.down.weight.T, neuron_slice, 0)
        if block.ln2_post is not None:
            writes = _linear_part(block.ln2_post, writes)
            scale = take(self["scale", layer, "ln2_post"], pos_slice, -2)
            acts = acts / (scale[..., 0] if isinstance(neuron_slice, int) else scale)
        if project_output_onto is None:
            return acts[..., None] * writes
        projected = writes @ project_output_onto.to(writes.device, writes.dtype)
        one = project_output_onto.ndim == 1
        return acts * projected if one else acts[..., None] * projected

    def _head_results(self, layer: int, pos_slice: Any) -> Float[Tensor, "*rows head d_model"]:
        """What each head of one layer adds to the stream: `hook_result` itself, or scaled by the norm that follows."""
        model = self._need_model()
        block = list(model.iter_blocks())[layer]
        name = f"blocks.{layer}.attn.hook_result"
        if name in self.cache_dict:  # it may have been edited
            results = take(self.cache_dict[name], pos_slice, -3)
        else:
            results = _by_head(take(self["z", layer], pos_slice, -3), head_output(block, model.cfg))
        return self._through(block.ln1_post, results, layer, "ln1_post", pos_slice, by_head=True)

    def _biases(self, depth: int, n_attention: int, mlp: bool, pos_slice: Any) -> Float[Tensor, "..."]:
        """Sum of what the biases of blocks add: of attention in `n_attention` layers, of MLPs in `depth` layers.

        Summed in fp64, [d_model]. A norm that follows scales a bias by token and adds its own: then [*rows d_model].
        """
        weights = self._need_model().W_E
        total = torch.zeros(weights.shape[1], dtype=torch.float64, device=weights.device)
        for layer, block in enumerate(list(self._need_model().iter_blocks())[:n_attention]):
            bias = self._through(block.ln1_post, bias_of(block.attn.o), layer, "ln1_post", pos_slice)
            total = total + bias + _own_bias(block.ln1_post)
            if mlp and layer < depth and isinstance(block.mlp, MLP):
                bias = self._through(block.ln2_post, bias_of(block.mlp.down), layer, "ln2_post", pos_slice)
                total = total + bias + _own_bias(block.ln2_post)
        return total.to(weights.dtype)

    def _through(
        self, norm: Norm | None, value: Tensor, layer: int, part: str, pos_slice: Any, *, by_head: bool = False
    ) -> Tensor:
        """A contribution as the norm that follows hands it on, without the norm's bias."""
        if norm is None:
            return value
        scale = take(self["scale", layer, part], pos_slice, -2)
        return _linear_part(norm, value) / (scale[..., None, :] if by_head else scale)

    # -------------------------------------------------------------------------------------------- how a reader sees it

    def apply_ln_to_stack(
        self,
        residual_stack: Float[Tensor, "..."],
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: Any = None,
        batch_slice: Any = None,
        has_batch_dim: bool = True,
        recompute_ln: bool = False,
    ) -> Float[Tensor, "..."]:
        """Contributions [component *rows d_model] as the norm of their reader scales them, without its gain and bias.

        They are divided by the scale of the pass, and centred where the norm is a LayerNorm. Without a norm before the
        reader they stay as they are.

        Args:
            residual_stack: contributions, positions sliced already.
            layer: the reader's; None and -1 mean the unembedding.
            mlp_input: the reader is that layer's MLP and not its attention.
            pos_slice: positions that the stack holds.
            batch_slice: texts to take from the stack and the scale.
            has_batch_dim: whether the stack has a batch axis.
            recompute_ln: at the unembedding, norm each component by itself, with gain and bias (a logit lens).
        """
        depth = self._depth(layer, mlp_input)
        model = self._need_model()
        norm, name = self._reader(depth, mlp_input)
        if residual_stack.ndim < 2 or residual_stack.shape[-1] != model.cfg.d_model:
            raise ValueError(
                f"a stack is [component *rows d_model] with d_model={model.cfg.d_model}, got {tuple(residual_stack.shape)}"
            )
        if has_batch_dim:
            residual_stack = take(residual_stack, batch_slice, 1)
        if norm is None or norm.kind == "none":
            return residual_stack
        if recompute_ln and depth == model.cfg.n_layers:
            return norm.silent(residual_stack)
        scale = take(self[name], pos_slice, -2)
        scale = _fitting(take(scale, batch_slice, 0) if self.has_batch_dim else scale, residual_stack)
        wide = accumulate(residual_stack)
        wide = wide - wide.mean(-1, keepdim=True) if norm.centred else wide
        return (wide / scale).to(residual_stack.dtype)

    def logit_attrs(
        self,
        residual_stack: Float[Tensor, "..."],
        tokens: TokenLike,
        incorrect_tokens: TokenLike | None = None,
        pos_slice: Any = None,
        batch_slice: Any = None,
        has_batch_dim: bool = True,
    ) -> Float[Tensor, "..."]:
        """What each contribution [component *rows d_model] adds to a token's logit, [component *rows].

        The final norm's scale is that of the pass and its gain is counted, on raw weights too: over a whole decomposition
        the attributions sum to the logit (before a soft-cap) less what the final norm's bias and b_U add.

        Args:
            residual_stack: contributions to the final stream, positions sliced already.
            tokens: the token; or one for each text [batch]; or for each place [batch pos].
            incorrect_tokens: as many; their logit is subtracted.
            pos_slice: positions that the stack holds.
            batch_slice: texts to take from the stack.
            has_batch_dim: whether the stack has a batch axis.
        """
        model = self._need_model()
        if model.cfg.mlm_head:
            raise ValueError(
                "the logits of this model pass a layer of its own (mlm_head): they are no sum over the stream"
            )
        directions = model.tokens_to_residual_directions(tokens)
        if incorrect_tokens is not None:
            others = model.tokens_to_residual_directions(incorrect_tokens)
            if others.shape != directions.shape:
                raise ValueError(
                    f"tokens and incorrect_tokens must have one shape, got {tuple(directions.shape[:-1])} and "
                    f"{tuple(others.shape[:-1])}"
                )
            directions = directions - others
        stack = self.apply_ln_to_stack(residual_stack, None, False, pos_slice, batch_slice, has_batch_dim)
        by_text = directions.ndim == 2 and stack.ndim == 4 and has_batch_dim and self.has_batch_dim
        directions = directions[:, None] if by_text else directions
        rows = stack.shape[1:-1]
        if directions.ndim > 1 and any(n not in (1, row) for n, row in zip(directions.shape[:-1][::-1], rows[::-1])):
            raise ValueError(
                f"tokens of shape {tuple(directions.shape[:-1])} do not fit a stack over rows {tuple(rows)}"
            )
        return torch.einsum("...d,...d->...", stack.double(), directions.double()).to(stack.dtype)

    def _reader(self, depth: int, mlp_input: bool) -> tuple[Norm | None, str]:
        """The norm through which the stream is read at `depth`, and the name of its scale."""
        model = self._need_model()
        if depth == model.cfg.n_layers:
            return model.ln_final, "ln_final.hook_scale"
        block = list(model.iter_blocks())[depth]
        if model.cfg.norm_placement == "post_ln":  # its norms stand after the parts: these read the stream itself
            return None, ""
        second = mlp_input and not model.cfg.shared_norm
        return (
            (block.ln2, f"blocks.{depth}.ln2.hook_scale") if second else (block.ln1, f"blocks.{depth}.ln1.hook_scale")
        )

    def _onto(
        self, directions: Float[Tensor, "..."] | None, depth: int, mlp_input: bool, apply_ln: bool
    ) -> Float[Tensor, "d_model n"] | None:
        """Directions as columns; centred if the reader's norm centres what it reads, which is the same and cheaper."""
        if directions is None:
            return None
        columns = directions[:, None] if directions.ndim == 1 else directions
        width = self._need_model().cfg.d_model
        if columns.ndim != 2 or columns.shape[0] != width:
            raise ValueError(f"project_output_onto must be [{width}] or [{width}, n], got {tuple(directions.shape)}")
        norm, _ = self._reader(depth, mlp_input)
        centred = apply_ln and norm is not None and norm.centred
        return columns - columns.mean(0) if centred else columns

    def _scaled(self, stack: Tensor, depth: int, mlp_input: bool, pos_slice: Any, projected: bool) -> Tensor:
        """`apply_ln_to_stack` of contributions, or of their products with directions that `_onto` made."""
        if not projected:
            return self.apply_ln_to_stack(stack, depth, mlp_input, pos_slice)
        norm, name = self._reader(depth, mlp_input)
        return stack if norm is None or norm.kind == "none" else stack / take(self[name], pos_slice, -2)

    # --------------------------------------------------------------------------------------------------------- checks

    def _need_model(self) -> LensStyle:
        if self.model is None:
            raise ValueError("this cache has no model, whose weights are needed here: take the one of run_with_cache")
        return self.model

    def _need_sum(self) -> LensStyle:
        """The model, if its stream is a sum of what blocks write."""
        model = self._need_model()
        if model.cfg.norm_placement == "post_ln":
            raise ValueError(
                f"{model.cfg.name} norms the stream itself after each part (post-LN), so it is no sum of what parts wrote; "
                "accumulated_resid gives the stream at each layer"
            )
        return model

    def _depth(self, layer: int | None, mlp_input: bool = False) -> int:
        n_layers = self._need_model().cfg.n_layers
        depth = n_layers if layer is None or layer == -1 else layer
        if not 0 <= depth <= n_layers:
            raise ValueError(f"layer={layer}: 0 to {n_layers} are possible; None and -1 mean {n_layers}")
        if mlp_input and depth == n_layers:
            raise ValueError(f"mlp_input=True needs a layer before {n_layers}: after the last there is no MLP")
        return depth

    def _no_rows(self, pos_slice: Any) -> Float[Tensor, "0 *rows d_model"]:
        """A stack without a contribution."""
        return take(self["resid_pre", 0], pos_slice, -2)[None][:0]


def take(x: Tensor, which: Any, axis: int) -> Tensor:
    """Part of one axis: a number drops it, a tuple is (start, stop, step), a list, array or tensor picks, None keeps all."""
    if which is None:
        return x
    if isinstance(which, tuple):
        which = slice(*which)
    elif isinstance(which, np.ndarray | list | Tensor):
        which = torch.as_tensor(which, device=x.device)
    elif not isinstance(which, int | np.integer | slice):
        raise ValueError(
            f"a slice is a number, a tuple such as (2, 5), a list or tensor of indices, or None; got {which!r}"
        )
    if isinstance(which, int | np.integer) and not -x.shape[axis] <= which < x.shape[axis]:
        raise ValueError(f"index {which} lies outside an axis of {x.shape[axis]}")
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = which
    return x[tuple(index)]


def _fitting(scale: Float[Tensor, "*rows 1"], stack: Tensor) -> Tensor:
    """The scale, if its rows are the stack's last ones; broadcasting other shapes would give figures of other places."""
    if scale.ndim == stack.ndim and scale.shape[0] == 1:  # one text, and a stack without the batch axis
        scale = scale[0]
    if stack.shape[stack.ndim - scale.ndim : -1] != scale.shape[:-1] or stack.ndim <= scale.ndim:
        raise ValueError(
            f"the stack {tuple(stack.shape)} does not hold the rows {tuple(scale.shape[:-1])} of the norm's scale: give the "
            "pos_slice and batch_slice that it was made with"
        )
    return scale


def _by_head(z: Float[Tensor, "*rows head d_v"], weights: Float[Tensor, "head d_v d_model"]) -> Tensor:
    return torch.einsum("...he,hed->...hd", z, weights)


def _linear_part(norm: Norm, value: Tensor) -> Tensor:
    """A norm with scale 1 and without its bias."""
    value = value - value.mean(-1, keepdim=True) if norm.centred else value
    multiplier = norm.multiplier()
    return value if multiplier is None else value * multiplier


def _own_bias(norm: Norm | None) -> Tensor | float:
    return 0.0 if norm is None or norm.bias is None else norm.bias
