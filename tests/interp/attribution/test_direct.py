"""Direct logit attribution: sums on every family, TransformerLens, brute force on the final stream, and padding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import FAMILIES, shaken_model

from interp.attribution import WAYS, direct_logit_attribution, load_attribution, value_weighted_attention
from interp.model import HookedTransformer
from interp.model.mlp import MLP

CAUSAL = [name for name in FAMILIES if name != "bert"]
TEXTS = ["the cat sat", "one two", "abcdefgh"]


def raw_logits(model: HookedTransformer, text: str) -> torch.Tensor:
    """Logits before the soft-cap, from the final stream."""
    n = model.cfg.n_layers
    stream = model(text, stop_at_layer=n)[0]
    normed = stream if model.ln_final is None else model.ln_final.silent(stream)
    return normed.double() @ model.unembedding().double().T + model.b_U.double()


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("family", CAUSAL)
def test_the_parts_sum_to_the_logit_in_every_family(family: str, by: str) -> None:
    model = shaken_model(family)
    if by == "neuron" and not any(isinstance(block.mlp, MLP) for block in model.blocks):
        with pytest.raises(ValueError, match=r"has no MLP|has experts"):
            direct_logit_attribution(model, TEXTS, "a", by=by)
        return
    found = direct_logit_attribution(model, TEXTS, "a", "b", by=by)
    for i, text in enumerate(TEXTS):
        logits = raw_logits(model, text)[-1]
        a, b = ord("a"), ord("b")
        ids = [model.to_single_token(c) for c in (chr(a), chr(b))]
        assert float(found.total[i]) == pytest.approx(float(logits[ids[0]] - logits[ids[1]]), abs=1e-4)
    assert float(found.residual.abs().max()) < 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "llama"])
def test_padding_and_batches_agree_with_single_texts(family: str, by: str, side: str) -> None:
    model = shaken_model(family)
    k = 128 if by == "neuron" else None  # all of them, so that the parts are the same
    batch = direct_logit_attribution(model, model.tokenize(TEXTS, pad=side), "a", by=by, pos="all", k=k).by_place()
    for i, text in enumerate(TEXTS):
        single = direct_logit_attribution(model, text, "a", by=by, pos="all", k=k).by_place().set_index(["part", "pos"])
        mine = batch[batch["text"] == i].set_index(["part", "pos"]).loc[single.index]
        np.testing.assert_allclose(mine["value"], single["value"], atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "olmo2"])
def test_a_share_is_what_the_logit_loses_when_the_part_leaves_the_final_stream(family: str) -> None:
    model = shaken_model(family)
    found = direct_logit_attribution(model, "the cat sat", "a", by="component").to_frame().set_index("part")["mean"]
    last = f"resid_post:{model.cfg.n_layers - 1}"
    _, cache = model.run_with_cache("the cat sat", ["attn_out:1", "mlp_out:0", "embed", last])
    norm, final = model.ln_final, cache[last][0, -1].double()
    scale = norm.scale(cache[last][0, -1:])[0].double()
    column = model.unembedding()[model.to_single_token("a")].double()

    def logit(stream: torch.Tensor) -> torch.Tensor:
        stream = stream - stream.mean() if norm.centred else stream
        return (stream / scale * norm.multiplier().double()) @ column

    for site, part in (("attn_out:1", "L1 attn"), ("mlp_out:0", "L0 mlp"), ("embed", "embed")):
        lost = float(logit(final) - logit(final - cache[site][0, -1].double()))
        assert found[part] == pytest.approx(lost, abs=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_heads_are_those_of_transformer_lens(family: str) -> None:
    from lens_twin import lens_twin  # skips without TransformerLens

    model = shaken_model(family)
    model.ln_final.weight.fill_(1.0)  # TransformerLens leaves the final gain out
    twin = lens_twin(model)
    ids = model.tokenize("the cat sat").ids
    with torch.no_grad():
        _, cache = twin.run_with_cache(ids)
    stack = cache.stack_head_results(apply_ln=False, pos_slice=-1)
    a, b = (model.to_single_token(c) for c in "ab")
    theirs = cache.logit_attrs(stack, tokens=a, incorrect_tokens=b, pos_slice=-1)
    frame = direct_logit_attribution(model, "the cat sat", "a", "b", by="head").to_frame()
    mine = frame[frame["component"] == "head"]["mean"].to_numpy()
    np.testing.assert_allclose(mine, theirs.flatten().detach().numpy(), atol=1e-4)


def test_the_ways_agree_with_each_other() -> None:
    model = shaken_model("gemma2")
    frames = {by: direct_logit_attribution(model, TEXTS, "a", by=by, pos=[-1, 1]).to_frame() for by in WAYS}
    attention = frames["component"].query("component == 'attn'").set_index("layer")["mean"]
    for by in ("head", "source"):
        mine = frames[by].query("component in ('head', 'source', 'attn_bias')").groupby("layer")["mean"].sum()
        np.testing.assert_allclose(mine, attention, atol=1e-5)
    by_head = frames["source"].query("component == 'source'").groupby(["layer", "head"])["mean"].sum()
    heads = frames["head"].query("component == 'head'").set_index(["layer", "head"])["mean"]
    np.testing.assert_allclose(by_head, heads, atol=1e-5)
    neurons = (
        frames["neuron"].query("component in ('neuron', 'other_neurons', 'mlp_bias')").groupby("layer")["mean"].sum()
    )
    np.testing.assert_allclose(
        neurons, frames["component"].query("component == 'mlp'").set_index("layer")["mean"], atol=1e-5
    )


def test_next_tokens_intervals_and_the_mean_logit() -> None:
    model = shaken_model("gpt2")
    found = direct_logit_attribution(model, TEXTS, pos="all")
    assert found.answers[: len(TEXTS[0]) - 1] == tuple(TEXTS[0][1:])
    frame = found.to_frame()
    assert bool((frame["low"] <= frame["mean"]).all() and (frame["mean"] <= frame["high"]).all())
    assert set(frame["n_texts"]) == {3}
    single = direct_logit_attribution(model, "the cat sat", "a", centred=True)
    logits = raw_logits(model, "the cat sat")[-1]
    assert float(single.logit) == pytest.approx(float(logits[model.to_single_token("a")] - logits.mean()), abs=1e-4)
    assert bool(single.to_frame()["low"].isna().all())


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    found = direct_logit_attribution(shaken_model("llama"), TEXTS, ["a", "b", "c"], by="head")
    again = load_attribution(found.save(tmp_path / "a.safetensors"))
    assert again.to_frame().equals(found.to_frame())
    assert (again.answers, again.tokens, again.card) == (found.answers, found.tokens, found.card)
    assert found.top(3)["mean"].abs().is_monotonic_decreasing


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"answer": "ab"}, "is 2 tokens"), ({"answer": 999}, "one token, or an id"), ({"answer": ["a"]}, "1 entries"),
        ({"answer": "a", "against": "a"}, "same token"), ({"answer": "a", "by": "atom"}, "by must be"),
        ({"answer": "a", "pos": 99}, "lies outside"), ({"answer": "a", "pos": [0, 0]}, "twice"), ({}, "no token after"),
        ({"answer": "a", "k": 3}, "goes with by='neuron'"), ({"answer": "a", "against": "b", "centred": True}, "one of them"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(given: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        direct_logit_attribution(shaken_model("llama"), TEXTS, **given)


def test_encoders_and_edited_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="encoder"):
        direct_logit_attribution(shaken_model("bert"), "abc", "a")
    model = shaken_model("llama")
    with (
        model.hooks({"resid_pre:1": lambda value, ctx: value + 1.0}),
        pytest.raises(ValueError, match="miss the logit"),
    ):
        direct_logit_attribution(model, "abc", "a")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("gemma2", {}),
        ("gpt2", {}),
        ("gpt2", {"norm_placement": "sandwich"}),
        ("llama", {"norm": "layer", "norm_placement": "sandwich"}),
    ],
)
def test_value_weighted_attention_is_the_length_of_what_is_moved(family: str, changes: dict) -> None:
    model = shaken_model(family, **changes)
    found = value_weighted_attention(model, "the cat", 1)[0]
    block = model.blocks[1]
    names = ["v:1", "pattern:1", *(["blocks.1.ln1_post.hook_scale"] if block.ln1_post is not None else [])]
    _, cache = model.run_with_cache("the cat", names)
    v = cache["v:1"][0].repeat_interleave(model.cfg.n_heads // model.cfg.kv_heads, 1)
    moved = torch.einsum("khv,hvd->hkd", v, block.attn.W_O)
    scale = torch.ones(1, 1)
    if block.ln1_post is not None:
        moved = moved - moved.mean(-1, keepdim=True) if block.ln1_post.kind == "layer" else moved
        moved, scale = moved * block.ln1_post.multiplier(), cache[names[-1]][0]
    expected = cache["pattern:1"][0] * moved.norm(dim=-1)[:, None] / scale
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("by", ["component", "head", "source", "neuron"])
def test_the_real_model_sums_to_its_logit_difference(smollm: HookedTransformer, by: str) -> None:
    prompt = "The Eiffel Tower is located in the city of"
    found = direct_logit_attribution(smollm, prompt, " Paris", " Rome", by=by)
    logits = smollm(prompt)[0, -1]
    paris, rome = (smollm.to_single_token(word) for word in (" Paris", " Rome"))
    assert float(found.total) == pytest.approx(float(logits[paris] - logits[rome]), abs=1e-4)
