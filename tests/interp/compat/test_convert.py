"""from_transformer_lens against TransformerLens itself: logits and every site that both have."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import byte_backend, random_gpt2, random_llama
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from interp.compat import from_transformer_lens
from interp.model.processed import processed

ROTARY = {"positional_embedding_type": "rotary", "normalization_type": "RMS"}
GATED = {**ROTARY, "act_fn": "silu", "gated_mlp": True, "n_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "folded": {"normalization_type": "LNPre"},
    "folded rms": {**ROTARY, "normalization_type": "RMSPre", "act_fn": "gelu"},
    "no norm": {"normalization_type": None, "act_fn": "relu"},
    "attention only": {"attn_only": True},
    "attention only, folded": {"attn_only": True, "normalization_type": "LNPre"},
    "llama": GATED,
    "multi-query": {**GATED, "n_key_value_heads": 1},
    "gpt-j": {
        **ROTARY,
        "normalization_type": "LN",
        "parallel_attn_mlp": True,
        "rotary_dim": 4,
        "rotary_adjacent_pairs": True,
    },
    "neox": {**ROTARY, "normalization_type": "LN", "parallel_attn_mlp": True, "rotary_dim": 4, "act_fn": "gelu_fast"},
    "bloom": {"positional_embedding_type": "alibi", "post_embedding_ln": True},
    "bidirectional": {"attention_dir": "bidirectional"},
    "unscaled": {"use_attn_scale": False},
    "window": {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
    "gemma 2": {
        **GATED,
        "act_fn": "gelu_pytorch_tanh",
        "use_normalization_before_and_after": True,
        "attn_scores_soft_cap": 5.0,
        "output_logits_soft_cap": 4.0,
        "use_local_attn": True,
        "window_size": 4,
        "attn_types": ["local", "global"],
    },
    "gemma 3": {
        **GATED,
        "use_qk_norm": True,
        "rotary_base": 1_000_000,
        "rotary_base_local": 10_000,
        "rotary_scaling_factor": 8.0,
        "use_local_attn": True,
        "window_size": 4,
        "attn_types": ["local", "global"],
    },
    "olmo 2": {**GATED, "n_key_value_heads": None, "original_architecture": "Olmo2ForCausalLM"},
    "llama 3": {**GATED, "use_NTK_by_parts_rope": True, "NTK_original_ctx_len": 16},
    "yarn": {
        **GATED,
        "use_yarn_rope": True,
        "yarn_factor": 4.0,
        "yarn_attention_factor": 1.1,
        "yarn_original_max_position_embeddings": 16,
    },
}


def tokens() -> Tensor:
    return torch.randint(0, 258, (2, 11), generator=torch.Generator().manual_seed(0))


def build(make: Any, name: str) -> Any:
    theirs = make(**MODELS[name])
    if MODELS[name].get("gated_mlp"):  # behind the gate's product our gated MLP has no bias
        for block in theirs.blocks:
            block.mlp.b_in.data.zero_()
    return theirs


def our_name(site: str, name: str) -> str | None:
    """A site of TransformerLens by our name; None for those that it has on top."""
    if any(part in site for part in ("unembed.", "embed.ln.", "q_norm.", "k_norm.")):
        return None
    # OLMo 2 norms what attention and MLP write; TransformerLens calls these norms by the names of those before them.
    return site.replace("ln1.", "ln1_post.").replace("ln2.", "ln2_post.") if name == "olmo 2" else site


@pytest.mark.parametrize("name", MODELS)
def test_every_site_equals_transformerlens(make: Any, name: str) -> None:
    theirs = build(make, name)
    ours = from_transformer_lens(theirs)
    with torch.no_grad():
        expected, cache = theirs.run_with_cache(tokens())
        names = {site: own for site in cache if (own := our_name(site, name)) is not None}
        found, recorded = ours.run_with_cache(tokens(), list(names.values()))
    assert_close(found, expected)
    assert set(names.values()) == set(recorded)
    for site, own in names.items():
        value, reference = recorded[own], cache[site]
        finite = torch.isfinite(reference)
        assert torch.equal(finite, torch.isfinite(value)), site
        if "hook_attn_scores" in site:  # ALiBi: a constant that all scores of a query share changes no pattern
            value, reference = (each - each.amax(-1, keepdim=True) for each in (value, reference))
        assert_close(value[finite], reference[finite], site)


def assert_close(value: Tensor | None, reference: Tensor, what: str = "logits") -> None:
    """1e-5, absolute below 1 and relative above."""
    assert value is not None
    assert (value - reference).abs().max() < 1e-5 * max(1.0, float(reference.abs().max())), what


def test_double_precision(make: Any) -> None:
    theirs = make(dtype=torch.float64)
    with torch.no_grad():
        assert (from_transformer_lens(theirs)(tokens()) - theirs(tokens())).abs().max() < 1e-10


def test_processing_here_and_there(make: Any) -> None:
    """Folded and centred by TransformerLens and then converted, or converted and then folded and centred by us."""
    raw = make()
    state = {name: weight.clone() for name, weight in raw.state_dict().items()}
    theirs = make(normalization_type="LNPre")
    theirs.load_and_process_state_dict(state)
    with torch.no_grad():
        expected, reference = theirs.run_with_cache(tokens())
        for ours in (from_transformer_lens(theirs), processed(from_transformer_lens(raw))):
            logits, cache = ours.run_with_cache(tokens())
            assert_close(logits, expected)
            for site in ("blocks.0.hook_resid_post", "blocks.1.attn.hook_q", "blocks.1.mlp.hook_post", "hook_embed"):
                assert_close(cache[site], reference[site], site)
        assert_close(expected.log_softmax(-1), raw(tokens()).log_softmax(-1))


def test_the_model_owns_its_weights(make: Any) -> None:
    theirs = make()
    ours = from_transformer_lens(theirs)
    before = ours(tokens())
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(1.0)
    assert torch.equal(ours(tokens()), before)
    assert not any(weight.requires_grad for weight in ours.parameters())


def test_biases_that_are_zero_and_a_tied_unembedding_take_no_memory(make: Any) -> None:
    theirs = make()
    for name, weight in theirs.named_parameters():
        if ".b_" in name:
            weight.data.zero_()
    theirs.unembed.W_U.data.copy_(theirs.embed.W_E.data.T)
    ours = from_transformer_lens(theirs)
    cfg = ours.cfg
    assert (cfg.qkv_bias, cfg.out_bias, cfg.mlp_bias, cfg.unembed_bias, cfg.tie_embeddings) == (False,) * 4 + (True,)
    with torch.no_grad():
        assert_close(ours(tokens()), theirs(tokens()))


def test_the_tokenizer_comes_along(make: Any, hf_tokenizer: Any) -> None:
    theirs = make(hf_tokenizer)
    ours = from_transformer_lens(theirs)
    for text in ("A cat sat.", "  two  spaces", "naïve"):
        assert torch.equal(ours.to_tokens(text), theirs.to_tokens(text))
        assert ours.to_string(ours.to_tokens(text)) == theirs.to_string(theirs.to_tokens(text))


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"positional_embedding_type": "shortformer"}, "shortformer"),
    ({"act_fn": "solu_ln"}, "solu_ln"),
    ({"d_vocab_out": 7}, "d_vocab_out=7"),
    ({"final_rms": True}, "final_rms"),
    ({"num_experts": 4, "experts_per_token": 2, **GATED}, "num_experts"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ({"use_attention_sinks": True}, "use_attention_sinks"),
    ({"clip_qkv": 1.0}, "clip_qkv"),
    ({"use_dynamic_ntk_rope": True, "train_seq_length": 16, **ROTARY}, "use_dynamic_ntk_rope"),
    ({"positional_embedding_type": "alibi", "n_heads": 3}, "3 heads"),
]


@pytest.mark.parametrize(("options", "named"), UNSUPPORTED, ids=[named for _, named in UNSUPPORTED])
def test_what_we_do_not_compute_is_refused_by_name(make: Any, options: dict[str, Any], named: str) -> None:
    theirs = make(**options)
    with pytest.raises(ValueError, match=named):
        from_transformer_lens(theirs)


def test_a_bias_behind_the_gate_is_refused(make: Any) -> None:
    theirs = make(**GATED)
    with pytest.raises(ValueError, match=r"b_out \+= b_in @ W_out"):
        from_transformer_lens(theirs)


def test_other_models_are_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match="expected a TransformerLens HookedTransformer, got str"):
        from_transformer_lens("gpt2")

    class Other(torch.nn.Linear):
        cfg = None

    with pytest.raises(ValueError, match=r"interp\.load\(folder or hub id\)"):
        from_transformer_lens(Other(2, 2))


@pytest.mark.parametrize("random", [random_gpt2, random_llama])
def test_a_bridge_is_converted_by_the_model_that_it_wraps(lens: Any, random: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf = random()
        hf.save_pretrained(tmp_path)
        names = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
        PreTrainedTokenizerFast(tokenizer_object=byte_backend(), **names).save_pretrained(tmp_path)
        expected = hf(tokens()).logits.detach()
        bridge = lens.model_bridge.TransformerBridge.boot_transformers(str(tmp_path), hf_model=hf, device="cpu")
        ours = from_transformer_lens(bridge)
        assert_close(ours(tokens()).as_subclass(Tensor), expected)
        assert ours.to_tokens("a").shape == (1, 2)
        bridge.enable_compatibility_mode()
    with pytest.raises(ValueError, match="has processed its weights"):
        from_transformer_lens(bridge)


def test_compat_needs_no_transformerlens() -> None:
    code = "import sys; sys.modules['transformer_lens'] = None; import interp.compat.transformer_lens"
    subprocess.run([sys.executable, "-c", code], check=True)
