"""Training sparse autoencoders against SAELens and dictionary_learning: speed, the same loss, and quality.

All on real rows: the stream after block 15 of SmolLM2-135M on WikiText, typical rows only, recorded once into
`$INTERP_HOME/benchmarks`. d 576, 4,608 latents, k 32, fp32.

- `--speed`: seconds of a whole step (batch, forward, backward, clipping, Adam) in each one's own loop: `train_sae` on a
  tensor of rows, and SAELens' `SAETrainer.fit`, handed the same batches, shuffled and scaled already. The same initial
  weights; the loss of the first step must be the same. Beside them the encoder's matrix product alone: what no step can be
  faster than. SAELens' TopK runs in its usual form and with `use_sparse_activations`. AuxK is off in both, for no latent
  counts as dead; the last row has it on, in bare steps (`train_step`, `SAETrainer.step`) with a tenth of the latents dead.
- `--loss`: 500 steps of both on the same batches from the same weights, at the same rate.
- `--quality`: held-out FVU at L0 32, each by its own recipe, on other texts than those of training. The same rows, epochs
  and batch size for all. Peers run at the rate of their recipe and, in a second row, at ours.

    python benchmarks/sae.py                                                      # speed: about 4 minutes
    python benchmarks/sae.py --loss                                               # about 12 minutes
    python benchmarks/sae.py --quality                                            # about an hour
    python benchmarks/sae.py --quality --rows 20000 --epochs 1 --seeds 1          # to try it: 2 minutes
"""

import argparse
import dataclasses
import json
import logging
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")

import torch
from measure import ratio, report
from sae_peers import (
    FirstBatches,
    dictionary_learning_topk,
    has_dictionary_learning,
    saelens_fit,
    saelens_topk,
    saelens_twin,
)
from torch import Tensor

import interp
from interp.dataset import Example
from interp.sae import SAE, SAEConfig, evaluate_sae, pca_baseline, split_rows, train_sae
from interp.sae.config import BatchTopKConfig, JumpReLUConfig, TopKConfig
from interp.sae.rows import TrainingRows, training_rows
from interp.sae.step import TrainState, initial_state, train_step
from interp.sae.tensors import tensor_batches
from interp.store import Store

DATA = Path(__file__).parents[2] / "shared" / "data"
SITE = "blocks.15.hook_resid_post"
K, LATENTS, BATCH = 32, 4608, 4096
RATE = 6e-3
"""Our learning rate where a run has only hundreds of steps; the default follows a rule for long ones."""


