"""Steering by latents: what is added is a multiple of the decoder row, and the SAE's error stays."""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import shaken_model
from torch import Tensor

from interp.intervene import Direction, Steer
from interp.model import HookedTransformer
from interp.sae import SAE
from interp.sae.edit import LatentDirection, SteerLatent, latent_activations, latent_direction

TEXTS = ["hello there", "a longer text than that one"]
SITE = "blocks.0.hook_resid_post"
OPTIONS: dict[str, dict[str, Any]] = {
    "topk": {"k": 5},
    "jumprelu": {"threshold": torch.full((40,), 0.4)},
    "gated": {"b_mag": torch.full((40,), 0.2), "r_mag": torch.full((40,), -0.3)},
}


def sae_of(sites: list[str], targets: list[str] | None = None, width: int = 32, **options: Any) -> SAE:
    generator = torch.Generator().manual_seed(0)
    W_dec = 0.7 * torch.randn(40, width, generator=generator)
    b_enc, b_dec = 0.1 * torch.randn(40, generator=generator), 0.1 * torch.randn(width, generator=generator)
    card = {"sites": sites, "targets": targets or sites, "widths": dict.fromkeys([*sites, *(targets or [])], 32)}
    card |= {"typical_norm": 5.0} if sites == [SITE] else {}
    return SAE(W_dec.T.contiguous(), b_enc, W_dec, b_dec, card=card, **(options or {"k": 5}))


@pytest.fixture(scope="module")
def tiny() -> HookedTransformer:
    return shaken_model("llama").requires_grad_(False)


@pytest.fixture
def sae() -> SAE:
    return sae_of([SITE])


def strongest(sae: SAE, x: Tensor, n: int = 2) -> list[int]:
    return sae.encode(x).sum((0, 1)).topk(n).indices.tolist()


def test_each_kind_is_an_edit_of_the_encoding(tiny: HookedTransformer) -> None:
    """The value becomes decode(edited latents) + error, for every architecture; pads keep theirs."""
    tokens = tiny.tokenize(TEXTS)
    _, cache = tiny.run_with_cache(tokens, sites=SITE)
    x = cache[SITE]
    for options in OPTIONS.values():
        sae = sae_of([SITE], **options)
        old, latents = sae.encode(x), strongest(sae, x)
        for kind, value in (("add", [1.5, -2.0]), ("clamp", 3.0), ("ablate", None)):
            new = old.clone()
            if kind == "add":
                new[..., latents] += torch.tensor(value)
            else:
                new[..., latents] = 0.0 if value is None else value
            expected = torch.where(tokens.mask[..., None], sae.decode(new) + (x - sae.decode(old)), x)
            with tiny.intervene(SteerLatent(sae, latents, kind, value)):
                _, steered = tiny.run_with_cache(tokens, sites=SITE)
            assert torch.allclose(steered[SITE], expected, atol=1e-4), (options, kind)
            assert not torch.allclose(steered[SITE], x, atol=0.1)


def test_the_same_as_an_edit_inside_a_splice(tiny: HookedTransformer) -> None:
    places = (
        ([SITE], None),
        (["blocks.1.ln2.hook_normalized"], ["blocks.1.hook_mlp_out"]),
        (["blocks.1.attn.hook_z"], None),
    )
    for sites, targets in places:
        sae = sae_of(sites, targets)
        name = f"{sae.targets[0]}.hook_sae_acts_post"
        with tiny.splice(sae):
            _, cache = tiny.run_with_cache(TEXTS, sites=name)
            latent = int(cache[name].sum((0, 1)).argmax())
            with tiny.hooks({name: lambda value, ctx, latent=latent: value.index_fill(-1, torch.tensor(latent), 2.5)}):
                expected = tiny(TEXTS)
        with tiny.intervene(SteerLatent(sae, latent, "clamp", 2.5)):
            steered = tiny(TEXTS)
        real = tiny.tokenize(TEXTS).mask
        assert torch.allclose(steered[real], expected[real], atol=1e-4)


def test_adding_is_steering_by_the_decoder_row(tiny: HookedTransformer, sae: SAE) -> None:
    direction = latent_direction(sae, 7)
    assert isinstance(direction, Direction)
    assert direction.raw_norm == pytest.approx(float(sae.W_dec[7].norm()))
    with tiny.intervene(SteerLatent(sae, 7, value=2.0)):
        added = tiny(TEXTS)
    for steer in (Steer(direction, 2.0, raw=True), Steer(direction, 2.0 * direction.raw_norm / 5.0)):
        with tiny.intervene(steer):
            assert torch.allclose(tiny(TEXTS), added, atol=1e-4)
    assert latent_direction(sae_of([SITE], width=32), 7).typical_norm == 5.0


