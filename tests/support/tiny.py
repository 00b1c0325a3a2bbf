"""Tiny random models and a byte tokenizer, so that most tests need neither weights nor a network."""

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from interp.model import Experts, HookedTransformer, Latent, ModelConfig, RopeScaling
from interp.tokens import Tokenizer

GPT2 = {
    "norm": "layer",
    "positional": "learned",
    "act_fn": "gelu_new",
    "gated_mlp": False,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "n_kv_heads": 4,
}
LLAMA = {"norm": "rms", "positional": "rope", "act_fn": "silu", "gated_mlp": True}
ROTARY = {**GPT2, "positional": "rope", "rotary_dim": 4, "parallel": True, "tie_embeddings": False, "act_fn": "gelu"}
GEMMA = {
    **LLAMA,
    "act_fn": "gelu_new",
    "norm_offset": True,
    "norm_placement": "sandwich",
    "embed_scale": 32**0.5,
    "window": 6,
}
FAMILIES = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "neox": ROTARY,
    "gptj": {**ROTARY, "shared_norm": True, "rope_pairing": "adjacent", "qkv_bias": False, "unembed_bias": True},
    "bloom": {**GPT2, "positional": "alibi", "embed_norm": "token"},
    "falcon": {
        **GPT2, "positional": "alibi", "alibi_scaled": True, "parallel": True, "shared_norm": True, "n_kv_heads": 1,
    },
    "mistral": {**LLAMA, "window": 5},
    "gemma2": {
        **GEMMA, "window_layers": (0,), "attn_softcap": 5.0, "final_softcap": 8.0, "attn_scale": 0.2, "rope_theta": 500.0,
    },
    "gemma3": {**GEMMA, "window_layers": (1,), "qk_norm": "head", "rope_theta_local": 100.0},
    "olmo2": {**LLAMA, "norm_placement": "post", "qk_norm": "full"},
    "mixtral": {**LLAMA, "experts": Experts(n_experts=4, top_k=2, d_expert=48), "window": 40},
    "deepseek": {
        **LLAMA,
        "n_kv_heads": 4,
        "d_head": 12,
        "rope_pairing": "adjacent",
        "latent": Latent(kv_rank=16, d_rope=4, d_v=10, q_rank=24),
        "experts": Experts(
            n_experts=8, top_k=2, d_expert=24, n_shared=1, score="sigmoid", scale=1.5, bias=True, n_groups=4, top_groups=2,
            layers=(1,),
        ),
    },
    "dynamic": {**LLAMA, "rope_scaling": RopeScaling("dynamic", 4.0, original_n_ctx=8)},
    "bert": {
        **GPT2, "norm_placement": "post_ln", "causal": False, "embed_norm": "sum", "n_token_types": 2, "mlm_head": True,
        "unembed_bias": True, "final_norm": False, "act_fn": "gelu",
    },
    "sinusoidal": {**GPT2, "positional": "sinusoidal", "d_mlp": 0},
    "bare": {**LLAMA, "norm": "none", "positional": "none", "d_mlp": 0},
}  # fmt: skip
"""The arrangements that released models have, and two toys: name -> fields of a ModelConfig."""


def byte_tokenizer() -> Tokenizer:
    """256 bytes, `<|end|>` (256) and `<|pad|>` (257); adds no BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)} | {"<|end|>": 256, "<|pad|>": 257}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|pad|>"])
    return Tokenizer(backend, bos_id=None, eos_id=256, pad_id=257, special_ids=[256, 257], name="bytes")


def tiny_config(family: str = "llama", **changes: object) -> ModelConfig:
    """A configuration of two layers and four heads (two of keys and values); `changes` replace fields."""
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "d_head": 8}
    rest = {"d_mlp": 64, "d_vocab": 258, "n_ctx": 128, "family": family, "name": f"tiny-{family}"}
    return ModelConfig(**{**sizes, **rest, **FAMILIES[family], **changes})  # type: ignore[arg-type]


def tiny_model(family: str = "llama", seed: int = 0, scale: float = 8.0, **changes: object) -> HookedTransformer:
    """A random model with the byte tokenizer. `scale` enlarges the weights so that attention is not flat."""
    model = HookedTransformer(tiny_config(family, **changes), byte_tokenizer(), seed=seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.mul_(scale)
    return model


def shaken_model(family: str, seed: int = 0, **changes: object) -> HookedTransformer:
    """The same with gains and biases away from 1 and 0, which would hide mistakes."""
    model = tiny_model(family, seed, **changes)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return model
