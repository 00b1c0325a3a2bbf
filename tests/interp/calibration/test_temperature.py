"""Temperature scaling: planted temperatures, other optimisers, and the cases without an optimum."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from interp.calibration import Temperature, calibration_report, fit_temperature, fit_temperature_chunks
from interp.calibration import temperature as module


def planted(n: int, temperature: float, d_vocab: int = 50, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits whose labels were drawn from softmax(logits / temperature)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, d_vocab, generator=generator)
    labels = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
    return logits, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7, 4.0])
def test_a_planted_temperature_is_recovered(temperature: float) -> None:
    logits, labels = planted(20_000, temperature)
    found = fit_temperature(logits, labels)
    assert found.temperature == pytest.approx(temperature, rel=0.03)
    assert found.interval[0] < temperature < found.interval[1]
    assert found.n == 20_000
    assert found.nll_after <= found.nll_before


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_optimum_is_that_of_scipy_and_lbfgs(temperature: float) -> None:
    logits, labels = planted(500, temperature, d_vocab=12, seed=1)
    found = fit_temperature(logits, labels)

    def nll(t: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits.double() / t, labels))

    scipy: Any = minimize_scalar(nll, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-10})
    assert found.temperature == pytest.approx(scipy.x, rel=1e-5)
    assert found.nll_after == pytest.approx(scipy.fun, abs=1e-10)
    assert found.nll_before == pytest.approx(nll(1.0), abs=1e-10)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    lbfgs = torch.optim.LBFGS([log_t], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits.double() / log_t.exp(), labels)
        loss.backward()
        return loss

    lbfgs.step(closure)
    assert found.temperature == pytest.approx(math.exp(log_t.item()), rel=1e-4)


def test_scaling_mends_calibration_and_keeps_the_answers() -> None:
    logits, labels = planted(6000, 2.5, d_vocab=5)
    scale = fit_temperature(logits[:3000], labels[:3000])
    test, true = logits[3000:], labels[3000:]
    assert torch.equal(test.argmax(-1), scale(test).argmax(-1))
    before, after = (
        calibration_report(p_top=z.softmax(-1).amax(-1), y=z.argmax(-1) == true, n_boot=0) for z in (test, scale(test))
    )
    assert before.says_miscalibrated
    assert not after.says_miscalibrated


def test_the_interval_holds_the_planted_temperature() -> None:
    inside = 0
    for seed in range(200):
        found = fit_temperature(*planted(300, 2.0, d_vocab=10, seed=seed))
        inside += found.interval[0] <= 2.0 <= found.interval[1]
    assert 0.9 <= inside / 200 <= 0.985


def test_nearly_separable_rows_still_converge() -> None:
    # 999 sure and right, one wrong by a little: the optimum has a closed form.
    logits = torch.zeros(1000, 2, dtype=torch.float64)
    logits[:, 0] = 2.0
    labels = torch.zeros(1000, dtype=torch.int64)
    labels[-1] = 1
    found = fit_temperature(logits, labels)
    assert found.temperature == pytest.approx(2.0 / math.log(999), rel=1e-6)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = planted(200, 1.5)
    whole = fit_temperature(logits, labels)
    sizes: list[int] = []
    terms = module._row_terms

    def spy(logits: torch.Tensor, labels: torch.Tensor, beta: float) -> torch.Tensor:
        sizes.append(logits.numel())
        return terms(logits, labels, beta)

    monkeypatch.setattr(module, "CHUNK", 333)
    monkeypatch.setattr(module, "_row_terms", spy)
    assert fit_temperature(logits, labels).temperature == pytest.approx(whole.temperature, rel=1e-9)
    assert max(sizes) <= 333


def test_impossible_classes_do_not_count() -> None:
    logits, labels = planted(300, 1.5, d_vocab=8)
    masked = torch.cat([logits, torch.full((300, 4), -math.inf)], dim=1)
    assert fit_temperature(masked, labels).temperature == pytest.approx(fit_temperature(logits, labels).temperature)
    with pytest.raises(ValueError, match="logit -inf"):
        fit_temperature(masked, torch.full((300,), 10))


def test_arrays_go_in_and_come_out() -> None:
    logits, labels = planted(200, 1.5)
    scale = fit_temperature(logits.numpy(), labels.numpy())
    assert scale.temperature == fit_temperature(logits, labels).temperature
    assert isinstance(scale(logits.numpy()), np.ndarray)
    assert scale(logits.half()).dtype == torch.float16
    torch.testing.assert_close(scale(logits), logits / scale.temperature)


def test_save_and_load(tmp_path: Path) -> None:
    scale = fit_temperature(*planted(200, 1.5))
    assert Temperature.load(scale.save(tmp_path / "t.safetensors")) == scale
    (tmp_path / "t.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"t\.safetensors"):
        Temperature.load(tmp_path / "t.safetensors")


def right(n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    return logits, logits.argmax(-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (right, "arg max"),
        (lambda: (right()[0], right()[0].argmin(-1)), "not above the average"),
        (lambda: (torch.ones(4, 3), torch.tensor([0, 1, 2, 0])), "arg max|not above"),
        (lambda: (planted(500, 1.0)[0] / 1000, planted(500, 1.0)[1]), r"beyond 0\.05"),
        (lambda: (planted(500, 1.0)[0] * 1000, planted(500, 1.0)[1]), r"beyond 0\.05"),
        (lambda: (torch.randn(3), torch.tensor([0, 1, 2])), r"\[row, d_vocab\]"),
        (lambda: (torch.randn(3, 4), torch.tensor([0, 1])), r"\[row, d_vocab\]"),
        (lambda: (torch.randn(0, 4), torch.tensor([], dtype=torch.int64)), r"\[row, d_vocab\]"),
        (lambda: (torch.randn(3, 4), torch.tensor([0.0, 1.0, 2.0])), "integer labels"),
        (lambda: (torch.ones(3, 4, dtype=torch.int64), torch.tensor([0, 1, 2])), "float logits"),
        (lambda: (torch.tensor([[math.nan, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])), "NaN"),
        (lambda: (torch.tensor([[math.inf, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])), "inf"),
        (lambda: (torch.randn(3, 4), torch.tensor([0, 1, 4])), r"0\.\.3"),
        (lambda: (torch.randn(3, 4), torch.tensor([0, 1, -100])), r"0\.\.3"),
    ],
)
def test_no_optimum_and_bad_input_are_refused(make: Callable[[], Any], message: str) -> None:
    logits, labels = make()
    with pytest.raises(ValueError, match=message):
        fit_temperature(logits, labels)


def test_a_stream_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        fit_temperature_chunks(lambda: [])
