"""A model as a folder that `interp.load` reads."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_model


def write_model_folder(folder: Path) -> Path:
    """Tiny and random, with a tokenizer; skips the test where transformers is missing."""
    transformers = pytest.importorskip("transformers")
    model = tiny_model("llama")
    cfg = model.cfg
    config = transformers.LlamaConfig(
        vocab_size=cfg.d_vocab, hidden_size=cfg.d_model, intermediate_size=cfg.d_mlp, num_hidden_layers=cfg.n_layers,
        num_attention_heads=cfg.n_heads, num_key_value_heads=cfg.kv_heads, max_position_embeddings=cfg.n_ctx,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    model.tokenizer.save(folder)
    return folder
