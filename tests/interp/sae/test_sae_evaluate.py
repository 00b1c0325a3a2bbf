"""The figures against their definitions, against scikit-learn, and under changes that must not matter."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import r2_score
from torch import Tensor

from interp.artifact import read_json
from interp.model import HookedTransformer
from interp.recording import record
from interp.sae import SAE, calibrate_l0, evaluate_sae, pca_baseline, sae_features
from interp.sae.evaluate import load_sae_report
from interp.store import Store

WIDTH = 5


def identity_sae(width: int = WIDTH) -> SAE:
    """Its latents are the positive and negative parts of every coordinate."""
    both = torch.cat([torch.eye(width), -torch.eye(width)])
    return SAE(both.T.contiguous(), torch.zeros(2 * width), both, torch.zeros(width), k=2 * width)


def constant_sae(value: Tensor) -> SAE:
    """No latent ever fires; the reconstruction is `value`."""
    width = len(value)
    return SAE(torch.zeros(width, 8), torch.full((8,), -1.0), torch.zeros(8, width), value, k=2)


def rough_sae(seed: int = 0) -> SAE:
    generator = torch.Generator().manual_seed(seed)
    W_dec = torch.nn.functional.normalize(torch.randn(16, WIDTH, generator=generator), dim=1)
    return SAE(W_dec.T.contiguous(), 0.1 * torch.randn(16, generator=generator), W_dec, torch.ones(WIDTH), k=2)


@pytest.fixture
def x() -> Tensor:
    return 3 * torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(0)) + torch.arange(WIDTH)


def test_the_mean_explains_nothing_and_the_identity_everything(x: Tensor) -> None:
    mean = evaluate_sae(constant_sae(x.mean(0)), x)
    assert mean.fvu == pytest.approx(1.0, abs=1e-6)
    assert (mean.l0, mean.dead_share, mean.dense_share) == (0.0, 1.0, 0.0)
    perfect = evaluate_sae(identity_sae(), x)
    assert perfect.fvu == pytest.approx(0.0, abs=1e-12)
    assert perfect.cosine == pytest.approx(1.0)
    assert perfect.relative_norm == pytest.approx(1.0)
    assert (perfect.l0, perfect.l0_p50, perfect.l0_p90) == (WIDTH, WIDTH, WIDTH)
    assert perfect.n_rows == 300


def test_explained_variance_is_that_of_scikit_learn(x: Tensor) -> None:
    sae = rough_sae()
    expected = r2_score(x.double(), sae(x).double(), multioutput="variance_weighted")
    assert 1 - evaluate_sae(sae, x).fvu == pytest.approx(expected, rel=1e-9)


def test_another_unit_and_another_origin_do_not_matter(x: Tensor) -> None:
    """x -> a x + b, with the SAE moved along."""
    sae, a, b = rough_sae(), 7.0, 1000.0
    moved = SAE(sae.W_enc, a * sae.b_enc, sae.W_dec, a * sae.b_dec + b, k=2)
    assert evaluate_sae(moved, a * x + b).fvu == pytest.approx(evaluate_sae(sae, x).fvu, rel=1e-4)


@pytest.mark.parametrize("size", [1, 7, 300])
def test_the_batch_size_does_not_matter(x: Tensor, size: int) -> None:
    sae = rough_sae()
    whole, cut = evaluate_sae(sae, x), evaluate_sae(sae, x, batch_size=size)
    for name, value in vars(whole).items():
        assert getattr(cut, name) == (pytest.approx(value, rel=1e-6) if isinstance(value, float | dict) else value), (
            name
        )
    assert evaluate_sae(sae, iter(x.split(size))).fvu == pytest.approx(whole.fvu, rel=1e-6)


def test_a_few_huge_rows_do_not_hide_in_a_mean_of_ratios(x: Tensor) -> None:
    """One ratio over all rows: a row 1,000 times as large, reconstructed perfectly, brings the FVU near 0."""
    sae = identity_sae()
    sae.k = 2
    low = evaluate_sae(sae, x).fvu
    huge = torch.zeros(1, WIDTH)
    huge[0, 0] = 3000.0
    assert low > 0.2
    assert evaluate_sae(sae, torch.cat([x, huge])).fvu < 0.01 * low


def test_latents_are_counted_as_dead_and_dense() -> None:
    """Latent 0 fires on 3 of 20 rows, latent 1 on 2, latent 2 on all, the fourth on none."""
    x = torch.zeros(20, 4)
    x[:3, 0] = x[:2, 1] = x[:, 2] = 1.0
    report = evaluate_sae(SAE(torch.eye(4), torch.zeros(4), torch.eye(4), torch.zeros(4), k=3), x)
    assert (report.dead_share, report.dense_share) == (0.25, 0.5)
    assert report.l0 == pytest.approx(25 / 20)
    assert (report.l0_p50, report.l0_p90) == (1.0, pytest.approx(np.quantile([3, 3, 2] + [1] * 17, 0.9)))


def test_shrinkage_shows_in_the_relative_norm(x: Tensor) -> None:
    sae = identity_sae()
    sae.W_dec *= 0.8
    report = evaluate_sae(sae, x)
    assert report.relative_norm == pytest.approx(0.8)
    assert report.cosine == pytest.approx(1.0)


def test_a_report_is_a_row_and_a_file(x: Tensor, tmp_path: Path) -> None:
    report = evaluate_sae(rough_sae(), x)
    assert report.to_frame()["fvu"].tolist() == [report.fvu]
    path = report.save(tmp_path / "report.json")
    assert read_json(path)["metric_version"] == "sae-1"
    assert load_sae_report(path) == report
    path.write_text(json.dumps({**read_json(path), "metric_version": "sae-0"}))
    with pytest.raises(ValueError, match="version 'sae-0', these are 'sae-1'"):
        load_sae_report(path)
    path.write_text(json.dumps({"kind": "sae_report", "metric_version": "sae-1", "fvu": 0.1}))
    with pytest.raises(ValueError, match="not a whole report"):
        load_sae_report(path)


def test_other_definitions_give_other_numbers() -> None:
    """What other libraries call explained variance, on rows with a mean, unequal lengths and a biased reconstruction."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, WIDTH, generator=generator) * torch.linspace(0.2, 4, 400)[:, None] + 5.0
    sae = rough_sae()
    sae.b_dec += 0.5
    x64 = x.double()
    error = x64 - sae(x).double()
    fvu = evaluate_sae(sae, x, batch_size=50).fvu
    spread = (x64 - x64.mean(0)).square()
    assert fvu == pytest.approx((error.square().sum() / spread.sum()).item(), rel=1e-9)
    in_batches = [(e.square().sum() / (b - b.mean(0)).square().sum()) for e, b in zip(error.split(50), x64.split(50))]
    others = {
        "a ratio per token": (error.square().sum(1) / spread.sum(1)).mean(),
        "not centred": error.square().sum() / x64.square().sum(),
        "a ratio per token, not centred": (error.square().sum(1) / x64.square().sum(1)).mean(),
        "a ratio per batch": torch.stack(in_batches).mean(),
        "variance of the error": (error - error.mean(0)).square().sum() / spread.sum(),
    }
    for name, other in others.items():
        assert abs(other.item() / fvu - 1) > 0.02, name


