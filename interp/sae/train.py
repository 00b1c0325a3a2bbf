"""Train sparse dictionaries on the activations of a site, or of several.

1. Rows: from a store (typical rows only), from a model that runs over texts, a tensor or batches; their mean and
   variance (`rows`, `live`).
2. Scale the rows of each site by one frozen factor to variance 1 per dimension; decoder drawn at random, encoder tied
   to it, b_dec at the mean.
3. Steps of Adam with warm-up and decay (`step`); a line of metrics every `log_every` steps, a checkpoint every
   `checkpoint_every` steps. One pass over the rows feeds as many dictionaries as are asked for.
4. Fold the scale into the weights, so that the dictionary reads and writes raw activations (`trained`).

A run that was stopped, at whatever moment, goes on from its checkpoint to bit-identical weights (same machine type and
thread count): the checkpoint holds parameters, Adam's moments, the firing counters and the cursor of the batches, and
nothing is drawn at random after the start. Ctrl-C waits for the end of the step and saves first.
"""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from interp.artifact import atomic_write, load_artifact, save_artifact, sweep_temporary
from interp.sae.checkpoint import lines_up_to, put_tensors, require_same_run, state_tensors
from interp.sae.config import BatchTopKConfig, JumpReLUConfig, SAEConfig, StandardConfig
from interp.sae.model import SAE
from interp.sae.parallel import Peers, peers
from interp.sae.rows import Resumable, TrainingRows, training_rows
from interp.sae.step import StepResult, TrainState, initial_state, train_step
from interp.sae.stopping import stoppable
from interp.sae.trained import trained_sae

logger = logging.getLogger("interp.sae")

_MEASURED = ("loss", "penalty", "aux_loss", "active", "grad_norm")
_L0_TOLERANCE = 0.05
"""How far the L0 of a learned threshold may be from k before it is said."""
FEW_STEPS = 30
"""A run of fewer steps is said to be too short."""
_L0_BATCHES = 4
"""Batches on which that is looked at."""


def train_sae(
    data: object,
    config: SAEConfig | Any | None = None,
    *,
    site: str | Sequence[str] | None = None,
    target: str | None = None,
    rows: object = None,
    checkpoint: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
    on_metrics: Callable[[dict[str, Any]], object] | None = None,
) -> SAE:
    """Train a sparse autoencoder, a transcoder or a crosscoder.

    Args:
        data: a store (its typical rows are used), `live_rows(...)`, a float tensor [row d_model], {site: tensor} for a
            transcoder or a crosscoder, or batches that can be read more than once, such as `store.batches(...)` or a
            list of tensors; their order, size and epochs are their own.
        config: every choice of the run; the defaults of `SAEConfig` where None.
        site: the place in the model; several make a crosscoder. Required for a store; otherwise it only goes into the
            card.
        target: what a transcoder writes; None for a dictionary that writes what it reads.
        rows: numbers of the store rows to train on, so that other texts can be held out; None for every row. Rows that
            are not typical are left out in any case.
        checkpoint: a file to write now and then, and to go on from where it exists. It stays when training is done, so
            that the same call returns at once.
        log: a JSONL file for metrics, a line every `config.log_every` steps.
        progress: called with (steps done, steps in all) after each step.
        on_metrics: called with each line of metrics, as a dict.

    Returns:
        The SAE on raw activations. Its card holds the configuration, the rows' statistics and the last metrics.

    Raises:
        ValueError: nothing to train on, rows that are not finite or all equal, a checkpoint of another run, or a loss
            that is not finite.
    """
    found = train_saes(
        data, [config or SAEConfig()], site=site, target=target, rows=rows, checkpoint=checkpoint, log=log,
        progress=progress, on_metrics=on_metrics,
    )  # fmt: skip
    return found[0]