def test_latents_come_in_any_form(sae: SAE) -> None:
    """As frames, arrays and tensors give them."""
    frame = pd.DataFrame({"latent": [7, 2]})
    for given in ([7, 2], (7, 2), frame["latent"].to_numpy(), torch.tensor([7, 2]), list(frame["latent"])):
        assert SteerLatent(sae, given, value=1.0).describe()["latents"] == [7, 2]
    assert SteerLatent(sae, frame["latent"].iloc[0], value=1.0).latents == [7]
    assert torch.equal(latent_direction(sae, frame["latent"].iloc[0]).direction, latent_direction(sae, 7).direction)


def test_adding_nothing_leaves_the_logits_bit_identical(tiny: HookedTransformer, sae: SAE) -> None:
    before = tiny(TEXTS)
    with tiny.intervene(SteerLatent(sae, 3, "add", 0.0)):
        assert torch.equal(tiny(TEXTS), before)
    assert torch.equal(tiny(TEXTS), before)


def test_units_are_those_of_the_features(sae: SAE) -> None:
    features = pd.DataFrame({"latent": [4, 2], "max": [8.0, 3.0], "mean_active": [2.0, float("nan")]})
    assert SteerLatent(sae, [2, 4], "add", 0.5, "max", features).amounts().tolist() == [1.5, 4.0]
    assert SteerLatent(sae, 4, "clamp", 3, "mean", features).amounts().tolist() == [6.0]
    assert SteerLatent(sae, 4, "clamp", 3).describe()["amounts"] == [3.0]
    for latent, unit, given, message in (
        (2, "mean", features, "latent 2 never fired"),
        (9, "max", features, "latent 9 never fired"),
        (2, "max", None, "give features=sae_features"),
        (2, "norm", features, "choose from raw, max, mean"),
    ):
        with pytest.raises(ValueError, match=message):
            SteerLatent(sae, latent, "add", 1.0, unit, given)


@pytest.mark.parametrize("where", ["all", "generated", "prompt"])
def test_steered_generation_equals_the_teacher_forced_pass(tiny: HookedTransformer, sae: SAE, where: str) -> None:
    transcoder = sae_of(["blocks.1.hook_mlp_in"], ["blocks.1.hook_mlp_out"])
    n_prompt = int(tiny.tokenize(TEXTS[0]).lengths[0])
    for kind, value in (("add", 3.0), ("clamp", 4.0), ("ablate", None)):
        edits = [SteerLatent(each, [3, 11, 20], kind, value, where=where) for each in (sae, transcoder)]
        with tiny.intervene(*edits):
            out = tiny.generate(TEXTS[0], max_new_tokens=6, sites="resid_post:1")
            fed = torch.tensor([out.all_tokens[: len(out.cache["resid_post:1"])]])
            _, cache = tiny.run_with_cache(fed, sites="resid_post:1", prompt_len=n_prompt)
        assert torch.allclose(out.cache["resid_post:1"], cache["resid_post:1"][0], atol=1e-4)


def test_positions_and_texts_of_a_batch(tiny: HookedTransformer, sae: SAE) -> None:
    """Absolute positions, whatever the padding."""
    tokens = tiny.tokenizer.tokenize(TEXTS, pad="left")
    _, before = tiny.run_with_cache(tokens, sites=SITE)
    with tiny.intervene(SteerLatent(sae, 5, value=2.0, positions=[3, 4])):
        _, after = tiny.run_with_cache(tokens, sites=SITE)
    change = after[SITE] - before[SITE]
    hit = (tokens.positions == 3) | (tokens.positions == 4)
    hit &= tokens.mask
    assert torch.allclose(change[hit], (2.0 * sae.W_dec[5]).expand(4, -1), atol=1e-5)
    assert not change[~hit].any()


def test_a_crosscoder_is_steered_at_all_its_sites(tiny: HookedTransformer) -> None:
    sites = [SITE, "blocks.1.hook_resid_post"]
    crosscoder = sae_of(sites, width=64)
    _, before = tiny.run_with_cache(TEXTS[0], sites=sites)
    with tiny.intervene(SteerLatent(crosscoder, 1, value=2.0)):
        _, after = tiny.run_with_cache(TEXTS[0], sites=["resid_post:0", "resid_pre:1"])
        second = tiny(after[sites[0]], start_at_layer=1, stop_at_layer=2)
    assert torch.allclose(after[sites[0]] - before[sites[0]], 2.0 * crosscoder.W_dec[1, :32].expand(11, -1), atol=1e-5)
    plain = tiny(after[sites[0]], start_at_layer=1, stop_at_layer=2)
    assert torch.allclose(second - plain, 2.0 * crosscoder.W_dec[1, 32:].expand(11, -1), atol=1e-4)
    with pytest.raises(ValueError, match="steered by kind='add'"), tiny.intervene(SteerLatent(crosscoder, 1, "ablate")):
        pass


