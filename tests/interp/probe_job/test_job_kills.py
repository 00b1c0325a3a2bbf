"""A job that is killed at any moment goes on to the same report, byte for byte."""

import os
import random
import time
from pathlib import Path

import pytest
from crash import call, start, wait_for
from probe_jobs import JOB, finished_bytes, run_small, write_job

SMALL = JOB + "[transfer]\nby = 'polarity'\nkinds = 'mass_mean'\n[causal]\nask = false\nmax_pairs = 16\n"


def run_job(spec: Path, out: Path) -> int:
    """The whole job, in a child that may be killed. The number of texts."""
    return int(run_small(spec, out).card["n"])


def undisturbed(folder: Path) -> tuple[Path, dict[str, bytes]]:
    """Specification and files of a job that nothing disturbed."""
    spec = write_job(folder, SMALL)
    call(run_job, spec, folder / "whole")
    return spec, finished_bytes(folder / "whole")


def kill_at(spec: Path, out: Path, n_files: int, seconds: float) -> bool:
    """Kill a job that has written so many files, a moment later. Whether it was still at work."""
    child = start(run_job, spec, out)
    wait_for(lambda: child.ended or sum(len(files) for _, _, files in os.walk(out)) >= n_files, 60)
    time.sleep(seconds)
    child.kill()
    return child.end().signal is not None


def test_a_job_killed_three_times_gives_the_same_bytes(tmp_path: Path) -> None:
    spec, whole = undisturbed(tmp_path)
    rng, out = random.Random(0), tmp_path / "broken"
    moments = sorted(rng.randrange(2, len(whole)) for _ in range(3))
    killed = [kill_at(spec, out, n_files, rng.uniform(0, 0.02)) for n_files in moments]
    assert any(killed)
    call(run_job, spec, out)
    assert finished_bytes(out) == whole


@pytest.mark.slow
def test_jobs_killed_at_twenty_moments_give_the_same_bytes(tmp_path: Path) -> None:
    spec, whole = undisturbed(tmp_path)
    rng, killed = random.Random(1), 0
    for number in range(20):
        out = tmp_path / f"broken-{number}"
        killed += kill_at(spec, out, 1 + number * (len(whole) - 1) // 20, rng.uniform(0, 0.05))
        call(run_job, spec, out)
        assert finished_bytes(out) == whole, number
    assert killed >= 10
