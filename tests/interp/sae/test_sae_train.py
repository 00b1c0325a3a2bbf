"""Training runs: they find what was planted, stop and go on without a trace, and refuse what is no data."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.sae import SAE, SAEConfig, train_sae
from interp.store import Batches, Store

SMALL = SAEConfig(k=3, width=32, lr=2e-3, batch_size=64, epochs=2, dead_window=200, checkpoint_every=7, log_every=4)


def planted(n_rows: int, d_model: int = 16, n_features: int = 48, k: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(rows, dictionary): each row a sum of k unit directions, which are Zipfian in frequency, plus a mean."""
    generator = torch.Generator().manual_seed(seed)
    dictionary = torch.randn(n_features, d_model, generator=generator)
    dictionary /= dictionary.norm(dim=1, keepdim=True)
    frequency = 1 / (5 + torch.arange(n_features))
    index = torch.multinomial(frequency.expand(n_rows, -1), k, generator=generator)
    values = torch.zeros(n_rows, n_features).scatter(1, index, 1 + torch.rand(n_rows, k, generator=generator))
    return 20 * (values @ dictionary + 3.0), dictionary


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return planted(1000)[0]


class Stopped(Exception):
    """Stands for a signal in the middle of a run."""


def stop_at(step: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise Stopped

    return progress


def same(a: SAE, b: SAE) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_planted_dictionary_is_recovered() -> None:
    x, dictionary = planted(20_000)
    sae = train_sae(x, SAEConfig(k=3, width=64, lr=3e-3, batch_size=512, epochs=12))
    cosine = (dictionary @ sae.W_dec.T).max(dim=1).values
    assert cosine.mean() > 0.9
    assert sae.card["final"]["loss"] < 0.2
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(64))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(rows: Tensor) -> None:
    first = train_sae(rows, SMALL)
    assert same(first, train_sae(rows, SMALL))
    assert not same(first, train_sae(rows, SAEConfig(**{**vars(SMALL), "seed": 1})))