def crosscoder(**card: object) -> SAE:
    """Reads and writes two sites of width 5 and 3 side by side."""
    generator = torch.Generator().manual_seed(2)
    W_dec = torch.nn.functional.normalize(torch.randn(20, 8, generator=generator), dim=1)
    places = {"sites": ["one", "two"], "widths": {"one": 5, "two": 3}}
    return SAE(W_dec.T.contiguous(), torch.zeros(20), W_dec, torch.zeros(8), k=3, card={**places, **card})


@pytest.mark.parametrize("architecture", ["topk", "relu", "jumprelu", "gated"])
def test_every_architecture_is_measured_by_what_it_reconstructs(x: Tensor, architecture: str) -> None:
    sae, extra = rough_sae(), {}
    extra["topk"], extra["jumprelu"] = {"k": 2}, {"threshold": torch.full((16,), 1.5)}
    extra["gated"] = {"b_mag": torch.full((16,), -0.2), "r_mag": torch.full((16,), 0.1)}
    made = SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, architecture=architecture, **extra.get(architecture, {}))
    report = evaluate_sae(made, x)
    latents = made.encode(x)
    counts = (latents > 0).sum(1).double()
    assert report.fvu == pytest.approx(1 - r2_score(x, made(x), multioutput="variance_weighted"), rel=1e-4)
    assert report.l0 == pytest.approx(counts.mean().item())
    for p in (10, 50, 90, 99):
        assert getattr(report, f"l0_p{p}") == pytest.approx(np.quantile(counts, p / 100))
    assert report.l0_max == counts.max()
    assert report.l1 == pytest.approx(latents.sum(1).mean().item(), rel=1e-5)
    hat = made(x)
    assert report.reconstruction_bias == pytest.approx((hat.square().sum() / (hat * x).sum()).item(), rel=1e-5)


