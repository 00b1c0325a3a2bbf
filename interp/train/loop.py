"""Train a transformer from scratch, or go on with one: the loop, its files, and what it does when a step goes wrong.

1. Batch n is a function of n, and so are the random numbers of dropout; the learning rate is one of the step.
2. A loss or gradient that is not finite changes nothing: the batch is left out and counted.
3. A loss far above the running median (`TrainConfig.spike_factor`) is a spike: the run goes back to the last good
   checkpoint and goes on with the batch after the spike. A checkpoint is good once the loss after it was no spike.
4. A run that was stopped, at whatever moment, goes on from its last checkpoint to bit-identical weights (same machine
   type and thread count).
"""

import dataclasses
import json
import logging
import math
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import torch

from interp import artifact
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.store.files import hold
from interp.train.checkpoint import (
    LOG,
    FolderCheckpoints,
    MemoryCheckpoints,
    Snapshot,
    require_place,
    restore_weights,
)
from interp.train.config import TrainConfig
from interp.train.data import Data, batch_of
from interp.train.optimizer import adamw, moments, restore_moments, seeded, training
from interp.train.step import forward, has_targets, update

logger = logging.getLogger("interp.train")


@dataclass(frozen=True)
class StepRecord:
    """What came of one batch."""

    batch: int
    """Number of the batch; every batch is used once or left out."""
    step: int
    """Steps done with it. After a rewind the count is that of the checkpoint."""
    loss: float | None
    """Nats a token, before the update, with the balancing term where there is one; None where it is not finite."""
    grad_norm: float | None
    """Of all gradients together, before clipping; None where there was no update."""
    lr: float
    """Learning rate of the step."""
    tokens: int
    """Real tokens trained on so far, those that a rewind took back not counted."""
    skipped: bool = False
    """Loss or gradient was not finite: no update."""
    rewound: bool = False
    """The loss was a spike: back to the last good checkpoint."""


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What came of a run."""

    records: tuple[StepRecord, ...]
    """One for each batch, those that were left out or taken back again included."""
    config: TrainConfig
    """The choices of the run."""
    folder: Path | None
    """Where its checkpoints are, for `load_checkpoint`."""

    @property
    def n_skipped(self) -> int:
        """Batches left out since loss or gradient was not finite."""
        return sum(record.skipped for record in self.records)

    @property
    def n_rewinds(self) -> int:
        """Loss spikes that sent the run back."""
        return sum(record.rewound for record in self.records)

    @property
    def final_loss(self) -> float:
        """Mean of the last losses, at most ten; each is the loss of a new batch before its update."""
        last = [record.loss for record in self.records if record.loss is not None and not record.rewound][-10:]
        return math.fsum(last) / len(last) if last else math.nan

    def to_frame(self) -> pd.DataFrame:
        """A row for each batch: batch, step, loss, grad_norm, lr, tokens, skipped, rewound; NaN for a missing value."""
        frame = pd.DataFrame(
            [asdict(r) for r in self.records], columns=[f.name for f in dataclasses.fields(StepRecord)]
        )
        return frame.astype({"loss": float, "grad_norm": float})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the rows as JSONL, null for a missing value. A run with a folder keeps them there as steps.jsonl."""
        return artifact.atomic_write(path, "".join(_line(record) for record in self.records))