def train_saes(
    data: object,
    configs: Sequence[SAEConfig] | Any,
    *,
    site: str | Sequence[str] | None = None,
    target: str | None = None,
    rows: object = None,
    checkpoint: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
    on_metrics: Callable[[dict[str, Any]], object] | None = None,
) -> list[SAE]:
    """Train several dictionaries in one pass over the same rows: a sweep of k, width or kind, or several seeds.

    Args:
        configs: one for each dictionary. The rows are drawn by the first: all need its batch_size and epochs. Each SAE
            equals what `train_sae` makes of its config on the same batches, bit for bit.
        data, site, target, rows, checkpoint, log, progress, on_metrics: as for `train_sae`; lines of metrics say which
            dictionary they are of ("sae": 0, 1 ...) where there are several.

    Returns:
        An SAE per config.

    Raises:
        ValueError: no config, configs that differ in batch_size or epochs, and as for `train_sae`.
    """
    configs = [configs] if isinstance(configs, SAEConfig) else list(configs)
    if not configs:
        raise ValueError("there is nothing to train: give at least one config")
    if wrong := [config for config in configs if not isinstance(config, SAEConfig)]:
        raise ValueError(f"a config is made by SAEConfig(kind=..., ...), got {wrong[0]!r}")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress is called with (steps done, steps in all); {progress!r} cannot be called")
    if checkpoint is not None and log is not None and Path(checkpoint).resolve() == Path(log).resolve():
        raise ValueError(f"checkpoint and log are both {checkpoint}: one would overwrite the other")
    for name in ("batch_size", "epochs", "checkpoint_every", "log_every"):
        if len(values := {getattr(config, name) for config in configs}) > 1:
            raise ValueError(f"configs that share their batches need one {name}, got {sorted(values)}")
    with peers() as others:
        rank = {} if others.world_size == 1 else {"rank": others.rank, "world_size": others.world_size}
        source = training_rows(data, configs[0], site=site, target=target, rows=rows, **rank)
        run = _Run(source, configs, Path(checkpoint) if checkpoint else None, Path(log) if log else None, others)
        run.on_metrics = on_metrics
        if source.n_steps < FEW_STEPS and others.leads:
            logger.warning(
                "the run has %d steps, too few to learn much: choose more epochs, or a batch_size below %d",
                source.n_steps, configs[0].batch_size,
            )  # fmt: skip
        with stoppable() as stop:
            for batch in run.remaining_batches():
                run.advance(batch)
                if progress is not None:
                    progress(run.step, source.n_steps)
                if others.agree(stop.asked):
                    run.save()
                    stop.obey()
        return run.finish()