def test_l1_does_not_change_when_scale_moves_from_decoder_to_encoder(x: Tensor) -> None:
    sae = rough_sae()
    moved = SAE(sae.W_enc / 3, sae.b_enc / 3, 3 * sae.W_dec, sae.b_dec, k=2)
    assert evaluate_sae(moved, x).l1 == pytest.approx(evaluate_sae(sae, x).l1, rel=1e-5)


def test_a_transcoder_is_measured_on_what_it_writes(x: Tensor) -> None:
    generator = torch.Generator().manual_seed(7)
    W_enc, W_dec, W_skip = (torch.randn(*shape, generator=generator) for shape in ((WIDTH, 12), (12, 3), (WIDTH, 3)))
    card = {"sites": ["in"], "targets": ["out"], "widths": {"in": WIDTH, "out": 3}}
    sae = SAE(W_enc, torch.zeros(12), W_dec, torch.zeros(3), k=2, W_skip=W_skip, card=card)
    y = sae(x) + torch.randn(300, 3, generator=generator)
    report = evaluate_sae(sae, x, target=y, batch_size=64)
    expected = r2_score(y.double(), sae(x).double(), multioutput="variance_weighted")
    assert report.explained_variance == pytest.approx(expected, rel=1e-6)
    assert (report.site, report.target) == ("in", "out")
    pairs = [{"out": b, "in": a} for a, b in zip(x.split(50), y.split(50))]
    assert evaluate_sae(sae, pairs).fvu == pytest.approx(report.fvu)
    assert evaluate_sae(sae, {"in": x, "out": y}).fvu == report.fvu
    for data, target, message in (
        (x, None, "writes other rows than it reads"),
        (x, y[:9], "300 rows to read and 9 to write"),
        (x, y[:, :2], r"writes rows of width 3, got \[300, 2\]"),
        ([x], y, "of a tensor, target= is the tensor"),
        ([{"in": x}], None, "but not out"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_sae(sae, data, target=target)


def test_a_crosscoder_is_measured_on_each_site_and_on_all() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(200, 8, generator=generator) * torch.tensor([1.0] * 5 + [9.0] * 3)
    sae = crosscoder()
    report, made = evaluate_sae(sae, x), sae(x).double()
    for name, part in (("one", slice(0, 5)), ("two", slice(5, 8))):
        expected = 1 - r2_score(x[:, part].double(), made[:, part], multioutput="variance_weighted")
        assert report.fvu_by_site[name] == pytest.approx(expected, rel=1e-6)
        assert report.to_frame()[f"fvu:{name}"].item() == report.fvu_by_site[name]
    assert report.fvu == pytest.approx(1 - r2_score(x.double(), made, multioutput="variance_weighted"), rel=1e-6)
    mapped = [{"two": b[:, 5:], "one": b[:, :5]} for b in x.split(31)]
    assert evaluate_sae(sae, mapped).fvu == pytest.approx(report.fvu)
    lengths = sae.W_dec[:, :5].norm(dim=1) + sae.W_dec[:, 5:].norm(dim=1)
    assert report.l1 == pytest.approx((sae.encode(x) @ lengths).mean().item(), rel=1e-5)


def test_the_l0_that_training_aimed_at_stands_beside_the_measured_one(x: Tensor) -> None:
    sae = rough_sae()
    thresholds = {"threshold": torch.full((16,), 1.5), "card": {"config": {"kind": "batchtopk", "k": 3}}}
    report = evaluate_sae(SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, **thresholds), x)
    assert report.l0_wanted == 3
    assert report.l0_error == pytest.approx(report.l0 / 3 - 1)
    relu = evaluate_sae(SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec), x)
    assert (relu.l0_wanted, relu.l0_error) == (None, None)
    jumprelu = {"kind": "jumprelu", "l0": 32.0, "l0_coefficient": None}
    for card, wanted in (
        ({"config": jumprelu}, 32.0),
        ({"config": {**jumprelu, "l0_coefficient": 1e-3}}, None),  # a weight of the penalty, which aims at no L0
        ({"config": jumprelu, "calibrated": {"l0": 2.5, "factor": 1.1, "n_rows": 9}}, 2.5),
    ):
        options = {"threshold": torch.full((16,), 1.5), "card": card}
        assert evaluate_sae(SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, **options), x).l0_wanted == wanted


