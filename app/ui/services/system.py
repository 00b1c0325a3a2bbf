"""The machine and the server: processors, memory, disk, caches, versions, limits, and the last report of the doctor."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.runtime.caching import get_data_cache_stats_provider, get_resource_cache_stats_provider

import interp
from ui import library, state
from ui.services.kept import MOST as MOST_KEPT
from ui.services.live import in_memory, release
from ui.services.patches import MAX_PAIR_TOKENS, MAX_PAIRS
from ui.services.prompt import MAX_STATEMENTS
from ui.services.runs import KEPT

PACKAGES = (
    "torch",
    "streamlit",
    "altair",
    "numpy",
    "pandas",
    "pyarrow",
    "safetensors",
    "scikit-learn",
    "transformers",
    "ray",
)


def machine() -> dict[str, float | None]:
    """Figures of this moment; None where the system does not tell.

    processors; load (mean number of waiting processes in the last minute); of memory, in bytes: own (this process),
    own_most (at any time so far), total, free; of the disk of the workspace: disk_total, disk_free.
    """
    total, free = memory()
    space = library.workspace()
    place = next((each for each in (space, *(space.parents if space else ())) if each and each.is_dir()), None)
    disk = shutil.disk_usage(place) if place else None
    return {
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "own": _own(),
        "own_most": _own_most(),
        "total": total,
        "free": free,
        "disk_total": disk.total if disk else None,
        "disk_free": disk.free if disk else None,
    }


def memory() -> tuple[float | None, float | None]:
    """Memory of the machine and what of it is free, in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        held = {name: float(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
        return held["MemTotal"], held["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None, None


def models() -> pd.DataFrame:
    """The models in memory: name, fingerprint, parameters, MB, dtype, device."""
    rows = []
    for name, live in in_memory().items():
        weights = list(live.model.parameters())
        size = sum(each.numel() * each.element_size() for each in weights) / 1e6
        n = sum(each.numel() for each in weights)
        rows.append(
            (name, live.fingerprint, n, size, str(weights[0].dtype).removeprefix("torch."), str(weights[0].device))
        )
    return pd.DataFrame(rows, columns=pd.Index(["model", "fingerprint", "parameters", "MB", "dtype", "device"]))


def free_model() -> bool:
    """Take the model out of memory; False where it is busy. Answers that were computed stay."""
    return release()


def empty_caches() -> None:
    """Forget computed answers; the model stays."""
    st.cache_data.clear()


def caches() -> pd.DataFrame:
    """A row per cached function that holds something: cache, entries, MB (None for objects, whose size is not known)."""
    rows = [*_stats(get_data_cache_stats_provider(), True), *_stats(get_resource_cache_stats_provider(), False)]
    frame = pd.DataFrame(rows, columns=pd.Index(["cache", "bytes"]))
    frame = frame.groupby("cache", as_index=False).agg(
        entries=("bytes", "size"), MB=("bytes", lambda b: b.sum(min_count=1))
    )
    frame["MB"] /= 1e6
    return frame.sort_values(["entries", "cache"], ascending=[False, True], ignore_index=True)


def versions() -> pd.DataFrame:
    """package, version; what is not installed is said to be so."""
    rows = [
        ("interp", interp.__version__),
        ("Python", platform.python_version()),
        ("system", f"{sys.platform} {platform.machine()}"),
    ]
    for name in PACKAGES:
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    return pd.DataFrame(rows, columns=pd.Index(["package", "version"]))


def limits() -> pd.DataFrame:
    """What a page takes at most: what, most."""
    rows = [
        ("characters of a prompt", f"{state.MAX_CHARS:,}"),
        ("tokens of a prompt", f"{state.MAX_TOKENS:,}, or the context of the model where that is shorter"),
        ("positions in a grid at once", f"{state.WINDOW:,}; the window follows the chosen token"),
        ("tokens of a pair to patch", f"{MAX_PAIR_TOKENS:,}, {MAX_PAIRS:,} pairs"),
        ("statements to score at once", f"{MAX_STATEMENTS:,}"),
        ("models in memory", "1 for all sessions; another choice replaces it"),
        ("cached answers", f"{KEPT['max_entries']} of each kind, for {KEPT['ttl']}"),
        ("results of buttons that are kept", f"{MOST_KEPT:,}"),
        ("files in the workspace", f"{library.MOST_FILES:,}, {library.DEPTH} folders deep"),
        ("message to the browser", f"{st.get_option('server.maxMessageSize'):,} MB"),
        ("upload", f"{st.get_option('server.maxUploadSize'):,} MB"),
    ]
    return pd.DataFrame(rows, columns=pd.Index(["what", "most"]))


def doctor_report() -> tuple[pd.DataFrame, str, str, str | None] | None:
    """The newest report of `interp doctor` in the workspace: its checks, its summary, the model's name and fingerprint."""
    found = next(iter(library.entries("doctor report")), None)
    return None if found is None else _doctor(str(found.path), found.stamp)


# -------------------------------------------------------------------------------------------------------------- inner


@st.cache_data(**KEPT)
def _doctor(path: str, stamp: int) -> tuple[pd.DataFrame, str, str, str | None]:  # noqa: ARG001 (part of the key)
    report = interp.load_doctor_report(path)
    return report.to_frame(), report.summary, str(report.card.get("model", "")), report.card.get("fingerprint")


def _own() -> float | None:
    try:
        return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _own_most() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) * (1 if sys.platform == "darwin" else 1024)


def _stats(provider: Any, sized: bool) -> Iterator[tuple[str, float | None]]:
    for family in provider.get_stats().values():
        for each in family:
            name = each.cache_name.removeprefix("ui.services.")
            yield name, float(each.byte_length) if sized else float("nan")