def main() -> None:
    """What the flags ask for; speed without any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--loss", action="store_true")
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of --speed")
    parser.add_argument("--round-steps", type=int, default=5, help="steps that a round of --speed measures")
    parser.add_argument("--steps", type=int, default=500, help="of --loss")
    parser.add_argument("--rows", type=int, default=200_000, help="to train on")
    parser.add_argument("--epochs", type=int, default=4, help="of --quality")
    parser.add_argument("--seeds", type=int, default=3, help="of --quality")
    parser.add_argument("--batch-size", type=int, default=2048, help="of --quality")
    parser.add_argument("--only", default="", help="of --quality: contestants whose name holds this, as in 'lr 0.006'")
    options = parser.parse_args()
    store = wikitext_store(options.rows)
    train, held_out = split_rows(store, 0.2)
    train = train[store.typical(SITE)[train]][: options.rows]
    if options.speed or not (options.loss or options.quality):
        n_batches = min(options.round_steps + 1, len(train) // BATCH)
        assert n_batches > 1, f"speed takes two batches of {BATCH} at least: give more --rows than {options.rows}"
        report("sae_speed", speed(store.rows(SITE, train[: BATCH * n_batches]), options.rounds))
    if options.loss:
        report("sae_loss", [same_loss(store.rows(SITE, train), options.steps)])
    if options.quality:
        held_out = held_out[store.typical(SITE)[held_out]]
        report("sae_quality", quality(store.rows(SITE, train), store.rows(SITE, held_out), options))


def wikitext_store(n_rows: int) -> Store:
    """Rows of whole articles, in pieces of 128 tokens: n_rows to train on, and a fifth of all to hold out."""
    text = (DATA / "wikitext-2" / "valid.txt").read_text()
    articles = [article for article in re.split(r"(?m)^(?= = [^=\n]+ = $)", text) if article.strip()]
    n_articles, characters = 0, 0
    while n_articles < len(articles) and characters < 4.7 * n_rows / 0.8:  # a token has 4.4 characters here
        characters += len(articles[n_articles])
        n_articles += 1
    path = interp.artifact.home() / "benchmarks" / f"sae_wikitext_{n_articles}"
    examples = [Example(article, group=str(number)) for number, article in enumerate(articles[:n_articles])]
    if not path.exists():
        print(f"recording {n_articles} articles, once: 3 minutes for all", flush=True)
    model = interp.load("smollm2-135m")
    return interp.record(model, examples, SITE, path=path, long="chunk", max_length=128, progress=False)


# ------------------------------------------------------------------------------------------------------------- speed


def speed(x: Tensor, rounds: int) -> list[dict[str, Any]]:
    """A row for each kind, and one for TopK with AuxK on."""
    logging.getLogger("interp.sae").setLevel(logging.ERROR)  # a few steps teach no threshold, and need not
    common: dict[str, Any] = {"width": LATENTS, "batch_size": BATCH, "lr": 4e-4, "warmup": 0.0, "decay": 0.0}
    common["grad_clip"] = 1 / x.shape[1]  # SAELens clips at 1 a loss that is summed over dimensions
    topk = TopKConfig(k=K, aux_alpha=0.0, **common)
    batchtopk = BatchTopKConfig(k=K, aux_alpha=0.0, **common)
    # A threshold at which about 32 latents fire at the start, so that both have the work of a trained one.
    level = level_of(x, topk)
    jumprelu = JumpReLUConfig(
        l0_coefficient=1e-3 / x.shape[1], initial_threshold=level, threshold_lr=1.0, sparsity_warmup=0.0,
        **common,
    )  # fmt: skip
    bound = encoder_product(x)
    return [
        kind_row(x, topk, bound, rounds, forms=(False, True)),
        kind_row(x, batchtopk, bound, rounds),
        kind_row(x, jumprelu, bound, rounds),
        aux_row(x, dataclasses.replace(topk, aux_alpha=1 / 32), level, bound, rounds),
    ]


def kind_row(
    x: Tensor, config: Any, bound: Callable[[], float], rounds: int, forms: tuple[bool, ...] = (False,)
) -> dict[str, Any]:
    """`train_sae` and SAELens' `fit`; `forms` of SAELens' activations: sparse or not."""
    rows, state = start_of(x, config)
    batches = [rows.pair(batch)[0] for batch in rows.batches]
    with tempfile.TemporaryDirectory() as folder:
        lines, _ = logged(x, config, Path(folder) / "log.jsonl")
    ours = lines[0]["loss"]
    theirs = saelens_twin(config, state, batches, 1).step(batches[0]).losses["mse_loss"].item() / x.shape[1]
    assert abs(ours - theirs) < 1e-4 * theirs, f"{config.kind}: the first loss is {ours} here and {theirs} in SAELens"

    def saelens(sparse: bool) -> Callable[[], float]:
        return lambda: saelens_fit(saelens_twin(config, state, batches, len(batches), sparse=sparse))

    contestants = {"ours": lambda: our_step(x, config), "bound": bound}
    contestants |= {"saelens_sparse" if sparse else "saelens": saelens(sparse) for sparse in forms}
    facts = {"active": lines[-1]["active"], "first_loss": ours, "first_loss_difference": abs(ours - theirs) / theirs}
    return compared(f"{config.kind}, AuxK off", contestants, rounds) | facts | {"steps_a_round": len(batches) - 1}


def aux_row(x: Tensor, config: Any, level: float, bound: Callable[[], float], rounds: int) -> dict[str, Any]:
    """Bare steps with AuxK, while a tenth of the latents are dead: their bias keeps them from firing."""
    rows, state = start_of(x, config)
    batches = [rows.pair(batch)[0] for batch in rows.batches]
    n_dead, ages = LATENTS // 10, 10**6
    with torch.no_grad():
        state.b_enc[:n_dead] -= level
    state.rows_since_fired[:n_dead] = ages
    trainer = saelens_twin(config, state, batches, len(batches), aux=True)
    trainer.n_forward_passes_since_fired[:n_dead] = ages
    seen = {}

    def ours() -> float:
        start = time.perf_counter()
        for batch in batches:
            seen["ours"] = train_step(state, batch, batch, config, lr=config.lr, window=ages).n_dead
        return (time.perf_counter() - start) / len(batches)

    def saelens() -> float:
        start = time.perf_counter()
        for batch in batches:
            trainer.step(batch)
        seen["saelens"] = int(trainer.dead_neurons.sum())
        return (time.perf_counter() - start) / len(batches)

    found = compared("topk, AuxK on", {"ours": ours, "bound": bound, "saelens": saelens}, rounds)
    return found | {"dead": seen["ours"], "saelens_dead": seen["saelens"], "steps_a_round": len(batches)}


def compared(case: str, contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Milliseconds of a step, how often ours fits into a peer's, and the bound's share of ours: medians over rounds.

    Each contestant gives the seconds of one of its steps, once a round, after a round that does not count.
    """
    turns = [{name: run() for name, run in contestants.items()} for _ in range(rounds + 1)][1:]
    seconds = {name: [turn[name] for turn in turns] for name in contestants}
    found: dict[str, Any] = {"case": case, "activations_per_s": BATCH / statistics.median(seconds["ours"])}
    found |= {f"{name}_ms": 1000 * statistics.median(values) for name, values in seconds.items()}
    peers = [name for name in contestants if name.startswith("saelens")]
    found |= {f"{name}_over_ours": ratio(seconds, "ours", name) for name in peers}
    return found | {"share_of_bound": ratio(seconds, "ours", "bound"), "rounds": rounds}