def test_intervals_hold_the_estimate_and_shrink_with_n(x: Tensor) -> None:
    sae = rough_sae()
    narrow, wide = evaluate_sae(sae, x), evaluate_sae(sae, x[:40])
    for report in (narrow, wide):
        assert report.fvu_low < report.fvu < report.fvu_high
        assert report.l0_low <= report.l0 <= report.l0_high
    assert narrow.fvu_high - narrow.fvu_low < wide.fvu_high - wide.fvu_low
    assert narrow.n_units == 300
    assert evaluate_sae(sae, x) == narrow
    assert evaluate_sae(sae, x, seed=1).fvu_low != narrow.fvu_low


def test_the_interval_covers_the_fvu_of_the_population() -> None:
    """Of 40 samples, the 95 % interval holds the FVU of 20,000 rows in all but a few."""
    generator = torch.Generator().manual_seed(1)
    population = torch.randn(20_000, WIDTH, generator=generator) * torch.tensor([3.0, 1, 1, 1, 0.3]) + 1
    sae = rough_sae()
    truth = evaluate_sae(sae, population).fvu
    parts = population[:4000].split(100)
    reports = [evaluate_sae(sae, part) for part in parts]
    assert 33 <= sum(r.fvu_low <= truth <= r.fvu_high for r in reports) <= 40


def test_texts_not_rows_are_drawn_again(store: Store) -> None:
    site, generator = "blocks.1.hook_resid_post", torch.Generator().manual_seed(0)
    d = store.width(site)
    W_dec = torch.nn.functional.normalize(torch.randn(48, d, generator=generator), dim=1)
    stats = store.stats(site).typical
    sae = SAE(W_dec.T.contiguous(), torch.zeros(48), W_dec, stats.mean.float(), k=4, card={"site": site})
    report = evaluate_sae(sae, store)
    assert report.n_units == store.n_texts
    assert report.n_left_out == (~store.typical(site)).sum()
    as_rows = evaluate_sae(sae, store.rows(site, store.typical(site)))
    assert as_rows.fvu == pytest.approx(report.fvu, rel=1e-6)
    assert as_rows.n_units == report.n_rows
    assert dataclasses.replace(evaluate_sae(sae, store, batch_size=17), fvu=report.fvu).l0 == report.l0


def test_several_sites_of_a_store(store: Store) -> None:
    """A transcoder and a crosscoder read rows that are typical at every site involved."""
    first, second = "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"
    d = store.width(first)
    generator = torch.Generator().manual_seed(0)
    W_enc, W_dec = torch.randn(d, 40, generator=generator), torch.randn(40, d, generator=generator)
    widths = {first: d, second: d}
    typical = store.typical(first) & store.typical(second)
    x, y = store.rows(first, typical), store.rows(second, typical)
    card = {"sites": [first], "targets": [second], "widths": widths}
    transcoder = SAE(W_enc, torch.zeros(40), W_dec, torch.zeros(d), k=3, card=card)
    report = evaluate_sae(transcoder, store)
    assert report.n_rows == typical.sum()
    assert report.fvu == pytest.approx(evaluate_sae(transcoder, x, target=y).fvu, rel=1e-6)
    both = {"sites": [first, second], "widths": widths}
    coder = SAE(
        torch.cat([W_enc, W_enc]), torch.zeros(40), torch.cat([W_dec, W_dec], 1), torch.zeros(2 * d), k=3, card=both
    )
    report = evaluate_sae(coder, store)
    assert set(report.fvu_by_site) == {first, second}
    assert report.fvu == pytest.approx(evaluate_sae(coder, torch.cat([x, y], 1)).fvu, rel=1e-6)
    with pytest.raises(ValueError, match="name of a site"):
        evaluate_sae(transcoder, store, target=y)
    unplaced = SAE(W_enc, torch.zeros(40), W_dec, torch.zeros(d), k=3, card={"imported": {"transcoder": True}})
    unplaced.apply_b_dec_to_input = transcoder.apply_b_dec_to_input
    fvu = evaluate_sae(transcoder, store).fvu
    assert evaluate_sae(unplaced, store, site=first, target=second).fvu == fvu
    assert evaluate_sae(unplaced, {first: x, second: y}, site=first, target=second).fvu == pytest.approx(fvu, rel=1e-6)
    for data in (store, {first: x, second: y}, [{first: x, second: y}]):
        with pytest.raises(ValueError, match="transcoder whose card does not say what it writes"):
            evaluate_sae(unplaced, data, site=first)


