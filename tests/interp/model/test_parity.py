"""Every layer against transformers' eager implementation: tiny random configurations, and the real model.

fp64 parity needs transformers' own casts to fp32 (RMSNorm, softmax, rotary table) lifted; a dispatch mode does that, and
the test checks that it changes the result where the family casts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import interp
from interp.model import HookedTransformer

transformers = pytest.importorskip("transformers", reason="parity needs transformers (extra hf)")

IDS = torch.randint(0, 120, (2, 24), generator=torch.Generator().manual_seed(0))


class LiftedCasts(TorchDispatchMode):
    """Turns every cast to fp32 into one to fp64. Works under no_grad, not in inference mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def llama(kv_heads: int, **changes: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=120, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=kv_heads, max_position_embeddings=64, attn_implementation="eager", **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2(kv_heads: int, **changes: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=120, n_embd=32, n_layer=3, n_head=4, n_positions=64, attn_implementation="eager", **changes
    )
    return transformers.GPT2LMHeadModel(config)


CASES: list[tuple[Callable[..., Any], int, dict[str, Any]]] = [
    (llama, 4, {}),
    (llama, 2, {"tie_word_embeddings": True}),
    (llama, 1, {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    (gpt2, 4, {}),
    (gpt2, 4, {"activation_function": "gelu", "n_inner": 80}),
]


def both(
    make: Callable[..., Any], kv: int, changes: dict[str, Any], folder: Path, dtype: str
) -> tuple[HookedTransformer, Any]:
    """The same random weights in our model and in transformers' one."""
    torch.manual_seed(1)
    reference = make(kv, **changes).eval()
    for weight in reference.parameters():
        if weight.ndim == 1:  # gains and biases, which start as ones and zeros and would hide a mistake
            weight.data += 0.1 * torch.randn(weight.shape)
    reference.save_pretrained(folder)
    return interp.load(str(folder), dtype=dtype), reference.to(getattr(torch, dtype))


def layers(reference: Any, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(logits, resid_post of every layer but the last): transformers' last hidden state is normed."""
    with torch.no_grad():
        out = reference(ids, output_hidden_states=True)
    return out.logits, list(out.hidden_states[1:-1])


@pytest.mark.parametrize(("make", "kv", "changes"), CASES)
def test_tiny_models_in_fp32(make: Any, kv: int, changes: dict[str, Any], tmp_path: Path) -> None:
    ours, reference = both(make, kv, changes, tmp_path, "float32")
    logits, resid = layers(reference, IDS)
    own, cache = ours.run_with_cache(IDS)
    torch.testing.assert_close(own.as_subclass(Tensor), logits, atol=1e-5, rtol=0)
    for layer, expected in enumerate(resid):
        found = cache["resid_post", layer]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        assert ((found - expected).norm(dim=-1) <= 1e-5 * expected.norm(dim=-1)).all()


@pytest.mark.parametrize(("make", "kv", "changes"), CASES)
def test_tiny_models_in_fp64(make: Any, kv: int, changes: dict[str, Any], tmp_path: Path) -> None:
    ours, reference = both(make, kv, changes, tmp_path, "float64")
    plain, _ = layers(reference, IDS)
    with LiftedCasts():
        logits, resid = layers(reference, IDS)
    assert make is gpt2 or not torch.equal(plain, logits), "the mode lifted nothing"
    own, cache = ours.run_with_cache(IDS)
    torch.testing.assert_close(own.as_subclass(Tensor), logits, atol=1e-10, rtol=0)
    for layer, expected in enumerate(resid):
        torch.testing.assert_close(cache["resid_post", layer], expected, atol=1e-10, rtol=0)


def test_the_comparison_notices_a_wrong_mask_and_a_wrong_norm(tmp_path: Path) -> None:
    ours, reference = both(llama, 2, {}, tmp_path, "float32")
    logits, _ = layers(reference, IDS)
    ours.ln_final.eps = 1e-2
    assert (ours(IDS) - logits).abs().max() > 1e-4
    ours.ln_final.eps = reference.config.rms_norm_eps
    with ours.hooks({"attn_scores:*": lambda value, ctx: value.nan_to_num(neginf=0.0)}):
        assert (ours(IDS) - logits).abs().max() > 1e-4


def test_padded_batches_equal_transformers_with_its_attention_mask(tmp_path: Path) -> None:
    ours, reference = both(llama, 2, {}, tmp_path, "float32")
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[0, :5] = False
    batch = interp.Tokens(IDS, mask, False, None)
    with torch.no_grad():
        expected = reference(IDS, attention_mask=mask.long(), position_ids=batch.positions).logits
    torch.testing.assert_close(ours(batch)[mask], expected[mask], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_real_model_layer_by_layer(smollm: HookedTransformer, catalogue_folder: Path) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        catalogue_folder, attn_implementation="eager", dtype=torch.float32
    )
    text = (
        "The Eiffel Tower is located in the city of Paris. In 1889 it was the tallest structure of the world; engineers "
        "doubted it, painters hated it.\n\ndef fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)"
    )
    ids = torch.tensor([smollm.tokenizer.encode(text)])
    logits, resid = layers(reference.eval(), ids)
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
    reference = transformers.AutoModelForCausalLM.from_pretrained(catalogue_folder, dtype=torch.float32)
    prompt = "Once upon a time there was a small town"
    ids = torch.tensor([smollm.tokenizer.encode(prompt)])
    expected = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert smollm.generate(prompt, 24, stop_at_eos=False).tokens == expected[0, ids.shape[1] :].tolist()


def test_the_real_model_knows_where_the_tower_stands(smollm: HookedTransformer) -> None:
    probabilities = smollm("The Eiffel Tower is located in the city of").last[0].softmax(-1)
    for token, expected in ((" Paris", 0.702), (" Mont", 0.029), (" Mar", 0.028)):
        assert float(probabilities[smollm.tokenizer.to_single_token(token)]) == pytest.approx(expected, abs=0.005)
