"""interp.compat.transformer_lens beyond the table of call sites: what it is made of, and where it departs on purpose."""

import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from checkpoints import byte_backend, random_llama
from tiny import tiny_model
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import interp
from interp.compat import from_transformer_lens, transformer_lens


def wrapped(family: str = "gpt2", **changes: Any) -> transformer_lens.HookedTransformer:
    return transformer_lens.HookedTransformer.from_native(tiny_model(family, **changes))


def ids(seed: int = 0, batch: int = 2, length: int = 7) -> Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


def config(**changes: Any) -> transformer_lens.HookedTransformerConfig:
    sizes = {"n_layers": 2, "d_model": 16, "n_ctx": 32, "d_head": 4, "d_vocab": 20, "act_fn": "relu", "device": "cpu"}
    return transformer_lens.HookedTransformerConfig(**{**sizes, **changes})


# ----------------------------------------------------------------------------------------------------------- configuration


def test_configuration_fills_in_what_transformerlens_fills_in(lens: ModuleType) -> None:
    options = {"n_layers": 2, "d_model": 16, "n_ctx": 32, "d_head": 4, "d_vocab": 20, "act_fn": "relu", "device": "cpu"}
    reference, own = lens.HookedTransformerConfig(**options), config()
    for field, value in own.to_dict().items():
        if field not in ("attn_types", "window_size") and hasattr(reference, field):
            assert value == getattr(reference, field), field
    assert own.n_params == reference.n_params
    assert transformer_lens.HookedTransformerConfig.from_dict(own.to_dict()) == own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"act_fn": None}, "act_fn is missing"),
        ({"d_head": 5}, "no multiple of d_head=5"),
        ({"act_fn": "solu"}, "act_fn='solu'"),
        ({"positional_embedding_type": "shortformer"}, "shortformer"),
        ({"d_vocab": -1}, "d_vocab is missing"),
    ],
)
def test_configurations_that_cannot_be_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transformer_lens.HookedTransformer(config(**changes))


def test_unknown_fields_are_named() -> None:
    with pytest.raises(ValueError, match="has no n_layer"):
        transformer_lens.HookedTransformerConfig.from_dict({"n_layer": 2})


def test_a_new_model_is_drawn_from_its_seed_alone() -> None:
    one, same, other = (transformer_lens.HookedTransformer(config(seed=seed)) for seed in (1, 1, 2))
    torch.manual_seed(5)
    assert torch.equal(one(ids() % 20), same(ids() % 20))
    assert not torch.equal(one(ids() % 20), other(ids() % 20))
    assert one.W_in.detach().std().item() == pytest.approx(0.8 / 4, rel=0.1)
    assert one.b_in.abs().max().item() == 0.0


def test_a_tokenizer_by_its_folder(folder: Path) -> None:
    model = transformer_lens.HookedTransformer(config(d_vocab=-1, tokenizer_name=str(folder)))
    assert model.cfg.d_vocab == 260
    assert model.to_str_tokens("a") == ["<|start|>", "a"]


def test_training_goes_the_way_of_transformerlens(make: Any) -> None:
    """Ten steps of SGD from the same weights: the gradients are right, and reach every weight."""
    theirs = make(normalization_type="LN")
    ours = transformer_lens.HookedTransformer.from_native(from_transformer_lens(theirs))
    losses: list[list[float]] = [[], []]
    for model, found in zip((theirs, ours), losses, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(10):
            loss = model(ids(step), return_type="loss")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1][-1] < losses[1][0]


# ------------------------------------------------------------------------------------------------------------- pretrained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer, as transformers saves them."""
    path = tmp_path_factory.mktemp("llama")
    random_llama(attention_bias=True).save_pretrained(path)
    names = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    PreTrainedTokenizerFast(tokenizer_object=byte_backend(), **names).save_pretrained(path)
    return path


def test_from_pretrained_no_processing_is_the_checkpoint(folder: Path) -> None:
    model = transformer_lens.HookedTransformer.from_pretrained_no_processing(str(folder), device="cpu")
    raw = interp.load(folder)
    assert torch.equal(model(ids()), raw(ids()).as_subclass(Tensor))
    assert model.cfg.normalization_type == "RMS"
    assert model.cfg.n_key_value_heads == 2
    assert model.to_tokens("a").tolist() == [[0, raw.tokenizer.to_single_token("a")]]  # type: ignore[union-attr]


