"""What TransformerLens has and this module does not, and what to use for it: a name that is asked for says so.

Only names that TransformerLens really has stand here; any other is the usual AttributeError.
"""

from collections.abc import Callable, Mapping
from typing import Any

HOOKS = "model.add_hook, model.hooks or model.run_with_cache"
PROCESSED = "from_pretrained's options, or interp.model.processed.processed(model.native, ...)"
ENCODERS = "interp.load(folder), whose BERT has sites and hooks"
DATASETS = "interp.load_corpus(path) for texts in a file"

MODULE = {
    "BertNextSentencePrediction": ENCODERS,
    "HookedAudioEncoder": "nothing: no audio model is read",
    "HookedEncoder": ENCODERS,
    "HookedEncoderDecoder": "nothing: no encoder-decoder is read",
    "HookedRootModule": "HookedTransformer, or torch's own hooks for another module",
    "HookedTransformerKeyValueCache": "model.native.generate, which keeps its own cache",
    "SVDInterpreter": "model.OV.svd() and model.QK.svd(), read through model.W_U",
    "TransformerBridgeConfig": "HookedTransformerConfig",
    "TransformerLensKeyValueCache": "model.native.generate, which keeps its own cache",
    "TransformerLensKeyValueCacheEntry": "model.native.generate, which keeps its own cache",
    "components": "model.blocks[0].attn, .mlp and .ln1 for the weights of a part",
    "evals": "model(tokens, return_type='loss') on your own texts",
    "factories": "interp.families() for what is read",
    "loading": "interp.load and interp.models()",
    "loading_from_pretrained": "interp.load and interp.models()",
    "supported_models": "interp.families() for what is read",
    "train": "interp.train_model",
}
"""Of the package."""
UTILS = {
    "calc_fan_in_and_fan_out": "torch.nn.init",
    "check_structure": "the shapes themselves",
    "clear_huggingface_cache": "`hf cache delete`",
    "download_file_from_hf": "huggingface_hub.hf_hub_download",
    "get_dataset": DATASETS,
    "get_offset_position_ids": "Tokens(ids, mask): positions count real tokens",
    "init_kaiming_normal_": "torch.nn.init",
    "init_kaiming_uniform_": "torch.nn.init",
    "init_xavier_normal_": "torch.nn.init",
    "init_xavier_uniform_": "torch.nn.init",
    "keep_single_column": DATASETS,
    "print_gpu_mem": "torch.cuda.memory_summary()",
    "tokenize_and_concatenate": f"{DATASETS}, and interp.pack_documents for batches of full length",
}
"""Of `utils`."""
MODEL = {
    "add_caching_hooks": HOOKS,
    "cache_all": HOOKS,
    "cache_some": HOOKS,
    "center_unembed": PROCESSED,
    "center_writing_weights": PROCESSED,
    "check_and_add_hook": HOOKS,
    "check_hooks_to_add": HOOKS,
    "fold_layer_norm": PROCESSED,
    "fold_value_biases": PROCESSED,
    "generate_stream": "model.generate",
    "get_caching_hooks": HOOKS,
    "get_residual": "model.run_with_cache(x, names_filter='resid_pre:0')",
    "init_weights": "HookedTransformer(cfg), which draws the weights",
    "input_to_embed": "model.run_with_cache(x, names_filter=['hook_embed', 'resid_pre:0'])",
    "load_and_process_state_dict": f"model.load_state_dict, and {PROCESSED}",
    "load_sample_training_dataset": DATASETS,
    "move_model_modules_to_device": "model.to(device)",
    "mps": "model.to('mps')",
    "process_weights_": PROCESSED,
    "refactor_factored_attn_matrices": "model.OV and model.QK, which are factored without a change of weights",
    "sample_datapoint": DATASETS,
    "set_tokenizer": "HookedTransformer(cfg, tokenizer)",
    "set_ungroup_grouped_query_attention": "model.W_K and model.W_V, which have a row for every query head already",
}
"""Of a HookedTransformer."""
CACHE = {
    "compute_ssm_effective_attention": "nothing: no state-space model is read",
    "compute_ssm_state": "nothing: no state-space model is read",
    "ssm_layers": "nothing: no state-space model is read",
    "toggle_autodiff": "torch.no_grad() around the code, or torch.enable_grad()",
}
"""Of an ActivationCache."""


class NotOffered(ImportError):
    """A name of TransformerLens that is not offered; an ImportError, so that `from ... import name` shows the message."""


def not_offered(absent: Mapping[str, str], where: str) -> Callable[[str], Any]:
    """A module's `__getattr__`.

    Args:
        absent: name -> what to use for it.
        where: the module's name.
    """

    def __getattr__(name: str) -> Any:
        if name in absent:
            raise NotOffered(message(name, absent))
        raise AttributeError(f"module {where!r} has no attribute {name!r}")

    return __getattr__


def message(name: str, absent: Mapping[str, str]) -> str:
    """That a name is not offered, and what is."""
    return f"TransformerLens' {name} is not offered here; use {absent[name]}"
