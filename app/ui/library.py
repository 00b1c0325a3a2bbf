"""What lies in the workspace: runs, stores, SAEs, probes, vectors, reports, found by what each file says of itself.

1. The roots are the workspace ($INTERP_WORKSPACE, else the folder that holds the run) and the stores of $INTERP_STORES. Only
   the command line names them.
2. A root is walked a few levels deep. Links are not followed: one could lead out of it, or round in it. The inner parts of
   stores and jobs are left alone.
3. A file says what it is: the card of a safetensors file, or `kind` in a JSON file; a folder by the file that makes it one.
   Headers are read once for each version of a file.
4. A page names an entry by its key. The key is looked up among what was found, and never becomes a path.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st
from safetensors import SafetensorError, safe_open

from interp.report import printable

DEPTH = 4
"""Levels of folders that are looked through."""
MOST_FILES = 20_000
"""Files and folders that one look takes in; what lies beyond them is not offered, and the page says so."""
MOST_JSON = 16 * 2**20
"""Largest JSON file whose kind is asked."""
FRESH_S = 2.0
"""Seconds for which what was found is taken as it is."""
INNER = frozenset({"shards", "tasks", "earlier", "jobs", "activations", "checkpoints", "__pycache__"})
"""Folders that belong to what holds them."""
MARKERS = {"demo.json": "run", "store.json": "store"}
"""Files that make a folder an entry whatever they hold."""
FOLDER_FILES = frozenset({"report.json", "transfer.json", "card.json"})
"""Files whose folder is the entry."""
OF_A_MODEL = frozenset({"probe", "steering vector", "steering vectors", "sae", "head vectors"})
"""Kinds that mean something for one model alone."""
BESIDE = frozenset({"job.json", "status.json", "spec.json", "config.json", "tokenizer.json"})
"""JSON files that are parts of other things."""


@dataclass(frozen=True)
class Entry:
    """One thing that pages can show."""

    key: str
    """Its name in a URL: the path below its root, with `/`."""
    kind: str
    """What it is: "run", "store", "sae", "probe", "question report" ..."""
    path: Path
    """File or folder, as the loader of its kind takes it."""
    model: str | None
    """Fingerprint of the model that it belongs to, None where it names none."""
    stamp: int
    """Changes when it is written again (ns)."""
    size: int
    """Bytes of the file that names it."""

    @property
    def title(self) -> str:
        """What a reader sees: the key without the ending."""
        return re.sub(r"\.(safetensors|json)$", "", self.key)


def entries(*kinds: str) -> tuple[Entry, ...]:
    """Everything of these kinds (of all where none is named), newest first."""
    found = _scan(_roots(), int(time.monotonic() / FRESH_S))
    return tuple(entry for entry in found if not kinds or entry.kind in kinds)


def entry(key: str, *kinds: str) -> Entry:
    """One entry by its key.

    Raises:
        ValueError: there is none of these kinds under that key (any more).
    """
    for found in entries(*kinds):
        if found.key == key:
            return found
    wanted = " or ".join(kinds) or "entry"
    raise ValueError(f"there is no {wanted} {key[:80]!r} in the workspace (any more): choose another one")


def workspace() -> Path | None:
    """The folder that results are looked for in, and that jobs write to; None where none was given."""
    named = os.environ.get("INTERP_WORKSPACE")
    if named:
        return Path(named)
    run = os.environ.get("INTERP_RUN")
    return Path(run).parent if run else None


def forget() -> None:
    """Look again at once, as after something was written."""
    _scan.cache_clear()


def pick(kinds: str | Sequence[str], label: str, key: str, *, model: str | None = None) -> Entry | None:
    """A box to choose an entry; the choice stands in the URL.

    Args:
        kinds: what is offered.
        label: of the box.
        key: of the widget and in the URL; unique in the app.
        model: fingerprint; entries of other models come last and are marked.

    Returns:
        The chosen entry, the newest one at first; None where there is none.
    """
    offered = entries(*((kinds,) if isinstance(kinds, str) else kinds))
    if not offered:
        return None
    fits = {each.key: model is None or each.model in (None, model) for each in offered}
    by_key = {each.key: each for each in sorted(offered, key=lambda each: not fits[each.key])}
    shown = st.selectbox(
        label,
        list(by_key),
        format_func=lambda name: printable(by_key[name].title) + _note(by_key[name], fits=fits[name]),
        key=key,
        bind="query-params",
        width=360,
    )
    return by_key.get(str(shown), next(iter(by_key.values())))


def _note(entry: Entry, *, fits: bool) -> str:
    """What a reader must know of an entry's model before using it."""
    if not fits:
        return " (another model)"
    return " (of which model is not said)" if entry.model is None and entry.kind in OF_A_MODEL else ""