def train_model(
    model: HookedTransformer,
    data: Data,
    config: TrainConfig | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    on_step: Callable[[StepRecord], object] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> TrainResult:
    """Train a model in place on next-token prediction.

    Args:
        model: a causal model in fp32 or fp64. Its weights begin as they are (`HookedTransformer(cfg, seed=0)` draws
            them). Where some parameters require gradients only those are trained, else all are. Hooks and
            interventions that are attached take part.
        data: batch number -> token ids [batch pos] or `Tokens`, as a function, or a sequence of batches that begins anew
            at its end. The same number must always give the same batch.
        config: every choice of the run; the defaults of `TrainConfig` where None.
        checkpoint: a folder for checkpoints and `steps.jsonl`. Where it has checkpoints the run goes on from the newest,
            whatever the model's weights are; so the same call returns at once when training is done.
        on_step: called with what came of each batch.
        progress: called with (steps done, steps in all) after each batch.

    Returns:
        What came of each batch. The model is trained, in the mode that it was in before, and without gradients.

    Raises:
        ValueError: an encoder, weights of half precision or that are not finite, a choice that does not fit the model, a
            batch without a token that follows another, a folder of another run or of other things, a damaged
            checkpoint, too many steps in a row that are not finite or not one that is, or too many loss spikes.
    """
    config = config or TrainConfig()
    _check(model, config)
    folder = None if checkpoint is None else Path(checkpoint)
    with _held(folder), training(model, config):
        run = _Run(model, data, config, folder)
        while run.progress.step < config.n_steps:
            record = run.advance()
            if on_step is not None:
                on_step(record)
            if progress is not None:
                progress(run.progress.step, config.n_steps)
        run.require_learning()
    return TrainResult(tuple(run.records), config, folder)


@dataclass
class _Progress:
    """Where a run stands, beside weights and moments."""

    step: int = 0
    batch: int = 0
    tokens: int = 0
    skips_in_a_row: int = 0
    rewinds: int = 0
    good: int = 0
    """Step of the newest checkpoint that has proved itself."""
    losses: list[float] = field(default_factory=list)
    """The last ones that were no spikes, for the running median."""


class _Run:
    """One run: model, optimizer, where it stands, and its files."""

    def __init__(self, model: HookedTransformer, data: Data, config: TrainConfig, folder: Path | None) -> None:
        self.model, self.data, self.config, self.folder = model, data, config, folder
        self.parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.optimizer = adamw(self.parameters, config)
        self.progress, self.saved = _Progress(), 0
        self.records: list[StepRecord] = []
        identity = {
            "config": {key: value for key, value in asdict(config).items() if key != "keep"},
            "model": model.cfg.to_dict(),
            "trained": sorted(self.parameters),
            "first batch": artifact.hash_json(model.tokenize(batch_of(data, 0)).ids.tolist()),
        }
        self.identity = json.loads(json.dumps(identity))  # tuples become lists, as in a card
        self.checkpoints = self._open()
        steps = [] if self.checkpoints is None else self.checkpoints.steps()
        if steps:
            self._resume(steps[-1])
        else:
            _require_finite_weights(model)
            self._save()
        self._write_log()

    def require_learning(self) -> None:
        """ValueError if not one step of the whole run changed the model."""
        if self.progress.tokens:
            return
        raise ValueError(
            f"not one of {self.progress.step} steps had a finite loss and finite gradients, so the model is as it was: "
            f"lower lr ({self.config.lr:g}), or look for damaged weights"
            + ("" if self.folder is None else f"; remove {self.folder} before the next try")
        )

    def advance(self) -> StepRecord:
        """Take the next batch, and write what is due."""
        step, batch = self.progress.step, self.progress.batch
        tokens = self.model.tokenize(batch_of(self.data, batch))
        if not has_targets(tokens):
            raise ValueError(
                f"batch {batch} has no token that follows another, so there is nothing to predict: give texts of two tokens "
                "or more"
            )
        lr = self.config.lr_at(step)
        with seeded(self.model.device, self.config.seed, batch):
            result = forward(self.model, tokens, self.config)
            if result.loss is not None and self._is_spike(result.value):
                return self._rewind(result.value, lr)
            norm = math.nan
            if result.loss is not None:
                norm = update(self.model, self.parameters, self.optimizer, result, self.config, lr)
        return self._advanced(result.value, norm, lr, int(tokens.mask.sum()))

    def _advanced(self, loss: float, norm: float, lr: float, n_tokens: int) -> StepRecord:
        now, updated = self.progress, math.isfinite(norm)
        now.step, now.batch = now.step + 1, now.batch + 1
        if updated:
            now.tokens, now.skips_in_a_row = now.tokens + n_tokens, 0
            now.losses = [*now.losses, loss][-self.config.spike_window :]
            now.good = self.saved
        else:
            now.skips_in_a_row += 1
            logger.warning("batch %d left out: loss %s, gradient norm %s", now.batch - 1, loss, norm)
        found = StepRecord(now.batch - 1, now.step, _finite(loss), _finite(norm), lr, now.tokens, skipped=not updated)
        self._log(found)
        if now.skips_in_a_row > self.config.max_skips:
            raise ValueError(
                f"{now.skips_in_a_row} steps in a row up to batch {found.batch} were not finite: lower lr "
                f"({self.config.lr:g}), or look for damaged weights"
            )
        if now.step == self.config.n_steps or now.step % self.config.checkpoint_every == 0:
            self._save()
        return found

    def _is_spike(self, loss: float) -> bool:
        config, losses = self.config, self.progress.losses
        if config.spike_factor is None or len(losses) < config.spike_window:
            return False
        return loss > config.spike_factor * statistics.median(losses)

    def _rewind(self, loss: float, lr: float) -> StepRecord:
        """Go back to the last good checkpoint, and on with the batch after this one."""
        checkpoints, now = self.checkpoints, self.progress
        assert checkpoints is not None
        if now.rewinds == self.config.max_rewinds:
            raise ValueError(
                f"the loss rose to {loss:.3g} at batch {now.batch}, after {now.rewinds} rewinds already: lower lr "
                f"({self.config.lr:g}), or raise max_rewinds"
            )
        steps = checkpoints.steps()
        target = max((step for step in steps if step <= now.good), default=steps[0])
        logger.warning("loss %.3g at batch %d is a spike: back to step %d", loss, now.batch, target)
        self._restore(checkpoints.load(target), target)
        for step in steps:
            if step > target:
                checkpoints.drop(step)
        back = self.progress
        back.batch, back.rewinds, back.good = now.batch + 1, now.rewinds + 1, target
        back.losses = now.losses  # so that the next batch is judged as this one was
        found = StepRecord(now.batch, back.step, loss, None, lr, back.tokens, rewound=True)
        self._log(found)
        return found

    # Files ------------------------------------------------------------------------------------------------------------

    def _open(self) -> FolderCheckpoints | MemoryCheckpoints | None:
        if self.folder is not None:
            found = FolderCheckpoints(self.folder, self.model.cfg, self.model.tokenizer)
            found.sweep()
            return found
        return None if self.config.spike_factor is None else MemoryCheckpoints()

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        now = self.progress
        card = {"identity": self.identity, "progress": asdict(now)}
        held = moments(self.optimizer, self.parameters)
        self.checkpoints.save(now.step, Snapshot(self.model.state_dict(), held, card))
        self.saved = now.step
        # In memory nothing is asked for but a place to go back to.
        keep = 1 if self.folder is None else self.config.keep
        steps = self.checkpoints.steps()
        for step in steps[: -keep if keep is not None else 0]:
            if step != now.good:
                self.checkpoints.drop(step)

    def _restore(self, snapshot: Snapshot, step: int) -> None:
        restore_weights(self.model, snapshot.weights, f"step {step}")
        restore_moments(self.optimizer, self.parameters, snapshot.moments)
        self.progress, self.saved = _Progress(**snapshot.card["progress"]), step

    def _resume(self, step: int) -> None:
        assert self.checkpoints is not None
        assert self.folder is not None
        snapshot = self.checkpoints.load(step)
        theirs = snapshot.card["identity"]
        for what, ours in self.identity.items():
            if theirs[what] != ours:
                keys = [key for key in ours if theirs[what].get(key) != ours[key]] if isinstance(ours, dict) else []
                raise ValueError(
                    f"{self.folder} holds another run ({what}{': ' if keys else ''}{', '.join(keys)} differ): remove it, "
                    "or choose another folder"
                )
        self._restore(snapshot, step)
        logger.info("going on at step %d of %d from %s", step, self.config.n_steps, self.folder)
        log = self.folder / LOG
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        # A process that was killed may have written more, and half of the last line.
        whole = [_record(line, log, number) for number, line in enumerate(lines, 1) if line.endswith("\n")]
        self.records = [record for record in whole if record.batch < self.progress.batch]

    def _write_log(self) -> None:
        if self.folder is not None:
            artifact.atomic_write(self.folder / LOG, "".join(_line(record) for record in self.records))

    def _log(self, record: StepRecord) -> None:
        self.records.append(record)
        if self.folder is not None:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(_line(record))


def _check(model: HookedTransformer, config: TrainConfig) -> None:
    """ValueError for a model that cannot be trained, or not with these choices."""
    cfg = model.cfg
    refuse_encoder(cfg, "training on the next token")
    if model.dtype not in (torch.float32, torch.float64):
        dtype = str(model.dtype).removeprefix("torch.")
        raise ValueError(
            f"the weights are {dtype}, too coarse for small updates: use model.float() and TrainConfig(autocast=True)"
        )
    if config.balance and cfg.experts is None:
        raise ValueError(f"balance={config.balance}, but {cfg.name} has no experts")
    if config.balance_rate and (cfg.experts is None or not cfg.experts.bias):
        raise ValueError(f"balance_rate={config.balance_rate} needs a model with Experts(bias=True)")


@contextmanager
def _held(folder: Path | None) -> Iterator[None]:
    """Be the only writer of the folder, if there is one."""
    if folder is None:
        yield
        return
    with hold(require_place(folder)):
        yield


def _require_finite_weights(model: HookedTransformer) -> None:
    """ValueError for weights that were never drawn, or that are damaged: every step would be left out."""
    bad = [name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight.detach()).all())]
    if bad:
        raise ValueError(
            f"{len(bad)} weights of {model.cfg.name} are NaN or infinite, {bad[0]} the first: draw them "
            "(HookedTransformer(cfg, seed=0)), or load whole ones"
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _line(record: StepRecord) -> str:
    return json.dumps(asdict(record), sort_keys=True, allow_nan=False) + "\n"


def _record(line: str, log: Path, number: int) -> StepRecord:
    try:
        return StepRecord(**json.loads(line))
    except (ValueError, TypeError):
        raise ValueError(
            f"line {number} of {log} is damaged: remove the file to go on without the records of earlier steps"
        ) from None
