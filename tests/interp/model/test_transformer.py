"""The transformer against its own definitions: identities, masks, padding, positions, weights."""

import pytest
import torch
from tiny import tiny_config, tiny_model
from torch import Tensor

from interp.model import HookedTransformer, ModelConfig, RopeScaling
from interp.model.position import Rope, rotate

TEXT = "hello there"


def close(a: Tensor, b: Tensor, rtol: float = 1e-5) -> bool:
    """Each row within rtol of its own norm."""
    return bool(((a - b).norm(dim=-1) <= rtol * b.norm(dim=-1) + 1e-7).all())


def test_identities_hold_at_every_layer(tiny: HookedTransformer) -> None:
    _, cache = tiny.run_with_cache(TEXT, sites=tiny.site_names)
    start = cache["embed"] + (cache["pos_embed"] if tiny.pos_embed is not None else 0)
    assert torch.equal(start, cache["resid_pre", 0])
    for layer in range(tiny.cfg.n_layers):
        block = tiny.blocks[layer]
        assert close(cache["resid_pre", layer] + cache["attn_out", layer], cache["resid_mid", layer])
        assert close(cache["resid_mid", layer] + cache["mlp_out", layer], cache["resid_post", layer])
        bias = 0 if block.attn.o.bias is None else block.attn.o.bias
        assert close(cache["result", layer].sum(2) + bias, cache["attn_out", layer])
        assert torch.allclose(cache["pattern", layer].sum(-1), torch.ones(()), atol=1e-6)
        assert close(cache["z", layer], torch.einsum(
            "bhqk,bkhe->bqhe", cache["pattern", layer],
            cache["v", layer].repeat_interleave(tiny.cfg.n_heads // tiny.cfg.kv_heads, 2)), 1e-4)  # fmt: skip
        if layer:
            assert torch.equal(cache["resid_post", layer - 1], cache["resid_pre", layer])
        centred = cache["resid_pre", layer]
        centred = centred - centred.mean(-1, keepdim=True) if tiny.cfg.norm == "layer" else centred
        assert close(cache["ln1.normalized", layer] * cache["ln1.scale", layer], centred)


def test_zeroing_all_heads_leaves_the_output_bias(tiny: HookedTransformer) -> None:
    with tiny.hooks({"z:0": lambda value, ctx: value * 0}):
        _, cache = tiny.run_with_cache(TEXT, sites="attn_out:0")
    bias = tiny.blocks[0].attn.o.bias
    expected = torch.zeros_like(cache["attn_out", 0]) if bias is None else bias.expand_as(cache["attn_out", 0])
    assert torch.equal(cache["attn_out", 0], expected)


def test_no_token_sees_a_later_one(tiny: HookedTransformer) -> None:
    ids = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    before, after = tiny(ids), tiny(changed)
    assert torch.equal(before[0, :7], after[0, :7])
    assert (before[0, 7:] != after[0, 7:]).any(-1).all()


def test_single_left_and_right_padded_texts_agree(tiny: HookedTransformer) -> None:
    texts = ["a", "hello there", "four"]
    for pad in ("right", "left"):
        batch = tiny.tokenizer.tokenize(texts, pad=pad)
        logits, cache = tiny.run_with_cache(batch, sites=["resid_post:*", "pattern:*"])
        for row, text in enumerate(texts):
            alone, single = tiny.run_with_cache(text, sites=["resid_post:*"])
            real = batch.mask[row]
            assert close(logits[row, real], alone[0], 1e-4), pad
            for layer in range(tiny.cfg.n_layers):
                assert close(cache["resid_post", layer][row, real], single["resid_post", layer][0]), pad
                sums = cache["pattern", layer][row].sum(-1)
                assert torch.allclose(sums[:, real], torch.ones(()), atol=1e-6)
                assert pad == "right" or torch.equal(sums[:, ~real], torch.zeros_like(sums[:, ~real]))
    assert not torch.isnan(logits).any()
    assert torch.equal(tiny(texts).last[0], tiny(texts)[0, 0])


def test_stop_at_layer(tiny: HookedTransformer) -> None:
    _, cache = tiny.run_with_cache(TEXT)
    assert torch.equal(tiny(TEXT, stop_at_layer=1), cache["resid_post", 0])
    assert torch.equal(tiny(TEXT, stop_at_layer=-1), cache["resid_post", 0])
    assert torch.equal(tiny(TEXT, stop_at_layer=0), cache["resid_pre", 0])
    logits, short = tiny.run_with_cache(TEXT, stop_at_layer=1)
    assert logits is None
    assert "resid_post:0" in short
    assert "resid_post:1" not in short
    with pytest.raises(ValueError, match="has 2 layers"):
        tiny(TEXT, stop_at_layer=3)


def test_unembed_logits_of_the_last_layer_are_the_logits(tiny: HookedTransformer) -> None:
    logits, cache = tiny.run_with_cache(TEXT)
    assert torch.equal(
        tiny.unembed_logits(cache["resid_post", -1] if False else cache["resid_post:-1"]), logits.as_subclass(Tensor)
    )


def test_loss_ignores_pads(tiny: HookedTransformer) -> None:
    texts = ["hello there", "hi"]
    total = sum(tiny.loss(text, per_token=True).sum() for text in texts)
    torch.testing.assert_close(tiny.loss(texts), total / (10 + 1))


def test_weight_views_write_through(tiny: HookedTransformer) -> None:
    attn = tiny.blocks[0].attn
    with torch.no_grad():
        attn.W_Q[1] *= 0
        attn.W_V[0] *= 0
        attn.W_O[2] *= 0
    assert not attn.q.weight.view(4, 8, 32)[1].any()
    _, cache = tiny.run_with_cache(TEXT, sites="result:0")
    assert not cache["result:0.2"].any()
    assert tiny.W_Q.shape == (2, 4, 32, 8)
    assert tiny.W_K.shape == (2, tiny.cfg.kv_heads, 32, 8)


def test_ov_and_qk_by_weights_equal_the_pass() -> None:
    model = tiny_model("llama", n_kv_heads=2)
    _, cache = model.run_with_cache(TEXT, sites=["ln1.normalized:0", "v:0", "q:0", "k:0"])
    x = cache["ln1.normalized", 0] * model.blocks[0].ln1.weight
    assert close(torch.einsum("bpd,kde->bpke", x, model.W_V[0]), cache["v", 0])
    assert close(torch.einsum("bpd,hde->bphe", x, model.W_Q[0]), cache["q", 0])


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("rotary_dim", [16, 6])
@pytest.mark.parametrize("kind", [None, "linear", "ntk", "dynamic", "yarn", "llama3"])
def test_rope_keeps_norms_and_depends_on_the_offset_alone(pairing: str, rotary_dim: int, kind: str | None) -> None:
    scaling = None if kind is None else RopeScaling(kind, 4.0, original_n_ctx=32, attention_factor=1.0)
    cfg = tiny_config("llama", d_head=16, rope_pairing=pairing, rotary_dim=rotary_dim, rope_scaling=scaling)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=generator)

    def at(x: Tensor, position: int) -> Tensor:
        cos, sin = Rope(cfg).angles(torch.tensor([[position]]), torch.float64, torch.tensor([106]))
        return rotate(x, cos, sin, cfg.rope_pairing)

    torch.testing.assert_close(at(q, 57).norm(), q.norm())
    score = (at(q, 9) * at(k, 4)).sum()
    torch.testing.assert_close((at(q, 105) * at(k, 100)).sum(), score)
    assert not torch.isclose((at(q, 10) * at(k, 4)).sum(), score)
    torch.testing.assert_close(at(q, 0), q)


def test_fingerprint_follows_the_weights(tiny: HookedTransformer) -> None:
    before = tiny.fingerprint
    assert before == tiny.fingerprint
    with torch.no_grad():
        tiny.blocks[1].mlp.down.weight[0, 0] += 1
    assert tiny.fingerprint != before


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("", "empty"),
        ([], "empty|ids"),
        ([300], "0..257"),
        ([-1], "0..257"),
        (torch.zeros(1, 0, dtype=torch.long), "empty"),
        (torch.zeros(2, 3), "integers"),
        ({"a": 1}, "expected text"),
        ("x" * 129, "129 tokens.*128"),
    ],
)
def test_bad_input_is_refused_with_the_mend(tiny: HookedTransformer, x: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(x)


def test_text_without_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        HookedTransformer(tiny_config(), None, seed=0)("text")


@pytest.mark.parametrize(
    "changes", [{"n_kv_heads": 3}, {"act_fn": "swish"}, {"n_layers": 0}, {"d_head": 7}, {"norm": "batch"}]
)
def test_impossible_configurations(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        tiny_config("llama", **changes)


def test_config_round_trip() -> None:
    cfg = tiny_config("gpt2")
    assert ModelConfig.from_dict(cfg.to_dict()) == cfg
    with pytest.raises(ValueError, match="n_layer"):
        ModelConfig.from_dict({"n_layer": 2})


def test_parameter_count(tiny: HookedTransformer) -> None:
    assert tiny.n_params == sum(weight.numel() for weight in tiny.parameters())


def test_processes_in_lower_precision_without_nan(tiny: HookedTransformer) -> None:
    reference = tiny(["hello there", "hi"])
    for dtype, atol in ((torch.bfloat16, 0.1), (torch.float16, 0.02)):
        low = tiny.to(dtype)(["hello there", "hi"])
        assert not torch.isnan(low).any()
        error = (low.float().softmax(-1) - reference.softmax(-1)).abs().max()
        assert error < atol
        tiny.to(torch.float32)


def test_a_model_without_weights_says_so() -> None:
    with pytest.raises(ValueError, match="never set"):
        HookedTransformer(tiny_config())([1, 2, 3])


def test_texts_of_one_token_have_no_loss(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="no next token"):
        tiny.loss("a")
    assert float(tiny.loss(["a", "bc"])) == pytest.approx(float(tiny.loss("bc")), rel=1e-5)


def test_rows_of_ids_of_unequal_length(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match=r"interp\.Tokens"):
        tiny([[1, 2, 3], [4, 5]])
