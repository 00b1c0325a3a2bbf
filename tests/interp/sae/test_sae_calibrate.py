"""Calibration: the L0 that was asked for, on the rows that were given, and nothing else changed."""

import pytest
import torch
from torch import Tensor

from interp.sae import SAE, SAEConfig, calibrate_l0, evaluate_sae, train_sae
from interp.store import Store


@pytest.fixture(scope="module")
def rows() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3000, 24, generator=generator) @ torch.randn(24, 16, generator=generator)


@pytest.fixture(scope="module")
def batchtopk(rows: Tensor) -> SAE:
    return train_sae(rows, SAEConfig(kind="batchtopk", k=4, width=64, lr=2e-3, batch_size=256, epochs=3))


@pytest.mark.parametrize("l0", [1, 3.5, 4, 9])
def test_the_mean_l0_is_the_one_that_was_asked_for(l0: float, batchtopk: SAE, rows: Tensor) -> None:
    other = 1.3 * rows[:997]
    sae = calibrate_l0(batchtopk, other, l0, batch_size=100)
    assert sae.active(other).counts.double().mean().item() == pytest.approx(l0, abs=2e-3)
    assert sae.card["calibrated"]["n_rows"] == 997
    for name in ("W_enc", "b_enc", "W_dec", "b_dec"):
        assert torch.equal(getattr(sae, name), getattr(batchtopk, name))
    factor = sae.card["calibrated"]["factor"]
    torch.testing.assert_close(sae.threshold, batchtopk.threshold * factor)


def test_k_of_the_training_is_the_default_and_nothing_is_changed_in_place(batchtopk: SAE, rows: Tensor) -> None:
    before = batchtopk.threshold.clone()
    sae = calibrate_l0(batchtopk, 1.3 * rows)
    assert sae.active(1.3 * rows).counts.double().mean().item() == pytest.approx(4, abs=1e-3)
    assert torch.equal(batchtopk.threshold, before)
    assert "calibrated" not in batchtopk.card


def test_typical_rows_of_a_store_count(store: Store) -> None:
    config = SAEConfig(kind="batchtopk", k=4, width=64, lr=3e-3, batch_size=128, epochs=3)
    sae = calibrate_l0(train_sae(store, config, site="resid_post:1"), store, 5)
    assert evaluate_sae(sae, store).l0 == pytest.approx(5, abs=0.02)


def test_what_cannot_be_calibrated_is_refused(batchtopk: SAE, rows: Tensor, sae: SAE, store: Store) -> None:
    penalised = calibrate_l0(batchtopk, rows)
    penalised.card["config"] = {"kind": "jumprelu", "l0": 32.0, "l0_coefficient": 1e-3}
    for call, message in (
        (lambda: calibrate_l0(sae, rows), "this SAE is topk"),
        (lambda: calibrate_l0(batchtopk, rows, 0), "between 0 and 64, got 0"),
        (lambda: calibrate_l0(batchtopk, rows, "many"), "got 'many'"),
        (lambda: calibrate_l0(batchtopk, rows, 60), "below a quarter"),
        (lambda: calibrate_l0(batchtopk, rows[:0]), "no row to calibrate on"),
        (lambda: calibrate_l0(penalised, rows), "got None"),
        (lambda: calibrate_l0(batchtopk, store), "the SAE reads no known site"),
        (lambda: calibrate_l0(batchtopk, rows, rows=[1]), "a tensor without rows="),
    ):
        with pytest.raises(ValueError, match=message):
            call()
