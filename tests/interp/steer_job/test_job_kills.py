"""A sweep that is killed at any moment goes on to the same report, byte for byte."""

import os
import random
import time
from pathlib import Path

import pytest
from crash import call, start, wait_for
from probe_jobs import finished_bytes
from steer_jobs import plain_page, run_small, write_job

from interp.steering.report import SteeringReport


def run_job(spec: Path, out: Path) -> int:
    """The whole sweep, in a child that may be killed. The number of effects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SteeringReport, "write_html", plain_page)
        return len(run_small(spec, out).effects)


def kill_at(spec: Path, out: Path, n_files: int, seconds: float) -> bool:
    """Kill a sweep that has written so many files, a moment later. Whether it was still at work."""
    child = start(run_job, spec, out)
    wait_for(lambda: child.ended or sum(len(files) for _, _, files in os.walk(out)) >= n_files, 60)
    time.sleep(seconds)
    child.kill()
    return child.end().signal is not None


@pytest.mark.slow
def test_sweeps_killed_at_twelve_moments_give_the_same_bytes(tmp_path: Path) -> None:
    spec = write_job(tmp_path)
    call(run_job, spec, tmp_path / "whole")
    whole = finished_bytes(tmp_path / "whole")
    rng, killed = random.Random(0), 0
    for number in range(12):
        out = tmp_path / f"broken-{number}"
        killed += kill_at(spec, out, 1 + number * len(whole) // 12, rng.uniform(0, 0.05))
        call(run_job, spec, out)
        assert finished_bytes(out) == whole, number
    assert killed >= 6