# ------------------------------------------------------------------------------------------------------- what is there

_lock = threading.Lock()
_headers: dict[tuple[str, int, int], tuple[str, str | None] | None] = {}


def _roots() -> tuple[tuple[str, str], ...]:
    """(what keys begin with, folder) of each root that is there."""
    space = workspace()
    found = [("", str(space.resolve()))] if space is not None and space.is_dir() else []
    run = os.environ.get("INTERP_RUN")
    if run and Path(run).is_dir() and not (found and Path(run).resolve().is_relative_to(found[0][1])):
        found.append((f"@{Path(run).name}", str(Path(run).resolve())))
    listed = [Path(store) for store in os.environ.get("INTERP_STORES", "").split(os.pathsep) if store]
    for number, store in enumerate(one for one in listed if one.is_dir()):
        found.append((f"@{number + 1}-{store.name}", str(store.resolve())))
    return tuple(found)


@lru_cache(maxsize=4)
def _scan(roots: tuple[tuple[str, str], ...], tick: int) -> tuple[Entry, ...]:  # noqa: ARG001 (the tick ends what is kept)
    found = {each.key: each for start, folder in roots for each in _walk(start, Path(folder))}
    return tuple(sorted(found.values(), key=lambda each: (-each.stamp, each.key)))


def _walk(start: str, root: Path) -> Iterator[Entry]:
    left = [MOST_FILES]
    stack = [(root, 0)]
    while stack and left[0] > 0:
        folder, depth = stack.pop()
        names = _listed(folder)
        left[0] -= len(names)
        whole = False
        for path in names:
            made = None
            # A file can go while one looks.
            with contextlib.suppress(OSError):
                made = _entry(path, root, start) if path.is_file() else None
            if made is not None:
                yield made
                # What is inside a store or a set of features is its own affair.
                whole = whole or made.kind == "store" or path.name == "card.json"
        if depth < DEPTH and not whole:
            stack.extend((path, depth + 1) for path in names if path.name not in INNER and path.is_dir())


def _listed(folder: Path) -> list[Path]:
    try:
        names = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in names if not path.name.startswith(".") and not path.is_symlink()]


def _entry(path: Path, root: Path, start: str) -> Entry | None:
    about = path.stat()
    if path.name in MARKERS:
        said = (MARKERS[path.name], _head(path, about)[1] if about.st_size <= MOST_JSON else None)
    elif path.suffix in (".safetensors", ".json") and path.name not in BESIDE:
        said = _known(path, about)
    else:
        return None
    if said is None:
        return None
    place = path.parent if path.name in MARKERS or path.name in FOLDER_FILES else path
    below = place.relative_to(root).as_posix()
    key = "/".join(part for part in (start, "" if below == "." else below) if part) or place.name
    return Entry(key, said[0], place, said[1], about.st_mtime_ns, about.st_size)


def _head(path: Path, about: os.stat_result) -> tuple[str, str | None]:
    return _known(path, about) or ("", None)


def _known(path: Path, about: os.stat_result) -> tuple[str, str | None] | None:
    """Kind and model of a file, read once for each version of it."""
    version = (str(path), about.st_mtime_ns, about.st_size)
    with _lock:
        if version in _headers:
            return _headers[version]
    said = _read(path, about.st_size)
    with _lock:
        if len(_headers) > MOST_FILES:
            _headers.clear()
        _headers[version] = said
    return said


def _read(path: Path, size: int) -> tuple[str, str | None] | None:
    """None for a file that says nothing of itself, or is damaged."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                card = json.loads((file.metadata() or {}).get("card", "{}"))
        else:
            card = json.loads(path.read_bytes()) if size <= MOST_JSON else {}
    except (OSError, ValueError, SafetensorError, RecursionError):
        return None
    if not isinstance(card, dict):
        return None
    kind = card.get("kind", MARKERS.get(path.name))
    return (kind, _model_of(card)) if isinstance(kind, str) else None


def _model_of(card: Mapping[str, Any]) -> str | None:
    """The fingerprint in a card, wherever its kind keeps it."""
    held = [
        card,
        *(card[name] for name in ("provenance", "card", "model", "store") if isinstance(card.get(name), dict)),
    ]
    held += [each["model"] for each in held[1:] if isinstance(each.get("model"), dict)]
    held += [each["provenance"] for each in held[1:] if isinstance(each.get("provenance"), dict)]
    for each in held:
        for name in ("fingerprint", "model_fingerprint", "model"):
            value = each.get(name)
            if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value):
                return value
    return None
