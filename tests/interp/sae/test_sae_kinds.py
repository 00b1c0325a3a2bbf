"""Every kind of dictionary: its loss and gradients against dense autograd, what it finds, and its trained form."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from interp.sae import SAEConfig, calibrate_l0, train_sae
from interp.sae.config import KINDS, JumpReLUConfig, MatryoshkaConfig
from interp.sae.kinds import batch_top
from interp.sae.rows import training_rows
from interp.sae.step import COMMON, TrainState, initial_state, losses, train_step
from interp.sae.train import _start, train_saes
from interp.sae.trained import trained_sae

WIDTH, LATENTS, NONE_DEAD = 8, 48, torch.empty(0, dtype=torch.int64)
CHOICES = {
    "topk": {"k": 3},
    "batchtopk": {"k": 3},
    "matryoshka": {"k": 3},
    "jumprelu": {"l0": 3, "initial_threshold": 0.9, "bandwidth": 0.5, "sparsity": 0.3},
    "standard": {"l1": 0.2},
    "gated": {"l1": 0.2},
}


def config_of(kind: str, **more: object) -> SAEConfig:
    return SAEConfig(kind=kind, width=LATENTS, seed=1, **CHOICES[kind], **more)


def doubled(x: Tensor, config: SAEConfig) -> TrainState:
    """A state in fp64 whose every parameter differs from its start, so that a gradient that forgets one is seen."""
    state = initial_state(x.mean(0), x.mean(0), LATENTS, config)
    generator = torch.Generator().manual_seed(2)
    for holder, names in ((vars(state), COMMON), (state.extra, tuple(state.extra))):
        for name in names:
            value = holder[name].detach().double()
            holder[name] = (value + 0.05 * torch.randn(value.shape, generator=generator).double()).requires_grad_()
    return state


@pytest.fixture
def x() -> Tensor:
    return torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0)).double() + 0.5


def reference(state: TrainState, x: Tensor, config: SAEConfig) -> Tensor:
    """The loss written out with dense matrices."""
    E, b, W, c = (getattr(state, name) for name in COMMON)
    pre, n = (x - c) @ E.T + b, len(x)
    extra = state.extra

    def error(latents: Tensor) -> Tensor:
        return (x - c - latents @ W).square().mean()

    if config.kind == "topk":
        return error(pre.relu() * (pre >= pre.topk(3).values[:, -1:]))
    if config.kind in ("batchtopk", "matryoshka"):
        latents = pre.relu() * (pre >= pre.flatten().topk(3 * n).values[-1])
        if config.kind == "batchtopk":
            return error(latents)
        ends = MatryoshkaConfig(k=3).group_ends(LATENTS)
        return torch.stack([error(latents * (torch.arange(LATENTS) < end)) for end in ends]).mean()
    if config.kind == "standard":
        return error(pre.relu()) + 0.2 * pre.relu().sum() / x.numel()
    if config.kind == "gated":
        value = ((pre - b) * extra["r_mag"].exp() + extra["b_mag"]).relu() * (pre > 0)
        auxiliary = (x - c.detach() - pre.relu() @ W.detach()).square().mean()
        return error(value) + 0.2 * pre.relu().sum() / x.numel() + auxiliary
    raise AssertionError(config.kind)


@pytest.mark.parametrize("kind", ["topk", "batchtopk", "matryoshka", "standard", "gated"])
def test_loss_and_gradients_are_those_of_dense_autograd(kind: str, x: Tensor) -> None:
    config = config_of(kind)
    state = doubled(x, config)
    parameters = list(state.parameters.values())
    found = losses(state, x, x, config, NONE_DEAD)
    total, expected = found.loss + found.penalty, reference(state, x, config)
    torch.testing.assert_close(total, expected)
    ours, theirs = torch.autograd.grad(total, parameters), torch.autograd.grad(expected, parameters)
    if kind == "gated":  # the gate's own error reaches b_dec only through the encoder
        assert len(ours) == 6
    for gradient, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, other)


def test_jumprelu_against_its_pseudo_derivative(x: Tensor) -> None:
    config = config_of("jumprelu")
    assert isinstance(config, JumpReLUConfig)
    state = doubled(x, config)
    E, b, W, c = (getattr(state, name) for name in COMMON)
    threshold = state.extra["threshold"]
    found = losses(state, x, x, config, NONE_DEAD)
    gradients = dict(zip(state.names, torch.autograd.grad(found.loss + found.penalty, list(state.parameters.values()))))
    pre = (x - c) @ E.T + b
    fires, near = (pre > threshold).double(), ((pre - threshold).abs() < 0.25).double()
    latents, l0 = pre * fires, fires.sum() / len(x)
    error = latents @ W + c - x
    torch.testing.assert_close(found.loss, error.square().mean())
    torch.testing.assert_close(found.penalty, 0.3 * (l0 / 3 - 1) ** 2)
    upstream = 2 * error / x.numel() @ W.T
    by_error = -(threshold / 0.5 * near * upstream).sum(0)
    by_penalty = 0.3 * 2 * (l0 / 3 - 1) / 3 * -(near / 0.5).sum(0) / len(x)
    torch.testing.assert_close(gradients["threshold"], by_error + by_penalty)
    torch.testing.assert_close(gradients["encoder"], (upstream * fires).T @ (x - c))
    torch.testing.assert_close(gradients["b_enc"], (upstream * fires).sum(0))
    torch.testing.assert_close(gradients["W_dec"], latents.T @ (2 * error / x.numel()))


def test_an_l0_coefficient_takes_the_place_of_the_target(x: Tensor) -> None:
    config = dataclasses.replace(config_of("jumprelu"), l0_coefficient=0.01)
    state = doubled(x, config)
    found = losses(state, x, x, config, NONE_DEAD, ramp=0.5)
    l0 = (found.coded.values > 0).sum() / len(x)
    torch.testing.assert_close(found.penalty, 0.5 * 0.01 * l0.double())


@pytest.mark.parametrize("count", [1, 30, 200, 900, 4000, 100_000])
def test_the_top_of_a_batch(count: int) -> None:
    pre = torch.randn(300, 100, generator=torch.Generator().manual_seed(3))
    pre[0] += 8.0  # a row that the sample finds, and that is unlike the others
    wanted = pre.flatten().topk(min(count, pre.numel()))
    wanted = wanted.indices[wanted.values > 0].sort().values
    assert torch.equal(batch_top(pre, count).flat.sort().values, wanted)


def planted(n_rows: int, n_features: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(rows, dictionary): each row a sum of 3 of 24 unit directions in 16 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    dictionary = torch.randn(n_features, 16, generator=generator)
    dictionary /= dictionary.norm(dim=1, keepdim=True)
    index = torch.rand(n_rows, n_features, generator=generator).topk(3).indices
    values = torch.zeros(n_rows, n_features).scatter(1, index, 1 + torch.rand(n_rows, 3, generator=generator))
    return 20 * (values @ dictionary + 1.0), dictionary


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_finds_a_planted_dictionary(kind: str) -> None:
    x, dictionary = planted(12_000)
    choices = {**CHOICES[kind], **({"sparsity": 1.0, "bandwidth": 0.3} if kind == "jumprelu" else {})}
    config = SAEConfig(kind=kind, width=32, lr=4e-3, batch_size=512, epochs=14, **choices)
    sae = train_sae(x, config)
    cosine = (dictionary @ sae.W_dec.T).max(dim=1).values
    error = (x - sae(x)).square().sum() / (x - x.mean(0)).square().sum()
    l0 = sae.active(x).counts.double().mean()
    assert cosine.mean() > (0.8 if kind == "matryoshka" else 0.9), (cosine.mean(), error, l0)
    assert error < 0.2, (cosine.mean(), error, l0)
    if kind in ("topk", "batchtopk", "matryoshka"):
        assert 2.5 < l0 < 3.2, l0
    assert sae.architecture == {"topk": "topk", "gated": "gated", "standard": "relu"}.get(kind, "jumprelu")


def test_the_learned_threshold_keeps_k_latents() -> None:
    x, _ = planted(12_000)
    sae = train_sae(x[:10_000], SAEConfig(kind="batchtopk", k=3, width=32, lr=4e-3, batch_size=512, epochs=8))
    l0 = sae.active(x[10_000:]).counts.double().mean().item()
    assert abs(l0 / 3 - 1) < 0.05
    assert sae.card["final"]["l0_of_threshold"] == pytest.approx(3, rel=0.05)


def test_several_in_one_pass_equal_each_alone(tmp_path: Path) -> None:
    x, _ = planted(2000)
    configs = [
        SAEConfig(kind=kind, width=32, lr=2e-3, batch_size=256, seed=seed, checkpoint_every=3, **CHOICES[kind])
        for kind, seed in (("topk", 0), ("batchtopk", 0), ("jumprelu", 0), ("gated", 0))
    ]
    together = train_saes(x, configs, log=tmp_path / "log.jsonl")
    for sae, config in zip(together, configs, strict=True):
        alone = train_sae(x, config)
        assert all(
            torch.equal(a, b) for a, b in zip(sae.state_dict().values(), alone.state_dict().values(), strict=True)
        )
    with pytest.raises(ValueError, match=r"share their batches need one batch_size, got \[64, 256\]"):
        train_saes(x, [configs[0], dataclasses.replace(configs[1], batch_size=64)])
    with pytest.raises(ValueError, match="at least one config"):
        train_saes(x, [])


class Stopped(Exception):
    """Stands for a signal in the middle of a run."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    x, _ = planted(2000)
    config = SAEConfig(
        kind=kind, width=32, lr=2e-3, batch_size=128, checkpoint_every=3, dead_window=300, **CHOICES[kind]
    )

    def stop(done: int, _total: int) -> None:
        if done == 8:
            raise Stopped

    with pytest.raises(Stopped):
        train_sae(x, config, checkpoint=tmp_path / "run.safetensors", progress=stop)
    resumed, whole = train_sae(x, config, checkpoint=tmp_path / "run.safetensors"), train_sae(x, config)
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.state_dict().values(), whole.state_dict().values(), strict=True)
    )
    assert resumed.card == whole.card


