"""Do the autoencoders find features that are known? Every kind on activations made of a planted dictionary.

The features overlap, fire with Zipf's frequencies and in company (`interp.sae.planted`); the autoencoder has as many latents
as there are features, and its sparsity is set to about the mean number of features in a row. For each kind: the mean
cosine of features and latents matched one to one, of all features and of the more frequent half, beside that of the same
latents turned at random; FVU and L0 on rows that training never saw, and the share of latents that fire on none of them.
The true codes have an FVU too, that of the noise.

    python benchmarks/sae_planted.py                     # about 3 minutes
    python benchmarks/sae_planted.py --rows 20000        # to try it
"""

import argparse
import statistics
import time
from typing import Any

import torch
from measure import report

from interp.sae import SAE, SAEConfig, evaluate_sae, train_sae
from interp.sae.planted import PlantedDictionary, PlantedRows, planted_dictionary
from interp.sae.stability import matched_cosine

FEATURES, WIDTH, MOST_FREQUENT = 256, 96, 0.25
KINDS: dict[str, dict[str, Any]] = {
    "topk": {},
    "batchtopk": {},
    "matryoshka": {},
    "jumprelu": {},
    "gated": {"l1": 5.0},
    "standard": {"l1": 4.0},
}
"""What each kind is told besides the common choices; the L1 weights bring L0 near the number of features in a row."""


def main() -> None:
    """A row for the truth, and one for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    planted = planted_dictionary(FEATURES, WIDTH, seed=0, most_frequent=MOST_FREQUENT)
    train, held_out = planted.rows(options.rows, 0).activations, planted.rows(20_000, 1)
    rows = [truth(planted, held_out)]
    for kind in KINDS:
        found = [one(kind, seed, train, planted, held_out, options.epochs) for seed in range(options.seeds)]
        rows.append({"kind": kind, **{name: statistics.fmean(run[name] for run in found) for name in found[0]}})
    budget = {
        "features": FEATURES,
        "width": WIDTH,
        "rows": options.rows,
        "epochs": options.epochs,
        "seeds": options.seeds,
    }
    report("sae_planted", [row | budget for row in rows])


def one(
    kind: str, seed: int, train: torch.Tensor, planted: PlantedDictionary, held_out: PlantedRows, epochs: int
) -> dict[str, float]:
    """Train one kind and compare it with the truth."""
    sparsity = {"l0": planted.l0} if kind == "jumprelu" else {} if "l1" in KINDS[kind] else {"k": round(planted.l0)}
    config = SAEConfig(
        kind=kind, width=FEATURES, lr=3e-3, batch_size=512, epochs=epochs, seed=seed, **sparsity, **KINDS[kind]
    )
    start = time.perf_counter()
    sae = train_sae(train, config)
    seconds = time.perf_counter() - start
    return {**figures(sae, planted, held_out), "seconds": seconds}


def figures(sae: SAE, planted: PlantedDictionary, held_out: PlantedRows) -> dict[str, float]:
    """How near the latents come to the features, and what they explain."""
    measured = evaluate_sae(sae, held_out.activations)
    match = matched_cosine(planted.directions, sae)
    frequent = match.latent_a < FEATURES // 2
    return {
        "matched_cosine": match.mean_matched,
        "matched_cosine_of_chance": match.null_matched.mean().item(),
        "matched_cosine_frequent_half": match.cosine[frequent].mean().item(),
        "fvu": measured.fvu,
        "l0": measured.l0,
        "dead_share": measured.dead_share,
    }


def truth(planted: PlantedDictionary, held_out: PlantedRows) -> dict[str, Any]:
    """What the true codes explain."""
    x = held_out.activations.double()
    x_hat = held_out.codes.dense(FEATURES).double() @ planted.directions.double()
    return {
        "kind": "truth",
        "fvu": ((x - x_hat).square().sum() / (x - x.mean(0)).square().sum()).item(),
        "l0": held_out.codes.counts.double().mean().item(),
        "matched_cosine": 1.0,
    }


if __name__ == "__main__":
    main()
