"""The calls that users of TransformerLens know, against TransformerLens' own answers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.lens_style import WITHOUT_BOS
from tests.support.lens_twin import lens_twin, pair, transformer_lens
from tests.support.tiny import byte_tokenizer, shaken_model, tiny_model

close = torch.testing.assert_close
IDS = torch.tensor([[71, 68, 75, 75], [78, 256, 3, 9]])


@pytest.fixture(scope="module")
def models() -> tuple[HookedTransformer, Any]:
    return pair("gpt2")


CALLS: dict[str, Callable[[Any], Any]] = {
    "to_tokens": lambda m: m.to_tokens("hello"),
    "to_tokens, no bos": lambda m: m.to_tokens("hello", prepend_bos=False, move_to_device=False),
    "to_tokens, padded": lambda m: m.to_tokens(["hello", "a"]),
    "to_tokens, left": lambda m: m.to_tokens(["hello", "there"], padding_side="left"),
    "to_tokens, empty": lambda m: m.to_tokens(""),
    "to_tokens, cut": lambda m: m.to_tokens("x" * 300),
    "to_tokens, not cut": lambda m: m.to_tokens("x" * 300, truncate=False),
    "to_string": lambda m: [m.to_string(IDS[0]), m.to_string([71, 256]), m.to_string(np.array([71])), m.to_string(IDS)],
    "to_string of one": lambda m: m.to_string(torch.tensor(71)),
    "to_str_tokens": lambda m: m.to_str_tokens("hi there"),
    "to_str_tokens, no bos": lambda m: m.to_str_tokens("hi", prepend_bos=False),
    "to_str_tokens of ids": lambda m: [m.to_str_tokens(IDS[0]), m.to_str_tokens(IDS[:1]), m.to_str_tokens(IDS[0].numpy())],
    "to_str_tokens of texts": lambda m: m.to_str_tokens(["hi", "you"]),
    "to_str_tokens of half a character": lambda m: m.to_str_tokens("é"),
    "to_single_token": lambda m: [m.to_single_token("h"), m.to_single_str_token(71)],
    "get_token_position": lambda m: [
        m.get_token_position("l", "hello"),
        m.get_token_position("l", "hello", mode="last"),
        m.get_token_position(75, "hello", prepend_bos=False),
        m.get_token_position(75, IDS[:1]),
    ],
    "loss_fn": lambda m: m.loss_fn(m(IDS), IDS),
    "loss_fn per token": lambda m: m.loss_fn(m(IDS), IDS, per_token=True),
    "loss_fn masked": lambda m: m.loss_fn(m(IDS), IDS, attention_mask=torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])),
    "directions": lambda m: m.tokens_to_residual_directions(IDS) if not hasattr(m, "sites") else (
        m.tokens_to_residual_directions(IDS, gain=False)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_equal_transformer_lens(models: tuple[HookedTransformer, Any], name: str) -> None:
    with torch.no_grad():
        ours, lens = (CALLS[name](model) for model in models)
    if isinstance(ours, Tensor):
        close(ours, lens, rtol=1e-5, atol=1e-5)
    else:
        assert ours == lens


def test_get_act_name_equals_transformer_lens() -> None:
    for parts in (
        ("k", 6, "a"), ("pre", 2), ("embed",), ("normalized", 27, "ln2"), ("k6",), ("scale4ln1",), ("pre5",), ("attn", 3),
        ("resid_mid", 2), ("scale",), ("rot_q", 1), ("result", 0, "attn"), ("mlp_out", 3), ("blocks.1.attn.hook_z",),
    ):  # fmt: skip
        assert HookedTransformer.get_act_name(*parts) == transformer_lens.utilities.get_act_name(*parts)


def test_directions_give_the_logits_on_raw_weights() -> None:
    model = shaken_model("llama")
    logits, cache = model.run_with_cache("hello")
    directions = model.tokens_to_residual_directions(list(range(258)))
    scaled = cache["resid_post", -1] / cache["ln_final.scale"]
    close(scaled @ directions.T, logits.as_subclass(Tensor), rtol=1e-4, atol=1e-4)
    close(model.tokens_to_residual_directions("h"), directions[71])
    close(model.tokens_to_residual_directions(torch.tensor([71])), directions[71])
    close(model.tokens_to_residual_directions(["h", 68]), directions[[71, 68]])
    assert model.tokens_to_residual_directions(IDS).shape == (2, 4, 32)
    gemma = shaken_model("gemma2", final_softcap=None)  # gain 1 + weight
    logits, cache = gemma.run_with_cache("hello")
    scaled = cache["resid_post", -1] / cache["ln_final.scale"]
    close(scaled @ gemma.tokens_to_residual_directions(5), logits.as_subclass(Tensor)[..., 5], rtol=1e-4, atol=1e-4)


def test_bos_is_never_doubled_and_follows_the_family() -> None:
    model = tiny_model("gpt2")
    assert model.to_tokens("<|end|>hi").tolist() == [[256, 71, 72]]
    assert model.tokenize("hi").ids.tolist() == [[71, 72]]  # ours follows the tokenizer's own rule
    for family in WITHOUT_BOS:
        qwen = tiny_model("llama")
        qwen.cfg = dataclasses.replace(qwen.cfg, family=family)
        assert qwen.to_tokens("hi").tolist() == [[71, 72]]
        assert qwen.to_tokens("hi", prepend_bos=True).tolist() == [[256, 71, 72]]
    model.tokenizer.bos_id = 257
    assert model.to_tokens("h").tolist() == [[257, 71]]


def test_ids_run_as_the_text_does() -> None:
    model = tiny_model("gpt2")
    texts = ["hello", "hi"]
    logits = model(model.to_tokens(texts, prepend_bos=False))
    close(logits[1, :2], model("hi").as_subclass(Tensor)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.to_tokens(["hello", "a"], padding_side="left"), r"model.tokenize\(texts, pad='left'\)"),
        (lambda m: m.to_tokens("a", padding_side="middle"), "'left' or 'right'"),
        (lambda m: m.to_tokens([]), "list is empty"),
        (lambda m: m.to_string(torch.zeros(1, 1, 1, dtype=torch.long)), r"\[pos\] or \[batch pos\]"),
        (lambda m: m.to_string(torch.zeros(3)), "must be integers"),
        (lambda m: m.to_str_tokens(IDS), "list of rows"),
        (lambda m: m.to_single_token("hi"), "not one"),
        (lambda m: m.get_token_position("z", "hello"), "does not occur"),
        (lambda m: m.get_token_position("l", "hello", mode="second"), "'first' or 'last'"),
        (lambda m: m.tokens_to_residual_directions(300), "0..257"),
        (lambda m: m.loss_fn(m(IDS), IDS, torch.zeros(2, 4)), "nothing to predict"),
        (lambda m: m.test_prompt("hello", ""), "answer is empty"),
        (lambda m: m.test_prompt("hello", "a", top_k=0), "at least 1"),
    ],
)
def test_bad_calls_say_what_is_wrong(call: Callable[[HookedTransformer], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(tiny_model("gpt2"))


def test_without_a_tokenizer() -> None:
    model = HookedTransformer(tiny_model("gpt2").cfg, None, seed=0)
    with pytest.raises(ValueError, match="no tokenizer"):
        model.to_tokens("a")
    with pytest.raises(ValueError, match="no tokenizer"):
        model.to_string([1])
    bare = byte_tokenizer()
    bare.eos_id = None
    model.tokenizer = bare
    assert model.to_tokens("a").tolist() == [[64]]
    with pytest.raises(ValueError, match="neither a BOS"):
        model.to_tokens("a", prepend_bos=True)


def test_a_prompt_and_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model("gpt2")
    test = model.test_prompt("hello", "ab", top_k=3)
    assert test.prompt == ["<|end|>", "h", "e", "l", "l", "o"]
    assert test.answers["token"].tolist() == [" ", "a", "b"]
    assert test.answers["position"].tolist() == [6, 7, 8]
    assert len(test.top) == 9
    ids = model.to_tokens("hello ab")
    probs = model(ids).as_subclass(Tensor)[0, 5:8].softmax(-1)
    for row, (prob, token) in enumerate(zip(probs, (220, 64, 65))):
        token = int(ids[0, 6 + row])
        assert test.answers["id"][row] == token
        assert test.answers["rank"][row] == int((prob > prob[token]).sum())
        assert test.answers["probability"][row] == pytest.approx(float(prob[token]), rel=1e-4)
        assert test.top["id"][3 * row] == int(prob.argmax())
    assert test.rank == test.answers["rank"][0]
    several = model.test_prompt("hello", ["x", "yz"], prepend_space_to_answer=False)
    assert several.answers["token"].tolist() == ["x", "y"]
    assert several.answers["position"].tolist() == [6, 6]
    assert several.top["rank"].tolist() == list(range(10))
    assert capsys.readouterr().out == ""


def test_ranks_are_transformer_lens_ranks() -> None:
    ours = tiny_model("gpt2")
    lens = lens_twin(ours)
    with torch.no_grad():
        logits = lens(lens.to_tokens("hello wor"))[0, -1]
    order = logits.argsort(descending=True)
    test = ours.test_prompt("hello wor", "l", prepend_space_to_answer=False)
    assert test.rank == int((order == ours.to_single_token("l")).nonzero())
    assert test.top["id"].tolist() == order[:10].tolist()