def test_rows_are_chosen_by_numbers_a_mask_or_a_slice(store: Store, sae: SAE) -> None:
    some = evaluate_sae(sae, store, rows=np.arange(50))
    mask = np.arange(store.n_rows) < 50
    for rows in (mask, torch.from_numpy(mask), slice(0, 50), [*range(50), 3], list(range(50))[::-1]):
        assert evaluate_sae(sae, store, rows=rows) == some
    for rows, message in (
        (mask[:50], f"a boolean mask with {store.n_rows} entries, got bool \\(50,\\)"),
        ([store.n_rows + 5], f"rows go from 0 to {store.n_rows - 1}"),
        ([-1], "not counted from the end"),
        ([0.5], "chosen by integers"),
    ):
        for measure in (evaluate_sae, sae_features, calibrate_l0):
            with pytest.raises(ValueError, match=message):
                measure(_jumping(sae) if measure is calibrate_l0 else sae, store, rows=rows)


def _jumping(sae: SAE) -> SAE:
    threshold = torch.full((sae.n_latents,), 0.5)
    return SAE(
        sae.W_enc.data,
        sae.b_enc.data,
        sae.W_dec.data,
        sae.b_dec.data,
        threshold=threshold,
        card={**sae.card, "config": {"k": 3}},
    )


def test_rows_that_cannot_be_measured_are_refused(x: Tensor) -> None:
    sae = rough_sae()
    bad = x.clone()
    bad[3, 1] = float("nan")
    for data, message in (
        (bad, "NaN or infinity"),
        (x[:0], "nothing to measure on"),
        (x[:, :3], "width 5, got \\[300, 3\\]"),
        (torch.ones(9, WIDTH), "all 9 rows are equal"),
        (5, "evaluation takes a store"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_sae(sae, data)
    with pytest.raises(ValueError, match="batch_size is a number"):
        evaluate_sae(sae, x, batch_size=0)
    with pytest.raises(ValueError, match="rows= chooses rows of a store"):
        evaluate_sae(sae, x, rows=[1])


def test_the_pca_baseline_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(5)
    mix = torch.randn(12, 12, generator=generator)
    train, held_out = (torch.randn(n, 12, generator=generator) @ mix + 4 for n in (400, 150))
    frame = pca_baseline(train, held_out, ranks=(1, 4, 12))
    assert frame["rank"].tolist() == [1, 4, 12]
    for rank, fvu in zip(frame["rank"], frame["fvu"], strict=True):
        pca = PCA(rank, svd_solver="full").fit(train.double())
        back = pca.inverse_transform(pca.transform(held_out.double()))
        expected = 1 - r2_score(held_out.double(), back, multioutput="variance_weighted")
        assert fvu == pytest.approx(expected, rel=1e-6, abs=1e-9)
    cut = pca_baseline(list(train.split(33)), list(held_out.split(10)), ranks=(1, 4, 12))
    assert np.allclose(cut["fvu"], frame["fvu"])
    assert frame[["n_train", "n_held_out"]].iloc[0].tolist() == [400, 150]


def test_a_pca_baseline_without_sense_is_refused(x: Tensor) -> None:
    for train, held_out, ranks, message in (
        (x, x, (6,), "between 1 and the width of the rows, 5; got \\[6\\]"),
        (x, x, (), "got \\[\\]"),
        (x, x[:, :2], (1,), "width 5, the held-out rows 2"),
        (iter([x]), x, (1,), "reads batches twice"),
    ):
        with pytest.raises(ValueError, match=message):
            pca_baseline(train, held_out, ranks)


def test_pieces_of_one_document_are_drawn_together(tiny_llama: HookedTransformer, tmp_path: Path) -> None:
    long = [f"{word} " * 40 for word in ("river", "stone", "cloud")]
    site = "blocks.1.hook_resid_post"
    store = record(tiny_llama, [*long, "seven green"], sites=site, long="chunk", max_length=64, progress=False)
    assert store.n_texts > 8
    sae = SAE(torch.eye(32), torch.zeros(32), torch.eye(32), torch.zeros(32), k=4, card={"site": site})
    assert evaluate_sae(sae, store).n_units == 4
