"""config.json of released models (the keys that count): the number of parameters is the published one.

No weights are needed: the modules are made over memory that is never touched.
"""

from typing import Any

import pytest
import torch

from interp.model import HookedTransformer, ModelConfig
from interp.weights.families import family_of

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
RELEASED: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (
        124_439_808,
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
    ),
    "pythia-70m": (
        70_426_624,
        {
            "model_type": "gpt_neox", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
            "intermediate_size": 2048, "vocab_size": 50304, "max_position_embeddings": 2048, "rotary_pct": 0.25,
            "rotary_emb_base": 10000, "use_parallel_residual": True, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
    ),
    "gpt-j-6b": (
        6_050_882_784,
        {
            "model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "rotary_dim": 64,
            "vocab_size": 50400, "activation_function": "gelu_new", "tie_word_embeddings": False,
        },
    ),
    "bloom-560m": (
        559_214_592,
        {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
    ),
    "falcon-7b": (
        6_921_720_704,
        {
            "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "alibi": False, "bias": False,
            "vocab_size": 65024,
        },
    ),
    "Llama-2-7b": (
        6_738_415_616,
        {
            "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096, "rope_scaling": None,
        },
    ),
    "Llama-3.2-1B": (
        1_235_814_400,
        {
            "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
            "rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 8192},
            "tie_word_embeddings": True,
        },
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        {
            "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
            "max_position_embeddings": 32768,
        },
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        {
            "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
            "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "rope_theta": 1000000.0,
            "max_position_embeddings": 32768, "sliding_window": 32768, "use_sliding_window": False,
            "max_window_layers": 24, "tie_word_embeddings": True,
        },
    ),
    "Qwen3-0.6B": (
        596_049_920,
        {
            "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
            "max_position_embeddings": 40960, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
            "max_window_layers": 28, "attention_bias": False, "tie_word_embeddings": True,
        },
    ),
    "gemma-2b": (
        2_506_172_416,
        {
            "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000,
            "hidden_act": "gelu", "hidden_activation": None, "max_position_embeddings": 8192,
        },
    ),
    "gemma-2-2b": (
        2_614_341_888,
        {
            "model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216, "vocab_size": 256000,
            "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "cache_implementation": "hybrid",
        },
    ),
    "gemma-3-1b": (
        999_885_952,
        {
            "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144,
            "max_position_embeddings": 32768, "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None,
            "sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
        },
    ),
    "Phi-3-mini-4k": (
        3_821_079_552,
        {
            "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096, "sliding_window": 2047, "rope_scaling": None,
        },
    ),
    "OLMo-2-1B": (
        1_484_916_736,
        {
            "model_type": "olmo2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_key_value_heads": 16, "intermediate_size": 8192, "vocab_size": 100352, "rope_theta": 500000,
            "max_position_embeddings": 4096, "tie_word_embeddings": False,
        },
    ),
    "bert-base-uncased": (
        109_514_298,
        {
            "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512,
            "type_vocab_size": 2,
        },
    ),
}  # fmt: skip


def configured(name: str) -> ModelConfig:
    config = RELEASED[name][1]
    return family_of(config, name).configure(config, name)


@pytest.mark.parametrize("name", RELEASED)
def test_as_many_parameters_as_published(name: str) -> None:
    with torch.device("meta"):  # shapes alone: the largest has 7 billion parameters
        model = HookedTransformer(configured(name), dtype=torch.bfloat16)
    assert model.n_params == RELEASED[name][0]


def test_windows_and_rotations() -> None:
    llama, gemma = configured("Llama-3.2-1B"), configured("gemma-3-1b")
    assert llama.rope_scaling is not None
    assert (llama.rope_scaling.kind, llama.rope_scaling.original_n_ctx, llama.rope_theta) == ("llama3", 8192, 500000.0)
    assert [layer for layer in range(26) if not gemma.has_window(layer)] == [5, 11, 17, 23]
    assert (gemma.window, gemma.rope_theta, gemma.rope_theta_local) == (512, 1e6, 1e4)
    assert configured("Qwen2.5-0.5B").window is None
    assert configured("Mistral-7B-v0.1").window_layers is None
    assert configured("gemma-2-2b").window_layers == tuple(range(0, 26, 2))
