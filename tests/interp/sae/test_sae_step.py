"""One training step: its gradients against dense autograd and against hand-written ones, and what it keeps true."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from interp.sae import SAE, SAEConfig
from interp.sae.step import COMMON, TrainState, initial_state, losses, train_step

WIDTH, LATENTS = 8, 24
CONFIG = SAEConfig(k=3, width=LATENTS, k_aux=2, seed=1)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0)) + 0.5


def start(x: Tensor, config: SAEConfig = CONFIG, *, double: bool = False) -> TrainState:
    """A state whose biases are not zero, so that a gradient that forgets them is seen."""
    state = initial_state(x.mean(0).double(), x.mean(0).double(), LATENTS, config)
    with torch.no_grad():
        state.b_enc += 0.1 * torch.randn(LATENTS, generator=torch.Generator().manual_seed(2))
        for name in COMMON if double else ():
            setattr(state, name, getattr(state, name).detach().double().requires_grad_())
        for name in state.extra if double else ():
            state.extra[name] = state.extra[name].detach().double().requires_grad_()
    return state


def test_the_loss_and_its_gradients_are_those_of_the_sae(x: Tensor) -> None:
    x = x.double()
    state = start(x, double=True)
    none_dead = torch.empty(0, dtype=torch.int64)
    losses(state, x, x, CONFIG, none_dead).loss.backward()
    W_enc, b_enc, W_dec, b_dec = (getattr(state, name).detach() for name in COMMON)
    W_enc = W_enc.T.contiguous()
    sae = SAE(W_enc, b_enc, W_dec, b_dec, k=3).requires_grad_()
    functional.mse_loss(sae(x), x).backward()
    expected = (sae.W_enc.grad.T, sae.b_enc.grad, sae.W_dec.grad, sae.b_dec.grad)
    for parameter, gradient in zip(state.parameters.values(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_auxk_against_a_hand_written_gradient(x: Tensor) -> None:
    """Derived on paper: L = |r - g|^2 / V, with r and V constants, g what the strongest dead latents add, no b_dec."""
    x = x.double()
    state, dead = start(x, double=True), torch.tensor([2, 5, 11, 17])
    found = losses(state, x, x, CONFIG, dead)
    loss, aux = found.loss, found.aux
    gradients = torch.autograd.grad(aux, list(state.parameters.values()), allow_unused=True)
    E, b, W, c = (parameter.detach() for parameter in state.parameters.values())
    pre = (x - c) @ E.T + b
    live = torch.zeros_like(pre).scatter(1, pre.topk(3).indices, pre.topk(3).values.relu())
    r = x - c - live @ W
    chosen = torch.zeros_like(pre)
    chosen[:, dead] = torch.zeros(len(x), 4).double().scatter(1, pre[:, dead].topk(2).indices, 1.0)
    z = (pre * chosen).relu()
    V = (r - r.mean(0)).square().sum()
    residual = 2 * (z @ W - r) / V
    through = (residual @ W.T) * (z > 0)
    torch.testing.assert_close(aux.detach(), (r - z @ W).square().sum() / V)
    torch.testing.assert_close(loss.detach(), r.square().mean())
    torch.testing.assert_close(gradients[0], through.T @ (x - c))
    torch.testing.assert_close(gradients[1], through.sum(0))
    torch.testing.assert_close(gradients[2], z.T @ residual)
    assert gradients[3] is None


def test_auxk_reaches_only_dead_latents_and_is_off_without_them(x: Tensor) -> None:
    state, dead = start(x), torch.tensor([2, 5])
    aux = losses(state, x, x, CONFIG, dead).aux
    (gradient,) = torch.autograd.grad(aux, [state.W_dec])
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == dead.tolist()
    assert losses(state, x, x, CONFIG, dead[:0]).aux == 0
    assert losses(state, x, x, SAEConfig(k=3, width=LATENTS, aux_alpha=0), dead).aux == 0


def test_auxk_brings_dead_latents_back() -> None:
    """Encoders of half the latents start too short to win a place. Without AuxK they get no gradient, ever."""
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randn(128, WIDTH, generator=generator) for _ in range(300)]
    dead = {}
    for alpha in (0.0, 1 / 32):
        config = SAEConfig(k=3, width=LATENTS, k_aux=4, aux_alpha=alpha)
        state = start(batches[0], config)
        with torch.no_grad():
            state.encoder[LATENTS // 2 :] *= 0.02
            state.b_enc.zero_()
        results = [train_step(state, batch, batch, config, lr=3e-3, window=1024) for batch in batches]
        dead[alpha] = results[-1].n_dead
        assert (max(result.aux_loss for result in results) > 0) == (alpha > 0)
    assert dead[0.0] >= LATENTS // 3
    assert dead[1 / 32] == 0


def test_decoder_rows_keep_length_one(x: Tensor) -> None:
    state = start(x)
    for _ in range(20):
        train_step(state, x, x, CONFIG, lr=0.05, window=10**9)
        torch.testing.assert_close(state.W_dec.norm(dim=1), torch.ones(LATENTS))


def test_the_step_is_taken_along_the_sphere(x: Tensor) -> None:
    """The gradient that Adam sees has no part along a decoder row."""
    state = start(x)
    before = state.W_dec.detach().clone()
    train_step(state, x, x, CONFIG, lr=1e-3, window=10**9)
    assert state.W_dec.grad is not None
    torch.testing.assert_close((state.W_dec.grad * before).sum(1), torch.zeros(LATENTS), atol=1e-6, rtol=0)
    assert state.W_dec.grad.norm() > 1e-3


def test_rows_since_a_latent_fired_are_counted(x: Tensor) -> None:
    state = start(x)
    with torch.no_grad():
        state.b_enc[7] = -100.0
        state.b_enc[3] = 100.0
    dead = [train_step(state, x, x, CONFIG, lr=1e-4, window=2 * len(x)).n_dead for _ in range(3)]
    assert state.rows_since_fired[7] == 3 * len(x)
    assert state.rows_since_fired[3] == 0
    assert dead[:2] == [0, 0]
    assert dead[2] >= 1


def test_a_loss_that_is_not_finite_is_an_error_and_changes_nothing(x: Tensor) -> None:
    state = start(x)
    before = [parameter.detach().clone() for parameter in state.parameters.values()]
    with pytest.raises(ValueError, match="training diverged: lower the learning rate"):
        train_step(state, x * 1e25, x * 1e25, CONFIG, lr=1e-3, window=10**9)
    assert state.step == 0
    assert all(torch.equal(old, new) for old, new in zip(before, state.parameters.values(), strict=True))


def test_autocast_only_chooses_latents(x: Tensor) -> None:
    config = SAEConfig(k=3, width=LATENTS, autocast=True)
    state, none_dead = start(x), torch.empty(0, dtype=torch.int64)
    coded = losses(state, x, x, config, none_dead).coded
    values, index = coded.values.view(len(x), 3), coded.pattern.latent.view(len(x), 3)
    exact = (x - state.b_dec) @ state.encoder.T + state.b_enc
    torch.testing.assert_close(values, exact.gather(1, index).relu())
    agree = (index.sort().values == exact.topk(3).indices.sort().values).all(dim=1).double().mean()
    assert agree > 0.8
