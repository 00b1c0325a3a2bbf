"""Train a sparse autoencoder on the activations of one site.

1. Rows: from a store (typical rows only), a tensor or batches; their mean and variance (`rows`).
2. Scale the rows by one frozen factor to variance 1 per dimension; decoder drawn at random, encoder tied to it, b_dec
   at the mean.
3. Steps of Adam with warm-up and decay (`step`); a line of metrics every `log_every` steps, a checkpoint every
   `checkpoint_every` steps.
4. Fold the scale into the biases, so that the SAE reads and writes raw activations.

A run that was stopped, at whatever moment, goes on from its checkpoint to bit-identical weights (same machine type and
thread count): the checkpoint holds parameters, Adam's moments, the firing counters and the cursor of the batches, and
nothing is drawn at random after the start.
"""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.artifact import atomic_write, load_artifact, provenance, save_artifact
from interp.sae.config import SAEConfig
from interp.sae.model import SAE
from interp.sae.rows import Resumable, TrainingRows, require_finite, training_rows
from interp.sae.step import PARAMETERS, StepResult, TrainState, initial_state, train_step

logger = logging.getLogger("interp.sae")

_MEASURED = ("loss", "aux_loss", "active", "grad_norm")
_ADAM = ("step", "exp_avg", "exp_avg_sq")


