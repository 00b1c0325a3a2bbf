"""Train small transformers from scratch, and watch what they learn.

`config` holds the choices, `data` makes batches, `optimizer` and `step` do the arithmetic, `loop` is the run and
`checkpoint` what it leaves on disk. `toy` trains the models of the `train-toy` command.
"""

from interp.train.checkpoint import checkpoint_steps, load_checkpoint
from interp.train.config import TrainConfig
from interp.train.data import RepeatedBatches, ShuffledBatches, pack_documents, repeated_sequences
from interp.train.loop import StepRecord, TrainResult, train_model
from interp.train.toy import InductionToy, overfit_batch, train_induction_toy

__all__ = [
    "InductionToy",
    "RepeatedBatches",
    "ShuffledBatches",
    "StepRecord",
    "TrainConfig",
    "TrainResult",
    "checkpoint_steps",
    "load_checkpoint",
    "overfit_batch",
    "pack_documents",
    "repeated_sequences",
    "train_induction_toy",
    "train_model",
]
