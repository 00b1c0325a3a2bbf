"""Histograms, drawn examples, neighbours, windows and the folder, each against a dense matrix of all activations."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp.artifact import write_json
from interp.model import HookedTransformer
from interp.recording import record
from interp.sae.features import HISTOGRAM_EDGES, SAEFeatures, activations, load_sae_features, sae_features
from interp.sae.model import SAE
from interp.sae.rows import documents
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


@pytest.fixture(scope="module")
def features(sae: SAE, store: Store) -> SAEFeatures:
    return sae_features(sae, store, n_examples=3, n_intervals=4, n_neighbours=3)


@pytest.fixture(scope="module")
def dense(sae: SAE, store: Store) -> pd.DataFrame:
    """Row of the store x latent, of the typical rows."""
    rows = np.flatnonzero(store.typical(SITE))
    return pd.DataFrame(sae.encode(store.rows(SITE, rows)).double().numpy(), index=rows)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts and ranges, as of a large store."""
    monkeypatch.setattr("interp.sae.features.making.PART_ENTRIES", 500)
    monkeypatch.setattr(activations, "RANGE_ENTRIES", 700)
    monkeypatch.setattr(activations, "_GROUP", 100)
    monkeypatch.setattr("interp.sae.features.neighbours._PAIRS", 64 * 10)
    monkeypatch.setattr("interp.sae.features.neighbours._STEP", 7)


def test_histograms_count_every_activation(features: SAEFeatures, dense: pd.DataFrame, store: Store) -> None:
    position = np.bincount(np.log2(store.tokens["position"].to_numpy()[dense.index]).astype(int), minlength=16)
    assert features.card["position_counts"] == position.tolist()
    for row in features.latents.itertuples():
        value = dense[row.latent].to_numpy()
        expected, _ = np.histogram(value[value > 0], bins=HISTOGRAM_EDGES)
        assert row.histogram.tolist() == expected.tolist()
        at = store.tokens["position"].to_numpy()[dense.index[value > 0]]
        assert row.position_counts.tolist() == np.bincount(np.log2(at).astype(int), minlength=16).tolist()
    outside = HISTOGRAM_EDGES[[0, -1]]
    assert outside.tolist() == [2.0**-16, 2.0**16]


def test_drawn_examples_lie_in_their_interval_and_are_as_many_as_there_are_texts(
    features: SAEFeatures, dense: pd.DataFrame, store: Store
) -> None:
    text = store.tokens["text"].to_numpy()[dense.index]
    drawn = features.interval_examples
    assert len(drawn) > 300
    for latent in dense:
        value = dense[latent].to_numpy()
        for interval in range(1, 5):
            low, high = (value.max() * edge / 4 for edge in (interval - 1, interval))
            inside = (value > max(low, 0) * (1 + 1e-6)) & (value <= high * (1 + 1e-6)) & (value > 0)
            shown = drawn[(drawn["latent"] == latent) & (drawn["interval"] == interval)]
            assert len(shown) == min(3, len(np.unique(text[inside])))
            assert shown["text"].is_unique
            assert set(shown["row"]) <= set(dense.index[inside])
            assert shown["value"].to_numpy() == pytest.approx(dense.loc[shown["row"], latent].to_numpy(), rel=1e-5)
            assert shown["value"].is_monotonic_decreasing
            assert shown["rank"].tolist() == list(range(len(shown)))


def test_pieces_of_a_document_give_one_example(tiny_llama: HookedTransformer, texts: list[str], sae: SAE) -> None:
    """A document cut into pieces counts once: among the strongest, and in each interval."""
    long = [" ".join(texts[start : start + 6]) for start in range(0, 36, 6)]
    store = record(
        tiny_llama, [*long, *texts[36:40]], sites=SITE, long="chunk", max_length=64, dtype="float32", progress=False
    )
    assert store.n_texts > 30
    found = sae_features(sae, store, n_examples=20, n_intervals=2)
    typical = np.flatnonzero(store.typical(SITE))
    value = sae.encode(store.rows(SITE, typical)).double().numpy()
    own = documents(store)[typical]
    assert len(np.unique(own)) == 10
    drawn = found.interval_examples
    for latent in np.flatnonzero((value > 0).any(axis=0)):
        best = pd.Series(value[:, latent]).groupby(own).max()
        expected = np.sort(best[best > 0])[::-1]
        strongest = found.examples.loc[found.examples["latent"] == latent, "value"].to_numpy()
        assert strongest == pytest.approx(expected, rel=1e-5)
        for _, part in drawn[drawn["latent"] == latent].groupby("interval"):
            assert len(np.unique(documents(store)[part["row"]])) == len(part)


