"""Every choice of one training run, as one frozen, checked value: a dataclass for each kind of dictionary.

`SAEConfig(kind="jumprelu", l0=40)` makes a `JumpReLUConfig`; the classes can be used by name as well.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

_MULTIPLE = re.compile(r"\d+(\.\d+)?x")
_LONG_RUN = 20_000
"""Steps from which on a run is long."""


@dataclass(frozen=True, kw_only=True)
class SAEConfig:
    """How to train a sparse dictionary. The defaults suit residual streams of small models (70M to 2B parameters).

    Called by its own name it makes the class of the kind that is asked for, "topk" where none is.
    """

    kind: str = "topk"
    """topk, batchtopk, matryoshka, jumprelu, gated or standard."""
    width: int | str = "8x"
    """Number of latents: a count, or a multiple of the width of the rows such as "8x"."""
    lr: float | None = None
    """Peak learning rate of Adam. None: 2e-4 / sqrt(width / 2^14), after Gao et al. 2024, for long runs; times
    sqrt(20,000 / steps), at most 16, for shorter ones, which would otherwise end half-way."""
    batch_size: int = 4096
    """Rows per step, where training draws its own batches; given batches are taken as they are."""
    epochs: int = 1
    """Passes over the rows, where training draws its own batches."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises linearly from 0, at most 1,000 steps."""
    decay: float = 0.2
    """Share of the steps, the last ones, over which the learning rate falls linearly to 0."""
    grad_clip: float = 1.0
    """Largest norm of the gradient of all parameters together."""
    dead_window: int | None = None
    """A latent is dead when it has not fired for this many rows. None: min(10M, 10 % of the rows of the run)."""
    skip: bool = False
    """Learn a linear path from input to output beside the latents: a skip transcoder. For transcoders only."""
    autocast: bool = False
    """Choose the active latents by a bfloat16 matrix product. Their values, the gradients and the weights stay fp32."""
    seed: int = 0
    """Of the initial decoder and of the order of the rows."""
    checkpoint_every: int = 100
    """Steps between checkpoints, where a checkpoint path is given."""
    log_every: int = 10
    """Steps between lines of the metrics log; each line covers all steps since the last one."""

    if TYPE_CHECKING:

        def __init__(self, *, kind: str = "topk", **choices: Any) -> None: ...
    else:

        def __new__(cls, *, kind: str | None = None, **_choices: Any) -> "SAEConfig":
            return object.__new__(config_class(kind or "topk") if cls is SAEConfig else cls)

    def __post_init__(self) -> None:
        own = type(self).__dataclass_fields__["kind"].default
        if config_class(self.kind) is not type(self):
            raise ValueError(
                f"{type(self).__name__} is of kind {own!r}: for {self.kind!r} call SAEConfig(kind={self.kind!r})"
            )
        object.__setattr__(self, "kind", own)
        if isinstance(self.width, str) and (_MULTIPLE.fullmatch(self.width) is None or float(self.width[:-1]) == 0):
            raise ValueError(
                f'width is a number of latents or a multiple of the rows\' width such as "8x", got {self.width!r}'
            )
        self._at_least_one("batch_size", "epochs", "checkpoint_every", "log_every")
        self._at_least_one("dead_window", optional=True)
        if not isinstance(self.width, str):
            self._at_least_one("width")
        self._real("lr", "above 0", lambda lr: lr > 0, optional=True)
        self._shares("warmup", "decay")
        if self.warmup + self.decay > 1:
            raise ValueError(f"warmup + decay must be at most 1, got {self.warmup + self.decay!r}")
        self._real("grad_clip", "above 0", lambda norm: norm > 0)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is a whole number from 0 to 2^63 - 1, got {self.seed!r}")

    def _at_least_one(self, *names: str, optional: bool = False) -> None:
        for name in names:
            value = getattr(self, name)
            if optional and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} is a whole number, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")

    def _real(self, name: str, rule: str, good: Callable[[float], bool], *, optional: bool = False) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is a finite number, got {value!r}")
        if not good(value):
            raise ValueError(f"{name} must be {rule}, got {value!r}")

    def _shares(self, *names: str) -> None:
        for name in names:
            self._real(name, "a share between 0 and 1", lambda share: 0 <= share <= 1)

    def n_latents(self, d: int) -> int:
        """The number of latents for rows of width d. ValueError where the kind's other choices do not fit."""
        return self.width if isinstance(self.width, int) else round(float(self.width[:-1]) * d)

    def peak_lr(self, n_latents: int, n_steps: int) -> float:
        """The learning rate at the top of the schedule."""
        if self.lr is not None:
            return self.lr
        return 2e-4 / math.sqrt(n_latents / 2**14) * min(16.0, max(1.0, math.sqrt(_LONG_RUN / n_steps)))

    def lr_at(self, step: int, n_steps: int, n_latents: int) -> float:
        """The learning rate of step 0, 1 ... n_steps - 1: linear rise, plateau, linear fall towards 0."""
        rise = min(1000, round(self.warmup * n_steps))
        fall = round(self.decay * n_steps)
        factor = min(1.0, (step + 1) / (rise + 1), (n_steps - step) / (fall + 1))
        return self.peak_lr(n_latents, n_steps) * factor

    def window(self, n_rows: int) -> int:
        """Rows without firing after which a latent counts as dead, in a run of n_rows rows (epochs counted)."""
        return self.dead_window if self.dead_window is not None else max(1, min(10_000_000, n_rows // 10))


@dataclass(frozen=True, kw_only=True)
class TopKConfig(SAEConfig):
    """The k largest latents of each row (Gao et al. 2024, https://arxiv.org/abs/2406.04093)."""

    kind: str = "topk"
    k: int = 32
    """Active latents per row (L0)."""
    aux_alpha: float = 1 / 32
    """Weight of the AuxK loss, which lets dead latents explain what the live ones leave over; 0 turns it off."""
    k_aux: int | None = None
    """Dead latents per row in the AuxK loss. None: half the width of what is written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("k")
        self._at_least_one("k_aux", optional=True)
        if isinstance(self.width, int) and self.width < self.k:
            raise ValueError(f"width must be at least k = {self.k}, got {self.width!r}")
        self._real("aux_alpha", "at least 0", lambda weight: weight >= 0)

    def n_latents(self, d: int) -> int:
        width = super().n_latents(d)
        if width < max(self.k, self.k_aux or 1):
            raise ValueError(f"{width} latents cannot hold k = {self.k}, k_aux = {self.k_aux}: give a larger width")
        return width


@dataclass(frozen=True, kw_only=True)
class BatchTopKConfig(TopKConfig):
    """The k x rows largest latents of a batch, so that a row uses as many as it needs (Bussmann et al. 2024,
    https://arxiv.org/abs/2412.06410). Trained, it is a JumpReLU SAE with one threshold for all latents."""

    kind: str = "batchtopk"
    threshold_decay: float | None = None
    """The threshold is the running mean of the smallest activation that a batch lets through; this share of it stays at
    each step. None: it remembers a twentieth of the run, so that it has followed the weights when they come to rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._real("threshold_decay", "at least 0 and below 1", lambda share: 0 <= share < 1, optional=True)

    def threshold_kept(self, n_steps: int) -> float:
        """Share of the running threshold that stays at each step."""
        return self.threshold_decay if self.threshold_decay is not None else 1 - 1 / min(1000, max(2, n_steps / 20))


@dataclass(frozen=True, kw_only=True)
class MatryoshkaConfig(BatchTopKConfig):
    """A BatchTopK SAE of which every prefix of latents must reconstruct as well as it can, so that general features
    come first and are not absorbed by special ones (Bussmann et al. 2025, https://arxiv.org/abs/2503.17547)."""

    kind: str = "matryoshka"
    groups: tuple[float, ...] = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
    """Share of the latents in each group; prefix i is the groups 0 to i."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = tuple(self.groups) if isinstance(self.groups, Iterable) else ()
        numbers = all(isinstance(share, int | float) and share > 0 for share in shares)
        if not numbers or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise ValueError(f"groups must be shares above 0 that sum to 1, got {self.groups!r}")
        object.__setattr__(self, "groups", tuple(map(float, shares)))

    def group_ends(self, n_latents: int) -> list[int]:
        """Where each prefix ends. ValueError where a group would be empty."""
        shares = [sum(self.groups[: i + 1]) for i in range(len(self.groups))]
        ends = [round(share * n_latents) for share in shares]
        if len(set(ends)) < len(ends) or ends[0] == 0:
            raise ValueError(f"{n_latents} latents are too few for the groups {self.groups}: some would be empty")
        return ends


@dataclass(frozen=True, kw_only=True)
class JumpReLUConfig(SAEConfig):
    """A threshold for each latent, learned through a pseudo-derivative (Rajamanoharan et al. 2024,
    https://arxiv.org/abs/2407.14435), with a penalty that brings the mean L0 to a target."""

    kind: str = "jumprelu"
    l0: float = 32.0
    """Mean active latents per row that the penalty aims at."""
    sparsity: float = 1.0
    """Weight of the penalty ((L0 - l0) / l0)^2 beside a squared error per entry of rows of variance 1."""
    l0_coefficient: float | None = None
    """Weight of L0 itself, as in the paper; given, it takes the place of the target."""
    sparsity_warmup: float = 0.1
    """Share of the steps over which the penalty's weight rises linearly from 0."""
    bandwidth: float = 0.2
    """Width of the rectangle around a threshold in which a pre-activation moves it, in units of the scaled rows."""
    initial_threshold: float = 2.0
    """In units of the scaled rows, on which pre-activations begin with a spread of about 1."""
    threshold_lr: float = 10.0
    """Learning rate of the thresholds, as a multiple of the others'."""

    def n_latents(self, d: int) -> int:
        width = super().n_latents(d)
        if self.l0 >= width:
            raise ValueError(f"l0 = {self.l0} is no aim for {width} latents: give a larger width or a smaller l0")
        return width

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("l0", "bandwidth", "threshold_lr"):
            self._real(name, "above 0", lambda value: value > 0)
        for name in ("sparsity", "initial_threshold"):
            self._real(name, "at least 0", lambda value: value >= 0)
        self._shares("sparsity_warmup")
        self._real("l0_coefficient", "at least 0", lambda value: value >= 0, optional=True)


@dataclass(frozen=True, kw_only=True)
class StandardConfig(SAEConfig):
    """ReLU latents and an L1 penalty on them (Bricken et al. 2023)."""

    kind: str = "standard"
    l1: float = 4.0
    """Weight of the summed activations of a row, beside its summed squared error; rows have variance 1 per dimension."""
    initial_bias: float = -2.0
    """Of the encoder, in units of the scaled rows, on which pre-activations begin with a spread of about 1. At 0 half of
    the latents would fire at first, and a bias moves no further than the learning rate in a step."""
    sparsity_warmup: float = 0.05
    """Share of the steps over which the penalty's weight rises linearly from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._real("l1", "at least 0", lambda weight: weight >= 0)
        self._real("initial_bias", "finite", math.isfinite)
        self._shares("sparsity_warmup")


@dataclass(frozen=True, kw_only=True)
class GatedConfig(StandardConfig):
    """A gate says whether a latent fires and carries the L1 penalty, so that values do not shrink (Rajamanoharan et al.
    2024, https://arxiv.org/abs/2404.16014)."""

    kind: str = "gated"


KINDS: dict[str, type[SAEConfig]] = {
    "topk": TopKConfig,
    "batchtopk": BatchTopKConfig,
    "matryoshka": MatryoshkaConfig,
    "jumprelu": JumpReLUConfig,
    "gated": GatedConfig,
    "standard": StandardConfig,
}
"""Every kind that can be trained."""


def config_class(kind: Any) -> type[SAEConfig]:
    """The dataclass of a kind; "batch_topk", "BatchTopK" and "batchtopk" are one. ValueError where there is none."""
    plain = re.sub(r"[-_ ]", "", str(kind).lower())
    plain = {"matryoshkabatchtopk": "matryoshka"}.get(plain, plain)
    if plain not in KINDS:
        raise ValueError(f"SAE kind {kind!r} does not exist; there are: {', '.join(KINDS)}")
    return KINDS[plain]
