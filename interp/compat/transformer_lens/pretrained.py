"""Pretrained models by TransformerLens' names and options."""

import logging
from typing import Any

import torch

from interp.model import HookedTransformer as NativeTransformer
from interp.model.processed import processed
from interp.weights.load import load

logger = logging.getLogger("interp")

ALIASES = {
    "gpt2-small": "openai-community/gpt2",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distillgpt2": "distilbert/distilgpt2",
    "distilgpt2": "distilbert/distilgpt2",
    "opt-125m": "facebook/opt-125m",
    "opt-1.3b": "facebook/opt-1.3b",
    "opt-2.7b": "facebook/opt-2.7b",
    "gpt-j-6B": "EleutherAI/gpt-j-6B",
    "gpt-neox-20b": "EleutherAI/gpt-neox-20b",
    "gemma-2b": "google/gemma-2b",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-2-9b": "google/gemma-2-9b",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "bloom-560m": "bigscience/bloom-560m",
}
"""Short names of TransformerLens -> hub ids. `pythia-...` stands for EleutherAI/pythia-... ."""
FLAGS = {
    "fold_ln": "fold_ln",
    "center_writing_weights": "center_writing",
    "center_unembed": "center_unembed",
    "fold_value_biases": "fold_value_biases",
}
"""TransformerLens' word -> ours."""
HARMLESS: dict[str, tuple[Any, ...]] = {
    "checkpoint_index": (),
    "checkpoint_label": (),
    "checkpoint_value": (),
    "first_n_layers": (),
    "hf_model": (),
    "load_in_4bit": (False,),
    "move_to_device": (True,),
    "n_ctx": (),
    "n_devices": (1,),
    "refactor_factored_attn_matrices": (False,),
    "tokenizer": (),
    "trust_remote_code": (False,),
}
"""Options of TransformerLens that are not offered -> the values beside None with which they do nothing."""
IGNORED = ("attn_implementation", "low_cpu_mem_usage", "use_fast", "use_safetensors")
"""Options that change how transformers loads a model, and nothing here."""


def load_pretrained(
    model_name: str,
    *,
    fold_ln: bool | None = None,
    center_writing_weights: bool | None = None,
    center_unembed: bool | None = None,
    fold_value_biases: bool | None = None,
    device: Any = None,
    dtype: Any = "float32",
    revision: str | None = None,
    default_prepend_bos: bool | None = None,
    default_padding_side: str | None = None,
    **others: Any,
) -> tuple[NativeTransformer, bool, str | None]:
    """(the model, whether texts get a BOS, side of the pads).

    Args:
        model_name: a short name of TransformerLens, or what `interp.load` takes: catalogue name, folder, hub id.
        fold_ln: the norms' gains and biases go into the weights that read them. None: where the architecture allows.
        center_writing_weights: what writes into the stream has mean zero. None: where the norms are LayerNorms.
        center_unembed: logits have mean zero. None: where no soft-cap stands behind them.
        fold_value_biases: value biases go into the output bias. None: where the architecture allows.
        device: None means cuda where there is one.
        dtype: of the weights.
        revision: commit, tag or branch of a hub id.
        default_prepend_bos: texts begin with a BOS unless a call says otherwise; None means True.
        default_padding_side: "right" or "left".
        others: TransformerLens' further options, at values with which they do nothing.

    Raises:
        ValueError: an unknown model or option, or an option of TransformerLens that is not offered here, by name.
    """
    _refuse(others)
    place = device if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    name = ALIASES.get(model_name, f"EleutherAI/{model_name}" if model_name.startswith("pythia-") else model_name)
    model = load(name, device=place, dtype=dtype, revision=revision)
    wanted = {
        "fold_ln": fold_ln,
        "center_writing": center_writing_weights,
        "center_unembed": center_unembed,
        "fold_value_biases": fold_value_biases,
    }
    if any(value is not False for value in wanted.values()):
        model = processed(model, **wanted)
    return model, default_prepend_bos is not False, default_padding_side


def _refuse(options: dict[str, Any]) -> None:
    ignored = sorted(set(options) & set(IGNORED))
    if ignored:
        logger.info("from_pretrained: %s changes nothing here", ", ".join(ignored))
    unknown = sorted(set(options) - set(HARMLESS) - set(IGNORED))
    if unknown:
        raise ValueError(f"from_pretrained has no option {', '.join(unknown)}: leave it out")
    set_to = sorted(key for key in set(options) & set(HARMLESS) if not _does_nothing(options[key], HARMLESS[key]))
    if set_to:
        raise ValueError(
            f"from_pretrained does not offer {', '.join(set_to)} here; interp.load takes a folder or hub id"
        )


def _does_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    return value is None or any(type(value) is type(other) and value == other for other in harmless)