def our_step(x: Tensor, config: Any) -> float:
    """Seconds of a step of `train_sae`, without the first one."""
    done: list[float] = []
    train_sae(x, config, progress=lambda *_: done.append(time.perf_counter()))
    return (done[-1] - done[0]) / (len(done) - 1)


def encoder_product(x: Tensor, repeats: int = 3) -> Callable[[], float]:
    """Seconds of the encoder's product on a batch, bias included; the faster of the two layouts of the weight."""
    weight, bias, x = torch.randn(LATENTS, x.shape[1]), torch.randn(LATENTS), x[:BATCH].clone()
    layouts = (weight.T, weight.T.contiguous())

    @torch.no_grad()
    def product() -> float:
        found = []
        for layout in layouts:
            start = time.perf_counter()
            for _ in range(repeats):
                torch.addmm(bias, x, layout)
            found.append((time.perf_counter() - start) / repeats)
        return min(found)

    return product


def start_of(x: Tensor | Iterable[Tensor], config: Any) -> tuple[TrainingRows, TrainState]:
    """The rows as `train_sae` reads them, and the parameters with which it begins."""
    rows = training_rows(x, config)
    return rows, initial_state(rows.mean_in * rows.scale_in, rows.mean_out * rows.scale_out, LATENTS, config)


def level_of(x: Tensor, config: Any) -> float:
    """The pre-activation that 32 latents of a row exceed at the start, on average."""
    rows, state = start_of(x, config)
    scaled, _ = rows.pair(next(iter(rows.batches)))
    with torch.no_grad():
        pre = (scaled[:512] - state.b_dec) @ state.encoder.T
    return pre.flatten().topk(512 * K).values.min().item()


def logged(x: Any, config: Any, log: Path) -> tuple[list[dict[str, Any]], SAE]:
    """The metrics of every step, and what was trained."""
    sae = train_sae(x, dataclasses.replace(config, log_every=1), log=log)
    return [json.loads(line) for line in log.read_text().splitlines()], sae


# -------------------------------------------------------------------------------------------------------------- loss