class _Run:
    """One run: its states, and the files that it keeps up to date."""

    def __init__(
        self,
        source: TrainingRows,
        configs: list[SAEConfig],
        checkpoint: Path | None,
        log: Path | None,
        others: Peers,
    ) -> None:
        self.source, self.configs, self.checkpoint, self.peers = source, configs, checkpoint, others
        self.log = log if others.leads else None
        self.on_metrics: Callable[[dict[str, Any]], object] | None = None
        self.states = [_start(source, config) for config in configs]
        self.sums = [dict.fromkeys(_MEASURED, 0.0) for _ in configs]
        self.last_lines: list[dict[str, Any]] = [{} for _ in configs]
        self.identity = {
            "configs": json.loads(json.dumps([dataclasses.asdict(config) for config in configs])),
            "rows": source.identity,
            "processes": others.world_size,
        }
        for path in (checkpoint, self.log) if others.leads else ():
            if path is not None:
                sweep_temporary(path)
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)
        if self.log is not None:
            atomic_write(self.log, "".join(lines_up_to(self.log, self.step)))

    @property
    def step(self) -> int:
        """Steps done."""
        return self.states[0].step

    def remaining_batches(self) -> Iterator[Any]:
        """The batches that were not trained on yet."""
        if self.step == self.source.n_steps:
            return iter(())
        batches = self.source.batches
        return islice(batches, 0 if isinstance(batches, Resumable) else self.step, None)

    def advance(self, batch: Any) -> None:
        """Train on one batch of raw rows, then write what is due."""
        source = self.source
        x, y = source.pair(batch)
        for number, (config, state) in enumerate(zip(self.configs, self.states, strict=True)):
            lr = config.lr_at(state.step, source.n_steps, len(state.encoder))
            result = train_step(
                state, x, y, config, lr=lr, window=config.window(source.n_rows),
                ramp=_ramp(config, state.step, source.n_steps), kept=self._kept(config, len(x)), peers=self.peers,
            )  # fmt: skip
            for name in _MEASURED:
                self.sums[number][name] += getattr(result, name)
            if state.step == source.n_steps or state.step % config.log_every == 0:
                self._log(number, result, lr)
        last = self.step == source.n_steps
        if self.checkpoint is not None and (last or self.step % self.configs[0].checkpoint_every == 0):
            self.save()

    def finish(self) -> list[SAE]:
        """The SAEs on raw activations. ValueError where the batches ended early."""
        source = self.source
        if self.step != source.n_steps:
            raise ValueError(
                f"the batches ended after {self.step} steps, {source.n_steps} were counted before: they "
                "must give the same rows each time that they are read"
            )
        found = [
            trained_sae(state, source, config, line)
            for state, config, line in zip(self.states, self.configs, self.last_lines, strict=True)
        ]
        self._check_l0(found)
        return found

    def _kept(self, config: SAEConfig, n_rows: int) -> float:
        """Share of a running threshold that stays: a small last batch moves it in proportion to its rows."""
        if not isinstance(config, BatchTopKConfig):
            return 0.0
        source = self.source
        share = n_rows * self.peers.world_size * source.n_steps / source.n_rows
        return config.threshold_kept(source.n_steps) ** min(1.0, share)

    def _check_l0(self, saes: list[SAE]) -> None:
        """How many latents fire with the learned thresholds, on the first batches. Live rows would have to be made again."""
        learned = [n for n, config in enumerate(self.configs) if isinstance(config, BatchTopKConfig)]
        if not learned or "live" in self.source.card:
            return
        rows = [self.source.pair(batch)[0] for batch in islice(self.source.batches, _L0_BATCHES)]
        raw = torch.cat(rows) / self.source.scale_in.to(rows[0])
        for number in learned:
            l0 = saes[number].active(raw).counts.double().mean()
            self.peers.mean_([l0])
            final = saes[number].card["final"]
            saes[number].card["final"] = {**final, "l0_of_threshold": l0.item()}
            k = saes[number].card["config"]["k"]
            if abs(l0.item() / k - 1) > _L0_TOLERANCE:
                logger.warning(
                    "the learned threshold lets %.1f latents of a row fire, %d were wanted: calibrate_l0 mends that",
                    l0,
                    k,
                )

    def _log(self, number: int, result: StepResult, lr: float) -> None:
        state = self.states[number]
        n_steps = (state.step - 1) % self.configs[number].log_every + 1
        means = {name: total / n_steps for name, total in self.sums[number].items()}
        self.sums[number] = dict.fromkeys(_MEASURED, 0.0)
        line = {"step": state.step, "lr": lr, "dead_share": result.n_dead / len(state.encoder), **means}
        self.last_lines[number] = line
        if len(self.states) > 1:
            line = {"sae": number, **line}
        logger.debug("step %d of %d: %s", state.step, self.source.n_steps, line)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, sort_keys=True) + "\n")
        if self.on_metrics is not None:
            self.on_metrics(line)

    def save(self) -> None:
        """Write the checkpoint, where one was asked for."""
        if self.checkpoint is not None and self.peers.leads:
            progress = {
                "step": self.step, "cursor": self.source.state(), "sums": self.sums, "last_lines": self.last_lines,
                "thresholds": [None if s.threshold.isnan() else s.threshold.item() for s in self.states],
            }  # fmt: skip
            card = {**self.identity, "progress": progress}
            save_artifact(self.checkpoint, "sae_checkpoint", state_tensors(self.states), card)
        self.peers.wait()

    def _resume(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"the checkpoint {path} is a folder: give a file")
        tensors, card = load_artifact(path, "sae_checkpoint")
        require_same_run(path, card, self.identity)
        progress = card["progress"]
        for state, threshold in zip(self.states, progress["thresholds"], strict=True):
            state.step = progress["step"]
            if threshold is not None:
                state.threshold = torch.tensor(threshold, dtype=torch.float64)
        put_tensors(self.states, tensors)
        self.sums, self.last_lines = progress["sums"], progress["last_lines"]
        if isinstance(self.source.batches, Resumable) and self.step < self.source.n_steps:
            self.source.load_state(progress["cursor"])
        logger.info("going on at step %d of %d from %s", self.step, self.source.n_steps, path)


def _start(source: TrainingRows, config: SAEConfig) -> TrainState:
    same = not source.is_paired
    if config.skip and same:
        raise ValueError("skip=True is for a transcoder, which writes another site than it reads: give target=...")
    columns = None
    if len(source.targets) > 1:
        columns = torch.block_diag(*(torch.ones(1, source.widths[name]) for name in source.targets))
    d_in, d_out = len(source.mean_in), len(source.mean_out)
    mean_in, mean_out = source.mean_in * source.scale_in, source.mean_out * source.scale_out
    return initial_state(mean_in, mean_out, config.n_latents(min(d_in, d_out)), config, same=same, columns=columns)


def _ramp(config: SAEConfig, step: int, n_steps: int) -> float:
    """Share of its final weight that a penalty has at step 0, 1 ..."""
    if not isinstance(config, JumpReLUConfig | StandardConfig):
        return 1.0
    return min(1.0, (step + 1) / (round(config.sparsity_warmup * n_steps) + 1))
