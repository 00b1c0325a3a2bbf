"""Training that is killed at any moment goes on to the same bits, and its files are whole at every moment."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from crash import call, start, wait_for

from interp.sae import SAEConfig, load_sae, train_sae
from interp.sae.train import train_saes

KILLS = 20


def train(folder: Path) -> int:
    """A run of three dictionaries to interrupt, for a child: about two seconds. The steps that were left to do."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7_680, 48, generator=generator) @ torch.randn(48, 64, generator=generator)
    common = {"width": 512, "lr": 1e-3, "batch_size": 256, "epochs": 4, "checkpoint_every": 3, "log_every": 2}
    configs = [
        SAEConfig(k=8, dead_window=1000, **common),
        SAEConfig(kind="batchtopk", k=8, **common),
        SAEConfig(kind="jumprelu", l0=8, **common),
    ]
    done: list[int] = []
    saes = train_saes(
        rows, configs, checkpoint=folder / "run.safetensors", log=folder / "log.jsonl",
        progress=lambda step, _total: done.append(step),
    )  # fmt: skip
    for number, sae in enumerate(saes):
        sae.save(folder / f"{number}.safetensors")
    return len(done)


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    began = time.monotonic()
    n_steps = call(train, whole)
    seconds, rng = time.monotonic() - began, random.Random(0)
    kills = midway = 0
    while kills < KILLS:
        child = start(train, broken)
        if rng.random() < 0.5:  # half of them inside or just behind a checkpoint
            before = _stamp(broken / "run.safetensors")
            wait_for(lambda child=child, before=before: child.ended or _stamp(broken / "run.safetensors") != before)
        time.sleep(rng.random() * seconds / 4)
        child.kill()
        outcome = child.end()
        assert outcome.error is None, outcome.error
        if outcome.signal is None:  # it came to its end first: begin again
            for path in broken.iterdir():
                path.unlink()
            continue
        kills += 1
        midway += (broken / "run.safetensors").exists()
    left = call(train, broken)
    assert midway >= KILLS // 2
    assert left <= n_steps
    for number in range(3):
        name = f"{number}.safetensors"
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
        load_sae(broken / name)
    assert (broken / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
    assert not [path.name for path in broken.iterdir() if path.name.startswith((".run", ".log"))]


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def test_ctrl_c_keeps_what_was_saved(tmp_path: Path) -> None:
    rows = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    config = SAEConfig(k=2, width=16, batch_size=100, checkpoint_every=4)

    def interrupt(done: int, _total: int) -> None:
        if done == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_sae(rows, config, checkpoint=tmp_path / "run.safetensors", progress=interrupt)
    steps: list[int] = []
    train_sae(rows, config, checkpoint=tmp_path / "run.safetensors", progress=lambda done, _: steps.append(done))
    assert steps[0] == 11  # nothing that was done before ctrl-C is done again
