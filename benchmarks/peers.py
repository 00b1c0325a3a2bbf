"""The same weights in other libraries: transformers, TransformerLens, nnsight, SAELens. All from the converted folder."""

from pathlib import Path
from typing import Any

import torch
import transformers

import interp
from interp.weights import catalog


def folder() -> Path:
    """The Hugging Face folder of the catalogue's model, made by `interp.load` if need be."""
    entry = catalog.find("smollm2-135m")
    assert entry is not None
    path = interp.artifact.home() / "models" / entry.name
    if not path.is_dir():
        interp.load("smollm2-135m")
    return path


def reference(dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """transformers' own model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder(), dtype=dtype, attn_implementation=attention)
    return model.eval().requires_grad_(False)


def bridge() -> Any:
    """TransformerLens 3's bridge with its old hook names and raw weights. It computes attention eagerly by design."""
    from transformer_lens.model_bridge import TransformerBridge

    lens = TransformerBridge.boot_transformers(str(folder()), device="cpu", dtype=torch.float32)
    lens.enable_compatibility_mode(no_processing=True)
    return lens


def raw_bridge(dtype: torch.dtype) -> Any:
    """TransformerLens 3's bridge as it comes, which is faster than with the old names."""
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(str(folder()), device="cpu", dtype=dtype).eval().requires_grad_(False)


def hooked_transformer(dtype: torch.dtype) -> Any:
    """TransformerLens' own implementation. Its table of models lacks this one, so it is configured and filled by hand."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions.llama import convert_llama_weights

    theirs = reference(dtype)
    config = theirs.config
    cfg = HookedTransformerConfig(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_ctx=2048,
        d_head=config.head_dim,
        n_heads=config.num_attention_heads,
        n_key_value_heads=config.num_key_value_heads,
        d_mlp=config.intermediate_size,
        d_vocab=config.vocab_size,
        act_fn=config.hidden_act,
        normalization_type="RMS",
        final_rms=True,
        eps=config.rms_norm_eps,
        positional_embedding_type="rotary",
        rotary_dim=config.head_dim,
        rotary_base=int(config.rope_parameters["rope_theta"]),
        gated_mlp=True,
        dtype=dtype,
        device="cpu",
    )
    lens = HookedTransformer(cfg)
    # Buffers (masks, rotary tables) are made by the constructor; every weight must be there.
    missing = lens.load_state_dict(convert_llama_weights(theirs, cfg), strict=False).missing_keys
    assert not (set(missing) & {name for name, _ in lens.named_parameters()}), missing
    return lens.eval().requires_grad_(False)


def traced(model: Any) -> Any:
    """nnsight around transformers' model."""
    from nnsight import NNsight  # pyright: ignore[reportMissingImports]

    return NNsight(model)
