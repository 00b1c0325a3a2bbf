"""Tiny random models and a byte tokenizer, so that most tests need neither weights nor a network."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from interp.model import HookedTransformer, ModelConfig
from interp.tokens import Tokenizer

FAMILIES = {
    "llama": {"norm": "rms", "positional": "rope", "act_fn": "silu", "gated_mlp": True},
    "gpt2": {
        "norm": "layer",
        "positional": "learned",
        "act_fn": "gelu_new",
        "gated_mlp": False,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
    },
}


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
    """A configuration of two layers and four heads; `changes` replace fields."""
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "n_kv_heads": 2 if family == "llama" else 4, "d_head": 8}
    rest = {"d_mlp": 64, "d_vocab": 258, "n_ctx": 128, "family": family, "name": f"tiny-{family}"}
    return ModelConfig(**{**sizes, **rest, **FAMILIES[family], **changes})  # type: ignore[arg-type]


def tiny_model(family: str = "llama", seed: int = 0, scale: float = 8.0, **changes: object) -> HookedTransformer:
    """A random model with the byte tokenizer. `scale` enlarges the weights so that attention is not flat."""
    model = HookedTransformer(tiny_config(family, **changes), byte_tokenizer(), seed=seed)
    for name, weight in model.named_parameters():
        if ".ln" not in name and not name.startswith("ln_final"):
            weight.mul_(scale)
    return model
