"""Training and evaluation on a store: which rows count, and what the card says of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from interp.sae import SAE, SAEConfig, evaluate_sae, load_sae, split_rows, train_sae
from interp.store import Store

SITE = "blocks.1.hook_resid_post"
CONFIG = SAEConfig(k=4, width=64, lr=3e-3, batch_size=128, epochs=2)


def test_the_fixture_has_every_kind_of_row_that_is_not_typical(store: Store) -> None:
    tokens = store.tokens
    assert tokens["is_first"].sum() == 60
    assert tokens["is_special"].sum() > 10
    assert tokens["is_outlier"].sum() > 10
    assert store.stats(SITE).left_out == (~store.typical(SITE)).sum()


def test_training_sees_typical_rows_only(store: Store) -> None:
    """The same SAE comes from the store and from the batches of its typical rows."""
    from_store = train_sae(store, CONFIG, site="resid_post:1")
    batches = store.batches(SITE, size=128, seed=0, typical=True, epochs=2)
    from_batches = train_sae(batches, CONFIG)
    for ours, theirs in zip(from_store.state_dict().values(), from_batches.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert from_store.card["n_rows"] == 2 * store.typical(SITE).sum()


def test_the_card_says_where_the_sae_comes_from(store: Store, sae: SAE, tmp_path: Path) -> None:
    card = load_sae(sae.save(tmp_path / "sae.safetensors")).card
    assert sae.site == card["site"] == SITE
    assert card["sites"] == card["targets"] == [SITE]
    assert card["widths"] == {SITE: 32}
    assert card["typical_norms"] == {SITE: card["typical_norm"]}
    assert card["model"] == card["provenance"]["model"] == store.model_fingerprint
    assert card["left_out"] == store.stats(SITE).left_out
    assert card["typical_norm"] == store.stats(SITE).typical_norm
    assert card["config"]["k"] == 4
    assert card["final"]["step"] == card["n_steps"]


def test_chosen_rows_are_trained_on(store: Store) -> None:
    train, _ = split_rows(store, 0.3, seed=1)
    sae = train_sae(store, CONFIG, site=SITE, rows=train)
    assert sae.card["n_rows"] == 2 * store.typical(SITE)[train].sum()


def test_a_split_divides_no_group(store: Store) -> None:
    train, held = split_rows(store, held_out=0.25, seed=3)
    assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(store.n_rows))
    assert len(held) / store.n_rows == pytest.approx(0.25, abs=0.1)
    group = store.examples["group"].loc[store.tokens["text"]].to_numpy()
    assert not set(group[train]) & set(group[held])
    assert np.array_equal(held, split_rows(store, held_out=0.25, seed=3)[1])
    with pytest.raises(ValueError, match=r"share between 0 and 1, got 1\.5"):
        split_rows(store, held_out=1.5)


def test_evaluation_measures_typical_rows_and_shows_all_beside(store: Store, sae: SAE) -> None:
    _, held = split_rows(store, 0.3)
    report = evaluate_sae(sae, store, rows=held)
    typical = store.typical(SITE)[held]
    alone = evaluate_sae(sae, store.rows(SITE, held[typical]))
    for figure in (
        "fvu",
        "l0",
        "l0_p50",
        "l0_p90",
        "dead_share",
        "dense_share",
        "cosine",
        "relative_norm",
        "n_rows",
    ):
        assert getattr(report, figure) == pytest.approx(getattr(alone, figure), rel=1e-6), figure
    together = evaluate_sae(sae, store.rows(SITE, held))
    assert report.fvu_all == pytest.approx(together.fvu, rel=1e-6)
    assert report.cosine_all == pytest.approx(together.cosine, rel=1e-6)
    assert (report.n_rows, report.n_left_out) == (typical.sum(), (~typical).sum())
    assert (alone.n_left_out, alone.fvu_all) == (0, alone.fvu)
    assert report.site == SITE
    mask = np.isin(np.arange(store.n_rows), held)
    assert evaluate_sae(sae, store, rows=mask) == report


def test_a_store_asks_for_the_site(store: Store, sae: SAE) -> None:
    with pytest.raises(ValueError, match=r"say which site to train on.*blocks\.0\.hook_resid_post"):
        train_sae(store, CONFIG)
    with pytest.raises(ValueError, match="resid_post:1"):
        train_sae(store, CONFIG, site="resid_post:7")
    nameless = SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, k=4)
    with pytest.raises(ValueError, match="does not say its site"):
        evaluate_sae(nameless, store)
    with pytest.raises(ValueError, match=r"are of blocks\.1\.hook_resid_post, not of resid_post:0"):
        train_sae(store.batches(SITE), CONFIG, site="resid_post:0")
    with pytest.raises(ValueError, match="without an end"):
        train_sae(store.batches(SITE, epochs=None), CONFIG)


def test_rows_of_which_none_is_typical_are_refused(store: Store, sae: SAE) -> None:
    first = np.flatnonzero(store.tokens["is_first"])
    with pytest.raises(ValueError, match="nothing to measure on: no row, or none of 60 is typical"):
        evaluate_sae(sae, store, rows=first)
    with pytest.raises(ValueError, match="leave out all"):
        train_sae(store, CONFIG, site=SITE, rows=first)
