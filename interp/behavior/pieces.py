"""Long work in pieces: each is kept as a file as soon as it is done, here or over the workers of a Ray cluster.

1. A report divides what it measures (questions, documents) into `Piece`s. Work on one is a function of the model, the
   settings and the piece's own inputs, and gives arrays and JSON values.
2. `run_pieces` reads what is there and does the rest. A file is named by a hash of everything that decides it, so a changed
   question or setting never meets an old result, and a damaged file is made again.
3. `in_folder` is the way from there to a report that is written once and gone on with as often as it is stopped.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from interp import artifact, jobs
from interp.behavior.report import BehaviorReport
from interp.engine import RayEngine, as_engine, run_tasks
from interp.jobs import JobFolder, read_task
from interp.model import HookedTransformer
from interp.model.parts import ModelParts
from interp.recording.job import edited_at

KIND = "behaviour piece"
OWNER_KIND = "behaviour report owner"
FORMAT = 1
"""Raised when a piece gives other results than before, so that old files are not used."""
HASHES = {"inputs": "what it is measured on", "model": "the model's weights"}
"""What stands outside the settings and decides a figure."""

Result = tuple[dict[str, np.ndarray], Any]
"""Arrays without NaN in bool, int or float, and JSON-ready values."""
Work = Callable[[HookedTransformer, Mapping[str, Any], Any], Result]
"""(model, settings, inputs of the piece) -> result; a function at the top level of a module, so that it can travel."""
Report = TypeVar("Report", bound=BehaviorReport)


@dataclass(frozen=True)
class Piece:
    """One part of the work."""

    name: str
    """For people; it begins the file's name."""
    inputs: Any
    """JSON-ready: what the work needs beside model and settings."""


class BehaviorFolder(JobFolder):
    """The folder of one report."""

    SHARED: ClassVar[frozenset[str]] = frozenset()


def divided(name: str, items: Sequence[Any], size: int) -> list[Piece]:
    """Items in their order, so many to a piece."""
    starts = range(0, len(items), size)
    return [Piece(f"{name} {start}", list(items[start : start + size])) for start in starts]


def run_pieces(
    model: HookedTransformer,
    work: Work,
    settings: Mapping[str, Any],
    pieces: Sequence[Piece],
    *,
    decides: Any,
    folder: JobFolder | None = None,
    engine: Any = "local",
    progress: Callable[[int, int], Any] | None = None,
) -> list[Result]:
    """The result of each piece, in order; those that a folder holds are read.

    Args:
        model: without hooks, where it has to travel.
        work: what is done.
        settings: of the work; values must be picklable for Ray.
        pieces: the parts.
        decides: JSON-ready form of all settings that can change a result.
        folder: held by the caller; None keeps nothing.
        engine: "local", "ray", or a `RayEngine`.
        progress: called with (pieces done, in all) after each; what it raises ends the work between two pieces.

    Raises:
        ValueError: a model with hooks on Ray.
        WorkerLost: a piece whose workers died again and again.
    """
    about = [FORMAT, f"{work.__module__}.{work.__qualname__}", decides, model.fingerprint, artifact.provenance()]
    found: dict[int, Result] = {}
    paths: dict[int, Path] = {}
    if folder is not None:
        for index, piece in enumerate(pieces):
            paths[index] = folder.task(piece.name, artifact.hash_json([*about, piece.inputs]), ".safetensors")
            kept = read_task(paths[index], _read)
            if kept is not None:
                found[index] = kept
    left = [index for index in range(len(pieces)) if index not in found]
    if progress is not None and found:
        progress(len(found), len(pieces))
    here = as_engine(engine) is None
    if not here:
        refuse_hooks(model, "hooks do not travel to workers")
    done: Any = _here(model, work, settings, pieces, left) if here else _on_ray(
        model, work, settings, pieces, left, engine
    )  # fmt: skip
    with contextlib.closing(done) as finished:
        for index, (arrays, values) in finished:
            if folder is not None:
                _keep(paths[index], pieces[index], arrays, values)
            found[index] = (arrays, values)
            if progress is not None:
                progress(len(found), len(pieces))
    return [found[index] for index in range(len(pieces))]


def _keep(path: Path, piece: Piece, arrays: dict[str, np.ndarray], values: Any) -> None:
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}  # Ray's are read-only
    artifact.save_artifact(path, KIND, tensors, {"piece": piece.name, "values": values})


