"""A TransformerBridge (TransformerLens 3.x) as ours: the Hugging Face model that it wraps, through our own loader.

The bridge puts components of its own around the modules of the model and beside them, so the state has longer names and
more of them. The model's class, built without memory, says which names are the checkpoint's. These are written as a
folder, and `interp.load` reads it: what a family needs (gains of 1 + weight, fused projections) stands there alone.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from interp.model import HookedTransformer
from interp.weights.load import load

WRAPPER = "._original_component"
"""What the bridge puts into the names."""


def is_bridge(tl_model: Any) -> bool:
    """Whether a model of TransformerLens wraps one of transformers."""
    return hasattr(tl_model, "original_model") and hasattr(tl_model, "cfg")


def from_bridge(bridge: Any) -> HookedTransformer:
    """Our model with the weights of the model that a bridge wraps.

    Raises:
        ValueError: weights that the bridge has processed, names that are not the checkpoint's, or a family that
            `interp.load` does not read.
    """
    if getattr(bridge, "compatibility_mode", False) or getattr(bridge, "_weights_processed", False):
        raise ValueError(
            "this TransformerBridge has processed its weights (enable_compatibility_mode, process_weights): convert it "
            "before, and call interp.model.processed.processed on the result"
        )
    theirs = bridge.original_model
    with torch.device("meta"):
        names = set(type(theirs)(theirs.config).state_dict())
    if getattr(theirs.config, "tie_word_embeddings", False):
        names -= set(getattr(type(theirs), "_tied_weights_keys", None) or ())
    found = {name.replace(WRAPPER, ""): tensor for name, tensor in theirs.state_dict().items()}
    missing = sorted(names - set(found))
    if missing:
        raise ValueError(
            f"{type(theirs).__name__} in this TransformerBridge has no {missing[0]} ({len(missing)} names are missing); "
            "load its checkpoint itself, interp.load(folder or hub id)"
        )
    state = {name: found[name].detach().cpu().clone().contiguous() for name in sorted(names)}
    dtype = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    with tempfile.TemporaryDirectory() as folder:
        config = {**theirs.config.to_dict(), "architectures": [type(theirs).__name__]}
        (Path(folder) / "config.json").write_text(json.dumps(config, default=str), "utf-8")
        save_file(state, Path(folder) / "model.safetensors")
        if getattr(bridge.tokenizer, "is_fast", False):
            bridge.tokenizer.save_pretrained(folder)
        model = load(folder, dtype=dtype)
        # Loaded weights are views of the file, which goes away.
        owned = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(owned, assign=True)
    model.requires_grad_(False)
    model.note = "from a TransformerBridge"
    return model