def test_from_pretrained_folds_and_says_the_same(folder: Path) -> None:
    model = transformer_lens.HookedTransformer.from_pretrained(str(folder), device="cpu", default_prepend_bos=False)
    raw = interp.load(folder)
    assert model.cfg.normalization_type == "RMSPre"
    assert (model(ids()).log_softmax(-1) - raw(ids()).log_softmax(-1)).abs().max() < 1e-4
    assert model.W_U.mean(-1).abs().max() < 1e-6
    assert model.to_tokens("a").shape == (1, 1)


def test_from_pretrained_refuses_what_it_does_not_offer(folder: Path) -> None:
    with pytest.raises(ValueError, match="does not offer first_n_layers, hf_model"):
        transformer_lens.HookedTransformer.from_pretrained(str(folder), hf_model=object(), first_n_layers=3)
    with pytest.raises(ValueError, match="center_writing=True is impossible"):
        transformer_lens.HookedTransformer.from_pretrained(str(folder), center_writing_weights=True)
    for options in ({"foo": 1}, {"foo": None}, {"foo": False, "n_devices": 1}):
        with pytest.raises(ValueError, match="has no option foo"):
            transformer_lens.HookedTransformer.from_pretrained(str(folder), **options)
    for options in ({"n_devices": 2}, {"move_to_device": False}, {"refactor_factored_attn_matrices": True}):
        with pytest.raises(ValueError, match=f"does not offer {next(iter(options))}"):
            transformer_lens.HookedTransformer.from_pretrained(str(folder), **options)


def test_from_pretrained_takes_options_that_change_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    neutral = {"hf_model": None, "tokenizer": None, "n_devices": 1, "refactor_factored_attn_matrices": False}
    with caplog.at_level("INFO", "interp"):
        model = transformer_lens.HookedTransformer.from_pretrained(
            str(folder), device="cpu", low_cpu_mem_usage=True, default_prepend_bos=None, **neutral
        )
    assert "low_cpu_mem_usage changes nothing here" in caplog.text
    assert model.cfg.default_prepend_bos is True


# ---------------------------------------------------------------------------------------------------------------- weights


def test_weights_write_through() -> None:
    model = wrapped()
    before = model(ids())
    with torch.no_grad():
        model.blocks[1].attn.W_O[2] = 0.0
        model.blocks[0].mlp.W_in.data[:, 3] *= 2.0
    model.blocks[0].mlp.b_out = torch.ones(32)
    model.unembed.W_U = model.unembed.W_U * 2.0
    assert not torch.equal(model(ids()), before)
    assert model.native.W_O[1, 2].abs().max().item() == 0.0
    assert torch.equal(model.native.b_out[0], torch.ones(32))


def test_weights_that_are_not_there() -> None:
    model = wrapped("llama")
    block = model.blocks[0]
    assert block.attn.W_K.shape == (4, 32, 8)
    assert block.attn._W_K.shape == (2, 32, 8)
    assert torch.equal(block.attn.W_K[0], block.attn.W_K[1])
    assert model.b_K.abs().max().item() == 0.0
    with pytest.raises(ValueError, match="assign _W_K"):
        block.attn.W_K = torch.zeros(4, 32, 8)
    block.attn._W_K = torch.zeros(2, 32, 8)
    assert model.W_K[0].abs().max().item() == 0.0
    with pytest.raises(ValueError, match="no b_Q that could be assigned"):
        block.attn.b_Q = torch.zeros(4, 8)
    with pytest.raises(ValueError, match=re.escape("W_O has shape (4, 8, 32), the value (2,)")):
        block.attn.W_O = torch.zeros(2)
    with pytest.raises(AttributeError, match="has no 'W_gate'"):
        _ = wrapped().blocks[0].mlp.W_gate
    with pytest.raises(AttributeError, match="has no 'hook_zz'"):
        _ = block.attn.hook_zz


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization_type": "LNPre", "attn_only": True},
        {"normalization_type": "RMS", "positional_embedding_type": "rotary", "n_key_value_heads": 2},
    ],
    ids=["gpt2", "attention only", "rotary"],
)
def test_states_go_both_ways(make: Any, options: dict[str, Any]) -> None:
    theirs = make(**options)
    sizes = {"n_layers": 2, "d_model": 32, "n_ctx": 64, "d_head": 8, "n_heads": 4, "d_vocab": 258, "d_mlp": 48}
    own = transformer_lens.HookedTransformer(config(**sizes, act_fn="gelu_new", **options))
    own.load_state_dict(theirs.state_dict())
    assert (own(ids()) - theirs(ids())).abs().max() < 1e-5 * theirs(ids()).abs().max()
    back = own.state_dict()
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in back.items())
    assert not theirs.load_state_dict(back, strict=False).unexpected_keys