def train_sae(
    data: object,
    config: SAEConfig | None = None,
    *,
    site: str | None = None,
    rows: object = None,
    checkpoint: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SAE:
    """Train a sparse autoencoder.

    Args:
        data: a store (its typical rows are used), a float tensor [row d_model], or batches that can be read more than
            once, such as `store.batches(...)` or a list of tensors; their order, size and epochs are their own.
        config: every choice of the run; the defaults of `SAEConfig` where None.
        site: the place in the model. Required for a store; otherwise it only goes into the card.
        rows: numbers of the store rows to train on, so that other texts can be held out; None for every row. Rows that
            are not typical are left out in any case.
        checkpoint: a file to write now and then, and to go on from where it exists. It stays when training is done, so
            that the same call returns at once.
        log: a JSONL file for metrics, a line every `config.log_every` steps.
        progress: called with (steps done, steps in all) after each step.

    Returns:
        The SAE on raw activations. Its card holds the configuration, the rows' statistics and the last metrics.

    Raises:
        ValueError: nothing to train on, rows that are not finite or all equal, a checkpoint of another run, or a loss
            that is not finite.
    """
    config = config or SAEConfig()
    source = training_rows(data, config, site=site, rows=rows)
    run = _Run(source, config, Path(checkpoint) if checkpoint else None, Path(log) if log else None)
    for batch in run.remaining_batches():
        run.step(batch)
        if progress is not None:
            progress(run.state.step, source.n_steps)
    return run.finish()


class _Run:
    """One run: its state, and the files that it keeps up to date."""

    def __init__(self, source: TrainingRows, config: SAEConfig, checkpoint: Path | None, log: Path | None) -> None:
        self.source, self.config, self.checkpoint, self.log = source, config, checkpoint, log
        self.n_latents = config.n_latents(source.d_model)
        self.window = config.window(source.n_rows)
        self.state = initial_state(source.mean * source.scale, self.n_latents, config)
        self.sums = dict.fromkeys(_MEASURED, 0.0)
        self.last_line: dict[str, Any] = {}
        self.identity = {"config": dataclasses.asdict(config), "rows": source.identity}
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)
        if log is not None:
            atomic_write(log, "".join(_lines_up_to(log, self.state.step)))

    def remaining_batches(self) -> Iterator[Tensor]:
        """The batches that were not trained on yet."""
        if self.state.step == self.source.n_steps:
            return iter(())
        batches = self.source.batches
        return islice(batches, 0 if isinstance(batches, Resumable) else self.state.step, None)

    def step(self, batch: Tensor) -> None:
        """Train on one batch of raw rows, then write what is due."""
        require_finite(batch)
        state, config = self.state, self.config
        lr = config.lr_at(state.step, self.source.n_steps, self.n_latents)
        result = train_step(state, batch.float() * self.source.scale, config, lr=lr, window=self.window)
        for name in _MEASURED:
            self.sums[name] += getattr(result, name)
        last = state.step == self.source.n_steps
        if last or state.step % config.log_every == 0:
            self._log(result, lr)
        if self.checkpoint is not None and (last or state.step % config.checkpoint_every == 0):
            self._save(self.checkpoint)

    def finish(self) -> SAE:
        """The SAE on raw activations. ValueError where the batches ended early."""
        if self.state.step != self.source.n_steps:
            raise ValueError(
                f"the batches ended after {self.state.step} steps, {self.source.n_steps} were counted before: they "
                "must give the same rows each time that they are read"
            )
        return _folded(self.state, self.source, self.config, self.last_line)

    def _log(self, result: StepResult, lr: float) -> None:
        n_steps = (self.state.step - 1) % self.config.log_every + 1
        means = {name: total / n_steps for name, total in self.sums.items()}
        self.sums = dict.fromkeys(_MEASURED, 0.0)
        self.last_line = {"step": self.state.step, "lr": lr, "dead_share": result.n_dead / self.n_latents, **means}
        logger.debug("step %d of %d: %s", self.state.step, self.source.n_steps, self.last_line)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.last_line, sort_keys=True) + "\n")

    def _save(self, path: Path) -> None:
        state = self.state
        tensors = {name: getattr(state, name) for name in PARAMETERS} | {"rows_since_fired": state.rows_since_fired}
        for name, parameter in zip(PARAMETERS, state.parameters, strict=True):
            tensors |= {f"adam.{name}.{key}": state.adam.state[parameter][key] for key in _ADAM}
        cursor = self.source.batches.state() if isinstance(self.source.batches, Resumable) else None
        progress = {"step": state.step, "cursor": cursor, "sums": self.sums, "last_line": self.last_line}
        save_artifact(path, "sae_checkpoint", tensors, {**self.identity, "progress": progress})

    def _resume(self, path: Path) -> None:
        tensors, card = load_artifact(path, "sae_checkpoint")
        for what, ours in self.identity.items():
            differs = [key for key, value in ours.items() if key not in card[what] or card[what][key] != value]
            if differs:
                raise ValueError(
                    f"the checkpoint {path} belongs to another run ({what}: {', '.join(differs)} differ): remove it, "
                    "or choose another path"
                )
        progress, state = card["progress"], self.state
        with torch.no_grad():
            for name, parameter in zip(PARAMETERS, state.parameters, strict=True):
                parameter.copy_(tensors[name])
                state.adam.state[parameter] = {key: tensors[f"adam.{name}.{key}"] for key in _ADAM}
        state.rows_since_fired, state.step = tensors["rows_since_fired"], progress["step"]
        self.sums, self.last_line = progress["sums"], progress["last_line"]
        if isinstance(self.source.batches, Resumable) and state.step < self.source.n_steps:
            self.source.batches.load_state(progress["cursor"])
        logger.info("going on at step %d of %d from %s", state.step, self.source.n_steps, path)


def _lines_up_to(log: Path, step: int) -> list[str]:
    """The whole lines of a metrics log that belong to the first `step` steps; a stopped run may have written more."""
    if step == 0 or not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]


def _folded(state: TrainState, source: TrainingRows, config: SAEConfig, metrics: dict[str, Any]) -> SAE:
    """The SAE on raw activations.

    On rows s x latents come out s times as large. Activations and biases divided by s give the same function of x, for
    TopK and ReLU commute with a positive factor; so the weights stay, and decoder rows keep length 1.
    """
    encoder, b_enc, W_dec, b_dec = (parameter.detach().clone() for parameter in state.parameters)
    card = {
        **source.card,
        "config": dataclasses.asdict(config),
        "scale": source.scale,
        "n_rows": source.n_rows,
        "n_steps": source.n_steps,
        "final": metrics,
        "provenance": provenance(model=source.card["model"], seed=config.seed),
    }
    return SAE(encoder.T.contiguous(), b_enc / source.scale, W_dec, b_dec / source.scale, k=config.k, card=card)
