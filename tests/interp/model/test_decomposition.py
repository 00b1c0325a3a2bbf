"""The cache's methods against TransformerLens' own, and the sums that they promise in every arrangement of blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.model import ActivationCache, HookedTransformer
from interp.model.act_names import get_act_name
from interp.model.processed import processed
from tests.support.lens_twin import pair
from tests.support.tiny import FAMILIES, shaken_model, tiny_model

close = torch.testing.assert_close
IDS = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
SUMS = [name for name in FAMILIES if name != "bert"]
DENSE = [name for name in SUMS if "experts" not in FAMILIES[name]]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def caches(request: pytest.FixtureRequest) -> tuple[ActivationCache, Any]:
    ours, lens = pair(request.param)
    with torch.no_grad():
        return ours.run_with_cache(IDS)[1], lens.run_with_cache(IDS)[1]


P1 = torch.randn(32, generator=torch.Generator().manual_seed(1))
P2 = torch.randn(32, 3, generator=torch.Generator().manual_seed(2))
CALLS: dict[str, Callable[[Any], Any]] = {
    "stack": lambda c: c.stack_activation("pattern"),
    "stack one layer": lambda c: c.stack_activation("scale", 1, "ln1"),
    "accumulated": lambda c: c.accumulated_resid(return_labels=True),
    "accumulated mid": lambda c: c.accumulated_resid(1, incl_mid=True, mlp_input=True, return_labels=True),
    "accumulated normed": lambda c: c.accumulated_resid(-1, incl_mid=True, apply_ln=True, pos_slice=-1),
    "accumulated normed early": lambda c: c.accumulated_resid(1, apply_ln=True, pos_slice=(2, 5)),
    "decompose": lambda c: c.decompose_resid(return_labels=True),
    "decompose mlp input": lambda c: c.decompose_resid(1, mlp_input=True, apply_ln=True, return_labels=True),
    "decompose attn": lambda c: c.decompose_resid(mode="attn", incl_embeds=False, pos_slice=[0, 3], return_labels=True),
    "decompose mlp": lambda c: c.decompose_resid(2, mode="mlp", apply_ln=True, pos_slice=4, return_labels=True),
    "heads": lambda c: c.stack_head_results(return_labels=True, incl_remainder=True),
    "heads normed": lambda c: c.stack_head_results(1, pos_slice=-1, apply_ln=True),
    "neurons": lambda c: c.stack_neuron_results(-1, return_labels=True, incl_remainder=True),
    "neurons sliced": lambda c: c.stack_neuron_results(2, pos_slice=3, neuron_slice=(5, 9), apply_ln=True),
    "neurons onto": lambda c: c.stack_neuron_results(2, project_output_onto=P2, incl_remainder=True, apply_ln=True),
    "neurons onto one": lambda c: c.stack_neuron_results(1, project_output_onto=P1),
    "one layer's neurons": lambda c: c.get_neuron_results(1, neuron_slice=[3, 1], pos_slice=(0, 4)),
    "one neuron": lambda c: c.get_neuron_results(0, neuron_slice=7),
    "one layer's neurons onto": lambda c: c.get_neuron_results(1, project_output_onto=P1),
    "full": lambda c: c.get_full_resid_decomposition(return_labels=True),
    "full normed": lambda c: c.get_full_resid_decomposition(1, mlp_input=True, apply_ln=True, return_labels=True),
    "full by mlp": lambda c: c.get_full_resid_decomposition(expand_neurons=False, pos_slice=-1, return_labels=True),
    "full onto": lambda c: c.get_full_resid_decomposition(apply_ln=True, pos_slice=2, project_output_onto=P1),
    "full before all": lambda c: c.get_full_resid_decomposition(0, return_labels=True),
    "ln": lambda c: c.apply_ln_to_stack(c.decompose_resid(pos_slice=1), -1, pos_slice=1),
    "ln batch": lambda c: c.apply_ln_to_stack(c.decompose_resid(), 1, mlp_input=True, batch_slice=[1]),
    "ln anew": lambda c: c.apply_ln_to_stack(c.decompose_resid(), recompute_ln=True),
    "tuples": lambda c: [
        c["resid_post", 1],
        c["resid_post", -1],
        c["scale", 1, "ln2"],
        c["k", 0, "attn"],
        c["q", 0, "a"],
    ],
    "strings": lambda c: [c["embed"], c["k1"], c["scale0ln1"], c["scale"], c["attn", 1], c["blocks.1.hook_mlp_out"]],
    "one text": lambda c: [c.apply_slice_to_batch_dim(1)["z", 1], c.apply_slice_to_batch_dim((0, 1))["pattern", 0]],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_equal_transformer_lens(caches: tuple[ActivationCache, Any], name: str) -> None:
    ours, lens = (CALLS[name](cache) for cache in caches)
    as_list = [ours] if isinstance(ours, Tensor) else list(ours)
    for mine, theirs in zip(as_list, [lens] if isinstance(lens, Tensor) else list(lens), strict=True):
        if isinstance(mine, list):
            assert mine == [str(label) for label in theirs]
        else:
            assert mine.shape == theirs.shape
            close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_logit_attrs_equal_transformer_lens_on_processed_weights() -> None:
    ours, lens = pair("gpt2")
    lens.process_weights_()
    ours, ids = processed(ours), torch.tensor([[5, 6, 7], [8, 9, 10]])
    mine, theirs = ours.run_with_cache(ids)[1], lens.run_with_cache(ids)[1]
    for tokens, wrong, where in ((3, None, None), ("a", "b", -1), (ids, ids + 20, None), (ids[:, 0], None, 1)):
        got, wanted = (
            cache.logit_attrs(cache.decompose_resid(pos_slice=where), tokens, wrong, pos_slice=where)
            for cache in (mine, theirs)
        )
        close(got, wanted, rtol=1e-4, atol=1e-4)
    close(mine.accumulated_resid(apply_ln=True), theirs.accumulated_resid(apply_ln=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", SUMS)
def test_terms_sum_to_the_stream(family: str) -> None:
    model = shaken_model(family)
    _, cache = model.run_with_cache(IDS)
    end = cache["resid_post", -1]

    def sums_to(stack: Tensor, whole: Tensor) -> None:
        close(stack.double().sum(0), whole.double(), rtol=1e-4, atol=1e-4 * float(whole.norm(dim=-1).max()))

    sums_to(cache.decompose_resid(), end)
    sums_to(cache.get_full_resid_decomposition(expand_neurons=False), end)
    sums_to(cache.stack_head_results(incl_remainder=True), end)
    sums_to(cache.stack_head_results(1, incl_remainder=True, pos_slice=2), cache["resid_pre", 1][:, 2])
    reads = cache["resid_pre" if model.cfg.parallel or "resid_mid:1" not in cache else "resid_mid", 1]
    if model.cfg.d_mlp:
        sums_to(cache.decompose_resid(1, mlp_input=True), reads)
    if family in DENSE:
        sums_to(cache.get_full_resid_decomposition(), end)
        sums_to(cache.get_full_resid_decomposition(1, pos_slice=[1, 3]), cache["resid_pre", 1][:, [1, 3]])
        if model.cfg.d_mlp:
            sums_to(cache.get_full_resid_decomposition(1, mlp_input=True, pos_slice=-1), reads[:, -1])
    if "ln1.normalized:1" in cache:
        sums_to(cache.decompose_resid(1, apply_ln=True), cache["ln1.normalized", 1])


@pytest.mark.parametrize("family", SUMS)
def test_attributions_sum_to_the_logit(family: str) -> None:
    model = shaken_model(family, final_softcap=None)
    logits, cache = model.run_with_cache(IDS)
    norm = model.ln_final
    bias = 0 if norm.bias is None else norm.bias @ model.W_U
    stack = cache.get_full_resid_decomposition(expand_neurons=False)
    found = cache.logit_attrs(stack, IDS).double().sum(0)
    wanted = (logits.as_subclass(Tensor) - model.b_U - bias).gather(-1, IDS[..., None])[..., 0]
    close(found, wanted.double(), rtol=1e-4, atol=1e-4)
    last = cache.logit_attrs(stack[:, :, -1], IDS[:, 0], IDS[:, 1], pos_slice=-1)
    by_text = cache.logit_attrs(stack, IDS[:, 0], IDS[:, 1])  # one token a text, at every position
    close(last, by_text[..., -1])


def test_sixteen_bits() -> None:
    model = shaken_model("gpt2").to(torch.bfloat16)
    logits, cache = model.run_with_cache(IDS)
    stack = cache.get_full_resid_decomposition(expand_neurons=False)
    assert stack.dtype == torch.bfloat16
    end = cache["resid_post", -1].double()
    assert (stack.double().sum(0) - end).norm() < 0.02 * end.norm()
    found = cache.logit_attrs(stack, IDS).double().sum(0)
    bias = (model.ln_final.bias @ model.W_U).double()
    wanted = (logits.as_subclass(Tensor).double() - bias).gather(-1, IDS[..., None])[..., 0]
    assert (found - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_head_results_need_not_be_recorded() -> None:
    model = shaken_model("gemma2")
    _, cache = model.run_with_cache(IDS)
    _, full = model.run_with_cache(IDS, "result:*")
    cache.compute_head_results()
    close(cache["result", 1], full["result", 1])
    heads = cache.stack_head_results(2)[4:].sum(0)  # what layer 1 adds, through its post norm
    close(heads, cache["attn_out", 1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(cache["result", 1].sum(2), cache["attn_out", 1], rtol=1e-2)


def test_an_edited_result_is_the_one_that_counts() -> None:
    model = shaken_model("llama")

    def silence(value: Tensor, ctx: Any) -> Tensor:
        value[:, :, 2] = 0
        return value

    with model.hooks({"result:0": silence}):
        _, cache = model.run_with_cache(IDS, ["result:*", "resid_post:*", "z:*"])
    assert not cache.stack_head_results()[2].any()
    assert cache.stack_head_results()[3].any()


def test_sums_cancel_in_double_precision() -> None:
    """Terms of 1e6 that cancel to 1: single precision alone would leave 6 % of error."""
    model = shaken_model("llama")
    _, cache = model.run_with_cache(IDS)
    stack = cache.decompose_resid()
    large = 1e6 * torch.ones_like(stack[:1])
    parts = torch.cat([large, stack.sum(0, keepdim=True).double() - large])
    attrs = cache.logit_attrs(parts, 7).sum(0)
    close(attrs.float(), cache.logit_attrs(stack.sum(0, keepdim=True), 7)[0], rtol=1e-3, atol=1e-3)
    remainder = cache.stack_head_results(incl_remainder=True)[-1]
    heads = cache.stack_head_results().double().sum(0)
    close(remainder, (cache["resid_post", -1].double() - heads).float(), rtol=0, atol=0)


def test_parallel_and_post_ln_blocks() -> None:
    neox, bert = shaken_model("neox"), shaken_model("bert")
    _, cache = neox.run_with_cache(IDS)
    stack, labels = cache.decompose_resid(1, mlp_input=True, return_labels=True)
    assert labels == ["embed", "0_attn_out", "0_mlp_out"]
    close(cache.apply_ln_to_stack(stack, 1, mlp_input=True).sum(0), cache["ln2.normalized", 1], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="resid_mid"):
        cache.accumulated_resid(incl_mid=True)
    _, cache = bert.run_with_cache(IDS)
    for method in ("decompose_resid", "stack_head_results", "get_full_resid_decomposition", "stack_neuron_results"):
        with pytest.raises(ValueError, match="no sum of what parts wrote"):
            getattr(cache, method)()
    assert len(cache.accumulated_resid()) == 3
    with pytest.raises(ValueError, match="mlm_head"):
        cache.logit_attrs(cache.accumulated_resid(), 3)


def test_experts_and_missing_sites() -> None:
    model = shaken_model("mixtral")
    _, cache = model.run_with_cache(IDS)
    with pytest.raises(ValueError, match="layer 0 has experts"):
        cache.get_full_resid_decomposition()
    _, some = model.run_with_cache(IDS, ["resid_post:*", "z:0"])
    with pytest.raises(ValueError, match="z was not recorded"):
        some.stack_head_results()
    with pytest.raises(ValueError, match=r"ln_final.hook_scale was not recorded"):
        some.apply_ln_to_stack(some["resid_post", 1][None])
    bare = ActivationCache({"hook_embed": IDS[..., None].float()}, cache.tokens, model.site_names)
    with pytest.raises(ValueError, match="no model"):
        bare.decompose_resid()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.decompose_resid(3), "0 to 2 are possible"),
        (lambda c: c.decompose_resid(-2), "0 to 2 are possible"),
        (lambda c: c.decompose_resid(mlp_input=True), "needs a layer before 2"),
        (lambda c: c.decompose_resid(mode="heads"), "'all', 'attn' or 'mlp'"),
        (lambda c: c.decompose_resid(pos_slice=9), "index 9"),
        (lambda c: c.decompose_resid(pos_slice="last"), "a slice is"),
        (lambda c: c.stack_activation("pattern", 0), "1 or more"),
        (lambda c: c.logit_attrs(c.decompose_resid(), 5, [6, 7]), "one shape"),
        (lambda c: c.logit_attrs(c.decompose_resid(), torch.tensor([1, 2, 3])), "do not fit"),
        (lambda c: c.logit_attrs(c.decompose_resid(), 258), "0..257"),
        (lambda c: c.logit_attrs(c.decompose_resid(pos_slice=-1), 5), "give the pos_slice"),
        (lambda c: c.apply_ln_to_stack(c.decompose_resid(), pos_slice=-1), "give the pos_slice"),
        (lambda c: c.stack_neuron_results(project_output_onto=P1[:5]), r"\[32\] or \[32, n\]"),
        (lambda c: c["scale", 0], "several sites"),
        (lambda c: c["resid_post", 2], "layers 0 to 1"),
        (lambda c: c.remove_batch_dim(), "2 texts"),
    ],
)
def test_bad_calls_say_what_is_wrong(call: Callable[[ActivationCache], Any], message: str) -> None:
    _, cache = tiny_model("gpt2").run_with_cache(IDS)
    with pytest.raises(ValueError, match=message):
        call(cache)


def test_one_text_without_its_batch_axis() -> None:
    model = shaken_model("gpt2")
    _, batched = model.run_with_cache("hello there")
    _, cache = model.run_with_cache("hello there")
    assert cache.remove_batch_dim() is cache
    assert cache.remove_batch_dim().has_batch_dim is False
    assert cache["resid_post", 1].shape == (11, 32)
    close(cache["z:1.3"], batched["z:1.3"][0])
    close(cache["pattern:1.2"], batched["pattern", 1][0, 2])
    for name in ("decompose_resid", "stack_head_results", "get_full_resid_decomposition", "accumulated_resid"):
        close(getattr(cache, name)(), getattr(batched, name)()[:, 0])
        close(
            getattr(cache, name)(1, pos_slice=-1, apply_ln=True),
            getattr(batched, name)(1, pos_slice=-1, apply_ln=True)[:, 0],
        )
    close(cache.logit_attrs(cache.decompose_resid(), 5), batched.logit_attrs(batched.decompose_resid(), 5)[:, 0])
    stack = batched.decompose_resid()
    close(batched.apply_ln_to_stack(stack[:, 0], has_batch_dim=False), batched.apply_ln_to_stack(stack)[:, 0])
    close(batched.apply_ln_to_stack(stack[None]), batched.apply_ln_to_stack(stack)[None])
    with pytest.raises(ValueError, match="give the pos_slice"):  # batch 1 would broadcast
        batched.apply_ln_to_stack(stack[:, :, -1])
    with pytest.raises(ValueError, match="no batch axis"):
        cache.apply_slice_to_batch_dim(0)


def test_it_is_a_mapping_that_moves() -> None:
    _, cache = tiny_model("gpt2").run_with_cache(["hello", "a"])
    assert list(cache) == list(cache.keys()) == [name for name, _ in cache.items()] == list(cache.cache_dict)
    assert len(cache) == len(cache.values())
    assert (cache.has_embed, cache.has_pos_embed) == (True, True)
    assert cache.to("cpu") is cache
    assert cache["embed"].device == cache.tokens.ids.device == torch.device("cpu")
    assert "resid_post:5" not in cache


def test_part_of_the_texts() -> None:
    model = tiny_model("gpt2")
    _, cache = model.run_with_cache(["hello", "a", "four"])
    part = cache.apply_slice_to_batch_dim(np.array([2, 0]))
    assert part.tokens.texts == ["four", "hello"]
    close(part["resid_post", 1], cache["resid_post", 1][[2, 0]])
    one = cache.apply_slice_to_batch_dim(-1)
    assert not one.has_batch_dim
    close(one.decompose_resid(), cache.decompose_resid()[:, 2])


def test_site_names_from_parts() -> None:
    names = {
        ("k", 6, "a"): "blocks.6.attn.hook_k",
        ("k", 6): "blocks.6.attn.hook_k",
        ("pre", 2): "blocks.2.mlp.hook_pre",
        ("embed",): "hook_embed",
        ("normalized", 27, "ln2"): "blocks.27.ln2.hook_normalized",
        ("scale", 3, "ln1_post"): "blocks.3.ln1_post.hook_scale",
        ("scale",): "ln_final.hook_scale",
        ("attn", 4): "blocks.4.attn.hook_pattern",
        ("attn_logits", 4): "blocks.4.attn.hook_attn_scores",
        ("mlp_post", 1): "blocks.1.mlp.hook_post",
        ("mlp.post", 1): "blocks.1.mlp.hook_post",
        ("ln1.scale", 0): "blocks.0.ln1.hook_scale",
        ("resid_post", 5, "b"): "blocks.5.hook_resid_post",
        ("k6",): "blocks.6.attn.hook_k",
        ("scale4ln1",): "blocks.4.ln1.hook_scale",
        ("resid_post12",): "blocks.12.hook_resid_post",
        ("blocks.0.attn.hook_z",): "blocks.0.attn.hook_z",
        ("hook_pos_embed",): "hook_pos_embed",
    }
    for parts, name in names.items():
        assert get_act_name(*parts) == name
        assert HookedTransformer.get_act_name(*parts) == name
    for parts, message in (
        (("scale", 3), "several"),
        (("foo", 3), "no site"),
        (("k",), "no site"),
        (("hook_foo",), "site"),
        (("k", -1), r"layer=-1 is no layer.*cache\['k', -1\]"),
        (("k", "x"), "layer='x' is no layer"),
        (("k", True), "layer=True is no layer"),
        (("k", 1.0), "layer=1.0 is no layer"),
        ((3,), "takes words such as"),
        (("k", 0, 3), "takes words such as"),
        (("k", 0, "foo"), "no site"),
        (("k", 0, "mlp"), "no site"),
        (("scale", 3, "foo"), "no site"),
    ):
        with pytest.raises(ValueError, match=message):
            get_act_name(*parts)


def test_a_cache_is_a_mapping_and_a_strict_one() -> None:
    cache = tiny_model("gpt2").run_with_cache(IDS, sites=["k:*", "resid_post:*"])[1]
    assert cache.get("foo") is None
    assert cache.get("foo", 5) == 5
    assert cache.get("pattern:0", 5) == 5, "not recorded"
    assert cache.get("k9", 5) == 5, "no such layer"
    assert torch.equal(cache["k", "0", "attn"], cache["k:0"])
    assert torch.equal(cache["k", -1], cache["k", len(cache) // 2 - 1])
    for site in (("k", "0", "foo"), ("k", 0, "mlp"), ("k", 0, "attn", 1), ("k", "x"), ("k", 9), "foo", 3):
        with pytest.raises(ValueError, match=r"."):
            cache[site]
        with pytest.raises(KeyError):
            cache[site]
        assert site not in cache


def test_a_stack_of_another_width_is_refused() -> None:
    model = tiny_model("gpt2")
    cache = model.run_with_cache(IDS)[1]
    stack = cache.decompose_resid()
    for wrong in (stack[..., :1], stack[..., :-1], torch.ones(())):
        with pytest.raises(ValueError, match=r"a stack is \[component \*rows d_model\] with d_model="):
            cache.apply_ln_to_stack(wrong)
