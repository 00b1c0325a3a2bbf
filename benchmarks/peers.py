"""The same weights in other libraries: transformers, TransformerLens' bridge, nnsight. All from the converted folder."""

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


def traced(model: Any) -> Any:
    """nnsight around transformers' model."""
    from nnsight import NNsight  # pyright: ignore[reportMissingImports]

    return NNsight(model)