def test_a_transcoder_learns_another_site() -> None:
    generator = torch.Generator().manual_seed(4)
    x = 5 * torch.randn(8000, 16, generator=generator) + 3
    features = torch.randn(16, 24, generator=generator)
    W = torch.randn(24, 12, generator=generator)
    y = ((x - 3) @ features - 12).relu() @ W + x @ torch.randn(16, 12, generator=generator) + 1
    for skip, most in ((False, 0.5), (True, 0.2)):
        config = SAEConfig(k=4, width=64, lr=4e-3, batch_size=256, epochs=10, skip=skip)
        sae = train_sae({"read": x, "written": y}, config, target="written")
        fvu = (y - sae(x)).square().sum() / (y - y.mean(0)).square().sum()
        assert sae.card["final"]["loss"] == pytest.approx(fvu.item(), rel=0.1)
        assert fvu < most, fvu
        assert (sae.W_skip is not None) == skip
    with pytest.raises(ValueError, match="skip=True is for a transcoder"):
        train_sae(x, SAEConfig(k=4, width=64, skip=True))


def test_a_crosscoder_is_an_sae_of_all_its_sites_in_one_scale_each() -> None:
    x, _ = planted(4000)
    sites = {"a": x[:, :10], "b": 50 * x[:, 10:]}
    config = SAEConfig(k=3, width=48, lr=4e-3, batch_size=256, epochs=6)
    sae = train_sae(sites, config)
    rows = torch.cat(list(sites.values()), dim=1)
    fvus = []
    for name, part in sae.split_target(sae(rows)).items():
        fvus.append((sites[name] - part).square().sum() / (sites[name] - sites[name].mean(0)).square().sum())
    assert max(fvus) < 0.3, fvus  # neither is drowned by the other
    scaled = torch.cat([sites[name] * sae.card["scales"][name] for name in sites], dim=1)
    error = scaled - torch.cat([sae(rows).split([10, 6], 1)[i] * sae.card["scales"][n] for i, n in enumerate(sites)], 1)
    assert sae.card["final"]["loss"] == pytest.approx(error.square().mean().item(), rel=0.1)
    assert (sae.sites, sae.targets, sae.site) == (("a", "b"), ("a", "b"), None)