def test_the_scale_of_the_rows_is_folded(rows: Tensor) -> None:
    """Rows 1,000 times as large: the same SAE in other units."""
    sae, large = train_sae(rows, SMALL), train_sae(1000 * rows, SMALL)
    torch.testing.assert_close(large.W_dec, sae.W_dec, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(large(1000 * rows), 1000 * sae(rows), rtol=1e-2, atol=100.0)


def test_the_loss_in_the_card_is_the_error_on_raw_rows(rows: Tensor) -> None:
    """What training calls loss, on scaled rows, is the FVU of the folded SAE on raw rows."""
    last = SAEConfig(k=3, width=32, lr=1e-9, batch_size=1000, epochs=1, log_every=1)
    sae = train_sae(rows, last)
    fvu = (rows - sae(rows)).square().sum() / (rows - rows.mean(0)).square().sum()
    assert sae.card["final"]["loss"] == pytest.approx(fvu.item(), rel=1e-4)


def tensor_data(rows: Tensor) -> Any:
    return rows


def list_data(rows: Tensor) -> Any:
    return [*rows.split(64), *rows.flip(0).split(64)]


def batches_data(rows: Tensor) -> Any:
    read = lambda index: rows[torch.from_numpy(index)]  # noqa: E731
    options = {"site": "blocks.1.hook_resid_post", "row_bytes": 64, "seed": 3, "epochs": 2, "drop_last": False}
    return Batches(read, np.arange(len(rows)), d=16, size=64, **options)


@pytest.mark.parametrize("data", [tensor_data, list_data, batches_data])
@pytest.mark.parametrize("stop", [1, 13, 21, 31])
def test_a_stopped_run_goes_on_to_bit_identical_weights(
    data: Callable[[Tensor], Any], stop: int, rows: Tensor, tmp_path: Path
) -> None:
    whole = train_sae(data(rows), SMALL, log=tmp_path / "whole.jsonl")
    files = {"checkpoint": tmp_path / "run.safetensors", "log": tmp_path / "run.jsonl"}
    with pytest.raises(Stopped):
        train_sae(data(rows), SMALL, **files, progress=stop_at(stop))
    resumed = train_sae(data(rows), SMALL, **files)
    assert same(whole, resumed)
    assert whole.card == resumed.card
    assert (tmp_path / "run.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_finished_run_returns_at_once(rows: Tensor, tmp_path: Path) -> None:
    first = train_sae(rows, SMALL, checkpoint=tmp_path / "run.safetensors", log=tmp_path / "run.jsonl")
    again = train_sae(
        rows, SMALL, checkpoint=tmp_path / "run.safetensors", log=tmp_path / "run.jsonl", progress=stop_at(32)
    )
    assert same(first, again)
    assert first.card == again.card
    steps = [json.loads(line)["step"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert steps == [4, 8, 12, 16, 20, 24, 28, 32]


def test_a_finished_checkpoint_of_other_rows_is_refused(store: Store, tmp_path: Path) -> None:
    typical = np.flatnonzero(store.typical("resid_post:1"))
    config = SAEConfig(k=3, width=64, batch_size=64)

    def train(rows: Any) -> SAE:
        return train_sae(store, config, site="resid_post:1", rows=rows, checkpoint=tmp_path / "run.safetensors")

    first = train(typical[:200])
    assert same(first, train(typical[:200]))
    with pytest.raises(ValueError, match=r"belongs to another run \(rows: order differ\)"):
        train(typical[200:400])


def test_a_checkpoint_of_another_run_is_refused_and_kept(rows: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(Stopped):
        train_sae(rows, SMALL, checkpoint=path, progress=stop_at(8))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another run \\(k differ\\)"):
        train_sae(rows, SAEConfig(**{**vars(SMALL), "k": 4}), checkpoint=path)
    with pytest.raises(ValueError, match="another run \\(rows: statistics differ\\)"):
        train_sae(rows + 1, SMALL, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("drop_last", "n_rows"), [(False, 3000), (True, 2880)])
def test_the_rows_of_given_batches_are_counted(rows: Tensor, drop_last: bool, n_rows: int) -> None:
    read = lambda index: rows[torch.from_numpy(index)]  # noqa: E731
    options = {"site": "", "row_bytes": 64, "seed": 3, "epochs": 3, "drop_last": drop_last}
    sae = train_sae(Batches(read, np.arange(1000), d=16, size=64, **options), SMALL)
    assert (sae.card["n_rows"], sae.card["n_steps"]) == (n_rows, -(-n_rows // 64) + (0 if drop_last else 1))


def test_progress_counts_every_step(rows: Tensor) -> None:
    seen: list[tuple[int, int]] = []
    train_sae(rows, SMALL, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(step, 32) for step in range(1, 33)]


def test_data_that_is_no_data_is_refused(rows: Tensor) -> None:
    bad = rows.clone()
    bad[5, 2] = math.nan
    one_way: Iterator[Tensor] = iter([rows])
    for data, message in (
        (bad, "1 of .* rows of a batch hold NaN or infinity"),
        ([rows, rows * math.inf], "hold NaN or infinity"),
        (rows[:0], "at least one row"),
        (rows.long(), "got torch.int64"),
        (rows[0], "got torch.float32 \\[16\\]"),
        ([], "there are no rows"),
        ([rows, rows[:, :3]], "of width 16 and 3"),
        (one_way, "can be read more than once"),
        ("runs/a", "not str"),
        (3, "training takes a store"),
        (torch.ones(100, 4), "all 100 rows are equal"),
    ):
        with pytest.raises(ValueError, match=message):
            train_sae(data, SMALL)
    with pytest.raises(ValueError, match="rows= chooses rows of a store"):
        train_sae(rows, SMALL, rows=[1, 2])


def test_divergence_is_an_error(rows: Tensor) -> None:
    with pytest.raises(ValueError, match="lower the learning rate"):
        train_sae(rows, SAEConfig(**{**vars(SMALL), "lr": 1e30, "warmup": 0.0}))


def test_batches_that_change_between_readings_are_an_error(rows: Tensor) -> None:
    class Shrinking:
        left = 12

        def __iter__(self) -> Iterator[Tensor]:
            self.left -= 1
            return iter(rows.split(64)[: self.left])

    with pytest.raises(ValueError, match="must give the same rows each time"):
        train_sae(Shrinking(), SMALL)
