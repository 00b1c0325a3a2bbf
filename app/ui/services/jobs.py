"""Background jobs of the workspace: start one, say how far it is, end it; and the commands that pages build.

A command is a list of words for `interp`, never a shell line. Every word comes from a fixed list, a number, or a name that was
checked; files are named by the library. Results are written into the workspace, never over something that is there.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp import jobs as background
from interp import sites as site_names
from ui import library
from ui.services.live import checked, engine, in_memory, model_name
from ui.services.runs import KEPT

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}"
SPECS = ("truth", "truth-transfer", "heads", "truthfulqa")
PAGES = {
    "store": "stores", "sae": "saes", "sae features": "saes", "probe job": "probes", "steering": "steering",
    "circuit": "circuits", "behaviour": "behavior", "head report": "heads", "run": "overview", "lens": "lens",
}  # fmt: skip
"""Kind of a job -> page that shows what it makes."""


def root() -> Path:
    """Folder of the workspace's jobs.

    Raises:
        ValueError: the app was started without a workspace.
    """
    space = library.workspace()
    if space is None:
        raise ValueError("there is no workspace to write to: start with interp app --workspace FOLDER")
    return space.resolve() / "jobs"


def output(name: str, ending: str = "") -> str:
    """Where a result of this name goes.

    Raises:
        ValueError: a name that is no file name.
    """
    if not re.fullmatch(NAME, name):
        raise ValueError(f"{name[:80]!r} is no name: use letters, digits, dot, dash and underscore, at most 60")
    return str(root().parent / f"{name.removesuffix(ending)}{ending}")


def start(kind: str, argv: Sequence[str], title: str) -> str:
    """Start a job and return its id. A name without a folder after `--out` lands in the workspace.

    Raises:
        ValueError: no workspace, a name that is taken, too many jobs, or too little disk.
    """
    words = list(argv)
    if "--out" in words and "/" not in (name := words[words.index("--out") + 1]):
        words[words.index("--out") + 1] = output(name)
    for option in ("--out", "--run"):
        if option in words and (path := Path(words[words.index(option) + 1])).exists():
            raise ValueError(f"the workspace has {path.name} already: choose another name")
    return background.submit(root(), words, title=title, kind=kind).id


def listed() -> list[background.Job]:
    """Every job, newest first; none where there is no workspace."""
    try:
        return background.jobs(root())
    except ValueError:
        return []


def job(name: str) -> background.Job:
    """One job. ValueError for none of that name."""
    return background.job(root(), name)


def cancel(name: str) -> None:
    """Ask a job to end."""
    background.cancel(root(), name)


def again(name: str) -> str:
    """Start a job that is over once more; it goes on where it was. The id of the new one."""
    return background.again(root(), name).id


def results() -> pd.DataFrame:
    """What lies in the workspace: key, kind, model ("this", "not said", or the first digits of it), written."""
    own = engine().fingerprint if in_memory() is not None else None
    rows = [
        {
            "key": entry.key,
            "kind": entry.kind,
            "model": "not said" if entry.model is None else "this" if entry.model == own else entry.model[:8],
            "written": pd.Timestamp(entry.stamp).floor("s"),
        }
        for entry in library.entries()
    ]
    return pd.DataFrame(rows, columns=pd.Index(["key", "kind", "model", "written"]))


# ---------------------------------------------------------------------------------------------------- training curves


def logs() -> dict[str, Path]:
    """Key -> file of the metrics of training runs in the workspace, the newest first."""
    space = library.workspace()
    if space is None:
        return {}
    levels = ("*.jsonl", "*/*.jsonl", "*/*/*.jsonl")
    found = [path for level in levels for path in space.glob(level) if _is_metrics(path, space)]
    found.sort(key=lambda path: -path.stat().st_mtime_ns)
    return {path.relative_to(space).as_posix(): path for path in found[:50]}


def curves(keys: Sequence[str], smoothing: float = 0.0) -> pd.DataFrame:
    """Metrics of training runs: run, step, and what was logged; `smoothing` 0 to 0.99 is that of an exponential mean."""
    there = logs()
    frames = [_metrics(str(there[key]), there[key].stat().st_mtime_ns).assign(run=key) for key in keys if key in there]
    if not frames:
        return pd.DataFrame({"run": [], "step": []})
    frame = pd.concat(frames, ignore_index=True)
    figures = [name for name in ("loss", "fvu", "l0", "dead_share") if name in frame]
    if smoothing > 0:
        smooth = frame.groupby("run")[figures].transform(lambda part: part.ewm(alpha=1 - smoothing).mean())
        frame[figures] = smooth
    return frame


def _is_metrics(path: Path, space: Path) -> bool:
    if path.is_symlink() or not path.resolve().is_relative_to(space.resolve()) or path.stat().st_size > 64 * 2**20:
        return False
    with path.open("rb") as file:
        first = file.readline(65536)
    try:
        line = json.loads(first)
    except ValueError:
        return False
    return isinstance(line, dict) and {"step", "loss"} <= set(line)


@st.cache_data(**KEPT)
def _metrics(path: str, stamp: int) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    rows = []
    for text in Path(path).read_text("utf-8", "replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # the last line of a run that is writing
            continue
        if isinstance(line, dict):
            rows.append(line)
    frame = pd.DataFrame(rows)
    frame = frame.rename(columns={"active": "l0"})
    numbers = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
    return frame.loc[:, numbers]


# ------------------------------------------------------------------------------------------------ commands that pages build


def datasets(*kinds: str) -> list[str]:
    """Names of the bundled sets, of some kinds or all."""
    table = interp.datasets()
    rows = table.to_dict("records")
    return [str(row["name"]) for row in rows if not kinds or row.get("kind") in kinds]


def record_argv(data: str, sites: str, tokens: str, limit: int, name: str) -> list[str]:
    """`interp record`: activations of a bundled set into a store."""
    _known(data, datasets(), "data set")
    _known(tokens, ("all", "last", "mean"), "rule of tokens")
    with checked(engine().fingerprint) as model:
        model.expand_sites(sites.split())  # an unknown site is said here, with the nearest ones
    words = ["record", model_name(), data, "--tokens", tokens, "--limit", str(int(limit)), "--out", output(name)]
    return words + [word for site in sites.split() for word in ("--sites", site)]


def sae_argv(store: str, site: str, k: int, width: str, epochs: int, name: str) -> list[str]:
    """`interp sae train` on a store of the workspace."""
    found = library.entry(store, "store")
    _known(site, store_sites(store), "site")
    _known(width, ("4x", "8x", "16x"), "width")
    return [
        "sae", "train", "--store", str(found.path), "--site", site, "--k", str(int(k)), "--width", width,
        "--epochs", str(int(epochs)), "--out", output(name, ".safetensors"),
    ]  # fmt: skip


def lens_argv(store: str, epochs: int, name: str) -> list[str]:
    """`interp tune-lens` on a store of the workspace."""
    found = library.entry(store, "store")
    return [
        "tune-lens",
        model_name(),
        str(found.path),
        "--epochs",
        str(int(epochs)),
        "--out",
        output(name, ".safetensors"),
    ]


def probe_argv(spec: str, kinds: Sequence[str], name: str) -> list[str]:
    """`interp probe train`: a job that comes with the package."""
    _known(spec, SPECS, "job")
    words = ["probe", "train", spec, "--model", model_name(), "--out", output(name)]
    return words + (["--set", f"kinds={','.join(kinds)}"] if kinds else [])


def steer_map_argv(pairs: str, name: str) -> list[str]:
    """`interp steer map` of bundled contrast pairs."""
    _known(pairs, ("sentiment", "formality"), "set of pairs")
    return ["steer", "map", model_name(), pairs, "--out", output(name, ".json")]


def steer_make_argv(pairs: str, site: str, name: str) -> list[str]:
    """`interp steer make` of bundled contrast pairs at one site."""
    _known(pairs, ("sentiment", "formality"), "set of pairs")
    with checked(engine().fingerprint) as model:
        model.expand_sites([site])
    return ["steer", "make", model_name(), pairs, "--site", site, "--out", output(name, ".safetensors")]


def behave_argv(what: str, n: int, name: str) -> list[str]:
    """`interp behave questions|text|sycophancy|ground` on the bundled sets, with so many questions or documents."""
    model, out = model_name(), output(name)
    commands = {
        "questions": ["behave", "questions", model, "--questions", "questions", "--n", str(int(n)), "--out", out],
        "text": [
            "behave",
            "text",
            model,
            "--texts",
            "python_docs",
            "--n-texts",
            str(int(n)),
            "--max-tokens",
            "128",
            "--out",
            out,
        ],
        "sycophancy": ["behave", "sycophancy", model, "--questions", "questions", "--n", str(int(n)), "--out", out],
        "ground": [
            "behave",
            "ground",
            model,
            "--questions",
            "questions",
            "--documents",
            "evidence",
            "--n",
            str(int(n)),
            "--out",
            out,
        ],
    }
    _known(what, tuple(commands), "report")
    return commands[what]


def demo_argv(name: str) -> list[str]:
    """`interp demo`: every analysis on the demo's model."""
    return ["demo", "--run", output(name), "--no-app"]


def store_sites(key: str) -> list[str]:
    """Sites of a store, short."""
    found = library.entry(key, "store")
    return _store_sites(str(found.path), found.stamp)


@st.cache_data(**KEPT)
def _store_sites(path: str, stamp: int) -> list[str]:  # noqa: ARG001 (the stamp is part of the key)
    return [site_names.short_name(site) for site in interp.open_store(path).sites]


@st.cache_data(**KEPT)
def plan(fingerprint: str, data: str, sites: str, tokens: str, limit: int) -> dict[str, Any]:
    """What a recording would take: quantity -> value (`interp.recording_plan`)."""
    with checked(fingerprint) as model:
        found = interp.recording_plan(model, data, sites=sites.split(), tokens=tokens, limit=limit)
    return found.to_frame().set_index("quantity")["value"].to_dict()


def _known(value: str, offered: Sequence[str], what: str) -> None:
    if value not in offered:
        raise ValueError(f"{value[:80]!r} is no {what}: there are {', '.join(offered)}")