def test_states_that_do_not_fit() -> None:
    model = wrapped("llama")
    state = model.state_dict()
    model.load_state_dict(state)
    with pytest.raises(ValueError, match=r"lacks \['embed.W_E'\] and has \['embed.W'\]"):
        model.load_state_dict({"embed.W" if name == "embed.W_E" else name: value for name, value in state.items()})
    with pytest.raises(ValueError, match="no b_Q that could be assigned"):
        model.load_state_dict({**state, "blocks.0.attn.b_Q": torch.ones(4, 8)})


def test_nested_attributes_by_name() -> None:
    model, utils = wrapped(), transformer_lens.utils
    assert torch.equal(utils.get_nested_attr(model, "blocks.1.attn.W_Q"), model.blocks[1].attn.W_Q)
    utils.set_nested_attr(model, "blocks.1.mlp.b_in", torch.full((64,), 2.0))
    assert model.b_in[1].mean().item() == 2.0


def test_the_native_model_is_inside() -> None:
    native = tiny_model("gpt2")
    model = transformer_lens.HookedTransformer.from_native(native)
    assert model.native is native
    assert torch.equal(model(ids()), native(ids()).as_subclass(Tensor))
    assert model.n_params_total == sum(weight.numel() for weight in native.parameters())
    assert model.to(torch.float64).cfg.dtype == torch.float64


# ------------------------------------------------------------------------------------------------------ hooks, on purpose


def test_unknown_sites_are_errors_with_the_nearest_names() -> None:
    model = wrapped()
    for call in (
        lambda: model.run_with_hooks(ids(), fwd_hooks=[("blocks.0.hook_resid_pots", lambda value, hook: value)]),
        lambda: model.add_hook("resid_pots:0", lambda value, hook: value),
        lambda: model.run_with_cache(ids(), names_filter=["blocks.0.hook_resid_pots"]),
    ):
        with pytest.raises(ValueError, match="resid_post"):
            call()
    assert not any(point.handles for point in model.native.hook_dict.values())


def test_a_named_hook_that_no_pass_reached_is_an_error() -> None:
    model = wrapped()
    with pytest.raises(ValueError, match=r"no pass came to them: blocks\.1\.hook_resid_post"):
        model.run_with_hooks(
            ids(), stop_at_layer=1, fwd_hooks=[("blocks.1.hook_resid_post", lambda value, hook: value)]
        )
    seen = []
    predicate = (lambda name: "resid_post" in name, lambda value, hook: seen.append(hook.name))
    model.run_with_hooks(ids(), stop_at_layer=1, fwd_hooks=[predicate])
    assert seen == ["blocks.0.hook_resid_post"]


def test_backward_hooks_must_be_there_when_the_backward_pass_is() -> None:
    model, seen = wrapped(), []
    hooks = [("blocks.0.hook_resid_post", lambda gradient, hook: seen.append(gradient))]
    with pytest.raises(ValueError, match="reset_hooks_end=False"):
        model.run_with_hooks(ids(), return_type="loss", bwd_hooks=hooks)
    with model.hooks(bwd_hooks=hooks):
        model(ids(), return_type="loss").backward()
    assert len(seen) == 1


def test_hooks_go_in_spite_of_an_error() -> None:
    model = wrapped()

    def fail(value: Tensor, hook: Any) -> None:
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        model.run_with_hooks(ids(), fwd_hooks=[("blocks.0.hook_resid_post", fail)])
    with pytest.raises(RuntimeError, match="inside"), model.hooks(fwd_hooks=[("hook_embed", fail)]):
        model.run_with_cache(ids(), incl_bwd=True, return_type="loss")
    assert not any(point.handles for point in model.native.hook_dict.values())
    assert model.hooks_attached.level == 0


def test_recording_leaves_the_hooks_that_are_there() -> None:
    model = wrapped()
    model.add_hook("blocks.0.hook_mlp_out", lambda value, hook: value * 0.0)
    _, cache = model.run_with_cache(ids())
    assert cache["mlp_out", 0].abs().max().item() == 0.0
    assert len(model.hook_dict["blocks.0.hook_mlp_out"].fwd_hooks) == 1
    model.reset_hooks()
    assert model.run_with_cache(ids())[1]["mlp_out", 0].abs().max().item() > 0.0


