"""Activation patching as `transformer_lens.patching` offers it: one metric for every patch of a sweep.

Patches start at their layer and share batches (`interp/rerun.py`); the metric is handed each patch's own logits. The figures
are those of one whole pass for each patch, up to rounding. Where hooks of the caller are attached, who may
count on the shape of a batch, every patch does run alone and whole.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.compat.transformer_lens.utils import get_act_name
from interp.model import HookedTransformer as NativeTransformer
from interp.rerun import BaseRun, base_run
from interp.tokens import Tokens

PatchSetter = Callable[[Tensor, Sequence[int], Tensor], Tensor]
"""fn(corrupted activation, index, clean activation) -> patched activation; index begins with the layer."""
Metric = Callable[[Tensor], Tensor]
"""fn(logits [batch pos d_vocab]) -> one number."""
ROWS = 64
"""Most rows of one batch."""


def make_df_from_ranges(column_max_ranges: Sequence[int], column_names: Sequence[str]) -> pd.DataFrame:
    """Every combination of indices below the given sizes, the last column counting fastest."""
    rows = itertools.product(*(range(size) for size in column_max_ranges))
    return pd.DataFrame(list(rows), columns=pd.Index(column_names))


def _setter(axes: int, where: Callable[..., tuple[Any, ...]]) -> PatchSetter:
    """Copy the clean value into the place that an index names."""

    def patch(corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor) -> Tensor:
        if len(index) != axes:
            raise ValueError(f"this patch needs an index of {axes} numbers, got {list(index)}")
        place = (slice(None), *where(*index[1:]))
        corrupted_activation[place] = clean_activation[place]
        return corrupted_activation

    return patch


EVERY = slice(None)
layer_pos_patch_setter = _setter(2, lambda pos: (pos,))
"""index [layer, pos] of [batch pos ...]"""
layer_pos_head_vector_patch_setter = _setter(3, lambda pos, head: (pos, head))
"""index [layer, pos, head] of [batch pos head ...]"""
layer_head_vector_patch_setter = _setter(2, lambda head: (EVERY, head))
"""index [layer, head] of [batch pos head ...]"""
layer_head_pattern_patch_setter = _setter(2, lambda head: (head,))
"""index [layer, head] of [batch head query key]"""
layer_head_pos_pattern_patch_setter = _setter(3, lambda head, query: (head, query))
"""index [layer, head, query] of [batch head query key]"""
layer_head_dest_src_pos_pattern_patch_setter = _setter(4, lambda head, query, key: (head, query, key))
"""index [layer, head, query, key] of [batch head query key]"""


def generic_activation_patch(
    model: Any,
    corrupted_tokens: Int[Tensor, "batch pos"],
    clean_cache: Any,
    patching_metric: Metric,
    patch_setter: PatchSetter,
    activation_name: str,
    index_axis_names: Sequence[str] | None = None,
    index_df: pd.DataFrame | None = None,
    return_index_df: bool = False,
) -> Tensor | tuple[Tensor, pd.DataFrame]:
    """The metric of every patch.

    Args:
        model: of this module, or one of ours.
        corrupted_tokens: what is run.
        clean_cache: values of the clean run, by name; its texts have the shape of the corrupted ones.
        patching_metric: of the logits of one patch.
        patch_setter: puts the clean value in.
        activation_name: kind of site, such as "resid_pre" or "z".
        index_axis_names: "layer" first, then "pos", "head" (or "head_index"), "dest_pos", "src_pos": all combinations.
        index_df: the indices themselves, a row each, the layer first; the result is then flat.
        return_index_df: return (result, indices).

    Raises:
        ValueError: neither or both of index_axis_names and index_df, or an axis that is unknown.
    """
    if (index_df is None) == (index_axis_names is None):
        raise ValueError("give either index_axis_names or index_df")
    native = getattr(model, "native", model)
    tokens = (
        model.batch(corrupted_tokens, None, None, None) if model is not native else native.tokenize(corrupted_tokens)
    )
    if index_df is None:
        assert index_axis_names is not None
        sizes = _sizes(native, activation_name, tokens, index_axis_names)
        index_df = make_df_from_ranges(sizes, index_axis_names)
    else:
        sizes = [len(index_df)]
    indices = [[int(number) for number in row] for row in index_df.itertuples(index=False)]
    figures = torch.zeros(len(indices), device=native.device)
    attached = any(point.handles for point in native.hook_dict.values())
    with torch.no_grad():
        base = None if attached else base_run(native, tokens, {index[0] for index in indices})
        rows = 1 if base is None else max(1, ROWS // len(tokens))
        for layer in sorted({index[0] for index in indices}):
            name = get_act_name(activation_name, layer)
            mine = [number for number, index in enumerate(indices) if index[0] == layer]
            for part in (mine[start : start + rows] for start in range(0, len(mine), rows)):
                patch = _Patches([indices[number] for number in part], len(tokens), patch_setter, clean_cache[name])
                for number, own in zip(part, _patched_logits(native, tokens, base, layer, name, patch)):
                    figures[number] = patching_metric(own)
    result = figures.view(*sizes)
    return (result, index_df) if return_index_df else result


@dataclass(frozen=True, eq=False)
class _Patches:
    """Patches of one site that run in one batch."""

    indices: list[list[int]]
    """A patch each."""
    batch: int
    """Texts of one patch."""
    setter: PatchSetter
    """Puts the clean value in."""
    clean: Tensor
    """The clean value [batch ...]."""

    def apply(self, value: Tensor, ctx: object) -> Tensor:
        """Every patch in its own rows."""
        del ctx
        rows = [part.clone() for part in value.split(self.batch)]
        return torch.cat([self.setter(row, index, self.clean) for row, index in zip(rows, self.indices, strict=True)])


def _sizes(native: NativeTransformer, kind: str, tokens: Tokens, axes: Sequence[str]) -> list[int]:
    heads, n_pos = native.cfg.kv_heads if kind in ("k", "v") else native.cfg.n_heads, tokens.ids.shape[1]
    known = {"layer": native.cfg.n_layers, "head": heads, "head_index": heads}
    known |= dict.fromkeys(("pos", "src_pos", "dest_pos"), n_pos)
    unknown = [axis for axis in axes if axis not in known]
    if unknown or axes[0] != "layer":
        raise ValueError(f"axes are 'layer' first, then some of {', '.join(known)}; got {list(axes)}")
    return [known[axis] for axis in axes]


def _patched_logits(
    native: NativeTransformer, tokens: Tokens, base: BaseRun | None, layer: int, name: str, patch: _Patches
) -> Float[Tensor, "patch batch pos d_vocab"]:
    if base is None:
        with native.hooks({name: patch.apply}):
            return native(tokens).as_subclass(Tensor)[None]
    stream = base.stream(layer, {name: patch.apply}, copies=len(patch.indices))
    return native.unembed_logits(stream)


@dataclass(frozen=True)
class Sweep:
    """One kind of patch at every place: `sweep(model, corrupted_tokens, clean_cache, metric)` -> a figure for each."""

    activation_name: str
    """Kind of site."""
    index_axis_names: tuple[str, ...]
    """Axes of the result."""
    patch_setter: PatchSetter
    """Puts the clean value in."""

    def __call__(
        self,
        model: Any,
        corrupted_tokens: Int[Tensor, "batch pos"],
        clean_cache: Any,
        patching_metric: Metric,
        **options: Any,
    ) -> Any:
        """The metric of every patch; see `generic_activation_patch`."""
        axes = None if "index_df" in options else self.index_axis_names
        given: dict[str, Any] = {"index_axis_names": axes, **options}
        return generic_activation_patch(
            model, corrupted_tokens, clean_cache, patching_metric, self.patch_setter, self.activation_name, **given
        )


BY_POS, BY_HEAD, BY_POS_HEAD = ("layer", "pos"), ("layer", "head"), ("layer", "pos", "head")
get_act_patch_resid_pre = Sweep("resid_pre", BY_POS, layer_pos_patch_setter)
get_act_patch_resid_mid = Sweep("resid_mid", BY_POS, layer_pos_patch_setter)
get_act_patch_attn_out = Sweep("attn_out", BY_POS, layer_pos_patch_setter)
get_act_patch_mlp_out = Sweep("mlp_out", BY_POS, layer_pos_patch_setter)
get_act_patch_attn_head_out_by_pos = Sweep("z", BY_POS_HEAD, layer_pos_head_vector_patch_setter)
get_act_patch_attn_head_q_by_pos = Sweep("q", BY_POS_HEAD, layer_pos_head_vector_patch_setter)
get_act_patch_attn_head_k_by_pos = Sweep("k", BY_POS_HEAD, layer_pos_head_vector_patch_setter)
get_act_patch_attn_head_v_by_pos = Sweep("v", BY_POS_HEAD, layer_pos_head_vector_patch_setter)
get_act_patch_attn_head_pattern_by_pos = Sweep(
    "pattern", ("layer", "head_index", "dest_pos"), layer_head_pos_pattern_patch_setter
)
get_act_patch_attn_head_pattern_dest_src_pos = Sweep(
    "pattern", ("layer", "head_index", "dest_pos", "src_pos"), layer_head_dest_src_pos_pattern_patch_setter
)
get_act_patch_attn_head_out_all_pos = Sweep("z", BY_HEAD, layer_head_vector_patch_setter)
get_act_patch_attn_head_q_all_pos = Sweep("q", BY_HEAD, layer_head_vector_patch_setter)
get_act_patch_attn_head_k_all_pos = Sweep("k", BY_HEAD, layer_head_vector_patch_setter)
get_act_patch_attn_head_v_all_pos = Sweep("v", BY_HEAD, layer_head_vector_patch_setter)
get_act_patch_attn_head_pattern_all_pos = Sweep("pattern", ("layer", "head_index"), layer_head_pattern_patch_setter)


def get_act_patch_attn_head_all_pos_every(
    model: Any, corrupted_tokens: Int[Tensor, "batch pos"], clean_cache: Any, metric: Metric
) -> Float[Tensor, "patch_type layer head"]:
    """Output, query, key, value and pattern of every head, all positions at once.

    Where heads share keys and values, those rows have a figure for each kv head and zeros behind.
    """
    sweeps = (
        get_act_patch_attn_head_out_all_pos,
        get_act_patch_attn_head_q_all_pos,
        get_act_patch_attn_head_k_all_pos,
        get_act_patch_attn_head_v_all_pos,
        get_act_patch_attn_head_pattern_all_pos,
    )
    return _stacked([sweep(model, corrupted_tokens, clean_cache, metric) for sweep in sweeps])


def get_act_patch_attn_head_by_pos_every(
    model: Any, corrupted_tokens: Int[Tensor, "batch pos"], clean_cache: Any, metric: Metric
) -> Float[Tensor, "patch_type layer pos head"]:
    """The same at each position; that of a pattern is its query."""
    sweeps = (
        get_act_patch_attn_head_out_by_pos,
        get_act_patch_attn_head_q_by_pos,
        get_act_patch_attn_head_k_by_pos,
        get_act_patch_attn_head_v_by_pos,
    )
    figures = [sweep(model, corrupted_tokens, clean_cache, metric) for sweep in sweeps]
    pattern = get_act_patch_attn_head_pattern_by_pos(model, corrupted_tokens, clean_cache, metric)
    return _stacked([*figures, pattern.transpose(1, 2)])


def get_act_patch_block_every(
    model: Any, corrupted_tokens: Int[Tensor, "batch pos"], clean_cache: Any, metric: Metric
) -> Float[Tensor, "patch_type layer pos"]:
    """The stream before each block, the output of its attention and of its MLP."""
    sweeps = (get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out)
    return torch.stack([sweep(model, corrupted_tokens, clean_cache, metric) for sweep in sweeps])


def _stacked(figures: list[Tensor]) -> Tensor:
    """Stacked, with zeros where a kind has fewer heads."""
    heads = max(figure.shape[-1] for figure in figures)
    return torch.stack([torch.nn.functional.pad(figure, (0, heads - figure.shape[-1])) for figure in figures])
