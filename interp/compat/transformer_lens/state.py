"""`state_dict` and `load_state_dict` by TransformerLens' names and in its layout, so that its checkpoints go both ways."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interp.compat.transformer_lens.utils import get_nested_attr, set_nested_attr

BUFFERS = ("attn.mask", "attn.IGNORE", "attn.rotary_sin", "attn.rotary_cos")
"""What TransformerLens keeps in a state beside the weights."""


def weight_names(model: Any) -> list[str]:
    """Names of a model's weights as TransformerLens has them; zero biases have one, gains that are folded have none."""
    cfg = model.cfg
    norm = {"LN": ("w", "b"), "RMS": ("w",)}.get(cfg.normalization_type, ())
    own = "_" if cfg.n_key_value_heads is not None else ""
    attention = ["W_Q", f"{own}W_K", f"{own}W_V", "W_O", "b_Q", f"{own}b_K", f"{own}b_V", "b_O"]
    mlp = ["W_in", *(["W_gate"] if cfg.gated_mlp else []), "W_out", "b_in", "b_out"]
    names = ["embed.W_E", *(["pos_embed.W_pos"] if cfg.positional_embedding_type == "standard" else [])]
    for layer in range(cfg.n_layers):
        block = [f"attn.{name}" for name in attention] + [f"ln1.{part}" for part in norm]
        if not cfg.attn_only:
            block += [f"mlp.{name}" for name in mlp] + [f"ln2.{part}" for part in norm]
        names += [f"blocks.{layer}.{name}" for name in block]
    return [*names, *(f"ln_final.{part}" for part in norm), "unembed.W_U", "unembed.b_U"]


def read_state(model: Any) -> dict[str, Tensor]:
    """Every weight by name, detached; views where they can be."""
    return {name: get_nested_attr(model, name).detach() for name in weight_names(model)}


@torch.no_grad()
def write_state(model: Any, state: Mapping[str, Tensor], strict: bool = True) -> tuple[list[str], list[str]]:
    """Copy weights into a model; (names that the state lacks, names that it has besides).

    Args:
        model: of this module.
        state: of `read_state`, or TransformerLens' own.
        strict: refuse a state that lacks weights or has more. Its buffers are passed over either way.

    Raises:
        ValueError: names or shapes that do not fit, or a bias that is not zero and that the model does not have.
    """
    names = weight_names(model)
    given = {name: value for name, value in state.items() if not name.endswith(BUFFERS)}
    missing, unknown = sorted(set(names) - set(given)), sorted(set(given) - set(names))
    if strict and (missing or unknown):
        raise ValueError(f"the state does not fit the model: it lacks {missing[:5]} and has {unknown[:5]} besides")
    for name in names:
        if name not in given:
            continue
        value, bias = given[name], name.rpartition(".")[2].lstrip("_").startswith("b_")
        if bias and not value.any() and not get_nested_attr(model, name).any():
            continue  # zero already, perhaps because there is none
        set_nested_attr(model, name, value.to(model.native.device))
    return missing, unknown
