"""The figures against their definitions, against scikit-learn, and under changes that must not matter."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import r2_score
from torch import Tensor

from interp.artifact import read_json
from interp.sae import SAE, evaluate_sae, pca_baseline

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
        assert getattr(cut, name) == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name
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
    assert read_json(report.save(tmp_path / "report.json"))["metric_version"] == "sae-1"


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
