"""What `interp sae train` chooses, what it calls the files, and what it shows while it works."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from interp.cli import sae_progress, sae_sweep
from interp.cli.sae_progress import TrainingProgress
from interp.cli.sae_sweep import Pace


def test_the_pace_follows_the_number_of_rows() -> None:
    few, some, many = (Pace.of(n, None, None) for n in (2_000, 200_000, 5_000_000))
    assert (few.epochs, few.batch_size) == (2, 256)
    assert (some.epochs, some.batch_size) == (2, 1024)
    assert (many.epochs, many.batch_size) == (1, 4096)
    assert Pace.of(2_000, 3, 100) == Pace(3, 100, 60)


def test_names_say_what_differs() -> None:
    found = sae_sweep.sweep(["jumprelu", "gated"], {"l0": [20.0, 40.5], "seed": [1], "width": ["8x"]}, {"epochs": 3})
    assert list(found) == ["jumprelu-l0_20", "jumprelu-l0_40.5", "gated"]
    assert {config.seed for config in found.values()} == {1}
    assert list(sae_sweep.sweep(["topk"], {"k": [16, 16]}, {})) == ["sae"]
    assert sae_sweep.setting_of("groups=[0.5, 0.5]") == ("groups", (0.5, 0.5))


def test_a_terminal_shows_a_table_and_a_file_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"step": 10, "loss": 0.25, "active": 32.0, "dead_share": 0.125, "lr": 1e-3}

    def run(progress: TrainingProgress) -> None:
        with progress:
            for done in range(1, 41):
                if done % 10 == 0:
                    progress.metrics({**line, "sae": 0})
                    progress.metrics({**line, "sae": 1})
                progress.step(done, 40)

    run(TrainingProgress(["k16", "k32"], 100, quiet=False))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8
    assert lines[-1].startswith("step 40 of 40, k32: loss 0.2500, L0 32.0, dead 12.5%, lr 1.00e-03; ")
    assert "rows/s, 0 s left" in lines[-1]
    run(TrainingProgress(["k16", "k32"], 100, quiet=True))
    assert capsys.readouterr().err == ""

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sae_progress, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setattr(
        sae_progress,
        "Console",
        lambda **_: Console(file=terminal, force_terminal=True),
    )
    run(TrainingProgress(["k16", "k32"], 100, quiet=False))
    assert all(word in terminal.getvalue() for word in ("k16", "12.5%", "rows/s"))
