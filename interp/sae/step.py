"""One training step, on rows scaled to variance 1 per dimension.

1. One dense product, without gradients, says what the encoder makes of every latent; the kind chooses from it (`kinds`).
2. Values at those latents, reconstruction, squared error per entry: sparse, with gradients (`sparse`). A Matryoshka
   dictionary reconstructs from every prefix of its latents, and the error is the mean over the prefixes.
3. AuxK, for kinds that keep k latents: the k_aux strongest dead ones reconstruct what is left over. Without b_dec, which
   the reconstruction holds already; relative to the variance of the remainder, which is a constant there.
4. Take from the decoder's gradient the part along its own rows, clip, step of Adam, bring the rows back to length 1.
5. Count for each latent the rows since it last fired.

An SAE takes b_dec off its input, so the centre of the rows is learned; a transcoder takes off their mean. Both go into
the bias of the encoder as it reads the rows, and the product of the whole batch needs no second pass.

Gao et al. 2024, Scaling and evaluating sparse autoencoders, https://arxiv.org/abs/2406.04093, appendix A.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from interp.sae.config import MatryoshkaConfig, SAEConfig, StandardConfig, TopKConfig
from interp.sae.kinds import CODES, Coded, Encoded, own_parameters
from interp.sae.parallel import Peers
from interp.sae.select import pattern_of_rows, top_of_rows
from interp.sae.sparse import Pattern, linear_at, sparse_decode, starts_of

COMMON = ("encoder", "b_enc", "W_dec", "b_dec")


@dataclass
class TrainState:
    """What changes from step to step. Nothing is drawn at random after the start, so there is no generator in it."""

    encoder: Float[Tensor, "latent d_in"]
    """The transpose of W_enc: latent-major, as the sparse products want it."""
    b_enc: Float[Tensor, " latent"]
    W_dec: Float[Tensor, "latent d_out"]
    b_dec: Float[Tensor, " d_out"]
    extra: dict[str, Tensor]
    """The kind's own parameters, and W_skip."""
    adam: torch.optim.Adam
    rows_since_fired: Int64[Tensor, " latent"]
    centre: Float[Tensor, " d_in"] | None
    """What is taken off the rows that are read; None: b_dec."""
    threshold: Float64[Tensor, ""]
    """Running mean of the smallest activation that was let through; NaN before the first step, and for other kinds."""
    l1_weight: Float[Tensor, "site d_out"] | None = None
    """Of a crosscoder, which columns of the output belong to which site; None for one site."""
    step: int = 0
    """Steps done."""
    scratch: Tensor | None = None
    """Memory for the pre-activations of a batch. Taken afresh at each step it costs a fifth of the product itself."""
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = (*COMMON, *sorted(self.extra))

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Everything that is learned, by name."""
        return {name: getattr(self, name) for name in COMMON} | {name: self.extra[name] for name in sorted(self.extra)}


@dataclass(frozen=True)
class StepResult:
    """What one step measured, before it changed the parameters."""

    loss: float
    """Squared error per entry: on rows of variance 1 per dimension, the FVU."""
    penalty: float
    """What the kind adds to the loss; the errors of shorter prefixes for a Matryoshka dictionary."""
    aux_loss: float
    """AuxK loss, 0 where no latent is dead."""
    active: float
    """Mean number of active latents per row."""
    n_dead: int
    """Latents that count as dead."""
    grad_norm: float
    """Norm of the gradient before clipping."""


def initial_state(
    mean_in: Float64[Tensor, " d_in"],
    mean_out: Float64[Tensor, " d_out"],
    n_latents: int,
    config: SAEConfig,
    *,
    same: bool = True,
    columns: Float[Tensor, "site d_out"] | None = None,
) -> TrainState:
    """Random unit decoder rows, and b_dec at the mean of the scaled rows.

    Args:
        mean_in, mean_out: of the scaled rows that are read and written.
        n_latents: how many.
        config: kind, seed and skip path.
        same: whether the rows that are written are those that are read. Then the encoder is tied to the decoder at the
            start; else it is drawn as well.
        columns: of several sites, which columns belong to which.
    """
    generator = torch.Generator().manual_seed(config.seed)
    W_dec = torch.randn(n_latents, len(mean_out), generator=generator)
    W_dec /= W_dec.norm(dim=1, keepdim=True)
    encoder = W_dec.clone()
    if not same:
        encoder = torch.randn(n_latents, len(mean_in), generator=generator)
        encoder /= encoder.norm(dim=1, keepdim=True)
    extra = own_parameters(config, n_latents)
    if config.skip:
        extra["W_skip"] = torch.zeros(len(mean_in), len(mean_out))
    centre = None if same else mean_in.float()
    b_enc = torch.full((n_latents,), float(getattr(config, "initial_bias", 0.0)))
    return state_of((encoder, b_enc, W_dec, mean_out.float()), extra, config, centre, columns)


def state_of(
    start: tuple[Tensor, Tensor, Tensor, Tensor],
    extra: dict[str, Tensor],
    config: SAEConfig,
    centre: Tensor | None = None,
    columns: Tensor | None = None,
) -> TrainState:
    """A state that begins with these parameters: encoder, b_enc, W_dec, b_dec, and the kind's own."""
    for tensor in (*start, *extra.values()):
        tensor.requires_grad_()
    own = [extra[name] for name in sorted(extra) if name != "threshold"]
    groups = [{"params": [*start, *own], "scale": 1.0}]
    if "threshold" in extra:
        groups.append({"params": [extra["threshold"]], "scale": getattr(config, "threshold_lr", 1.0)})
    adam = torch.optim.Adam(groups, lr=0.0, betas=(0.9, 0.999), fused=True)
    unfired = torch.zeros(len(start[0]), dtype=torch.int64)
    return TrainState(
        *start, extra, adam, unfired, centre, torch.tensor(math.nan, dtype=torch.float64), l1_weight=columns
    )


