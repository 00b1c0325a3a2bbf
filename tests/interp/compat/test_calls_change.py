"""Call sites of the kind that tutorials use, part 3: hooks, weights, patching.

A case is a function of the library `tl` (TransformerLens, or our module under its name) and a model of it, here called on both
with the same weights. What it returns must be the same.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor


def ids(seed: int = 0, batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


def last_logit_diff(logits: Tensor) -> Tensor:
    return (logits[:, -1, 7] - logits[:, -1, 30]).mean()


# ---------------------------------------------------------------------------------------------------------------- hooks


def head_ablation(tl, model):
    def ablate(value, hook):
        value[:, :, 0, :] = 0.0
        return value

    name = tl.utils.get_act_name("v", 0)
    return model.run_with_hooks(ids(), return_type="loss", fwd_hooks=[(name, ablate)])


def hook_that_returns_nothing(tl, model):
    def halve(value, hook):
        value *= 0.5

    return model.run_with_hooks(ids(), fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: halve(value, hook))])


def patched_position(tl, model):
    _, clean = model.run_with_cache(ids(0))

    def patch(value, hook, position):
        value[:, position] = clean[hook.name][:, position]
        return value

    name = tl.utils.get_act_name("resid_pre", 1)
    return model.run_with_hooks(ids(1), fwd_hooks=[(name, partial(patch, position=4))])


def induction_scores(tl, model):
    once = ids(3, 3, 8)
    scores = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)

    def score(pattern, hook):
        stripe = pattern.diagonal(dim1=-2, dim2=-1, offset=1 - 8)
        scores[hook.layer()] = stripe.mean(-1).mean(0).detach()

    chosen = lambda name: name.endswith("pattern")  # noqa: E731
    model.run_with_hooks(torch.cat([once, once], 1), return_type=None, fwd_hooks=[(chosen, score)])
    return scores


def pattern_edited(tl, model):
    def diagonal(pattern, hook):
        return torch.eye(pattern.shape[-1]).expand_as(pattern).clone()

    return model.run_with_hooks(ids(), fwd_hooks=[("blocks.0.attn.hook_pattern", diagonal)])


def hooks_in_a_block(tl, model):
    seen = []

    def add(value, hook):
        hook.ctx["calls"] = hook.ctx.get("calls", 0) + 1
        seen.append((hook.name, hook.layer(), hook.ctx["calls"]))
        return value + 1.0

    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", add)]) as hooked:
        first, second = hooked(ids()), model(ids(1))
    model.reset_hooks(clear_contexts=True)
    return first, second, model(ids()), seen


def hooks_that_stay(tl, model):
    model.add_hook("blocks.0.hook_attn_out", lambda value, hook: value * 0)
    model.add_perma_hook("blocks.1.hook_attn_out", lambda value, hook: value * 2)
    both = model(ids())
    model.reset_hooks()
    permanent = model(ids())
    model.reset_hooks(including_permanent=True)
    return both, permanent, model(ids())


def hooks_at_a_point(tl, model):
    point = model.blocks[1].hook_mlp_out
    point.add_hook(lambda value, hook: value * 3)
    model.hook_dict["hook_embed"].add_hook(lambda value, hook: value * 2)
    counts = len(point.fwd_hooks), point.has_hooks(), len(model.hook_embed.fwd_hooks)
    changed = model(ids())
    point.remove_hooks()
    rest = model(ids())
    model.reset_hooks()
    return counts, changed, rest, model.hook_embed.has_hooks()


def order_of_hooks(tl, model):
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_mid", lambda value, hook: value + 1)]):
        model.add_hook("blocks.0.hook_resid_mid", lambda value, hook: value * 2, prepend=True)
        out = model(ids())
    rest = model(ids())
    model.reset_hooks()
    return out, rest


def gradients_by_backward_hooks(tl, model):
    """Values and gradients of a metric, as attribution patching takes them."""
    values, gradients = {}, {}
    off = ("_input", "attn_in", "mlp_in", "result", "unembed")  # points that a flag must switch on first
    wanted = lambda name: not any(part in name for part in off)  # noqa: E731
    model.reset_hooks()
    model.add_hook(wanted, lambda value, hook: values.__setitem__(hook.name, value.detach()), "fwd")
    model.add_hook(wanted, lambda value, hook: gradients.__setitem__(hook.name, value.detach()), "bwd")
    metric = last_logit_diff(model(ids()))
    metric.backward()
    model.reset_hooks()
    model.zero_grad()
    value_cache, gradient_cache = tl.ActivationCache(values, model), tl.ActivationCache(gradients, model)
    both = value_cache["resid_pre", 1] * gradient_cache["resid_pre", 1]
    return (
        metric,
        both.sum(-1),
        gradient_cache["pattern", 0],
        gradient_cache["q", 1],
        gradient_cache.stack_activation("z"),
    )


def gradient_changed(tl, model):
    gradients = []
    zero = lambda gradient, hook: torch.zeros_like(gradient)  # noqa: E731
    keep = lambda gradient, hook: gradients.append(gradient.detach().clone())  # noqa: E731
    hooks = [("blocks.1.hook_mlp_out", zero), ("blocks.0.hook_resid_post", keep)]
    loss = model.run_with_hooks(ids(), return_type="loss", bwd_hooks=hooks, reset_hooks_end=False)
    loss.backward()
    model.reset_hooks()
    model.zero_grad()
    return gradients


# -------------------------------------------------------------------------------------------------------------- weights


def weights_by_name(tl, model):
    names = (
        "W_E",
        "W_U",
        "b_U",
        "W_Q",
        "W_K",
        "W_V",
        "W_O",
        "b_Q",
        "b_K",
        "b_V",
        "b_O",
        "W_in",
        "W_out",
        "b_in",
        "b_out",
    )
    return {name: getattr(model, name) for name in names}, model.W_gate


def weights_of_parts(tl, model):
    block = model.blocks[1]
    attention = block.attn.W_Q, block.attn.W_K, block.attn.W_O, block.attn.b_V, block.attn.b_O
    return attention, block.mlp.W_in, block.mlp.b_out, model.embed.W_E, model.unembed.W_U, model.unembed.b_U


def parts_as_functions(tl, model):
    _, cache = model.run_with_cache(ids())
    stream = cache["resid_post", 1]
    return model.unembed(model.ln_final(stream)), model.blocks[1].mlp(cache["normalized", 1, "ln2"])


def circuits(tl, model):
    head = model.OV[1, 2]
    full = model.W_E @ head @ model.W_U
    return model.QK.AB, head.AB, full.AB, model.blocks[0].attn.OV.AB, head.norm(), model.OV.shape


def eigenvalue_copying_score(tl, model):
    eigenvalues = (model.W_E @ model.OV @ model.W_U).eigenvalues
    return eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)


def singular_values(tl, model):
    _, values, _ = model.OV.svd()
    return values, model.QK.S, tl.FactoredMatrix(torch.eye(3), torch.ones(3, 4)).AB


def composition(tl, model):
    scores = [model.all_composition_scores(mode) for mode in "QKV"]
    return scores, model.all_head_labels() if callable(model.all_head_labels) else model.all_head_labels


def biases_so_far(tl, model):
    return (
        model.accumulated_bias(1),
        model.accumulated_bias(1, mlp_input=True),
        model.accumulated_bias(2, include_mlp_biases=False),
    )


def configuration(tl, model):
    cfg = model.cfg
    sizes = cfg.n_layers, cfg.n_heads, cfg.d_head, cfg.d_model, cfg.d_mlp, cfg.d_vocab, cfg.n_ctx, cfg.n_key_value_heads
    kinds = cfg.act_fn, cfg.normalization_type, cfg.positional_embedding_type, cfg.attn_only, cfg.gated_mlp
    return sizes, kinds, str(cfg.device), cfg.dtype, float(cfg.attn_scale), cfg.default_prepend_bos, cfg.n_params


# ------------------------------------------------------------------------------------------------------------- patching


def sweeps(tl, model, *names):
    _, clean = model.run_with_cache(ids(0, 2, 5))
    run = [getattr(tl.patching, f"get_act_patch_{name}") for name in names]
    return [sweep(model, ids(1, 2, 5), clean, last_logit_diff) for sweep in run]


def patched_stream(tl, model):
    return sweeps(tl, model, "resid_pre", "resid_mid", "attn_out", "mlp_out")


def patched_heads(tl, model):
    kinds = ("out", "q", "k", "v", "pattern")
    return sweeps(tl, model, *(f"attn_head_{kind}_all_pos" for kind in kinds))


def patched_heads_by_position(tl, model):
    return sweeps(tl, model, *(f"attn_head_{kind}_by_pos" for kind in ("out", "q", "k", "v", "pattern")))


def patched_by_everything(tl, model):
    return sweeps(tl, model, "block_every", "attn_head_all_pos_every", "attn_head_by_pos_every")


def patched_as_asked(tl, model):
    _, clean = model.run_with_cache(ids(0, 2, 5))

    def swap(corrupted, index, clean_value):
        corrupted[:, index[1]] = 2 * clean_value[:, index[1]]
        return corrupted

    options = {"patch_setter": swap, "activation_name": "mlp_out", "index_axis_names": ("layer", "pos")}
    result, frame = tl.patching.generic_activation_patch(
        model, ids(1, 2, 5), clean, last_logit_diff, return_index_df=True, **options
    )
    return result, frame.to_numpy().tolist(), list(frame.columns)


CASES = [
    head_ablation,
    hook_that_returns_nothing,
    patched_position,
    induction_scores,
    pattern_edited,
    hooks_in_a_block,
    hooks_that_stay,
    hooks_at_a_point,
    order_of_hooks,
    gradients_by_backward_hooks,
    gradient_changed,
    weights_by_name,
    weights_of_parts,
    parts_as_functions,
    circuits,
    eigenvalue_copying_score,
    singular_values,
    composition,
    biases_so_far,
    configuration,
    patched_stream,
    patched_heads,
    patched_heads_by_position,
    patched_by_everything,
    patched_as_asked,
]


@pytest.mark.parametrize("call", CASES, ids=lambda call: call.__name__)
def test_call_site(call: Any, same: Any) -> None:
    same(call)
