"""Knockout, noise and the newer ablations against hooks written by hand, on several families."""

import pytest
import torch
from tiny import FAMILIES, shaken_model
from torch import Tensor

from interp.intervene import Ablate, Knockout, Noise
from interp.model import HookedTransformer

TEXT = "hello there"
CAUSAL = [name for name in FAMILIES if name != "bert"]


@pytest.mark.parametrize("family", CAUSAL)
def test_knockout_is_a_renormalised_pattern(family: str) -> None:
    model = shaken_model(family)

    def by_hand(value: Tensor, ctx: object) -> Tensor:
        value[:, 1, [7, 10], 2:4] = 0
        return value / value.sum(-1, keepdim=True).where(value.sum(-1, keepdim=True) > 0, 1)

    heads = [(1, 1)]
    # Under a window of 5 the query at 7 still sees key 3, the one at 10 neither.
    with model.hooks({"pattern:1": by_hand}):
        expected = model(TEXT)
    with model.intervene(Knockout([7, 10], [(2, 4)], heads=heads)):
        torch.testing.assert_close(model(TEXT), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model(TEXT), expected, atol=1e-4)


@pytest.mark.parametrize("family", CAUSAL)
def test_a_token_that_nobody_sees_is_unknown(family: str) -> None:
    """The token's own row keeps it, all later rows lose it, in every layer."""
    model = shaken_model(family)
    with model.intervene(Knockout([(4, 11)], [3])):
        one, other = model("hello there"), model("helXo there")
    torch.testing.assert_close(one[:, 4:], other[:, 4:], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model("hello there")[:, 4:], model("helXo there")[:, 4:], atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma2", "deepseek", "falcon"])
def test_knockout_in_cached_decoding_is_that_of_one_pass(family: str) -> None:
    model = shaken_model(family)
    prompt = model.tokenizer.encode(TEXT)
    cut = Knockout("all", [8, (9, 11)], layers=[1]) if family != "mistral" else Knockout([(9, 17)], [8], layers=[1])
    cut = Knockout([(9, 17)], [8], layers=[1]) if cut.queries == "all" else cut
    with model.intervene(cut):
        out = model.generate(prompt, 5, stop_at_eos=False)
        logits = model(prompt + out.tokens)
    assert out.tokens == logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()


def test_knockout_in_a_padded_batch_is_that_of_single_texts(tiny: HookedTransformer) -> None:
    for side in ("left", "right"):
        batch = tiny.tokenizer.tokenize(["hi you", TEXT], pad=side)
        with tiny.intervene(Knockout("last", [(1, 3)])):
            together = tiny(batch)
            alone = [tiny(text)[0, -1] for text in ("hi you", TEXT)]
        for row in range(2):
            torch.testing.assert_close(together[row, batch.last[row]], alone[row], atol=1e-4, rtol=1e-4)


def test_knockouts_compose(tiny: HookedTransformer) -> None:
    with tiny.intervene(Knockout([10], [2]), Knockout([10], [5])):
        both = tiny(TEXT)
    with tiny.intervene(Knockout([10], [2, 5])):
        torch.testing.assert_close(tiny(TEXT), both)


def test_knockouts_that_make_no_sense_are_refused(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="position 0 of text 0 would see no key"), tiny.intervene(Knockout([0], [0])):
        tiny(TEXT)
    with pytest.raises(ValueError, match="found no token"), tiny.intervene(Knockout([2], [5])):
        tiny(TEXT)
    with pytest.raises(ValueError, match="heads 0 to 3"), tiny.intervene(Knockout([2], [1], heads=[(0, 4)])):
        pass
    for bad in ({"queries": "first", "keys": [0]}, {"queries": [-1], "keys": [0]}, {"queries": [1], "keys": []},
                {"queries": [1], "keys": [(3, 3)]}):  # fmt: skip
        with pytest.raises(ValueError, match=r"unknown|hold|empty"):
            Knockout(**bad)


def test_noise_is_the_same_alone_in_a_batch_and_in_decoding(tiny: HookedTransformer) -> None:
    plain = tiny(TEXT)
    with tiny.intervene(Noise(scale=0.0)):
        assert torch.equal(tiny(TEXT), plain)
    noise = Noise(positions=[2, 3], scale=0.5, seed=3)
    _, clean = tiny.run_with_cache(TEXT, sites="embed")
    with tiny.intervene(noise):
        _, one = tiny.run_with_cache(TEXT, sites="embed")
        _, batch = tiny.run_with_cache([TEXT, TEXT], sites="embed")
    moved = one["embed"] - clean["embed"]
    assert moved[0].abs().sum(-1).nonzero()[:, 0].tolist() == [2, 3]
    assert 0.3 < float(moved[0, 2:4].std()) < 0.7
    assert torch.equal(batch["embed"][0], one["embed"][0])
    assert not torch.equal(batch["embed"][0], batch["embed"][1])
    with tiny.intervene(Noise(positions=[2, 3], scale=0.5, seed=3, shared=True)):
        _, shared = tiny.run_with_cache([TEXT, TEXT], sites="embed")
    assert torch.equal(shared["embed"][0], shared["embed"][1])
    prompt = tiny.tokenizer.encode(TEXT)
    with tiny.intervene(Noise(scale=0.3)):
        out = tiny.generate(prompt, 4, stop_at_eos=False)
        assert out.tokens == tiny(prompt + out.tokens)[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    with pytest.raises(ValueError, match="from 0 up"):
        Noise(scale=-1)


def test_mean_by_position_is_a_mean_over_texts(tiny: HookedTransformer) -> None:
    texts = ["hello there", "other words", "abcdefghijk"]
    _, cache = tiny.run_with_cache(texts, sites="z:1")
    with tiny.intervene(Ablate(heads=[(1, 2)], reference=texts, by="position")):
        _, cut = tiny.run_with_cache(TEXT, sites="z:1")
    torch.testing.assert_close(cut["z:1.2"][0], cache["z:1.2"].mean(0))
    with (
        pytest.raises(ValueError, match="one length"),
        tiny.intervene(Ablate(heads=[(1, 2)], reference=["a b", "c"], by="position")),
    ):
        pass
    with (
        pytest.raises(ValueError, match="beyond the reference"),
        tiny.intervene(Ablate(heads=[(1, 2)], reference=texts, by="position")),
    ):
        tiny("hello there and on")


def test_resampling_pairs_rows_or_draws_them(tiny: HookedTransformer) -> None:
    batch = tiny.tokenizer.tokenize(["hi you", TEXT], pad="left")
    other = tiny.tokenizer.tokenize(["or not", "other words"], pad="right")
    _, cache = tiny.run_with_cache(other, sites="mlp_out:0")
    for reference in (["or not", "other words"], cache):
        with tiny.intervene(Ablate(mlps=[0], kind="resample", reference=reference)):
            _, cut = tiny.run_with_cache(batch, sites="mlp_out:0")
        for row in range(2):
            torch.testing.assert_close(
                cut["mlp_out", 0][row][batch.mask[row]], cache["mlp_out", 0][row][other.mask[row]], atol=1e-5, rtol=1e-4
            )
    with (
        pytest.raises(ValueError, match="one length"),
        tiny.intervene(Ablate(mlps=[0], kind="resample", reference=["or", "other words"])),
    ):
        tiny(batch)
    drawn = Ablate(attentions=[1], kind="resample", reference=["some other words"], seed=1)
    with tiny.intervene(drawn):
        _, first = tiny.run_with_cache(TEXT, sites="attn_out:1")
        _, again = tiny.run_with_cache([TEXT, "x"], sites="attn_out:1")
    _, pool = tiny.run_with_cache("some other words", sites="attn_out:1")
    torch.testing.assert_close(first["attn_out", 1][0], again["attn_out", 1][0, :11])
    assert float(torch.cdist(first["attn_out", 1][0], pool["attn_out", 1][0]).min(1).values.max()) < 1e-3


def test_neurons_are_components_of_post(tiny: HookedTransformer) -> None:
    ablate = Ablate(neurons=[(1, 5), (1, 9)], kind="zero")
    with tiny.intervene(ablate):
        logits = tiny(TEXT)

    def by_hand(value: Tensor, ctx: object) -> None:
        value[..., [5, 9]] = 0

    with tiny.hooks({"post:1": by_hand}):
        assert torch.equal(tiny(TEXT), logits)
    assert ablate.describe()["neurons"] == [[1, 5], [1, 9]]
