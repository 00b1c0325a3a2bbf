"""What every benchmark shares: alternated runs, medians and ratios, and a result file with the machine's description.

Only ratios count: these numbers come from machines that other work shares. Each round times every contestant once, in turn,
so that a slow minute hits them all; the ratio printed is the median of the rounds' ratios.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def alternate(
    contestants: Mapping[str, Callable[[], Any]], rounds: int = 5, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], ours: str, peer: str) -> float:
    """Median over rounds of peer's time over ours: above 1 we are faster."""
    return statistics.median(theirs / own for own, theirs in zip(seconds[ours], seconds[peer], strict=True))


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows and write `results/<name>.json`."""
    import torch

    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
