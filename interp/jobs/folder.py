"""What jobs of every kind share: a folder that is gone on with, an owner, and a specification read from TOML.

1. `JobFolder.held` takes a folder for one process alone, refuses what is no job, and sweeps what killed writers left.
2. `settle_owner` writes whose folder it is, and refuses that of another job with what differs; on request the other's
   report moves to `earlier/<n>`.
3. A finished piece of work is a file in `tasks/`, written whole or not at all and named by a hash of everything that decides
   it (`JobFolder.task`). A changed job therefore never meets an old result, and what is still valid is not done again.
   `read_task` moves a damaged one aside.
4. `build` makes a frozen dataclass of the values of a TOML file. A key that is not known is an error, never ignored.

No file but the log holds a clock time, so a job that was killed and one that was not give the same bytes. A kind of job adds
what is its own: names of tables, texts, tasks (`interp.probe_job`, `interp.steer_job`).
"""

import contextlib
import difflib
import json
import logging
import os
import re
import shutil
import time
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Union, get_args, get_origin

from filelock import FileLock, Timeout

from interp import files

REPORT, PAGE, LOG, OWNER = "report.json", "report.html", "log.jsonl", "job.json"
DAMAGED = ".damaged"
"""Ending of a task's file that could not be read."""
Progress = Callable[[str, int, int], Any]
"""Told (step, done, in all) between two pieces of work; what it raises ends the job there."""
_MOST = 60

log = logging.getLogger("interp.jobs")


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job: report.json (written last), report.html, tasks/, job.json, log.jsonl, earlier/."""

    path: Path
    SHARED: ClassVar[frozenset[str]] = frozenset()
    """Names that a folder may hold before a job begins in it."""

    @property
    def report(self) -> Path:
        """What is written last."""
        return self.path / REPORT

    @property
    def page(self) -> Path:
        """The report for people."""
        return self.path / PAGE

    @property
    def owner(self) -> Path:
        """Whose folder it is."""
        return self.path / OWNER

    @property
    def is_begun(self) -> bool:
        """Whether a job has worked here."""
        return (self.path / "tasks").is_dir()

    def results(self) -> list[Path]:
        """Files and folders that belong to the report and are replaced with it."""
        return []

    def task(self, what: str, key: str, suffix: str) -> Path:
        """File of a finished piece of work: what it is, for people, and the hash of what decides it."""
        name = re.sub(r"[^\w.-]+", "-", what)
        return self.path / "tasks" / f"{name}.{key[:16]}{suffix}"

    @contextlib.contextmanager
    def held(self, *, resume: bool) -> Iterator[None]:
        """Hold the folder alone, and sweep what killed writers left in it.

        Args:
            resume: go on with a job that is there; False refuses it.

        Raises:
            ValueError: the path is a file or another kind of folder, a job that may not be gone on with, or another
                process that works there.
        """
        self._check(resume=resume)
        is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(f"another process works in {self.path}: wait for it, or choose another folder") from None
        try:
            self._sweep()
            (self.path / "tasks").mkdir(exist_ok=True)
            yield
        finally:
            lock.release()
            if is_new and not self._holds_something():
                shutil.rmtree(self.path)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Note in the log how long a step took; the reports hold no clock time, so that they are equal byte for byte."""
        began, cpu = time.perf_counter(), time.process_time()
        yield
        seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        line = {"step": step, "seconds": round(seconds, 2), "cpu_seconds": round(spent, 2)}
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def move_earlier(self) -> Path:
        """Put report, results and owner of another job aside; tasks stay, for they can be shared."""
        place = self.path / "earlier"
        taken = [int(old.name) for old in place.glob("*") if old.name.isdigit()]
        aside = place / str(max(taken, default=0) + 1)
        aside.mkdir(parents=True)
        # The report goes first: without it the rest does not count as finished.
        for file in [self.report, self.page, *self.results(), self.owner]:
            if file.exists():
                os.replace(file, aside / file.name)
        return aside

    def _holds_something(self) -> bool:
        files = (file for file in self.path.rglob("*") if file.is_file())
        return any(file.name not in (".lock", LOG, OWNER) for file in files)

    def _check(self, *, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give a folder for the job")
        if self.is_begun and not resume:
            raise ValueError(f"{self.path} holds a job already: choose another folder, or go on with it (resume)")
        others = [file.name for file in self.path.iterdir() if file.name != ".lock"] if self.path.is_dir() else []
        if others and not self.is_begun and not set(others) <= self.SHARED:
            raise ValueError(f"{self.path} holds something else ({sorted(others)[0]}): choose another folder")

    def _sweep(self) -> None:
        """Half-written files of killed writers."""
        folders = [self.path, self.path / "tasks", *(place for place in self.results() if place.is_dir())]
        for leftover in [file for folder in folders for file in sorted(folder.glob(".*.part"))]:
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


def read_task(path: Path, read: Callable[[Path], Any]) -> Any:
    """What `read` makes of the file or folder of a finished task; None where there is none, or it is damaged.

    A damaged one is moved aside with a warning, and its work is done again: it holds nothing that cannot be.
    """
    if not path.exists():
        return None
    try:
        return read(path)
    except (ValueError, TypeError, KeyError, OSError) as error:
        aside = path.with_name(path.name + DAMAGED)
        if aside.is_dir():
            shutil.rmtree(aside)
        os.replace(path, aside)
        log.warning("%s is damaged and is made again; it was moved to %s (%s)", path, aside.name, error)
        return None


def file_hash(path: Path) -> str:
    """What a report says of a file beside it, so that a half-replaced set of files is found out."""
    return files.sha256_file(path)[:32]


# --------------------------------------------------------------------------------------------------------------- owner


def settle_owner(
    folder: JobFolder,
    own: Mapping[str, Any],
    words: Mapping[str, str],
    *,
    replace: bool,
    free: Sequence[str] = (),
    before: Callable[[], dict[str, Any] | None] = lambda: None,
) -> None:
    """Write whose folder it is, or refuse that of another job.

    Args:
        folder: held alone.
        own: `kind` of job.json, `job` (the specification), and hashes of what stands elsewhere.
        words: key of such a hash -> what it is, for the message.
        replace: move what another job found to `earlier/<n>` instead of refusing.
        free: keys of the specification that may change.
        before: whose a folder without job.json is, None for nobody's.

    Raises:
        ValueError: the folder of another job; the message lists what differs.
    """
    known = _known(folder, own["kind"]) if folder.owner.is_file() else before()
    changed = [] if known is None else differences(known, own, words, free)
    if changed and not replace:
        raise ValueError(
            f"{folder.path} holds another job. What differs: {'; '.join(changed)}. Choose another folder (--out), or replace the "
            "job (--replace): what it found then moves to earlier/ in this folder"
        )
    if changed:
        log.info("the report of another job was moved to %s", folder.move_earlier())
    if not folder.owner.is_file() or files.read_json(folder.owner) != own:
        files.write_json(folder.owner, own)


def _known(folder: JobFolder, kind: str) -> dict[str, Any]:
    found = files.read_json(folder.owner)
    if not isinstance(found, dict) or found.get("kind") != kind:
        raise ValueError(f"{folder.owner} does not say that this is the folder of such a job: choose another folder")
    return found


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], words: Mapping[str, str], free: Sequence[str] = ()
) -> list[str]:
    """What differs between two jobs and can change a figure, each as `key: there -> here`; keys are those of `--set`."""
    mine, others = (dict(_flat(each["job"])) for each in (one, other))
    found = [
        f"{key}: {_short(mine.get(key))} -> {_short(others.get(key))}"
        for key in dict.fromkeys([*mine, *others])
        if key not in free and mine.get(key) != others.get(key)
    ]
    for key, name in words.items():
        if one.get(key) != other.get(key):
            found.append(f"{name} (hash {str(one.get(key))[:12]} -> {str(other.get(key))[:12]})")
    return found


