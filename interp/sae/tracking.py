"""Metrics of a run sent to TensorBoard or Weights & Biases, where these packages are installed.

`train_sae(..., on_metrics=...)` calls a function with each line of metrics; `tracker` makes one that hands them on. Neither
package is needed for anything else: the JSONL log of a run has the same lines.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from interp.sae.config import SAEConfig

Metrics = Mapping[str, Any]
Sink = Callable[[int, dict[str, float]], object]
"""Takes the step, and {name: value} of one dictionary."""


def require_trackers(tensorboard: object = None, wandb: object = None) -> None:
    """Look whether the packages that are asked for are there, before any work. ValueError where one is not."""
    if tensorboard is not None:
        _summary_writer()
    if wandb is not None:
        _wandb()


@contextmanager
def tracker(
    tensorboard: str | os.PathLike[str] | None = None,
    wandb: str | None = None,
    *,
    configs: Sequence[SAEConfig] = (),
    names: Sequence[str] = (),
    run_name: str | None = None,
) -> Iterator[Callable[[Metrics], None]]:
    """A function for `on_metrics` that sends each line to the trackers; they are closed at the end of the block.

    Args:
        tensorboard: folder of the event files. A run that goes on hides what was written after its checkpoint.
        wandb: project of Weights & Biases; each call is a run of its own there.
        configs: of the dictionaries that are trained; they are written beside the metrics.
        names: what each dictionary is called, before a slash in the names of its metrics, where there are several.
        run_name: of the run in Weights & Biases.

    Raises:
        ValueError: a package that is asked for is not installed.
    """
    with ExitStack() as stack:
        sinks: list[Sink] = []
        if tensorboard is not None:
            events = _Events(os.fspath(tensorboard))
            stack.callback(events.close)
            sinks.append(events.add)
        if wandb is not None:
            settings = {
                name: dataclasses.asdict(each) for name, each in zip(names or map(str, range(len(configs))), configs)
            }
            run = _wandb().init(project=wandb, name=run_name, config=settings)
            stack.callback(run.finish)
            sinks.append(lambda step, values: run.log({**values, "step": step}))

        def on_metrics(line: Metrics) -> None:
            values = {name: float(value) for name, value in line.items() if name not in ("sae", "step")}
            if "sae" in line:
                prefix = names[line["sae"]] if names else str(line["sae"])
                values = {f"{prefix}/{name}": value for name, value in values.items()}
            for sink in sinks:
                sink(line["step"], values)

        yield on_metrics


class _Events:
    """TensorBoard's event files, begun with the first line: only that says where a run goes on."""

    def __init__(self, folder: str) -> None:
        self._make, self._folder, self._writer = _summary_writer(), folder, None

    def add(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make(log_dir=self._folder, purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed: pip install tensorboard") from None
    return SummaryWriter


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise ValueError("Weights & Biases is not installed: pip install wandb") from None
    return wandb
