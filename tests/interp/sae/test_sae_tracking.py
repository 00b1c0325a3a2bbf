"""Metrics on their way to TensorBoard and Weights & Biases, with stand-ins for both packages."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from interp.sae import SAEConfig, train_saes
from interp.sae.tracking import require_trackers, tracker


class Writer:
    """What TensorBoard's SummaryWriter is asked for."""

    made: ClassVar[list["Writer"]] = []

    def __init__(self, log_dir: str, purge_step: int) -> None:
        self.log_dir, self.purge_step, self.scalars, self.closed = log_dir, purge_step, [], False
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Both packages, which note what they are told."""
    seen = SimpleNamespace(init=[], logged=[], finished=0)
    Writer.made = []
    tensorboard, wandb = ModuleType("torch.utils.tensorboard"), ModuleType("wandb")
    vars(tensorboard)["SummaryWriter"] = Writer

    def finish() -> None:
        seen.finished += 1

    def init(**options: Any) -> Any:
        seen.init.append(options)
        return SimpleNamespace(log=seen.logged.append, finish=finish)

    vars(wandb)["init"] = init
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return seen


def test_each_line_of_each_dictionary_arrives_under_its_name(packages: SimpleNamespace, tmp_path: Path) -> None:
    rows = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    configs = [SAEConfig(k=k, width=16, batch_size=100, log_every=2, lr=1e-3) for k in (2, 3)]
    lines: list[dict[str, Any]] = []
    with tracker(tmp_path / "events", "dictionaries", configs=configs, names=["k2", "k3"], run_name="sweep") as track:
        train_saes(rows, configs, on_metrics=lambda line: (lines.append(line), track(line)))
    (writer,) = Writer.made
    assert (writer.log_dir, writer.purge_step, writer.closed) == (str(tmp_path / "events"), 2, True)
    losses = [(value, step) for name, value, step in writer.scalars if name == "k3/loss"]
    assert losses == [(line["loss"], line["step"]) for line in lines if line["sae"] == 1]
    assert {name.split("/")[0] for name, _, _ in writer.scalars} == {"k2", "k3"}
    (begun,) = packages.init
    assert (begun["project"], begun["name"]) == ("dictionaries", "sweep")
    assert [begun["config"][name]["k"] for name in ("k2", "k3")] == [2, 3]
    assert [logged["step"] for logged in packages.logged] == [2, 2, 4, 4]
    assert packages.logged[-1]["k3/dead_share"] == lines[-1]["dead_share"]
    assert packages.finished == 1


def test_a_single_dictionary_needs_no_name_and_an_error_closes_all(packages: SimpleNamespace, tmp_path: Path) -> None:
    def broken() -> None:
        with tracker(tmp_path, "project", configs=[SAEConfig()]) as track:
            track({"step": 7, "loss": 0.5})
            raise RuntimeError("the disk melted")

    with pytest.raises(RuntimeError, match="melted"):
        broken()
    assert Writer.made[0].scalars == [("loss", 0.5, 7)]
    assert (Writer.made[0].closed, packages.finished) == (True, 1)


def test_without_trackers_nothing_is_imported_and_lines_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    require_trackers()
    with tracker() as track:
        track({"step": 1, "loss": 0.5})
    with pytest.raises(ValueError, match="pip install tensorboard"):
        require_trackers(tensorboard="events")
    with pytest.raises(ValueError, match="pip install wandb"), tracker(wandb="project"):
        pass
