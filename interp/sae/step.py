"""One training step of a TopK autoencoder, on rows scaled to variance 1 per dimension.

1. Choose the k latents with the largest pre-activations: one dense product, without gradients.
2. Values at those latents, reconstruction, squared error per entry: sparse, with gradients (`sparse`).
3. AuxK: the k_aux strongest dead latents reconstruct what is left over. Without b_dec, which the reconstruction holds
   already; relative to the variance of the remainder; the remainder and the input are constants there.
4. Take from the decoder's gradient the part along its own rows, clip, step of Adam, bring the rows back to length 1.
5. Count for each latent the rows since it last fired.

Gao et al. 2024, Scaling and evaluating sparse autoencoders, https://arxiv.org/abs/2406.04093, appendix A.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from interp.sae.config import SAEConfig
from interp.sae.sparse import sampled_linear, sparse_decode

PARAMETERS = ("encoder", "b_enc", "W_dec", "b_dec")


@dataclass
class TrainState:
    """What changes from step to step. Nothing is drawn at random after the start, so there is no generator in it."""

    encoder: Float[Tensor, "latent d_model"]
    """The transpose of W_enc: latent-major, as the sparse products want it."""
    b_enc: Float[Tensor, " latent"]
    W_dec: Float[Tensor, "latent d_model"]
    b_dec: Float[Tensor, " d_model"]
    adam: torch.optim.Adam
    rows_since_fired: Int64[Tensor, " latent"]
    step: int = 0
    """Steps done."""

    @property
    def parameters(self) -> list[Tensor]:
        """In the order of PARAMETERS."""
        return [getattr(self, name) for name in PARAMETERS]


@dataclass(frozen=True)
class StepResult:
    """What one step measured, before it changed the parameters."""

    loss: float
    """Squared error per entry: on rows of variance 1 per dimension, the FVU."""
    aux_loss: float
    """AuxK loss, 0 where no latent is dead."""
    active: float
    """Mean number of active latents per row."""
    n_dead: int
    """Latents that count as dead."""
    grad_norm: float
    """Norm of the gradient before clipping."""


def initial_state(mean: Float64[Tensor, " d_model"], n_latents: int, config: SAEConfig) -> TrainState:
    """Random unit decoder rows, the encoder tied to them, b_dec at the mean of the scaled rows."""
    generator = torch.Generator().manual_seed(config.seed)
    W_dec = torch.randn(n_latents, len(mean), generator=generator)
    W_dec /= W_dec.norm(dim=1, keepdim=True)
    start = (W_dec.clone(), torch.zeros(n_latents), W_dec, mean.float())
    parameters = [tensor.requires_grad_() for tensor in start]
    adam = torch.optim.Adam(parameters, lr=0.0, betas=(0.9, 0.999), fused=True)
    encoder, b_enc, W_dec, b_dec = parameters
    return TrainState(encoder, b_enc, W_dec, b_dec, adam, torch.zeros(n_latents, dtype=torch.int64))


def train_step(
    state: TrainState, x: Float[Tensor, "row d_model"], config: SAEConfig, *, lr: float, window: int
) -> StepResult:
    """One step on a batch of scaled rows; changes `state`.

    Raises:
        ValueError: the loss or a gradient is not finite. The state is then as it was before.
    """
    dead = (state.rows_since_fired >= window).nonzero().flatten()
    loss, aux, values, index = losses(state, x, config, dead)
    state.adam.zero_grad()
    (loss + config.aux_alpha * aux).backward()
    assert state.W_dec.grad is not None
    with torch.no_grad():
        along = (state.W_dec.grad * state.W_dec).sum(1, keepdim=True)
        state.W_dec.grad -= along * state.W_dec
    norm = torch.nn.utils.clip_grad_norm_(state.parameters, config.grad_clip)
    result = StepResult(loss.item(), aux.item(), (values > 0).sum().item() / len(x), len(dead), norm.item())
    if not (math.isfinite(result.loss + result.aux_loss) and math.isfinite(result.grad_norm)):
        raise ValueError(
            f"step {state.step}: loss {result.loss}, AuxK loss {result.aux_loss}, gradient norm {result.grad_norm}; "
            f"the rows are finite, so training diverged: lower the learning rate ({lr:.2g} at this step)"
        )
    for group in state.adam.param_groups:
        group["lr"] = lr
    state.adam.step()
    with torch.no_grad():
        state.W_dec /= state.W_dec.norm(dim=1, keepdim=True)
        state.rows_since_fired += len(x)
        state.rows_since_fired[index[values > 0]] = 0
    state.step += 1
    return result


def losses(
    state: TrainState, x: Float[Tensor, "row d_model"], config: SAEConfig, dead: Int[Tensor, " dead"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """Squared error per entry, AuxK loss (0 without dead latents), and the active latents: values and which."""
    centred = x - state.b_dec
    pre = pre_activations(state, centred.detach(), config.autocast)
    index = pre.topk(config.k, dim=1).indices
    values = sampled_linear(centred, state.encoder, state.b_enc, index).relu()
    error = x - state.b_dec - sparse_decode(values, index, state.W_dec)
    loss = error.square().sum() / x.numel()
    if config.aux_alpha == 0 or len(dead) == 0:
        return loss, loss.new_zeros(()), values, index
    k_aux = min(config.k_aux or max(1, x.shape[1] // 2), len(dead))
    chosen = dead[pre[:, dead].topk(k_aux, dim=1).indices]
    aux_values = sampled_linear(centred.detach(), state.encoder, state.b_enc, chosen).relu()
    rest = error.detach()
    missed = (rest - sparse_decode(aux_values, chosen, state.W_dec)).square().sum()
    spread = (rest - rest.mean(0)).square().sum()
    return loss, missed / spread.clamp_min(torch.finfo(spread.dtype).tiny), values, index


@torch.no_grad()
def pre_activations(state: TrainState, centred: Tensor, autocast: bool) -> Float[Tensor, "row latent"]:
    """Every latent's pre-activation. It only chooses latents, so bfloat16 costs no precision in their values."""
    if autocast:
        return torch.addmm(state.b_enc.bfloat16(), centred.bfloat16(), state.encoder.bfloat16().T)
    return torch.addmm(state.b_enc, centred, state.encoder.T)
