"""The bar for an autoencoder on a real model: better than PCA with twice its components, on documents it never saw."""

from pathlib import Path

import pytest

from interp.dataset import load_corpus
from interp.model import HookedTransformer
from interp.recording import record
from interp.sae import SAEConfig, evaluate_sae, pca_baseline, split_rows, train_sae


@pytest.mark.slow
def test_held_out_fvu_is_below_a_pca_of_rank_64(smollm: HookedTransformer, tmp_path: Path) -> None:
    documents = load_corpus("python_docs").take(range(0, 816, 4))
    site = "blocks.6.hook_resid_post"
    store = record(smollm, documents, site, path=tmp_path / "store", long="chunk", max_length=128, progress=False)
    train, held = split_rows(store, 0.2)
    sae = train_sae(store, SAEConfig(k=32, batch_size=2048, epochs=2, lr=4e-3), site=site, rows=train)
    report = evaluate_sae(sae, store, rows=held)
    typical = store.typical(site)
    pca = pca_baseline(store.rows(site, train[typical[train]]), store.rows(site, held[typical[held]]), ranks=(64,))
    assert report.l0 == pytest.approx(32, abs=0.5)
    assert report.n_left_out > 0
    assert report.fvu < float(pca["fvu"].iloc[0])
