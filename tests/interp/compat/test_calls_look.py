"""Call sites of the kind that tutorials use, part 2: caching, and the stream taken apart.

A case is a function of the library `tl` (TransformerLens, or our module under its name) and a model of it, here called on both
with the same weights. What it returns must be the same.
"""

from typing import Any

import pytest
import torch
from torch import Tensor


def ids(seed: int = 0, batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


TEXT = "The cat sat on the mat."


# -------------------------------------------------------------------------------------------------------------- caching


def cache_of_everything(tl, model):
    _, cache = model.run_with_cache(ids())
    return {name: value for name, value in cache.items() if "unembed" not in name}


def cache_without_batch_axis(tl, model):
    _, cache = model.run_with_cache(TEXT, remove_batch_dim=True)
    return cache["pattern", 0, "attn"], cache["resid_post", 1], cache["embed"], cache["blocks.1.attn.hook_v"]


def cache_by_short_names(tl, model):
    _, cache = model.run_with_cache(ids())
    return (
        cache["resid_post", -1],
        cache["scale", 1, "ln2"],
        cache["k", 1],
        cache["z", 0],
        cache["attn_scores", 1],
        cache["k0"],
    )


def cache_of_one_name(tl, model):
    name = tl.utils.get_act_name("resid_post", 1)
    logits, cache = model.run_with_cache(ids(), names_filter=name)
    return logits, dict(cache.items())


def cache_by_predicate(tl, model):
    _, cache = model.run_with_cache(ids(), names_filter=lambda name: name.endswith("hook_pattern"), return_type=None)
    return dict(cache.items())


def cache_of_names_as_dict(tl, model):
    names = [tl.utils.get_act_name("z", layer) for layer in range(model.cfg.n_layers)]
    return model.run_with_cache(ids(), names_filter=names, return_cache_object=False)[1]


def cache_up_to_a_layer(tl, model):
    out, cache = model.run_with_cache(ids(), stop_at_layer=1)
    return out, dict(cache.items())


def cache_of_one_position(tl, model):
    names = ["blocks.0.hook_resid_post", "blocks.1.attn.hook_z"]
    _, last = model.run_with_cache(ids(), names_filter=names, pos_slice=-1)
    _, some = model.run_with_cache(ids(), names_filter=names, pos_slice=(2, 5))
    return dict(last.items()), dict(some.items())


def cache_with_gradients(tl, model):
    names = ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_z", "blocks.1.attn.hook_pattern", "blocks.0.mlp.hook_post"]
    _, cache = model.run_with_cache(ids(), names_filter=names, incl_bwd=True, return_type="loss")
    model.zero_grad()
    return dict(cache.items())


def cache_of_head_results(tl, model):
    model.set_use_attn_result(True)
    _, cache = model.run_with_cache(ids())
    model.set_use_attn_result(False)
    return cache["result", 0]


def cache_of_split_inputs(tl, model):
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    _, cache = model.run_with_cache(ids())
    model.set_use_split_qkv_input(False)
    model.set_use_hook_mlp_in(False)
    return cache["blocks.1.hook_q_input"], cache["blocks.1.hook_k_input"], cache["blocks.0.hook_mlp_in"]


def cache_moved_and_sliced(tl, model):
    _, cache = model.run_with_cache(ids())
    part = cache.apply_slice_to_batch_dim(1)
    return cache.to("cpu")["resid_mid", 0], part["resid_mid", 0], len(cache.apply_slice_to_batch_dim((0, 1))["z", 0])


# ---------------------------------------------------------------------------------------------- the stream, taken apart


def accumulated_stream(tl, model):
    _, cache = model.run_with_cache(ids())
    stack, labels = cache.accumulated_resid(layer=-1, incl_mid=True, pos_slice=-1, return_labels=True)
    return stack, labels, cache.accumulated_resid(layer=1)


def logit_lens(tl, model):
    _, cache = model.run_with_cache(ids())
    stack = cache.accumulated_resid(layer=-1, pos_slice=-1, apply_ln=True)[-1:]
    return stack @ model.W_U + model.b_U


def stream_by_component(tl, model):
    _, cache = model.run_with_cache(ids())
    stack, labels = cache.decompose_resid(return_labels=True)
    attention = cache.decompose_resid(layer=1, mode="attn", incl_embeds=False, pos_slice=(1, 4))
    return stack, labels, attention


def stream_by_head(tl, model):
    _, cache = model.run_with_cache(ids())
    stack, labels = cache.stack_head_results(layer=-1, pos_slice=-1, return_labels=True)
    return stack, labels, cache.stack_head_results(layer=1)


def logit_difference_by_head(tl, model):
    _, cache = model.run_with_cache(ids())
    direction = model.W_U[:, 7] - model.W_U[:, 30]
    stack = cache.stack_head_results(layer=-1, pos_slice=-1)
    scaled = cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1)
    return scaled, (scaled @ direction).mean(-1).view(model.cfg.n_layers, model.cfg.n_heads)


def logit_attributions(tl, model):
    _, cache = model.run_with_cache(ids())
    stack = cache.decompose_resid(pos_slice=-1)
    answers = torch.tensor([5, 6])
    return cache.logit_attrs(stack, answers, torch.tensor([9, 8]), pos_slice=-1), cache.logit_attrs(
        stack, 5, pos_slice=-1
    )


def neurons(tl, model):
    _, cache = model.run_with_cache(ids())
    stack, labels = cache.stack_neuron_results(layer=1, pos_slice=-1, return_labels=True)
    return stack, labels, cache.get_neuron_results(0, neuron_slice=(0, 3), pos_slice=-1)


def full_decomposition(tl, model):
    _, cache = model.run_with_cache(ids())
    stack, labels = cache.get_full_resid_decomposition(expand_neurons=False, return_labels=True)
    return stack, labels


def stacked_patterns(tl, model):
    _, cache = model.run_with_cache(ids())
    return cache.stack_activation("pattern"), cache.stack_activation("resid_pre", 1)


def detected_heads(tl, model):
    text = "cat dog cat dog"
    kinds = ("previous_token_head", "duplicate_token_head", "induction_head")
    plain = [tl.detect_head(model, text, kind) for kind in kinds]
    cut = tl.detect_head(model, [text, "abcabc"], kinds[2], exclude_bos=True, exclude_current_token=True)
    by_difference = tl.detect_head(model, text, kinds[0], heads=[(0, 1), (1, 3)], error_measure="abs").mul(100).round()
    return plain, cut, by_difference, tl.detect_head(model, "ab", torch.ones(3, 3).tril(), heads={1: [0]})


CASES = [
    cache_of_everything,
    cache_without_batch_axis,
    cache_by_short_names,
    cache_of_one_name,
    cache_by_predicate,
    cache_of_names_as_dict,
    cache_up_to_a_layer,
    cache_of_one_position,
    cache_with_gradients,
    cache_of_head_results,
    cache_of_split_inputs,
    cache_moved_and_sliced,
    accumulated_stream,
    logit_lens,
    stream_by_component,
    stream_by_head,
    logit_difference_by_head,
    logit_attributions,
    neurons,
    full_decomposition,
    stacked_patterns,
    detected_heads,
]


@pytest.mark.parametrize("call", CASES, ids=lambda call: call.__name__)
def test_call_site(call: Any, same: Any) -> None:
    same(call)