def train_step(
    state: TrainState,
    x: Float[Tensor, "row d_in"],
    y: Float[Tensor, "row d_out"],
    config: SAEConfig,
    *,
    lr: float,
    window: int,
    ramp: float = 1.0,
    kept: float = 0.99,
    peers: Peers = Peers(),  # noqa: B008 (frozen)
) -> StepResult:
    """One step on a batch of scaled rows; changes `state`. For an SAE x and y are the same tensor.

    Args:
        state: what is trained.
        x, y: rows that are read and rows that are to be written.
        config: kind and weights of the losses.
        lr: learning rate of this step.
        window: rows without firing after which a latent counts as dead.
        ramp: share of its final weight that a sparsity penalty has.
        kept: share of a running threshold that stays.
        peers: the processes that make this step together.

    Raises:
        ValueError: the loss or a gradient is not finite. The state is then as it was before.
    """
    dead = (state.rows_since_fired >= window).nonzero().flatten()
    found = losses(state, x, y, config, dead, ramp)
    state.adam.zero_grad()
    alpha = config.aux_alpha if isinstance(config, TopKConfig) else 0.0
    (found.loss + found.penalty + alpha * found.aux).backward()
    gradients = [tensor.grad for tensor in state.parameters.values() if tensor.grad is not None]
    peers.mean_(gradients)
    assert state.W_dec.grad is not None
    with torch.no_grad():
        along = torch.linalg.vecdot(state.W_dec.grad, state.W_dec)
        state.W_dec.grad.addcmul_(along[:, None], state.W_dec, value=-1)
        norm = torch.nn.utils.clip_grad_norm_(list(state.parameters.values()), config.grad_clip)
        fires = found.coded.values > 0
        figures = torch.stack([found.loss, found.penalty, found.aux, fires.sum() / len(x)]).double()
        peers.mean_([figures])
        loss, penalty, aux, active = figures.tolist()
    result = StepResult(loss, penalty, aux, active, len(dead), norm.item())
    if not (math.isfinite(loss + penalty + aux) and math.isfinite(result.grad_norm)):
        raise ValueError(
            f"step {state.step}: loss {loss}, penalty {penalty}, AuxK loss {aux}, gradient norm {result.grad_norm}; "
            f"the rows are finite, so training diverged: lower the learning rate ({lr:.2g} at this step)"
        )
    for group in state.adam.param_groups:
        group["lr"] = lr * group["scale"]
    state.adam.step()
    with torch.no_grad():
        state.W_dec /= state.W_dec.norm(dim=1, keepdim=True)
        if "threshold" in state.extra:
            state.extra["threshold"].clamp_(min=0)
        fired = torch.zeros(len(state.rows_since_fired), dtype=torch.bool)
        fired[found.coded.pattern.latent[fires]] = True
        _follow_threshold(state, found.coded, kept, peers)
        peers.any_(fired)
        state.rows_since_fired += len(x) * peers.world_size
        state.rows_since_fired[fired] = 0
    state.step += 1
    return result


@dataclass(frozen=True, eq=False)
class Losses:
    """The parts of the loss of a batch, with gradients."""

    loss: Float[Tensor, ""]
    """Squared error per entry."""
    penalty: Float[Tensor, ""]
    """What the kind adds."""
    aux: Float[Tensor, ""]
    """AuxK loss, 0 without dead latents."""
    coded: Coded


