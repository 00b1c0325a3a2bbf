"""The gradient of one number at any sites, while the weights stay frozen.

Sites that are copies of the stream (`q_input`, `mlp_in` ...) have a norm of their own once they stand in the graph, and so
take the place of the stream that other sites make values from: they are asked for in passes of their own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp import sites as site_names
from interp.hooks import Request, attached
from interp.model.activations import ActivationCache

if TYPE_CHECKING:
    from interp.model.transformer import HookedTransformer

COPIES = (("attn_in",), ("q_input", "k_input", "v_input", "mlp_in"))
"""Kinds that are asked for together, apart from all others."""


def gradients(
    model: "HookedTransformer", metric: Callable[[Tensor], Tensor], x: Any, sites: Any, **options: Any
) -> tuple[Tensor, ActivationCache]:
    """See `HookedTransformer.grad`."""
    names = model.expand_sites(sites)
    if not names:
        raise ValueError("no sites were named: the gradient must be asked for somewhere")
    groups = [[name for name in names if site_names.kind_of(name).kind in kinds] for kinds in COPIES]
    groups.append([name for name in names if not any(name in group for group in groups)])
    number, tokens, found = None, None, {}
    for group in groups:
        if group:
            number, tokens, values = _one_pass(model, metric, x, group, options)
            found |= values
    assert number is not None
    assert tokens is not None
    ordered = {name: found[name] for name in names}
    return number, ActivationCache(ordered, tokens, model.site_names, model)


def _one_pass(
    model: "HookedTransformer", metric: Callable[[Tensor], Tensor], x: Any, names: list[str], options: dict[str, Any]
) -> tuple[Tensor, Any, dict[str, Tensor]]:
    values: dict[str, Tensor] = {}
    readers: list[tuple[str, Callable[..., Any], str]] = [
        (name, lambda value, ctx: values.__setitem__(ctx.name, value), "keep") for name in names
    ]
    with torch.enable_grad(), attached(model.hook_dict, Request(readers), model.run):
        logits, cache = model.run_with_cache(x, [], **options)
        number = metric(logits) if logits is not None else None
        if not isinstance(number, Tensor) or number.numel() != 1 or not number.requires_grad:
            raise ValueError("the metric must return one number that is computed from the logits by torch operations")
        found = torch.autograd.grad(number.reshape(()), [values[name] for name in names], allow_unused=True)
    return (
        number.detach(),
        cache.tokens,
        {
            name: torch.zeros_like(values[name]) if gradient is None else gradient
            for name, gradient in zip(names, found, strict=True)
        },
    )
