"""The comparison with transformers: that it sees mistakes, and what it says of the real model.

Each family's own comparison is in tests/interp/weights/test_<family>.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, IDS, assert_equal, check_parity, lifted_casts, our_layers, run_reference, shaken
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import interp
from interp.model import HookedTransformer


def reference(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return shaken(LlamaForCausalLM(LlamaConfig(**{**DECODER, **changes})))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"rms_norm_eps": 1e-4}, "logits"),
        ({"rope_theta": 10001.0, "rope_parameters": None}, "logits"),
        ({"hidden_act": "gelu"}, "logits"),
        ({"num_hidden_layers": 2}, "do not fit"),
    ],
)
def test_a_wrong_constant_is_seen(mistake: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ValueError), match=words):
        check_parity(reference(), tmp_path, casts=True, config_changes=mistake)


def test_a_wrong_mask_is_seen(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    ours = interp.load(str(tmp_path))
    expected = run_reference(theirs, IDS)
    with (
        ours.hooks({"attn_scores:*": lambda value, ctx: value.nan_to_num(neginf=0.0)}),
        pytest.raises(AssertionError, match="logits"),
    ):
        assert_equal(our_layers(ours, IDS), expected, 1e-5)


def test_a_wrong_layer_is_seen_where_the_logits_agree() -> None:
    logits, layer = torch.zeros(1, 2, 3), torch.tensor([[[1e-4, 0.0], [1e3, 0.0]]])
    assert_equal((logits, [layer]), (logits, [layer.clone()]), 1e-5)
    with pytest.raises(AssertionError, match=r"layer 0: 1.*e-04 absolute"):
        assert_equal((logits, [layer]), (logits, [layer + 1e-4]), 1e-5)
    with pytest.raises(AssertionError, match="of the row's norm"):
        assert_equal((logits, [layer]), (logits, [layer + torch.tensor([[[5e-6, 0.0], [0.0, 0.0]]])]), 1e-5)


def test_lifting_the_casts_takes_them_all_away() -> None:
    theirs = reference().double()
    _, plain = run_reference(theirs, IDS)
    with lifted_casts():
        _, lifted = run_reference(theirs, IDS)
        seen = torch.ones(3, dtype=torch.float64).float().dtype
    assert seen == torch.float64
    assert 1e-9 < float((plain[-1] - lifted[-1]).abs().max()) < 1e-4


@pytest.mark.slow
def test_the_real_model_layer_by_layer(smollm: HookedTransformer, catalogue_folder: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(catalogue_folder, attn_implementation="eager", dtype=torch.float32)
    text = (
        "The Eiffel Tower is located in the city of Paris. In 1889 it was the tallest structure of the world; engineers "
        "doubted it, painters hated it.\n\ndef fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)"
    )
    ids = torch.tensor([smollm.tokenizer.encode(text)])
    logits, resid = run_reference(reference.eval(), ids)
    with torch.no_grad():
        own, cache = smollm.run_with_cache(ids, sites="resid_post:*")
    worst = max(
        float(((cache["resid_post", layer] - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
        for layer, expected in enumerate(resid)
    )
    assert worst < 2e-5
    assert float((own - logits).abs().max()) < 2e-4


@pytest.mark.slow
def test_greedy_text_equals_transformers_generate(smollm: HookedTransformer, catalogue_folder: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(catalogue_folder, dtype=torch.float32)
    prompt = "Once upon a time there was a small town"
    ids = torch.tensor([smollm.tokenizer.encode(prompt)])
    expected = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert smollm.generate(prompt, 24, stop_at_eos=False).tokens == expected[0, ids.shape[1] :].tolist()


def test_the_real_model_knows_where_the_tower_stands(smollm: HookedTransformer) -> None:
    probabilities = smollm("The Eiffel Tower is located in the city of").last[0].softmax(-1)
    for token, expected in ((" Paris", 0.702), (" Mont", 0.029), (" Mar", 0.028)):
        assert float(probabilities[smollm.tokenizer.to_single_token(token)]) == pytest.approx(expected, abs=0.005)