def test_an_l1_penalty_weighs_the_decoder_of_each_site(x: Tensor) -> None:
    config = SAEConfig(kind="standard", width=LATENTS, l1=0.2)
    columns = torch.block_diag(torch.ones(1, 3), torch.ones(1, 5))
    state = initial_state(x.mean(0), x.mean(0), LATENTS, config, columns=columns)
    x = x.float()
    pre = ((x - state.b_dec) @ state.encoder.T + state.b_enc).relu()
    weight = state.W_dec[:, :3].norm(dim=1) + state.W_dec[:, 3:].norm(dim=1)
    expected = 0.2 * (pre * weight).sum() / x.numel()
    torch.testing.assert_close(losses(state, x, x, config, NONE_DEAD).penalty, expected)


@pytest.mark.parametrize("mode", ["sae", "transcoder", "skip", "crosscoder", "crosscoder with a target"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_trained_sae_computes_what_the_state_does(kind: str, mode: str) -> None:
    """On raw rows, whose sites have scales 500 times apart, what the last state computes on scaled ones."""
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(256, 6, generator=generator).relu()
    sites = {name: hidden @ torch.randn(6, 8, generator=generator) + 2 for name in ("a", "b", "c")}
    sites = {"a": sites["a"], "b": 500 * sites["b"] - 40, "c": 30 * sites["c"]}
    site, target = {
        "sae": ("b", None), "transcoder": ("a", "b"), "skip": ("a", "b"), "crosscoder": (["a", "b"], None),
        "crosscoder with a target": (["a", "b"], "c"),
    }[mode]  # fmt: skip
    config = SAEConfig(kind=kind, width=32, lr=3e-3, batch_size=64, epochs=4, skip=mode == "skip", **CHOICES[kind])
    rows = training_rows(sites, config, site=site, target=target)
    state = _start(rows, config)
    for batch in rows.batches:
        x, y = rows.pair(batch)
        train_step(state, x, y, config, lr=3e-3, window=10**9)
    sae = trained_sae(state, rows, config, {})
    x, y = rows.pair(sites if len(rows.widths) > 1 else sites["b"])
    found = losses(state, x, y, config, NONE_DEAD)
    if kind in ("batchtopk", "matryoshka"):  # the batch chooses there, the threshold here
        sae = calibrate_l0(sae, x / rows.scale_in.float(), found.coded.pattern.counts.double().mean().item())
    written = sae(x / rows.scale_in.float()) * rows.scale_out.float()
    loss = (written - y).square().mean()
    torch.testing.assert_close(loss, found.loss.detach(), rtol=1e-3, atol=1e-5)


def test_a_gated_skip_transcoder_against_dense_autograd(x: Tensor) -> None:
    config = config_of("gated", skip=True)
    generator = torch.Generator().manual_seed(8)
    y = (x @ torch.randn(WIDTH, WIDTH, generator=generator).double()).relu()
    state = initial_state(x.mean(0), y.mean(0), LATENTS, config, same=False)
    for holder, names in ((vars(state), COMMON), (state.extra, tuple(state.extra))):
        for name in names:
            value = holder[name].detach().double()
            holder[name] = (value + 0.1 * torch.randn(value.shape, generator=generator).double()).requires_grad_()
    state.centre = x.mean(0)
    E, b, W, c = (getattr(state, name) for name in COMMON)
    pre = (x - state.centre) @ E.T + b
    rest = c + (x - state.centre) @ state.extra["W_skip"]
    value = ((pre - b) * state.extra["r_mag"].exp() + state.extra["b_mag"]).relu() * (pre > 0)
    auxiliary = (y - rest.detach() - pre.relu() @ W.detach()).square().mean()
    expected = (y - rest - value @ W).square().mean() + 0.2 * pre.relu().sum() / y.numel() + auxiliary
    found = losses(state, x, y, config, NONE_DEAD)
    parameters = list(state.parameters.values())
    torch.testing.assert_close(found.loss + found.penalty, expected)
    ours, theirs = (
        torch.autograd.grad(found.loss + found.penalty, parameters),
        torch.autograd.grad(expected, parameters),
    )
    for gradient, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("n_rows", [8193, 8212])
def test_a_small_last_batch_does_not_decide_the_threshold(n_rows: int) -> None:
    x, _ = planted(n_rows + 2000)
    config = SAEConfig(kind="batchtopk", k=3, width=32, lr=2e-3, batch_size=4096, epochs=6)
    sae = train_sae(x[:n_rows], config)
    assert sae.active(x[n_rows:]).counts.double().mean().item() == pytest.approx(3, rel=0.06)


def test_a_narrow_product_does_not_lower_the_threshold() -> None:
    x, _ = planted(8000)
    x = x + 300
    config = SAEConfig(kind="batchtopk", k=3, width=32, lr=2e-3, batch_size=512, epochs=4, autocast=True)
    sae = train_sae(x, config)
    assert sae.active(x).counts.double().mean().item() == pytest.approx(3, rel=0.06)


def test_a_log_that_is_no_log_is_not_lost(tmp_path: Path) -> None:
    x, _ = planted(600)
    config = SAEConfig(k=3, width=32, batch_size=100)
    notes = tmp_path / "notes.txt"
    notes.write_text("months of work\n")
    with pytest.raises(ValueError, match="holds something else than metrics"):
        train_sae(x, config, log=notes)
    assert notes.read_text() == "months of work\n"
    with pytest.raises(ValueError, match="one would overwrite the other"):
        train_sae(x, config, log=tmp_path / "a", checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="is a folder"):
        train_sae(x, config, checkpoint=tmp_path)


def test_a_finished_run_says_the_same_of_its_threshold(tmp_path: Path) -> None:
    x, _ = planted(1000)
    config = SAEConfig(kind="batchtopk", k=3, width=32, batch_size=100)
    first = train_sae(x, config, checkpoint=tmp_path / "run.safetensors")
    again = train_sae(x, config, checkpoint=tmp_path / "run.safetensors")
    assert first.card == again.card
    assert first.card["final"]["l0_of_threshold"] > 0