def test_pads_of_texts_are_masked_and_not_in_the_loss() -> None:
    model = wrapped()
    texts = ["A cat sat", "It"]
    alone = [model(text, return_type="loss", loss_per_token=True)[0] for text in texts]
    for side in ("right", "left"):
        together = model(texts, return_type="loss", padding_side=side)
        assert together.item() == pytest.approx(torch.cat(alone).mean().item(), rel=1e-5)
    model.tokenizer.padding_side = "left"
    tokens = model.to_tokens(texts)
    assert tokens[1, 0] == model.tokenizer.pad_token_id
    assert torch.allclose(model(tokens)[1, -1], model(texts[1])[0, -1], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_type": "logit"}, "return_type must be one of"),
        ({"padding_side": "middle"}, "padding_side must be"),
    ],
)
def test_calls_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrapped()(["a", "bc"], **options)


def test_a_loss_from_a_stream_needs_the_tokens() -> None:
    model = wrapped()
    stream = model(ids(), stop_at_layer=1)
    with pytest.raises(ValueError, match="needs tokens="):
        model(stream, start_at_layer=1, return_type="loss")


# --------------------------------------------------------------------------------------------------------- patching, utils


def test_patches_in_batches_equal_patches_alone() -> None:
    """An attached hook makes every patch run alone and whole; one that changes nothing leaves the figures."""
    model = wrapped("llama")
    _, clean = model.run_with_cache(ids(0))

    def metric(logits: Tensor) -> Tensor:
        assert logits.shape[0] == 2
        return logits[0, -1, 3] - logits[1, -1, 4]

    for sweep in ("resid_pre", "attn_head_v_all_pos", "attn_head_pattern_all_pos"):
        run = getattr(transformer_lens.patching, f"get_act_patch_{sweep}")
        together = run(model, ids(1), clean, metric)
        with model.hooks(fwd_hooks=[("hook_embed", lambda value, hook: value)]):
            alone = run(model, ids(1), clean, metric)
        assert (together - alone).abs().max() < 1e-4 * alone.abs().max()
        assert torch.equal(together, run(model.native, ids(1), clean, metric))


def test_patching_everything_gives_the_clean_run() -> None:
    model = wrapped()
    logits, clean = model.run_with_cache(ids(0, 1))
    corrupted = torch.cat([ids(1, 1, 1), ids(0, 1)[:, 1:]], 1)  # one token differs
    found = transformer_lens.patching.get_act_patch_resid_pre(model, corrupted, clean, lambda out: out[0, -1, 5])
    assert found.shape == (2, 7)
    assert found[0, 0].item() == pytest.approx(logits[0, -1, 5].item(), rel=1e-4)
    with pytest.raises(ValueError, match="axes are 'layer' first"):
        transformer_lens.patching.Sweep(
            "z", ("head", "layer"), transformer_lens.patching.layer_head_vector_patch_setter
        )(model, corrupted, clean, lambda out: out[0, -1, 5])


def test_the_printed_prompt_test(make: Any, hf_tokenizer: Any, lens: ModuleType, capsys: Any) -> None:
    theirs = make(hf_tokenizer)
    ours = transformer_lens.HookedTransformer.from_native(from_transformer_lens(theirs))
    printed = []
    for utils, model in ((lens.utilities, theirs), (transformer_lens.utils, ours)):
        for answer in ("mat", ["m", "x"]):
            utils.test_prompt("The cat sat on the", answer, model, prepend_space_to_answer=False, top_k=2)
        printed.append(capsys.readouterr().out)
    ranks = [re.findall(r"\('.', (\d+)\)", text) for text in printed]
    assert ranks[0] == ranks[1]
    assert len(ranks[1]) == 5
    figures = [re.findall(r"Logit: *(-?\d+\.\d\d) Prob: *(\d+\.\d\d)%", text) for text in printed]
    assert set(figures[0]) == set(figures[1])


def test_sampling_takes_its_seed_or_torchs() -> None:
    model = wrapped()
    drawn = [model.generate("A", max_new_tokens=8, seed=seed, verbose=False) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    torch.manual_seed(0)
    one = model.generate("A", max_new_tokens=8, verbose=False)
    torch.manual_seed(0)
    assert model.generate("A", max_new_tokens=8, verbose=False) == one
    with pytest.raises(ValueError, match="repetition_penalty"):
        model.generate("A", freq_penalty=1.0)


def test_importing_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert transformer_lens.HookPoint is interp.HookPoint