def same_loss(x: Tensor, n_steps: int) -> dict[str, Any]:
    """Both after n steps from the same weights on the same batches: the mean loss of the last tenth of the steps."""
    config = TopKConfig(
        k=K, width=LATENTS, batch_size=BATCH, lr=4e-4, warmup=0.0, decay=0.0, aux_alpha=0.0,
        grad_clip=1 / x.shape[1],
    )  # fmt: skip
    usable = x[: len(x) // BATCH * BATCH]
    epochs = n_steps // max(1, len(usable) // BATCH) + 1
    batches = FirstBatches(tensor_batches(usable, size=BATCH, seed=0, epochs=epochs), n_steps)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        lines, _ = logged(batches, config, Path(folder) / "log.jsonl")
        our_seconds = time.perf_counter() - start
    rows, state = start_of(batches, config)
    trainer = saelens_twin(config, state, (rows.pair(batch)[0] for batch in batches), n_steps)
    theirs = []
    start = time.perf_counter()
    for batch in batches:
        output = trainer.step(rows.pair(batch)[0])
        trainer.n_training_steps += 1
        theirs.append(output.losses["mse_loss"].item() / x.shape[1])
    last = max(1, n_steps // 10)
    ours = [line["loss"] for line in lines]
    own, peer = statistics.fmean(ours[-last:]), statistics.fmean(theirs[-last:])
    assert len(ours) == len(theirs) == n_steps
    return {
        "steps": n_steps,
        "loss": own,
        "saelens_loss": peer,
        "over_saelens": own / peer,
        "losses_at_tenths": _at_tenths(ours),
        "saelens_losses_at_tenths": _at_tenths(theirs),
        "seconds": our_seconds,
        "saelens_seconds": time.perf_counter() - start,
    }


def _at_tenths(losses: list[float]) -> list[float]:
    return [round(losses[max(1, len(losses) * tenth // 10) - 1], 5) for tenth in range(1, 11)]


# ----------------------------------------------------------------------------------------------------------- quality


def quality(x: Tensor, held_out: Tensor, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contestant: mean, least and greatest over seeds; and PCA, for orientation."""
    per_epoch = -(-len(x) // options.batch_size)
    n_steps = options.epochs * per_epoch
    makers = {name: make for name, make in contestants(x, n_steps, options).items() if options.only in name}
    assert makers, f"no contestant is named {options.only!r}"
    found: dict[str, list[dict[str, float]]] = {name: [] for name in makers}
    for seed in range(options.seeds):
        for name, make in makers.items():
            start = time.perf_counter()
            sae = make(seed)
            seconds = time.perf_counter() - start
            measured = evaluate_sae(sae, held_out)
            figures = {name: getattr(measured, name) for name in ("fvu", "l0", "dead_share", "cosine", "relative_norm")}
            found[name].append({**figures, "seconds": seconds})
            print(json.dumps({"contestant": name, "seed": seed, **found[name][-1]}), flush=True)
    budget = {"rows": len(x), "held_out": len(held_out), "epochs": options.epochs, "steps": n_steps}
    rows = [{"contestant": name, **_over_seeds(figures), **budget} for name, figures in found.items()]
    pca = pca_baseline(x, held_out, ranks=(32, 64, 128))
    return rows + [{"contestant": f"PCA of rank {rank}", "fvu": fvu} for rank, fvu in zip(pca["rank"], pca["fvu"])]


def contestants(x: Tensor, n_steps: int, options: argparse.Namespace) -> dict[str, Callable[[int], SAE]]:
    """Name -> what trains one with a seed."""
    common = {"k": K, "width": LATENTS, "batch_size": options.batch_size, "epochs": options.epochs}

    def ours(kind: str, lr: float | None) -> Callable[[int], SAE]:
        return lambda seed: train_sae(x, SAEConfig(kind=kind, lr=lr, seed=seed, **common))

    def peer(train: Callable[..., SAE], lr: float | None) -> Callable[[int], SAE]:
        def made(seed: int) -> SAE:
            batches = tensor_batches(x, size=options.batch_size, seed=seed, epochs=options.epochs)
            return train(batches, n_steps, k=K, n_latents=LATENTS, lr=lr, seed=seed)

        return made

    found = {f"ours, topk, lr {RATE:g}": ours("topk", RATE), f"ours, batchtopk, lr {RATE:g}": ours("batchtopk", RATE)}
    found |= {"ours, topk, default lr": ours("topk", None)}
    found |= {f"SAELens, topk, lr {lr:g}": peer(saelens_topk, lr) for lr in (3e-4, RATE)}
    if not has_dictionary_learning():
        print("dictionary_learning is not installed (see sae_peers.py): its rows are left out", flush=True)
        return found
    found |= {"dictionary_learning, topk, default lr": peer(dictionary_learning_topk, None)}
    return found | {f"dictionary_learning, topk, lr {RATE:g}": peer(dictionary_learning_topk, RATE)}


def _over_seeds(figures: list[dict[str, float]]) -> dict[str, float]:
    over: dict[str, float] = {"seeds": len(figures)}
    for name in figures[0]:
        values = [one[name] for one in figures]
        over |= {name: statistics.fmean(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    return over


if __name__ == "__main__":
    main()