def test_what_a_transcoder_writes_is_not_taken_for_its_site(
    sae: SAE, store: Store, tiny_llama: HookedTransformer
) -> None:
    """Nothing says where it writes, so it has neither logits nor a decoder that is comparable with its encoder."""
    unplaced = SAE(sae.W_enc.data, sae.b_enc.data, sae.W_dec.data, sae.b_dec.data, k=4)
    known = set(sae_features(unplaced, store, site=SITE, model=tiny_llama).latents)
    unplaced.card["imported"] = {"transcoder": True}
    found = sae_features(unplaced, store, site=SITE, model=tiny_llama)
    missing = {f"{name}_{part}" for name in ("up", "down") for part in ("token_ids", "values", "tokens")}
    assert known - set(found.latents) == {"encoder_decoder_cosine", *missing}
    assert found.card["effects"] == "the card of this transcoder does not say what it writes"


def test_draws_are_uniform_over_texts_and_follow_the_seed(sae: SAE, store: Store) -> None:
    drawn = [sae_features(sae, store, n_examples=1, n_intervals=1, seed=seed).interval_examples for seed in range(40)]
    assert not drawn[0].equals(drawn[1])
    latent = drawn[0].groupby("latent").size().index[0]
    texts = [int(frame.loc[frame["latent"] == latent, "text"].iloc[0]) for frame in drawn]
    # 40 draws of one of about 60 texts: uniform ones give 29 distinct texts, one that favours early texts far fewer.
    n_texts = store.tokens["text"].nunique()
    assert len(set(texts)) >= 18
    assert abs(np.mean(texts) / n_texts - 0.5) < 0.2


def test_neighbours_are_those_of_the_dense_matrices(features: SAEFeatures, dense: pd.DataFrame, sae: SAE) -> None:
    unit = torch.nn.functional.normalize(sae.W_dec.double(), dim=1)
    cosine = (unit @ unit.T).fill_diagonal_(-2).numpy()
    fires = dense.to_numpy() > 0
    with np.errstate(invalid="ignore"):
        phi = np.corrcoef(fires.T.astype(float))
    np.fill_diagonal(phi, -2)
    for row in features.latents.itertuples():
        order = np.argsort(-cosine[row.latent])[:3]
        assert row.decoder_latents == order.tolist()
        assert row.decoder_cosines == pytest.approx(cosine[row.latent][order].tolist(), abs=1e-6)
        expected = np.sort(np.nan_to_num(phi[row.latent], nan=-2))[::-1][:3]
        assert row.cofiring_phi == pytest.approx(expected[expected > 0].tolist(), abs=1e-9)
        assert phi[row.latent][row.cofiring_latents] == pytest.approx(row.cofiring_phi, abs=1e-9)
        own = torch.cosine_similarity(sae.W_enc[:, row.latent].double(), sae.W_dec[row.latent].double(), dim=0)
        assert row.encoder_decoder_cosine == pytest.approx(own.item(), abs=1e-9)


def test_windows_hold_the_neighbours_and_their_activations(
    features: SAEFeatures, dense: pd.DataFrame, store: Store, tiny_llama: HookedTransformer
) -> None:
    latent = int(features.latents["n_active"].idxmax())
    found = features.contexts(latent, before=4, after=3, model=tiny_llama)
    tokens = store.tokens
    values = dense[latent].reindex(range(store.n_rows)).to_numpy()
    assert np.isnan(found["value"]).any()
    assert found["value"].to_numpy() == pytest.approx(values[found["row"]], rel=1e-5, nan_ok=True)
    for name in ("text", "position", "token_id"):
        assert found[name].tolist() == tokens[name].iloc[found["row"]].tolist()
    centre = found[found["offset"] == 0]
    examples = features.examples[features.examples["latent"] == latent]
    assert centre.loc[centre["group"] == 0, "row"].tolist() == examples["row"].tolist()
    for _, window in found.groupby(["group", "rank"]):
        row = window.loc[window["offset"] == 0, "row"].item()
        inside = tokens.iloc[max(0, row - 4) : row + 4]
        assert window["row"].tolist() == inside.index[inside["text"] == tokens["text"][row]].tolist()
        assert "".join(window["token"]).replace("·", " ").strip() in str(store.examples["text"][tokens["text"][row]])


def test_windows_around_any_row(features: SAEFeatures, store: Store) -> None:
    found = features.windows(0, [5, 40], before=0, after=0)
    assert found["row"].tolist() == [5, 40]
    assert found["example"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="belongs to none of the texts"):
        features.windows(0, [store.n_rows])
    with pytest.raises(ValueError, match="before=-1"):
        features.windows(0, [5], before=-1)
    with pytest.raises(ValueError, match="there is no latent 64: they go from 0 to 63"):
        features.contexts(64)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("on_disk", [False, True])