def losses(
    state: TrainState,
    x: Float[Tensor, "row d_in"],
    y: Float[Tensor, "row d_out"],
    config: SAEConfig,
    dead: Int[Tensor, " dead"],
    ramp: float = 1.0,
) -> Losses:
    """The loss of a batch of scaled rows; changes nothing."""
    batch = encoded(state, x, y, config, ramp)
    coded = CODES[config.kind](batch, config)
    penalty = coded.penalty if coded.penalty is not None else x.new_zeros(())
    if isinstance(config, MatryoshkaConfig):
        error, shorter = _prefix_errors(coded, batch, config)
        loss = error.square().sum() / y.numel()
        penalty = (loss + shorter) / len(config.groups) - loss
    else:
        error = sparse_decode(coded.values, coded.pattern, state.W_dec) + batch.rest - y
        loss = error.square().sum() / y.numel()
    aux = x.new_zeros(())
    if isinstance(config, TopKConfig) and config.aux_alpha > 0 and len(dead):
        aux = _aux_loss(state, batch, -error.detach(), dead, config.k_aux or max(1, y.shape[1] // 2))
    return Losses(loss, penalty, aux, coded)


def encoded(
    state: TrainState, x: Float[Tensor, "row d_in"], y: Float[Tensor, "row d_out"], config: SAEConfig, ramp: float
) -> Encoded:
    """A batch behind the encoder."""
    centre = state.b_dec if state.centre is None else state.centre
    bias = state.b_enc - state.encoder @ centre
    offset = state.extra.get("threshold")
    skip = state.extra.get("W_skip")
    weight = None
    if state.l1_weight is not None and isinstance(config, StandardConfig):
        weight = (state.W_dec.square() @ state.l1_weight.T).sqrt().sum(1)
    dtype = torch.bfloat16 if config.autocast else x.dtype
    if state.scratch is None or state.scratch.shape != (len(x), len(bias)) or state.scratch.dtype != dtype:
        state.scratch = torch.empty(len(x), len(bias), dtype=dtype, device=x.device)
    # A narrow product is made of centred rows: their mean would take the bits that tell latents apart.
    read, shift = (x - centre, state.b_enc) if config.autocast else (x, bias)
    pre_activations(read, state.encoder, shift if offset is None else shift - offset, state.scratch)
    return Encoded(
        x=x,
        y=y,
        encoder=state.encoder,
        bias=bias,
        b_enc=state.b_enc,
        pre=state.scratch,
        offset=offset,
        exact=not config.autocast,
        W_dec=state.W_dec,
        rest=state.b_dec if skip is None else state.b_dec + (x - centre) @ skip,
        extra=state.extra,
        l1_weight=weight,
        ramp=ramp,
    )


@torch.no_grad()
def pre_activations(
    x: Float[Tensor, "row d_in"],
    encoder: Float[Tensor, "latent d_in"],
    bias: Float[Tensor, " latent"],
    out: Float[Tensor, "row latent"],
) -> None:
    """What the encoder makes of every latent, in the dtype of `out`. It only chooses, so bfloat16 costs no precision in
    their values."""
    torch.addmm(bias.to(out.dtype), x.to(out.dtype), encoder.to(out.dtype).T, out=out)


def _prefix_errors(
    coded: Coded, batch: Encoded, config: MatryoshkaConfig
) -> tuple[Float[Tensor, "row d_out"], Float[Tensor, ""]]:
    """Error of the whole dictionary, and the summed squared errors per entry of its shorter prefixes.

    The latents of a row stand in order, so each group of them is a row of its own in a pattern with the same entries.
    """
    pattern, n_groups = coded.pattern, len(config.groups)
    ends = torch.tensor(config.group_ends(pattern.n_latents), device=batch.y.device)
    row = pattern.row * n_groups + torch.searchsorted(ends, pattern.latent, right=True)
    by_group = Pattern(
        starts_of(torch.bincount(row, minlength=pattern.n_rows * n_groups)), pattern.latent, pattern.n_latents
    )
    parts = sparse_decode(coded.values, by_group, batch.W_dec).unflatten(0, (pattern.n_rows, n_groups))
    errors = parts.cumsum(1) + (batch.rest - batch.y)[:, None]
    return errors[:, -1], errors[:, :-1].square().sum() / batch.y.numel()


def _aux_loss(
    state: TrainState, batch: Encoded, rest: Float[Tensor, "row d_out"], dead: Int[Tensor, " dead"], k: int
) -> Float[Tensor, ""]:
    """What the strongest dead latents miss of the remainder, relative to its variance; x is a constant here."""
    centre = (state.b_dec if state.centre is None else state.centre).detach()
    chosen = dead[top_of_rows(batch.pre[:, dead], min(k, len(dead)))]
    pattern = pattern_of_rows(chosen, len(state.encoder))
    known = pattern.at(batch.pre) if batch.exact else None
    values = linear_at(batch.x, state.encoder, state.b_enc - state.encoder @ centre, pattern, known).relu()
    missed = (rest - sparse_decode(values, pattern, state.W_dec)).square().sum()
    spread = (rest - rest.mean(0)).square().sum()
    return missed / spread.clamp_min(torch.finfo(spread.dtype).tiny)


def _follow_threshold(state: TrainState, coded: Coded, kept: float, peers: Peers) -> None:
    if coded.threshold is None:
        return
    new = coded.threshold.double()
    peers.mean_([new])
    state.threshold = new if state.threshold.isnan() else kept * state.threshold + (1 - kept) * new
