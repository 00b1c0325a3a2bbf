"""TransformerLens, where it is installed, tiny random models of it, and the comparison of a call on it and on ours."""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import byte_tokenizer
from torch import Tensor

from interp.compat import from_transformer_lens
from interp.compat import transformer_lens as ours

PAIRS: dict[str, dict[str, Any]] = {
    "gpt2": {"normalization_type": "LNPre"},
    "llama": {
        "positional_embedding_type": "rotary",
        "normalization_type": "RMSPre",
        "act_fn": "silu",
        "gated_mlp": True,
        "n_key_value_heads": 2,
    },
}
"""Models as `from_pretrained` leaves them: the norms' gains and biases are folded away."""


@pytest.fixture(scope="session")
def lens() -> ModuleType:
    """TransformerLens. Its deprecation warnings, at import and for each model that is made, are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformer_lens")


@pytest.fixture(scope="session")
def make(lens: ModuleType) -> Any:
    """make(tokenizer=None, **options): a tiny random TransformerLens model, every weight drawn, biases too."""

    def build(tokenizer: Any = None, **options: Any) -> Any:
        sizes = {"n_layers": 2, "d_model": 32, "n_ctx": 64, "d_head": 8, "n_heads": 4, "d_vocab": 258, "d_mlp": 48}
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            cfg = lens.HookedTransformerConfig(**{**sizes, "act_fn": "gelu_new", "device": "cpu", "seed": 0, **options})
            model = lens.HookedTransformer(cfg, tokenizer)
            for name, weight in model.named_parameters():
                gain = name.endswith(".w")
                torch.nn.init.normal_(weight, mean=float(gain), std=0.1 if gain or ".b" in name else 0.4)
            return model.eval()

    return build


@pytest.fixture(scope="session")
def hf_tokenizer(lens: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The byte tokenizer as a fast tokenizer of transformers that puts a BOS before a text, read from its own folder."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    transformers = pytest.importorskip("transformers")
    names = {"bos_token": "<|end|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer().backend, **names).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def notebook(lens: ModuleType) -> SimpleNamespace:
    """TransformerLens' modules under the names that notebooks use; `utils` is deprecated there, and the same functions."""
    utils, patching = lens.utilities, lens.patching
    classes = {"ActivationCache": lens.ActivationCache, "FactoredMatrix": lens.FactoredMatrix}
    return SimpleNamespace(utils=utils, patching=patching, detect_head=lens.head_detector.detect_head, **classes)


@pytest.fixture(scope="session", params=PAIRS)
def pair(request: pytest.FixtureRequest, make: Any, hf_tokenizer: Any) -> tuple[Any, Any]:
    """(TransformerLens' model, ours) from the same weights."""
    theirs = make(hf_tokenizer, **PAIRS[request.param])
    if request.param == "llama":  # behind the gate's product our gated MLP has no bias
        for block in theirs.blocks:
            block.mlp.b_in.data.zero_()
    return theirs, ours.HookedTransformer.from_native(from_transformer_lens(theirs))


@pytest.fixture
def same(notebook: SimpleNamespace, pair: tuple[Any, Any]) -> Callable[[Callable[[Any, Any], Any]], None]:
    """same(call): call(library, model) gives the same on both, and leaves no hook behind."""
    theirs, model = pair

    def check(call: Callable[[Any, Any], Any]) -> None:
        assert_same(call(ours, model), call(notebook, theirs), call.__name__)
        assert not any(point.handles for point in model.native.hook_dict.values())

    return check


def assert_same(value: Any, expected: Any, where: str) -> None:
    """Equal, and tensors and arrays to 1e-5: absolute below 1, relative to the largest entry above."""
    if isinstance(expected, Tensor | np.ndarray):
        value, expected = torch.as_tensor(value).detach(), torch.as_tensor(expected).detach()
        assert value.shape == expected.shape, where
        if not expected.is_floating_point() and not expected.is_complex():
            assert torch.equal(value, expected), where
            return
        finite = torch.isfinite(expected)
        assert torch.equal(torch.isfinite(value), finite), where
        if finite.any():
            bound = 1e-5 * max(1.0, float(expected[finite].abs().max()))
            assert (value - expected)[finite].abs().max() < bound, where
    elif isinstance(expected, dict):
        assert set(value) == set(expected), where
        for key in expected:
            assert_same(value[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list | tuple):
        assert len(value) == len(expected), where
        for index, (one, other) in enumerate(zip(value, expected, strict=True)):
            assert_same(one, other, f"{where} [{index}]")
    elif isinstance(expected, float):
        assert value == pytest.approx(expected), where
    else:
        assert value == expected, where