def _read(path: Path) -> Result:
    tensors, card = artifact.load_artifact(path, KIND)
    return {name: tensor.numpy() for name, tensor in tensors.items()}, card["values"]


def _here(
    model: HookedTransformer, work: Work, settings: Mapping[str, Any], pieces: Sequence[Piece], left: Sequence[int]
) -> Iterator[tuple[int, Result]]:
    for index in left:
        yield index, work(model, settings, pieces[index].inputs)


def _on_ray(
    model: HookedTransformer, work: Work, settings: Mapping[str, Any], pieces: Sequence[Piece], left: Sequence[int],
    engine: Any,
) -> Iterator[tuple[int, Result]]:  # fmt: skip
    """The same over the workers of a cluster; what is under way there when the caller leaves is lost."""
    if not left:
        return
    chosen, home = as_engine(engine), model.device.type
    assert isinstance(chosen, RayEngine)
    if chosen.gpus_per_worker is None:
        chosen = dataclasses.replace(chosen, gpus_per_worker=int(home == "cuda"))
    shared = (ModelParts.of(model), "cuda" if chosen.gpus_per_worker else "cpu", work, dict(settings))
    tasks = [pieces[index].inputs for index in left]
    found: Any = run_tasks(_make_worker, tasks, shared=shared, engine=chosen)
    with contextlib.closing(found) as results:
        for index, result in results:
            yield left[index], result


def _make_worker(parts: ModelParts, device: str, work: Work, settings: dict[str, Any]) -> Callable[[Any], Result]:
    """What a worker does: the model once, then piece after piece."""
    model = parts.assemble(device)

    def run(inputs: Any) -> Result:
        return work(model, settings, inputs)

    return run


# -------------------------------------------------------------------------------------------------------------- folders


def in_folder(
    out: str | Path | Any | None,
    kind: type[Report],
    job: Mapping[str, Any],
    inputs: Any,
    model: HookedTransformer,
    make: Callable[[JobFolder | None], Report],
    *,
    resume: bool = True,
    replace: bool = False,
) -> Report:
    """Make a report, and with `out` keep it and its pieces in a folder.

    Args:
        out: the folder, None for none. The same call again goes on where it was, and of a finished report reads it.
        kind: class of the report.
        job: JSON-ready settings, in words that a person reads where they differ.
        inputs: JSON-ready: what it is measured on.
        model: whose behaviour it is.
        make: makes the report; gets the folder, for `run_pieces`.
        resume: go on with the same job; False refuses a folder that holds one.
        replace: of a folder with another job, move what it found to `earlier/<n>`; False refuses it.

    Returns:
        The report; what the file says, if there is one.

    Raises:
        ValueError: a folder that holds something else or another job, or in which another process works; a model with hooks.
    """
    if out is None:
        return make(None)
    refuse_hooks(model, "a folder keeps what the model itself did")
    folder = BehaviorFolder(Path(out).absolute())
    own = {"kind": OWNER_KIND, "job": {"report": kind.KIND, **job}, "inputs": artifact.hash_json(inputs)}
    own["model"] = model.fingerprint
    with folder.held(resume=resume):
        jobs.settle_owner(folder, own, HASHES, replace=replace)
        key = artifact.hash_json([FORMAT, own, artifact.provenance()])
        done = _finished(folder, kind, key)
        if done is not None:
            return done
        with folder.timed("report"):
            report = make(folder)
            report = dataclasses.replace(report, card={**report.card, "job": {"key": key, **own["job"]}})
            draft = folder.task("report", key, ".json")
            found = kind.load(report.save(draft))
            found.write_html(folder.page)
            draft.replace(folder.report)
        return found


def refuse_hooks(model: HookedTransformer, why: str) -> None:
    """ValueError for a model that hooks or interventions change: no name or hash says what they do."""
    edited = edited_at(model)
    if edited:
        raise ValueError(
            f"{why}, and this one has hooks at {', '.join(edited[:3])}: remove them, or leave out= and engine= alone"
        )


def _finished(folder: JobFolder, kind: type[Report], key: str) -> Report | None:
    """The report that is there, if it is whole and of this very job."""
    if not (folder.report.is_file() and folder.page.is_file()):
        return None
    report = read_task(folder.report, kind.load)
    return report if report is not None and report.card.get("job", {}).get("key") == key else None
