"""A store of a tiny model with all three kinds of rows that are not typical, and an SAE for it."""

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.dataset import Example
from interp.model import HookedTransformer
from interp.recording import record
from interp.sae import SAE, SAEConfig, train_sae
from interp.store import Store

SITE = "blocks.1.hook_resid_post"
WORDS = ("river", "stone", "lantern", "cloud", "# sharp", "seven", "<|end|>", "green", "Paris", "hollow")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Sixty short texts."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=rng.integers(4, 12))) for _ in range(60)]


@pytest.fixture(scope="session")
def tiny_llama(texts: list[str]) -> HookedTransformer:
    """Two layers, bytes for tokens, trained until it spells; `#` has a huge embedding, so its rows are outliers."""
    model = tiny_model("llama", scale=2.0, tie_embeddings=False)
    adam = torch.optim.Adam(model.requires_grad_().parameters(), lr=1e-2)
    for _ in range(30):
        adam.zero_grad()
        model.loss(texts[:16]).backward()
        adam.step()
    assert model.tokenizer is not None
    with torch.no_grad():
        model.embed.weight[model.tokenizer.to_single_token("#")] *= 1000
        assert model.loss(texts) < 3.0
    return model.requires_grad_(False)


@pytest.fixture(scope="session")
def store(tiny_llama: HookedTransformer, texts: list[str]) -> Store:
    """Every token of the texts, five texts a group."""
    examples = [Example(text, group=f"group {number // 5}") for number, text in enumerate(texts)]
    return record(tiny_llama, examples, sites="resid_post:*", dtype="float32", progress=False)


@pytest.fixture(scope="session")
def sae(store: Store) -> SAE:
    """Trained for a moment on the store: not good, but not random."""
    return train_sae(store, SAEConfig(k=4, width=64, lr=3e-3, batch_size=128, epochs=6), site="resid_post:1")
