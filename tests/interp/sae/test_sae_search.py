"""Search against loops over latents, and against planted hits."""

from typing import Any

import numpy as np
import pytest
import torch

from interp.model import HookedTransformer
from interp.sae.edit import SteerLatent
from interp.sae.features import SAEFeatures, sae_features
from interp.sae.model import SAE
from interp.sae.search import search_by_direction, search_by_prompt, search_by_token
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


@pytest.fixture(scope="module")
def features(sae: SAE, store: Store, tiny_llama: HookedTransformer) -> SAEFeatures:
    return sae_features(sae, store, model=tiny_llama)


def tensors_of(sae: SAE) -> tuple[torch.Tensor, ...]:
    return sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec


def test_a_token_is_found_in_every_list(features: SAEFeatures) -> None:
    token = int(features.latents["top_token_ids"].map(len).idxmax())
    token = features.latents["top_token_ids"][token][0]
    found = search_by_token(features, token, n=1000)
    for role, column in (("reads", "top_token_ids"), ("raises", "up_token_ids"), ("lowers", "down_token_ids")):
        expected = {
            (row.latent, getattr(row, column).index(token))
            for row in features.latents.itertuples()
            if token in getattr(row, column)
        }
        hits = found[found["role"] == role]
        assert set(zip(hits["latent"], hits["rank"], strict=True)) == expected
        assert (hits["value"] * (-1 if role == "lowers" else 1)).is_monotonic_decreasing
    assert "reads" in set(found["role"])
    best = found[(found["role"] == "reads") & (found["rank"] == 0)].iloc[0]
    assert best["value"] == features.latents["top_token_share"][best["latent"]]
    assert search_by_token(features, token, n=1)["role"].is_unique


def test_a_text_finds_its_tokens_whatever_the_case(features: SAEFeatures) -> None:
    text = next(texts[0] for texts in features.latents["top_tokens"] if texts and texts[0].isalpha())
    lower, upper = (search_by_token(features, f" {each} ", n=500) for each in (text.lower(), text.upper()))
    assert len(lower) > 0
    assert lower.equals(upper)
    assert set(lower["token"].str.casefold()) == {text.casefold()}
    assert len(search_by_token(features, "no such token")) == 0


def test_a_text_needs_features_with_texts(sae: SAE, store: Store, features: SAEFeatures) -> None:
    plain = sae_features(sae, store)
    with pytest.raises(ValueError, match="made without model="):
        search_by_token(plain, "a")
    with pytest.raises(ValueError, match="'  ' is empty"):
        search_by_token(features, "  ")
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, got 0"):
        search_by_token(plain, 3, n=0)
    assert set(search_by_token(plain, plain.latents["top_token_ids"][0][0])["role"]) == {"reads"}


@pytest.mark.parametrize("token", [-1, 10**9, None, 1.5, True, [1]])
def test_what_is_no_token_is_refused(features: SAEFeatures, token: Any) -> None:
    with pytest.raises(ValueError, match="is no token: give an id"):
        search_by_token(features, token)


def test_other_models_and_features_of_other_saes_are_refused(
    sae: SAE, tiny_llama: HookedTransformer, features: SAEFeatures
) -> None:
    W_enc, *others = tensors_of(sae)
    stranger = SAE(W_enc.flip(1), *others, k=4, card=sae.card)
    with pytest.raises(ValueError, match="features are of another SAE"):
        search_by_prompt(stranger, tiny_llama, "river stone", features=features)
    assert len(search_by_prompt(stranger, tiny_llama, "river stone")) > 0
    with pytest.raises(ValueError, match="features are of another SAE"):
        SteerLatent(stranger, 3, "add", 1.0, "max", features)
    foreign = SAE(*tensors_of(sae), k=4, card={**sae.card, "model": "0123"})
    with pytest.raises(ValueError, match="trained on a model with the fingerprint 0123"):
        search_by_prompt(foreign, tiny_llama, "river stone")


def test_a_prompt_against_the_encoder(
    sae: SAE, store: Store, tiny_llama: HookedTransformer, texts: list[str], features: SAEFeatures
) -> None:
    number = next(i for i, text in enumerate(texts) if "#" in text and "<|end|>" in text)
    tokens, typical = store.tokens, store.typical(SITE)
    rows = np.flatnonzero((tokens["text"] == number) & typical)
    latents = sae.encode(store.rows(SITE, rows)).double().numpy()
    found = search_by_prompt(sae, tiny_llama, texts[number], n=1000)
    assert found["n_read"].unique().tolist() == [len(rows)]
    assert set(found["latent"]) == set(np.flatnonzero(latents.max(0) > 0))
    assert found["max"].is_monotonic_decreasing
    for row in found.itertuples():
        assert row.max == pytest.approx(latents[:, row.latent].max(), rel=1e-4)
        assert row.n_tokens == (latents[:, row.latent] > 0).sum()
        assert (
            tokens["token_id"][(tokens["text"] == number) & (tokens["position"] == row.position)].item() == row.token_id
        )
    each = search_by_prompt(sae, tiny_llama, texts[number], n=2, per_token=True, features=features)
    assert each["position"].unique().tolist() == tokens["position"][rows].tolist()
    for position, hits in each.groupby("position"):
        own = latents[tokens["position"].to_numpy()[rows] == position][0]
        assert hits["value"].tolist() == pytest.approx(np.sort(own)[::-1][:2].tolist(), rel=1e-4)
    assert each["relative"].max() <= 1 + 1e-4