def test_parts_and_ranges_do_not_matter(
    features: SAEFeatures, sae: SAE, store: Store, tmp_path: Path, on_disk: bool
) -> None:
    path = tmp_path / "features" if on_disk else None
    cut = sae_features(sae, store, n_examples=3, n_intervals=4, n_neighbours=3, path=path, block_rows=50)
    assert len(list(cut.activations.parts())) > 5
    assert len(list(cut.activations.ranges())) > 5
    assert cut.card == features.card
    pd.testing.assert_frame_equal(cut.latents, features.latents)
    pd.testing.assert_frame_equal(cut.examples, features.examples)
    pd.testing.assert_frame_equal(cut.interval_examples, features.interval_examples)
    pd.testing.assert_frame_equal(cut.activations.to_frame(), features.activations.to_frame(), check_dtype=False)
    for latent in (0, 13, 63):
        for mine, theirs in zip(cut.activations.of_latent(latent), features.activations.of_latent(latent), strict=True):
            assert mine.tolist() == theirs.tolist()
        pd.testing.assert_frame_equal(cut.contexts(latent), features.contexts(latent))


def test_a_folder_is_read_a_latent_at_a_time(features: SAEFeatures, dense: pd.DataFrame, tmp_path: Path) -> None:
    again = load_sae_features(features.save(tmp_path / "a"))
    copied = load_sae_features(again.save(tmp_path / "b"))
    for each in (features, again, copied):
        page = each.latent(7)
        assert page.row["n_active"] == (dense[7] > 0).sum()
        assert page.row["top_token_ids"] == features.latents["top_token_ids"][7]
        assert page.examples["row"].tolist() == features.examples.query("latent == 7")["row"].tolist()
        assert page.interval_examples["interval"].is_monotonic_increasing
        pd.testing.assert_frame_equal(page.contexts(before=2), features.contexts(7, before=2))
        assert (each.n_rows, each.n_left_out, each.site) == (features.n_rows, features.n_left_out, SITE)
    assert "latents" not in vars(again), "pages need no whole table"
    pd.testing.assert_frame_equal(copied.latents, features.latents)
    by_latent = pd.read_parquet(tmp_path / "a" / "activations" / "by_latent.parquet")
    assert by_latent.equals(by_latent.sort_values(["latent", "row"]))
    with pytest.raises(ValueError, match="exists already"):
        features.save(tmp_path / "a")
    with pytest.raises(ValueError, match="there is no latent 64"):
        again.latent(64)


def test_a_crash_leaves_nothing_and_harms_nothing(
    sae: SAE, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the machine went down")

    monkeypatch.setattr("interp.sae.features.making.example_frame", crash)
    with pytest.raises(RuntimeError, match="went down"):
        sae_features(sae, store, path=tmp_path / "features")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="is no folder"):
        load_sae_features(tmp_path / "features")


