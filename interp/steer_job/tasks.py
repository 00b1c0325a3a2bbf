"""The pieces of work of a sweep: one setting each, kept as a file.

A setting is the vector, a random direction or the instruction, at one strength. `SettingFiles` is what
`steering_experiment(kept=...)` reads and writes: a result is a file, named by its setting and by a hash of everything that
decides it (`ExperimentPlan.key`), and written whole or not at all. `run_settings` does the missing ones, here or over the
workers of a Ray cluster; each worker gets the model in parts, and puts it together once. A vector that changes nothing is
refused as soon as a setting of it and the unsteered run are there, not after the last setting.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from interp import artifact
from interp.engine import RayEngine, as_engine, run_tasks
from interp.jobs import JobFolder, read_task
from interp.model import HookedTransformer
from interp.model.parts import ModelParts
from interp.steering.experiment import refuse_blind
from interp.steering.plan import ExperimentPlan, Setting, SettingResult, experiment_plan, run_setting

KIND = "steering task"
FORMAT = 1
"""Raised when a task gives other results than before, so that old files are not used."""


@dataclass(frozen=True, eq=False)
class SettingFiles:
    """Results of the settings of one plan, as files."""

    folder: JobFolder
    plan: ExperimentPlan

    def path(self, setting: Setting) -> Path:
        """File of a result."""
        key = artifact.hash_json([FORMAT, self.plan.key(setting)])
        return self.folder.task(f"{setting.name} {setting.strength:+g}", key, ".safetensors")

    def get(self, setting: Setting) -> SettingResult | None:
        """A finished result, None where there is none or its file is damaged."""
        return read_task(self.path(setting), _result)

    def put(self, setting: Setting, result: SettingResult) -> None:
        """Keep a result, whole or not at all."""
        arrays, values = result.to_arrays()
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}  # Ray's are read-only
        about = {"name": setting.name, "kind": setting.kind, "strength": setting.strength}
        artifact.save_artifact(self.path(setting), KIND, tensors, {"setting": about, "result": values})


def _result(path: Path) -> SettingResult:
    tensors, card = artifact.load_artifact(path, KIND)
    return SettingResult.from_arrays({name: tensor.numpy() for name, tensor in tensors.items()}, card["result"])


def run_settings(
    model: HookedTransformer,
    vector: Any,
    arguments: Mapping[str, Any],
    files: SettingFiles,
    *,
    engine: Any = "local",
    progress: Callable[[int, int], Any] | None = None,
) -> None:
    """Do the settings that are missing, and keep their results.

    Args:
        model: without hooks, where it has to travel.
        vector: what is applied.
        arguments: of `experiment_plan`.
        files: where results go.
        engine: "local", "ray", or a `RayEngine`.
        progress: called with (done, in all) after each; what it raises ends the work between two settings.

    Raises:
        ValueError: as `run_setting`; a measure that does not see the vector, as soon as that shows; a model that cannot travel.
        WorkerLost: a setting whose workers died again and again.
    """
    plan, sight = files.plan, _Sight(files.plan)
    # Files are read, so that a damaged one is found before the work begins.
    kept = {setting: result for setting in plan.settings if (result := files.get(setting)) is not None}
    for setting, result in kept.items():
        sight.check(setting, result)
    left = [setting for setting in plan.settings if setting not in kept]
    here = as_engine(engine) is None
    found: Any = _here(plan, left) if here else _on_ray(model, vector, arguments, plan, left, engine)
    with contextlib.closing(found) as finished:
        for done, (setting, result) in enumerate(finished, len(kept) + 1):
            files.put(setting, result)
            sight.check(setting, result)
            if progress is not None:
                progress(done, len(plan.settings))


class _Sight:
    """Compares results with the unsteered one, whichever comes first."""

    def __init__(self, plan: ExperimentPlan) -> None:
        self._plan = plan
        self._base: SettingResult | None = None
        self._waiting: list[tuple[Setting, SettingResult]] = []

    def check(self, setting: Setting, result: SettingResult) -> None:
        """A result that is there. ValueError as `refuse_blind`."""
        if setting == self._plan.base:
            self._base = result
        self._waiting.append((setting, result))
        if self._base is not None:
            for each in self._waiting:
                refuse_blind(self._plan, *each, self._base)
            self._waiting.clear()


def _here(plan: ExperimentPlan, left: Sequence[Setting]) -> Iterator[tuple[Setting, SettingResult]]:
    for setting in left:
        yield setting, run_setting(plan, setting)


def _on_ray(
    model: HookedTransformer, vector: Any, arguments: Mapping[str, Any], plan: ExperimentPlan, left: Sequence[Setting],
    engine: Any,
) -> Iterator[tuple[Setting, SettingResult]]:  # fmt: skip
    """The same over the workers of a cluster; what is under way there when the caller leaves is lost."""
    if not left:
        return
    chosen, home = as_engine(engine), model.device.type
    assert isinstance(chosen, RayEngine)
    if chosen.gpus_per_worker is None:
        chosen = dataclasses.replace(chosen, gpus_per_worker=int(home == "cuda"))
    shared = (ModelParts.of(model), "cuda" if chosen.gpus_per_worker else "cpu", vector, dict(arguments))
    numbers = [plan.settings.index(setting) for setting in left]
    found: Any = run_tasks(_make_worker, numbers, shared=shared, engine=chosen)
    with contextlib.closing(found) as results:
        for index, (arrays, values) in results:
            yield left[index], SettingResult.from_arrays(arrays, values)


def _make_worker(
    parts: ModelParts, device: str, vector: Any, arguments: dict[str, Any]
) -> Callable[[int], tuple[dict[str, np.ndarray], Any]]:
    """What a worker does: the model and the plan once, then setting after setting."""
    model = parts.assemble(device)
    plan = experiment_plan(model, vector, **arguments)

    def run(number: int) -> tuple[dict[str, np.ndarray], Any]:
        return run_setting(plan, plan.settings[number]).to_arrays()

    return run
