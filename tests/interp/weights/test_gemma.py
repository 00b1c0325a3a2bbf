"""Gemma against transformers: norms of gain 1 + weight, the scaled embedding, and its two words for one activation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, IDS, check_parity, shaken
from transformers import GemmaConfig, GemmaForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from interp.model.norm import Norm
from interp.weights.gemma import configure
from interp.weights.load import load

CASES: dict[str, dict[str, Any]] = {
    "multi-head": {"num_key_value_heads": 4, "head_dim": 8},
    "grouped, wide heads": {"head_dim": 16, "rms_norm_eps": 1e-2},
    "multi-query, biases": {"num_key_value_heads": 1, "head_dim": 8, "attention_bias": True},
    "untied": {"head_dim": 8, "tie_word_embeddings": False},
}


def reference(**changes: Any) -> GemmaForCausalLM:
    torch.manual_seed(0)
    return shaken(GemmaForCausalLM(GemmaConfig(**{**DECODER, **changes})))


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = check_parity(reference(**changes), tmp_path, casts=True)
    assert (ours.cfg.norm_offset, ours.cfg.act_fn, ours.cfg.family) == (True, "gelu_new", "gemma")
    assert ours.cfg.tie_embeddings == changes.get("tie_word_embeddings", True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_embeddings_scale_is_rounded_to_the_weights_precision(dtype: str, tmp_path: Path) -> None:
    theirs = reference(head_dim=8)
    theirs.save_pretrained(tmp_path)
    _, cache = load(tmp_path, dtype=dtype).run_with_cache(IDS, ["hook_embed"], stop_at_layer=0)
    with torch.no_grad():
        expected = theirs.to(getattr(torch, dtype)).model.embed_tokens(IDS)
        assert torch.equal(cache["hook_embed"], expected)
        exact = (theirs.model.embed_tokens.weight[IDS].double() * 32**0.5).to(expected.dtype)
    assert not torch.equal(exact, expected), "the rounding is visible"


def test_the_1_of_the_gain_is_added_in_fp32() -> None:
    """1 + 3/256 lies between two numbers of bf16: added there, the norm of this row would be 195/128."""
    norm = Norm(2, "rms", 0.0, torch.bfloat16, offset=True)
    with torch.no_grad():
        norm.weight.fill_(3 / 256)
        theirs = GemmaRMSNorm(2, eps=0.0).bfloat16()
        theirs.weight.fill_(3 / 256)
        normalized = torch.full((1, 2), 1.5, dtype=torch.bfloat16)
        assert norm.gain(normalized)[0, 0] == 194 / 128
        row = torch.tensor([[3.0, 3.0]], dtype=torch.bfloat16)
        assert torch.equal(norm(row), theirs(row))


@pytest.mark.parametrize(
    "names",
    [
        {"hidden_act": "gelu"},
        {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"},
        {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None},
        {},
    ],
)
def test_every_release_meant_the_tanh_approximation(names: dict[str, Any]) -> None:
    assert configure({**DECODER, **names}, "tiny").act_fn == "gelu_new"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation='silu' and hidden_act='gelu_pytorch_tanh'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**DECODER, **changes}, "tiny")
