"""Memory: the process does not grow while the model runs, records and is hooked."""

import gc
import os
from pathlib import Path

import torch

from interp.checks.patient import Patient, bounded, skipped
from interp.checks.report import Check

RUNS = 200
WARM_UP = 40
MOST_BYTES = 16 * 2**20
"""Growth that is no leak: the allocator's own."""


def flat(patient: Patient) -> Check:
    """Resident memory before and after 200 runs: two layers recorded and hooked, every tenth run the whole model."""
    name, compared = "memory flat", f"resident bytes after {WARM_UP} and after {RUNS + WARM_UP} short runs"
    if not Path("/proc/self/statm").is_file():
        return skipped(name, compared, "this system does not say how much memory a process holds")
    ids = patient.ids[None, : min(6, patient.width)]
    for _ in range(WARM_UP // 10):
        _ten_runs(patient, ids)
    before = _resident()
    for _ in range(RUNS // 10):
        _ten_runs(patient, ids)
    grown = max(_resident() - before, 0)
    note = f"{before / 2**20:.0f} MiB before, {grown / 2**20:.1f} MiB more after"
    return bounded(name, compared, float(grown), float(MOST_BYTES), note)


def _ten_runs(patient: Patient, ids: torch.Tensor) -> None:
    model, stop = patient.model, min(2, patient.model.cfg.n_layers)
    with torch.no_grad():
        model(ids)
        for _ in range(9):
            with model.hooks({"resid_post:0": lambda value, _: value}):
                model.run_with_cache(ids, stop_at_layer=stop)


def _resident() -> int:
    """Bytes of this process that are in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
