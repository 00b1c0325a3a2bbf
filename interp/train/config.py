"""TrainConfig: every choice of one training run, as one frozen, checked value."""

import math
from dataclasses import dataclass

from interp.model.config_checks import check_kinds, require


@dataclass(frozen=True)
class TrainConfig:
    """How to train a transformer. The defaults suit models of up to some ten million parameters."""

    n_steps: int = 1000
    """Updates in all; the learning rate is planned over them."""
    lr: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises linearly."""
    lr_floor: float = 0.1
    """The cosine ends at this share of the peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averages of the gradient and of its square."""
    eps: float = 1e-8
    """Added to the root of AdamW's second average."""
    weight_decay: float = 0.1
    """Decoupled: a matrix loses lr x weight_decay of itself at each step. Gains, biases and embeddings keep theirs."""
    grad_clip: float | None = 1.0
    """Largest norm of all gradients together; None for no limit."""
    autocast: bool = False
    """Matrix products in bfloat16; weights, moments and the loss stay in fp32."""
    recompute: bool = False
    """Activation checkpointing: a block keeps its input alone and is computed again for the gradients. A third more
    work, the memory of one block; hooks fire twice."""
    balance: float = 0.0
    """Weight of the experts' load-balancing loss."""
    balance_rate: float = 0.0
    """Step of the experts' choice bias, which balances them without a loss; needs Experts(bias=True)."""
    spike_factor: float | None = None
    """A loss above this many running medians is a spike: the run goes back to the last good checkpoint and leaves out
    the batches from there to the spike, as in PaLM (arXiv 2204.02311, section 5.1). 2 to 3 is usual; None never goes
    back."""
    spike_window: int = 50
    """Losses in the running median; nothing is judged before that many are there."""
    max_rewinds: int = 10
    """The run fails on more spikes than this."""
    max_skips: int = 20
    """The run fails on more steps in a row than this that are not finite."""
    checkpoint_every: int = 100
    """Steps between checkpoints. The first is made before the first step, the last after the last."""
    keep: int | None = None
    """Newest checkpoints that stay on disk, beside the one that a spike goes back to; None keeps all."""
    seed: int = 0
    """Of dropout; the weights and the data have seeds of their own."""

    def __post_init__(self) -> None:
        check_kinds(self)
        for name in ("n_steps", "spike_window", "checkpoint_every"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("max_rewinds", "max_skips", "seed", "weight_decay", "balance", "balance_rate"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("lr", "eps"):
            self._require(name, getattr(self, name) > 0, "above 0")
        for name in ("warmup", "lr_floor"):
            self._require(name, 0 <= getattr(self, name) <= 1, "a share between 0 and 1")
        self._require("betas", len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "two of [0, 1)")
        self._require("grad_clip", self.grad_clip is None or self.grad_clip > 0, "above 0, or None")
        self._require("spike_factor", self.spike_factor is None or self.spike_factor > 1, "above 1, or None")
        self._require("keep", self.keep is None or self.keep >= 1, "at least 1, or None")

    def _require(self, name: str, good: bool, rule: str) -> None:
        require(good, name, getattr(self, name), rule)

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1 ... n_steps - 1: linear rise to the peak, half a cosine down to the floor."""
        rise = round(self.warmup * self.n_steps)
        if step < rise:
            return self.lr * (step + 1) / (rise + 1)
        done = (step - rise) / max(1, self.n_steps - 1 - rise)
        return self.lr * (self.lr_floor + (1 - self.lr_floor) * (1 + math.cos(math.pi * done)) / 2)
