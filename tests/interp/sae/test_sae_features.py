"""The feature tables against a plain loop over latents and rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp.model import HookedTransformer
from interp.sae import SAE, SAEFeatures, sae_features
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


@pytest.fixture(scope="module")
def features(sae: SAE, store: Store) -> SAEFeatures:
    return sae_features(sae, store, n_examples=4, n_tokens=3)


def test_every_latent_against_a_plain_loop(features: SAEFeatures, sae: SAE, store: Store) -> None:
    typical = np.flatnonzero(store.typical(SITE))
    latents = sae.encode(store.rows(SITE, typical)).double().numpy()
    tokens = store.tokens.iloc[typical].reset_index(drop=True)
    assert len(features.latents) == sae.n_latents
    assert (features.n_rows, features.n_left_out) == (len(typical), store.n_rows - len(typical))
    for row in features.latents.itertuples():
        value = latents[:, row.latent]
        assert row.n_active == (value > 0).sum()
        assert row.density == row.n_active / len(typical)
        shown = features.examples[features.examples["latent"] == row.latent]
        if row.n_active == 0:
            assert np.isnan([row.max, row.mean_active, row.top_token_share]).all()
            assert row.top_token_ids == []
            assert len(shown) == 0
            continue
        assert row.max == pytest.approx(value.max(), rel=1e-5)
        assert row.mean_active == pytest.approx(value[value > 0].mean(), rel=1e-5)
        by_token = pd.Series(value).groupby(tokens["token_id"]).sum().sort_values(ascending=False)
        by_token = by_token[by_token > 0]
        assert row.top_token_ids[0] == by_token.index[0]
        assert len(row.top_token_ids) == min(3, len(by_token))
        assert row.top_token_share == pytest.approx(by_token.iloc[0] / by_token.sum(), rel=1e-5)
        best = pd.Series(value).groupby(tokens["text"]).max().sort_values(ascending=False)
        best = best[best > 0].iloc[:4]
        assert shown["value"].to_numpy() == pytest.approx(best.to_numpy(), rel=1e-5)
        assert shown["rank"].tolist() == list(range(len(best)))
        assert shown["text"].is_unique
    assert (features.latents["n_active"] == 0).any() or (features.latents["n_active"] > 0).all()


def test_examples_say_which_token_they_are(features: SAEFeatures, sae: SAE, store: Store) -> None:
    examples = features.examples
    assert len(examples) > 100
    tokens = store.tokens.iloc[examples["row"]]
    for column in ("text", "position", "token_id"):
        assert examples[column].tolist() == tokens[column].tolist()
    value = sae.encode(store.rows(SITE, examples["row"].to_numpy()))[torch.arange(len(examples)), examples["latent"]]
    assert np.allclose(value, examples["value"], rtol=1e-5)
    assert store.typical(SITE)[examples["row"]].all()


@pytest.mark.parametrize("size", [1, 100])
def test_the_block_size_does_not_matter(features: SAEFeatures, sae: SAE, store: Store, size: int) -> None:
    cut = sae_features(sae, store, n_examples=4, n_tokens=3, block_rows=size)
    pd.testing.assert_frame_equal(cut.latents, features.latents)
    pd.testing.assert_frame_equal(cut.examples, features.examples)
    pd.testing.assert_frame_equal(cut.interval_examples, features.interval_examples)
    assert cut.card == features.card


def test_rows_restrict_what_is_read(sae: SAE, store: Store) -> None:
    some = np.flatnonzero(store.tokens["text"] < 7)
    part = sae_features(sae, store, rows=some)
    assert part.n_rows + part.n_left_out == len(some)
    assert part.examples["text"].max() < 7


def test_logit_tokens_are_those_of_the_unembedding(sae: SAE, store: Store, tiny_llama: HookedTransformer) -> None:
    latents = sae_features(sae, store, model=tiny_llama, n_tokens=2).latents
    assert tiny_llama.tokenizer is not None
    effect = (torch.nn.functional.rms_norm(sae.W_dec, (32,)) * tiny_llama.ln_final.weight) @ tiny_llama.W_U
    for column, largest in (("up_tokens", True), ("down_tokens", False)):
        expected = [
            [tiny_llama.tokenizer.decode([token]) for token in row]
            for row in effect.topk(2, largest=largest).indices.tolist()
        ]
        assert latents[column].tolist() == expected
    for ids, texts in zip(latents["top_token_ids"], latents["top_tokens"], strict=True):
        assert texts == [tiny_llama.tokenizer.decode([token]) for token in ids]


def test_the_tables_are_parquet_files(features: SAEFeatures, tmp_path: Path) -> None:
    folder = features.save(tmp_path / "features")
    examples = pd.read_parquet(folder / "examples.parquet")
    strongest = examples[examples["group"] == 0].drop(columns="group").reset_index(drop=True)
    pd.testing.assert_frame_equal(strongest, features.examples)
    back = pd.read_parquet(folder / "features.parquet")
    assert back["top_token_ids"].map(list).tolist() == features.latents["top_token_ids"].tolist()
    assert features.to_frame() is features.latents


def test_what_makes_no_table_is_refused(sae: SAE, store: Store, tiny_llama: HookedTransformer) -> None:
    first = np.flatnonzero(store.tokens["is_first"])
    with pytest.raises(ValueError, match="none of the 60 rows"):
        sae_features(sae, store, rows=first)
    with pytest.raises(ValueError, match="n_examples must be at least 1, got 0"):
        sae_features(sae, store, n_examples=0)
    nameless = SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, k=4)
    with pytest.raises(ValueError, match="does not say its site"):
        sae_features(nameless, store)
