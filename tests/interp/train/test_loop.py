"""The training loop against hand-written arithmetic, planted accidents, and runs without interruption."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import tiny_config, tiny_model
from torch import Tensor

from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.model.config import Experts
from interp.model.moe import expert_load
from interp.train import (
    RepeatedBatches,
    StepRecord,
    TrainConfig,
    checkpoint_steps,
    load_checkpoint,
    overfit_batch,
    pack_documents,
    repeated_sequences,
    train_model,
)

DATA = RepeatedBatches(4, 12, 258, seed=9)
FINAL = "ln_final.hook_normalized"


def weights(model: HookedTransformer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


class Stopped(Exception):
    """Raised in the middle of a run."""


def stop_at(step: int) -> Callable[[object], None]:
    def callback(record: object) -> None:
        if getattr(record, "step") == step:  # noqa: B009
            raise Stopped

    return callback


# Arithmetic -----------------------------------------------------------------------------------------------------------


def test_steps_equal_adamw_written_out_by_hand() -> None:
    model, ours = tiny_model("gpt2", scale=2.0).double(), tiny_model("gpt2", scale=2.0).double()
    config = TrainConfig(n_steps=6, lr=3e-3, warmup=0.4, weight_decay=0.2, grad_clip=0.5, betas=(0.8, 0.9))
    names = [name for name, _ in model.named_parameters()]
    decayed = {
        n for n in names if n.endswith(("q.weight", "k.weight", "v.weight", "o.weight", "up.weight", "down.weight"))
    }
    assert len(decayed) == 12
    first = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    second = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    expected_norms = []
    for step in range(6):
        lr = config.lr * ((step + 1) / 3 if step < 2 else 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 2) / 3)) / 2)
        for weight in model.parameters():
            weight.requires_grad_(True)
        found = torch.autograd.grad(model.loss(DATA(step)), list(model.parameters()))
        norm = math.sqrt(sum(float((g**2).sum()) for g in found))
        expected_norms.append(norm)
        with torch.no_grad():
            for (name, weight), grad in zip(model.named_parameters(), found, strict=True):
                grad = grad * min(1.0, 0.5 / (norm + 1e-6))
                first[name] = 0.8 * first[name] + 0.2 * grad
                second[name] = 0.9 * second[name] + 0.1 * grad**2
                mean, square = first[name] / (1 - 0.8 ** (step + 1)), second[name] / (1 - 0.9 ** (step + 1))
                if name in decayed:
                    weight.mul_(1 - lr * 0.2)
                weight.sub_(lr * mean / (square.sqrt() + 1e-8))
    result = train_model(ours, DATA, config)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=1e-8, atol=1e-10, msg=name)
    frame = result.to_frame()
    assert frame["grad_norm"].to_numpy() == pytest.approx(expected_norms, rel=1e-8)
    assert max(expected_norms) > 0.5  # so that clipping took part
    assert frame["tokens"].tolist() == [48 * (step + 1) for step in range(6)]
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_the_model_is_left_as_it_was_but_for_its_weights(tiny: HookedTransformer) -> None:
    seen = []
    before = weights(tiny)
    train_model(tiny, DATA, TrainConfig(n_steps=1, recompute=True), on_step=lambda record: seen.append(tiny.training))
    assert seen == [True]
    assert not tiny.training
    assert not tiny.checkpoint_blocks
    assert not any(weight.requires_grad or weight.grad is not None for weight in tiny.parameters())
    assert not same(before, weights(tiny))


def test_only_what_requires_gradients_is_trained(tiny: HookedTransformer) -> None:
    before = weights(tiny)
    tiny.blocks[1].requires_grad_(True)
    train_model(tiny, DATA, TrainConfig(n_steps=2))
    changed = {name for name, weight in weights(tiny).items() if not torch.equal(weight, before[name])}
    assert changed
    assert all(name.startswith("blocks.1.") for name in changed)
    assert all(weight.requires_grad == name.startswith("blocks.1.") for name, weight in tiny.named_parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_blocks_have_the_same_gradients(dropout: float) -> None:
    models = [tiny_model("llama", attention_dropout=dropout) for _ in range(2)]
    runs = [
        train_model(model, DATA, TrainConfig(n_steps=3, recompute=recompute)).to_frame()
        for model, recompute in zip(models, (False, True), strict=True)
    ]
    assert same(weights(models[0]), weights(models[1]))
    assert runs[0].equals(runs[1])


def test_autocast_comes_close_and_keeps_weights_in_fp32() -> None:
    plain, cast = tiny_model("llama", scale=2.0), tiny_model("llama", scale=2.0)
    a = train_model(plain, DATA, TrainConfig(n_steps=3)).to_frame()
    b = train_model(cast, DATA, TrainConfig(n_steps=3, autocast=True)).to_frame()
    assert all(weight.dtype == torch.float32 for weight in cast.parameters())
    assert a["loss"].to_numpy() == pytest.approx(b["loss"].to_numpy(), rel=0.01)
    assert not a["loss"].equals(b["loss"])


def test_dropout_draws_from_the_seed_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    losses = []
    for seed in (0, 0, 1):
        model = tiny_model("llama", attention_dropout=0.5)
        losses.append(train_model(model, DATA, TrainConfig(n_steps=2, seed=seed)).to_frame()["loss"].tolist())
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_one_batch_is_learnt_by_heart(tiny: HookedTransformer) -> None:
    ids = repeated_sequences(2, 16, 258, seed=0)
    result = overfit_batch(tiny, ids, n_steps=60, lr=1e-2)
    with torch.no_grad():
        assert float(tiny.loss(ids)) < 0.01
    assert result.to_frame()["loss"].iloc[0] > 3
    with pytest.raises(ValueError, match="not below"):
        overfit_batch(tiny_model(), torch.tensor([[1, 2], [1, 3]]), n_steps=20)  # one beginning, two ends


# Accidents ------------------------------------------------------------------------------------------------------------


def at_batches(numbers: set[int], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, HookContext], Tensor | None]:
    """A hook that changes the value in the passes with these numbers."""
    passes = iter(range(10**6))
    return lambda value, ctx: change(value) if next(passes) in numbers else None


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(tiny: HookedTransformer, value: float) -> None:
    records: list[StepRecord] = []
    before = weights(tiny)
    with (
        tiny.hooks({"z:0": at_batches({0}, lambda z: z * value)}),
        pytest.raises(ValueError, match="not one of 1 steps"),
    ):
        train_model(tiny, DATA, TrainConfig(n_steps=1), on_step=records.append)
    assert same(before, weights(tiny))
    assert [(record.skipped, record.loss) for record in records] == [(True, None)]

    with tiny.hooks({"z:0": at_batches({1, 3}, lambda z: z * value)}):
        result = train_model(tiny, DATA, TrainConfig(n_steps=5, spike_factor=3.0))
    assert result.to_frame()["skipped"].tolist() == [False, True, False, True, False]
    assert all(torch.isfinite(weight).all() for weight in tiny.parameters())
    assert result.to_frame()["tokens"].tolist() == [48, 48, 96, 96, 144]


def test_a_gradient_that_is_not_finite_changes_nothing(tiny: HookedTransformer) -> None:
    before = weights(tiny)

    def poison(z: Tensor, ctx: HookContext) -> Tensor:
        z = z.clone()
        z.register_hook(lambda grad: grad * math.inf)
        return z

    records: list[StepRecord] = []
    with tiny.hooks({"z:1": poison}), pytest.raises(ValueError, match="not one of 1 steps"):
        train_model(tiny, DATA, TrainConfig(n_steps=1), on_step=records.append)
    assert same(before, weights(tiny))
    record = records[0]
    assert record.skipped
    assert record.loss is not None
    assert record.grad_norm is None


def test_a_run_that_is_never_finite_fails(tiny: HookedTransformer) -> None:
    with tiny.hooks({"z:0": lambda z, ctx: z * math.nan}), pytest.raises(ValueError, match="4 steps in a row"):
        train_model(tiny, DATA, TrainConfig(n_steps=10, max_skips=3))
    assert not tiny.training


def test_a_run_without_one_finite_step_is_no_success_and_stays_none(tmp_path: Path) -> None:
    config = TrainConfig(n_steps=3, max_skips=20)
    model = tiny_model()
    message = f"not one of 3 steps .*remove {tmp_path / 'run'}"
    with model.hooks({"z:0": lambda z, ctx: z * math.nan}), pytest.raises(ValueError, match=message):
        train_model(model, DATA, config, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=message):  # nor when it is called again, and has nothing left to do
        train_model(model, DATA, config, checkpoint=tmp_path / "run")


@pytest.mark.parametrize("on_disk", [True, False])
def test_weights_that_were_never_drawn_are_refused(tmp_path: Path, on_disk: bool) -> None:
    blank = HookedTransformer(tiny_config("llama"))
    with pytest.raises(ValueError, match=r"weights of tiny-llama are NaN or infinite, embed.weight .*seed=0"):
        train_model(blank, DATA, TrainConfig(n_steps=2), checkpoint=tmp_path / "run" if on_disk else None)
    train_model(tiny_model(), DATA, TrainConfig(n_steps=2), checkpoint=tmp_path / "whole")
    train_model(blank, DATA, TrainConfig(n_steps=2), checkpoint=tmp_path / "whole")  # a checkpoint brings weights
    assert all(bool(torch.isfinite(weight).all()) for weight in blank.parameters())


def test_a_batch_with_nothing_to_predict_is_refused(tiny: HookedTransformer) -> None:
    before = weights(tiny)
    with pytest.raises(ValueError, match="batch 0 has no token that follows another"):
        train_model(tiny, [torch.tensor([[5], [6]])], TrainConfig(n_steps=2))
    alone = pack_documents([[5], [6]], 8)  # two documents of one token each, side by side
    with pytest.raises(ValueError, match="texts of two tokens or more"):
        train_model(tiny, [alone], TrainConfig(n_steps=2))
    assert same(before, weights(tiny))
    train_model(tiny, [pack_documents([[5], [6, 7]], 8)], TrainConfig(n_steps=1))


SPIKES = TrainConfig(n_steps=12, checkpoint_every=4, spike_factor=2.0, spike_window=3, lr=1e-3)


def broken_from(first: int, last: int, passes: list[int]) -> Callable[[Tensor, HookContext], Tensor | None]:
    """A hook for the final norm that makes passes `first` to `last` of the run certain of nonsense; fills `passes`."""

    def blow_up(value: Tensor, ctx: HookContext) -> Tensor | None:
        passes.append(len(passes))
        return value * 200 if first <= passes[-1] <= last else None

    return blow_up


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_spike_goes_back_and_leaves_the_batches_out(tmp_path: Path, on_disk: bool) -> None:
    def fresh() -> HookedTransformer:
        return tiny_model("gpt2", scale=1.0)

    model = fresh()
    with model.hooks({FINAL: broken_from(6, 6, [])}):
        result = train_model(model, DATA, SPIKES, checkpoint=tmp_path / "run" if on_disk else None)
    frame = result.to_frame()
    assert result.n_rewinds == 1
    spike = frame[frame["rewound"]].iloc[0]
    assert (spike["batch"], spike["step"]) == (6, 4)
    assert frame["batch"].tolist() == list(range(15))
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6, 4, *range(5, 13)]

    # The same run on data that never had batches 4 to 6.
    other = fresh()
    train_model(other, lambda index: DATA(index if index < 4 else index + 3), SPIKES)
    assert same(weights(model), weights(other))


def test_a_spike_right_after_a_checkpoint_goes_back_to_the_one_before(tmp_path: Path) -> None:
    model = tiny_model("gpt2", scale=1.0)
    with model.hooks({FINAL: broken_from(8, 8, [])}):
        result = train_model(model, DATA, SPIKES, checkpoint=tmp_path)
    assert result.to_frame()["step"].tolist() == [*range(1, 9), 4, *range(5, 13)]
    assert checkpoint_steps(tmp_path) == [0, 4, 8, 12]


def planted(index: int) -> Tensor:
    """Eight tokens, again and again; batch 27 is of tokens that never come otherwise."""
    ids = repeated_sequences(4, 12, 8, seed=index)
    return ids + 200 if index == 27 else ids


def test_a_bad_batch_is_left_out_and_an_interrupted_run_does_so_too(tmp_path: Path) -> None:
    config = TrainConfig(n_steps=36, checkpoint_every=8, spike_factor=2.0, spike_window=6, lr=1e-2, keep=1)
    model = tiny_model("llama", scale=1.0)
    expected = train_model(model, planted, config)
    assert expected.to_frame().query("rewound")[["batch", "step"]].to_numpy().tolist() == [[27, 24]]
    assert expected.n_rewinds == 1
    assert expected.final_loss < 2.5

    parts = tiny_model("llama", scale=1.0)
    for step in (25, 27):
        with pytest.raises(Stopped):
            train_model(parts, planted, config, checkpoint=tmp_path, on_step=stop_at(step))
        assert checkpoint_steps(tmp_path)[-1] == 24
    result = train_model(parts, planted, config, checkpoint=tmp_path)
    assert same(weights(model), weights(parts))
    assert result.records == expected.records


def test_too_many_spikes_fail() -> None:
    passes: list[int] = []
    model = tiny_model("gpt2", scale=1.0)
    config = TrainConfig(n_steps=12, spike_factor=2.0, spike_window=3, max_rewinds=2)
    with model.hooks({FINAL: broken_from(6, 99, passes)}), pytest.raises(ValueError, match="after 2 rewinds"):
        train_model(model, DATA, config)
    assert len(passes) == 9


# Checkpoints ----------------------------------------------------------------------------------------------------------

RESUMED = TrainConfig(n_steps=20, checkpoint_every=6, lr=3e-3, seed=4)


def dropped() -> HookedTransformer:
    return tiny_model("llama", attention_dropout=0.2)


def test_an_interrupted_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    whole, parts = dropped(), dropped()
    expected = train_model(whole, DATA, RESUMED)
    for step in (3, 6, 11, 17):
        with pytest.raises(Stopped):
            train_model(parts, DATA, RESUMED, checkpoint=tmp_path / "run", on_step=stop_at(step))
        parts = dropped()  # nothing but the folder is carried on
    result = train_model(parts, DATA, RESUMED, checkpoint=tmp_path / "run")
    assert same(weights(whole), weights(parts))
    assert result.records == expected.records
    assert checkpoint_steps(tmp_path / "run") == [0, 6, 12, 18, 20]
    lines = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines] == list(range(20))
    assert expected.save(tmp_path / "own.jsonl").read_bytes() == (tmp_path / "run" / "steps.jsonl").read_bytes()

    called = []
    again = dropped()
    train_model(again, DATA, RESUMED, checkpoint=tmp_path / "run", on_step=called.append)
    assert called == []
    assert same(weights(again), weights(whole))


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    code = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).parents[2] / "support"), str(Path(__file__).parents[3])]!r}
from tiny import tiny_model
from interp.train import RepeatedBatches, TrainConfig, train_model
train_model(
    tiny_model("llama", attention_dropout=0.2), RepeatedBatches(4, 12, 258, seed=9),
    TrainConfig(n_steps=20, checkpoint_every=6, lr=3e-3, seed=4), checkpoint={str(tmp_path / "run")!r},
    on_step=lambda record: time.sleep(0.05),
)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    )
    deadline = time.monotonic() + 60
    while 6 not in checkpoint_steps(tmp_path / "run"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert checkpoint_steps(tmp_path / "run")[-1] < 20

    whole, rest = dropped(), dropped()
    expected = train_model(whole, DATA, RESUMED)
    result = train_model(rest, DATA, RESUMED, checkpoint=tmp_path / "run")
    assert same(weights(whole), weights(rest))
    assert result.records == expected.records


def test_half_written_files_of_a_killed_process_are_passed_over(tmp_path: Path) -> None:
    model = dropped()
    with pytest.raises(Stopped):
        train_model(model, DATA, RESUMED, checkpoint=tmp_path, on_step=stop_at(8))
    leftover = tmp_path / ".step-00000012.0123456789ab.part"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    with (tmp_path / "steps.jsonl").open("a") as log:
        log.write('{"batch": 9, "st')
    rest, whole = dropped(), dropped()
    train_model(rest, DATA, RESUMED, checkpoint=tmp_path)
    train_model(whole, DATA, RESUMED)
    assert same(weights(rest), weights(whole))
    assert not leftover.exists()


def test_a_checkpoint_is_a_model(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    begin = weights(model)
    train_model(model, DATA, TrainConfig(n_steps=4, checkpoint_every=2), checkpoint=tmp_path)
    first, last = load_checkpoint(tmp_path, 0), load_checkpoint(tmp_path)
    assert same(begin, weights(first))
    assert same(weights(model), weights(last))
    assert last.cfg == model.cfg
    assert last.tokenizer is not None
    assert last.tokenizer.encode("abc") == model.tokenizer.encode("abc")
    assert torch.equal(last("abc"), model("abc"))
    assert same(weights(load_checkpoint(tmp_path / "step-00000002")), weights(load_checkpoint(tmp_path, 2)))
    with pytest.raises(ValueError, match="no checkpoint of step 3: it has steps 0, 2, 4"):
        load_checkpoint(tmp_path, 3)
    with pytest.raises(ValueError, match="no checkpoint"):
        load_checkpoint(tmp_path / "nowhere")


def test_old_checkpoints_go_where_that_is_asked_for(tmp_path: Path) -> None:
    train_model(tiny_model(), DATA, TrainConfig(n_steps=9, checkpoint_every=2, keep=2), checkpoint=tmp_path)
    assert checkpoint_steps(tmp_path) == [8, 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        "step-00000008",
        "step-00000009",
        "steps.jsonl",
    ]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    config = TrainConfig(n_steps=2)
    train_model(tiny_model(), DATA, config, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="config: lr differ"):
        train_model(tiny_model(), DATA, TrainConfig(n_steps=2, lr=2e-3), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="first batch differ"):
        train_model(tiny_model(), RepeatedBatches(4, 12, 258, seed=8), config, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"model: .*d_model"):
        train_model(tiny_model(d_model=64), DATA, config, checkpoint=tmp_path)


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"not empty \('thesis.tex' lies there\)"):
        train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint=run)
    (run / "notes.txt").write_text("beside a run all may lie")
    train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint=run)
    with pytest.raises(ValueError, match="has no checkpoints and is not empty"):
        train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint=run / "step-00000001")


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="file is a file; checkpoints need a folder"):
        train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint=file)
    with pytest.raises(ValueError, match=r"file/run cannot be made or read \(Not a directory\)"):
        train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint=file / "run")
    if Path("/proc").is_dir():
        with pytest.raises(ValueError, match="/proc/run cannot be made"):
            train_model(tiny_model(), DATA, TrainConfig(n_steps=1), checkpoint="/proc/run")


def test_a_damaged_checkpoint_says_what_to_remove_to_go_on(tmp_path: Path) -> None:
    whole, run = dropped(), tmp_path / "run"
    expected = train_model(whole, DATA, RESUMED, checkpoint=run)
    for name, damage in (
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-100])),
        ("training.safetensors", Path.unlink),
    ):
        damage(run / "step-00000020" / name)
        message = f"step 20 is damaged: .*step 18 is whole: remove {run / 'step-00000020'} to go on"
        with pytest.raises(ValueError, match=message):
            train_model(dropped(), DATA, RESUMED, checkpoint=run)
        shutil.rmtree(run / "step-00000020")
        rest = dropped()
        assert train_model(rest, DATA, RESUMED, checkpoint=run).records == expected.records
        assert same(weights(rest), weights(whole))

    for step in (12, 18, 20):
        (run / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"step 6 is whole: remove .*step-00000020 and .*step-00000018 and .*step-00000012"
    ):
        train_model(dropped(), DATA, RESUMED, checkpoint=run)
    for step in (0, 6):
        (run / f"step-{step:08d}" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=f"No whole one comes before it: remove {run} to begin anew"):
        train_model(dropped(), DATA, RESUMED, checkpoint=run)


def test_a_damaged_log_says_which_line(tmp_path: Path) -> None:
    config = TrainConfig(n_steps=3)
    train_model(tiny_model(), DATA, config, checkpoint=tmp_path)
    log = tmp_path / "steps.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0], '{"batch": 1}', lines[2], ""]))
    with pytest.raises(ValueError, match=r"line 2 of .*steps.jsonl is damaged: remove the file"):
        train_model(tiny_model(), DATA, config, checkpoint=tmp_path)
    log.unlink()
    assert train_model(tiny_model(), DATA, config, checkpoint=tmp_path).records == ()


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    def second(record: object) -> None:
        train_model(tiny_model(), DATA, TrainConfig(n_steps=2), checkpoint=tmp_path)

    with pytest.raises(ValueError, match="another process"):
        train_model(tiny_model(), DATA, TrainConfig(n_steps=2), checkpoint=tmp_path, on_step=second)


# Experts and refusals -------------------------------------------------------------------------------------------------


def routed(bias: bool = False) -> HookedTransformer:
    """A model whose routers send most tokens to the first experts."""
    model = tiny_model("llama", experts=Experts(n_experts=4, top_k=1, d_expert=16, bias=bias))
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.router.weight.mul_(0.2)
            block.mlp.router.weight[0] *= 1 if bias else 4
            if bias:
                block.mlp.router.bias.copy_(torch.tensor([0.1, 0.0, 0.0, 0.0]))
    return model


def imbalance(model: HookedTransformer) -> float:
    """Largest share of an expert, mean over layers."""
    return float(expert_load(model, repeated_sequences(64, 12, 258, seed=5)).groupby("layer")["share"].max().mean())


def test_the_balancing_loss_evens_the_load() -> None:
    plain, balanced = routed(), routed()
    before = imbalance(plain)
    a = train_model(plain, DATA, TrainConfig(n_steps=20))
    b = train_model(balanced, DATA, TrainConfig(n_steps=20, balance=1.0))
    assert imbalance(balanced) < min(before, imbalance(plain)) - 0.02
    assert b.to_frame()["loss"].iloc[0] > a.to_frame()["loss"].iloc[0]


def test_the_choice_bias_evens_the_load_and_has_no_gradient() -> None:
    model = routed(bias=True)
    before = imbalance(model)
    train_model(model, DATA, TrainConfig(n_steps=20, lr=1e-6, balance_rate=0.005))
    biases = [block.mlp.router.bias for block in model.blocks]
    assert all(bool((bias != 0).any()) and not bias.requires_grad for bias in biases)
    steps = torch.stack(list(biases)) / 0.005
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)  # whole steps of the rate, nothing of AdamW's
    assert imbalance(model) < before - 0.05


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"causal": False}, {}, "encoder"),
        ({}, {"balance": 0.1}, "no experts"),
        ({}, {"balance_rate": 0.1}, "bias=True"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: dict, config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_model(tiny_model("gpt2", **changes), DATA, TrainConfig(n_steps=1, **config))


def test_half_precision_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        train_model(tiny_model().bfloat16(), DATA, TrainConfig(n_steps=1))