def _flat(values: Mapping[str, Any], before: str = "") -> Any:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _short(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        value = [{key: part for key, part in each.items() if part not in (None, {}, False, [])} for each in value]
    text = "none" if value is None else str(value)
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


# ------------------------------------------------------------------------------------------------------- specifications


def read_toml(path: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The values of a TOML file, with `settings` put in; a dot in a key leads into a table.

    Raises:
        ValueError: a file that cannot be read or is no TOML, or a setting inside what is no table.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    for key, value in (settings or {}).items():
        _put(values, key.split("."), value)
    return values


def _put(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{'.'.join(keys)}: {key} is no table but {inner!r}")
        values = inner
    values[keys[-1]] = value


def build(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    """A frozen dataclass of plain values; tables become the dataclasses that its fields ask for.

    Args:
        kind: the dataclass. Fields with `compare=False` are not read.
        values: as TOML gives them. One value stands for a list of one.
        where: what messages begin with, such as the file's name.

    Raises:
        ValueError: an unknown key (with the nearest one), a missing key, a value of another type, or what the dataclass refuses.
    """
    known = {each.name: each for each in fields(kind) if each.compare}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{where}: unknown key {key!r}; {hint}")
    for name, each in known.items():
        if name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{where}: the key {name!r} is missing")
    built = {name: _convert(known[name].type, value, f"{where}: {name}") for name, value in values.items()}
    try:
        return kind(**built)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _convert(wanted: Any, value: Any, where: str) -> Any:
    """A TOML value as the type of its field; one value stands for a list of one."""
    if get_origin(wanted) in (Union, types.UnionType):
        wanted = next(each for each in get_args(wanted) if each is not type(None))
    if is_dataclass(wanted):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be a table, got {value!r}")
        return build(wanted, value, where)
    if get_origin(wanted) is tuple:
        inner = get_args(wanted)[0]
        listed = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(inner, each, where) for each in listed)
    if wanted is float and type(value) is int:
        return float(value)
    expected = get_origin(wanted) or wanted
    if type(value) is not expected:
        raise ValueError(f"{where} must be {_WORDS[expected]}, got {value!r}")
    return value


_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}


def plain(value: Any) -> Any:
    """JSON-ready: tuples become lists."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def at_least(name: str, value: int, least: int) -> None:
    """ValueError for a number that is too small."""
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")