def test_frequent_latents_can_be_left_out(sae: SAE, tiny_llama: HookedTransformer, features: SAEFeatures) -> None:
    every = search_by_prompt(sae, tiny_llama, "river stone lantern", n=1000, features=features)
    rare = search_by_prompt(sae, tiny_llama, "river stone lantern", n=1000, features=features, max_density=0.05)
    assert 0 < len(rare) < len(every)
    assert set(rare["latent"]) == set(every.loc[every["density"] <= 0.05, "latent"])
    with pytest.raises(ValueError, match="max_density= needs features="):
        search_by_prompt(sae, tiny_llama, "river", max_density=0.1)
    with pytest.raises(ValueError, match="no token of this prompt is typical"):
        search_by_prompt(sae, tiny_llama, "r")
    with pytest.raises(ValueError, match="give one prompt, got 2"):
        search_by_prompt(sae, tiny_llama, ["river", "stone"])


class _Vector:
    def __init__(self, direction: torch.Tensor, site: str | None) -> None:
        self.direction, self.site = direction, site


def test_a_planted_direction_is_found_and_a_random_one_is_not(sae: SAE) -> None:
    found = search_by_direction(sae, _Vector(-3 * sae.W_dec[17], SITE), n=5)
    assert found["latent"][0] == 17
    assert found["decoder_cosine"][0] == pytest.approx(-1, abs=1e-6)
    assert found["decoder_p"][0] == 1 / 201
    assert found.loc[0, "encoder_cosine"] == pytest.approx(
        -torch.cosine_similarity(sae.W_enc[:, 17].double(), sae.W_dec[17].double(), dim=0).item(), abs=1e-6
    )
    p = [
        search_by_direction(sae, torch.randn(32, generator=torch.Generator().manual_seed(seed)), seed=1)[
            "decoder_p"
        ].min()
        for seed in range(30)
    ]
    assert np.mean(np.array(p) < 0.1) < 0.3
    assert search_by_direction(sae, sae.W_dec[3]).equals(search_by_direction(sae, sae.W_dec[3].numpy()))


def test_directions_that_fit_nothing_are_refused(sae: SAE) -> None:
    with pytest.raises(ValueError, match="width 31"):
        search_by_direction(sae, torch.ones(31))
    with pytest.raises(ValueError, match="not all zero"):
        search_by_direction(sae, torch.zeros(32))
    with pytest.raises(ValueError, match="n_random must be"):
        search_by_direction(sae, torch.ones(32), n_random=0)
    for word in ("joy", None, ["a", "b"], [[1.0], [2.0, 3.0]]):
        with pytest.raises(ValueError, match="a direction is a vector of numbers"):
            search_by_direction(sae, word)


def test_the_site_says_which_part_of_a_crosscoder_is_meant() -> None:
    sites = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    generator = torch.Generator().manual_seed(0)
    W_enc, W_dec = torch.randn(16, 20, generator=generator), torch.randn(20, 16, generator=generator)
    tensors = (W_enc, torch.zeros(20), W_dec, torch.zeros(16))
    crosscoder = SAE(*tensors, k=2, card={"sites": sites, "targets": sites, "widths": dict.fromkeys(sites, 8)})
    assert search_by_direction(crosscoder, W_dec[4, 8:], site="resid_post:1")["latent"][0] == 4
    assert search_by_direction(crosscoder, W_enc[:8, 9], site="resid_post:0")["latent"][0] == 9
    with pytest.raises(ValueError, match="say which one by site="):
        search_by_direction(crosscoder, W_dec[4, 8:])
    transcoder = SAE(*tensors, k=2, card={"sites": sites[:1], "targets": sites[1:], "widths": dict.fromkeys(sites, 16)})
    assert list(search_by_direction(transcoder, _Vector(W_dec[4], sites[1]))) == [
        "latent", "decoder_cosine", "decoder_p", "decoder_null",
    ]  # fmt: skip
    assert "encoder_cosine" in search_by_direction(transcoder, W_dec[4])