def test_a_damaged_or_foreign_folder_is_refused(features: SAEFeatures, tmp_path: Path) -> None:
    folder = features.save(tmp_path / "features")
    (folder / "examples.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"examples.parquet cannot be read"):
        load_sae_features(folder).latent(3)
    write_json(folder / "card.json", {**features.card, "format": 99})
    with pytest.raises(ValueError, match="format 99, newer than 1"):
        load_sae_features(folder)
    write_json(folder / "card.json", {"kind": "sae"})
    with pytest.raises(ValueError, match="holds no features of an SAE"):
        load_sae_features(folder)


def test_a_row_with_nan_is_refused(store: Store, sae: SAE, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = store.rows(SITE, slice(None))
    rows[30, 3] = torch.nan
    monkeypatch.setattr(Store, "rows", lambda _self, _site, index: rows[index])
    with pytest.raises(ValueError, match=r"row 30 of blocks.1.hook_resid_post holds NaN"):
        sae_features(sae, store, rows=np.arange(29, 40))


def test_a_latent_that_never_fires_and_one_that_always_does(store: Store) -> None:
    width = store.width(SITE)
    bias = torch.tensor([1e6, -1e6, 0.0])
    sae = SAE(
        torch.eye(width)[:, :3].clone(), bias, torch.eye(width)[:3].clone(), torch.zeros(width), card={"site": SITE}
    )
    features = sae_features(sae, store)
    always, never = (features.latents.iloc[latent] for latent in (0, 1))
    assert (always["density"], never["density"]) == (1.0, 0.0)
    assert always["cofiring_latents"] == [] == never["cofiring_latents"]
    assert never["top_token_ids"] == []
    assert np.isnan(never["top_token_share"])
    assert len(features.latent(1).examples) == 0 == len(features.contexts(1))
    assert always["decoder_latents"] == [1, 2]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("share", [0.001, 0.0])
def test_rows_in_which_nothing_fires(sae: SAE, store: Store, tmp_path: Path, share: float) -> None:
    pre = sae.pre_activations(store.rows(SITE, np.flatnonzero(store.typical(SITE))))
    threshold = torch.full((64,), pre.quantile(1 - share).item())
    rare = SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, threshold=threshold, card={"site": SITE})
    kept, stored = (sae_features(rare, store, path=path) for path in (None, tmp_path / "features"))
    for each in (kept, stored):
        assert each.latents["n_active"].sum() == (pre > threshold).sum()
        assert sum(part.n_rows for part in each.activations.parts()) == each.n_rows == len(pre)
    pd.testing.assert_frame_equal(stored.latents, kept.latents)
    pd.testing.assert_frame_equal(stored.examples, kept.examples)
    latent = int(kept.latents["n_active"].idxmax())
    pd.testing.assert_frame_equal(stored.contexts(latent), kept.contexts(latent))


def _crosscoder(store: Store, sites: tuple[str, ...], targets: tuple[str, ...]) -> SAE:
    generator = torch.Generator().manual_seed(0)
    widths = {name: store.width(name) for name in {*sites, *targets}}
    d_in, d_out = (sum(widths[name] for name in names) for names in (sites, targets))
    card = {"sites": list(sites), "targets": list(targets), "widths": widths}
    W_enc, W_dec = torch.randn(d_in, 48, generator=generator), torch.randn(48, d_out, generator=generator)
    return SAE(W_enc, torch.zeros(48), W_dec, torch.zeros(d_out), k=5, card=card)


def test_a_crosscoder_reads_its_sites_side_by_side(store: Store, tiny_llama: HookedTransformer) -> None:
    sites = ("blocks.0.hook_resid_post", SITE)
    coder = _crosscoder(store, sites, sites)
    features = sae_features(coder, store, model=tiny_llama)
    typical = np.flatnonzero(store.typical(sites[0]) & store.typical(sites[1]))
    assert features.n_rows == len(typical)
    assert (features.sites, features.site) == (sites, None)
    x = torch.cat([store.rows(name, typical) for name in sites], dim=1)
    assert features.latents["n_active"].tolist() == (coder.encode(x) > 0).sum(0).tolist()
    last = torch.nn.functional.rms_norm(coder.W_dec[:, 32:], (32,)) * tiny_llama.ln_final.weight @ tiny_llama.W_U
    assert features.latents["up_token_ids"].tolist() == last.topk(5).indices.tolist()
    assert np.stack(features.latents["up_values"].tolist()) == pytest.approx(last.topk(5).values.numpy(), rel=1e-4)
    with pytest.raises(ValueError, match="reads 2 sites"):
        sae_features(coder, store, SITE)


def test_a_transcoder_has_no_cosine_of_encoder_and_decoder(store: Store) -> None:
    coder = _crosscoder(store, ("blocks.0.hook_resid_post",), (SITE,))
    features = sae_features(coder, store)
    assert "encoder_decoder_cosine" not in features.latents
    assert features.card["typical_at"] == ["blocks.0.hook_resid_post", SITE]


def test_what_a_latent_writes_is_found_or_its_absence_explained(
    sae: SAE, store: Store, tiny_llama: HookedTransformer
) -> None:
    from interp.sae.features.effects import written_directions

    parts = {"W_enc": sae.W_enc, "b_enc": sae.b_enc, "W_dec": sae.W_dec, "b_dec": sae.b_dec, "k": 4}
    z = SAE(**parts, card={"site": "blocks.1.attn.hook_z"})
    found, how = written_directions(z, tiny_llama, "blocks.1.attn.hook_z")
    assert found is not None
    expected = torch.einsum("fhe,hed->fd", sae.W_dec.unflatten(1, (4, 8)), tiny_llama.W_O[1])
    assert torch.allclose(found, expected, atol=1e-5)
    assert "W_O" in how
    inside = SAE(**parts, card={"site": "blocks.1.ln1.hook_normalized"})
    found, how = written_directions(inside, tiny_llama, "blocks.1.ln1.hook_normalized")
    assert found is None
    assert "not written to the residual stream" in how
    narrow = SAE(torch.ones(3, 4), torch.zeros(4), torch.ones(4, 3), torch.zeros(3), k=1, card={"site": SITE})
    with pytest.raises(ValueError, match="width 3"):
        written_directions(narrow, tiny_llama, SITE)