def test_activations_of_some_latents(tiny: HookedTransformer) -> None:
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(2))
    for options in OPTIONS.values():
        sae = sae_of([SITE], **options)
        assert torch.equal(latent_activations(sae, x, [9, 0, 3]), sae.encode(x)[..., [9, 0, 3]])
        assert torch.equal(latent_activations(sae, x, 3), sae.encode(x)[..., [3]])


def test_values_come_in_any_form(sae: SAE) -> None:
    for one in (np.float32(2), np.int64(2), torch.tensor(2.0), np.array(2), Fraction(4, 2), [2.0, 2], np.full(2, 2.0)):
        assert SteerLatent(sae, [3, 9], value=one).amounts().tolist() == [2.0, 2.0]
    assert SteerLatent(sae, [3, 9], value=torch.tensor([1, -1])).amounts().tolist() == [1.0, -1.0]
    assert SteerLatent(sae, [3, 9], value=(np.float32(1), torch.tensor(-1))).amounts().tolist() == [1.0, -1.0]


def test_what_cannot_be_steered_is_refused(tiny: HookedTransformer, sae: SAE) -> None:
    nameless, unplaced = sae_of([]), sae_of([])
    unplaced.card["imported"] = {"transcoder": True}
    skipping = sae_of([SITE], k=5, W_skip=torch.zeros(32, 32))
    for make, message in (
        (lambda: SteerLatent(tiny, 0, value=1.0), "SteerLatent takes an SAE"),
        (lambda: SteerLatent(nameless, 0, value=1.0), "does not say its site"),
        (lambda: SteerLatent(unplaced, 0, value=1.0), "whose card does not say what it writes"),
        (lambda: SteerLatent(skipping, 0, value=1.0), "whose card does not say what it writes"),
        (lambda: latent_direction(skipping, 0), "whose card does not say what it writes"),
        (lambda: SteerLatent(sae, 40, value=1.0), "latents 0 to 39"),
        (lambda: SteerLatent(sae, 1.5, value=1.0), "latent 1.5 does not exist"),
        (lambda: SteerLatent(sae, [1, 1], value=1.0), "name each latent once"),
        (lambda: SteerLatent(sae, [], value=1.0), "name each latent once"),
        (lambda: SteerLatent(sae, 1, "double", 1.0), "choose from add, clamp, ablate"),
        (lambda: SteerLatent(sae, 1), "needs value="),
        (lambda: SteerLatent(sae, 1, value=float("nan")), "needs value="),
        (lambda: SteerLatent(sae, 1, value=True), "needs value="),
        (lambda: SteerLatent(sae, 1, value=np.bool_(True)), "needs value="),
        (lambda: SteerLatent(sae, 1, value=torch.ones(1, 1)), "needs value="),
        (lambda: SteerLatent(sae, 1, value="2"), "needs value="),
        (lambda: SteerLatent(sae, [1, 2], value=[1.0]), "one for each of 2 latents"),
        (lambda: SteerLatent(sae, 1, "ablate", 1.0), "clamp holds them"),
        (lambda: SteerLatent(sae, 1, value=1.0, where="answer"), "where='answer'"),
        (lambda: latent_direction(sae, -1), "latents 0 to 39"),
        (lambda: latent_direction(sae_of(["blocks.1.hook_mlp_out"]), 1), "no typical norm"),
        (lambda: latent_direction(sae_of([SITE, "blocks.1.hook_resid_post"], width=64), 1), "writes 2"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    sae.card["model"] = "0" * 32
    with pytest.raises(ValueError, match="fingerprint 0000"), tiny.intervene(SteerLatent(sae, 1, value=1.0)):
        pass
    late = sae_of([SITE], ["blocks.1.hook_mlp_out"])
    stream = tiny(TEXTS[0], stop_at_layer=1)
    with pytest.raises(ValueError, match="did not compute"), tiny.intervene(SteerLatent(late, 1, "ablate")):
        tiny(stream, start_at_layer=1)


def test_a_latent_direction_is_a_value(sae: SAE) -> None:
    direction = latent_direction(sae, 2)
    assert isinstance(direction, LatentDirection)
    assert float(direction.direction.norm()) == pytest.approx(1.0)
    assert (direction.site, direction.length) == (SITE, 1.0)
