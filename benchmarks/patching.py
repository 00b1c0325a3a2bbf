"""Sweeps of activation patches against TransformerLens' own sweep functions.

Same weights, prompts, dtype and threads, in one run, each contestant once a round. A figure is the whole job: the clean and
the corrupted run, and every patch. The peer's metric reads the same logit difference and is normalised in the same way.

    python benchmarks/patching.py
    python benchmarks/patching.py --rounds 7
    python benchmarks/patching.py --only resid_pre      # 12 minutes on two cores; both cases take 25
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # the peer draws a bar for every patch

import peers
import torch
from measure import alternate, ratio, report
from torch import Tensor
from transformer_lens import patching as lens_patching

import interp
from interp.model import HookedTransformer
from interp.task import PromptPairs, task_pairs

CASES = (
    ("resid_pre by position", "resid_pre", lens_patching.get_act_patch_resid_pre),
    ("z by head", "z", lens_patching.get_act_patch_attn_head_out_all_pos),
)


def main() -> None:
    """Every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    ours, lens = interp.load("smollm2-135m"), peers.hooked_transformer(torch.float32)
    report("patching", [row(ours, lens, *case, options.rounds) for case in CASES if options.only in case[0]])


def row(
    ours: HookedTransformer, lens: Any, name: str, site: str, sweep: Callable[..., Tensor], rounds: int
) -> dict[str, Any]:
    """One case: seconds of both, the ratio, and how far the figures are apart."""
    pairs = task_pairs(ours, "capitals", 1)
    found: dict[str, Tensor] = {}

    def our_sweep() -> None:
        result = interp.patch_sweep(ours, pairs, site=site)
        found["ours"] = torch.tensor(result.grid())

    def lens_sweep() -> None:
        found["lens"] = lens_run(lens, pairs, sweep)

    seconds = alternate({"ours": our_sweep, "TransformerLens": lens_sweep}, rounds)
    apart = float((found["ours"] - found["lens"].double()).abs().max())
    assert apart < 1e-4, f"{name}: the figures are {apart} apart"
    return {
        "case": name,
        "patches": found["ours"].numel(),
        "tokens": pairs.clean.ids.shape[1],
        "ours_s": sorted(seconds["ours"])[rounds // 2],
        "lens_s": sorted(seconds["TransformerLens"])[rounds // 2],
        "ratio": ratio(seconds, "ours", "TransformerLens"),
        "largest_difference": apart,
        "rounds": rounds,
    }


@torch.no_grad()
def lens_run(lens: Any, pairs: PromptPairs, sweep: Callable[..., Tensor]) -> Tensor:
    """The peer's sweep, with the two runs that it needs."""
    assert pairs.against is not None
    rows, answer, against = torch.arange(len(pairs)), pairs.answer, pairs.against

    def difference(logits: Tensor) -> Tensor:
        last = logits[:, -1]
        return (last[rows, answer] - last[rows, against]).mean()

    clean_logits, cache = lens.run_with_cache(pairs.clean.ids)
    low, high = difference(lens(pairs.corrupted.ids)), difference(clean_logits)
    return sweep(lens, pairs.corrupted.ids, cache, lambda logits: (difference(logits) - low) / (high - low))


if __name__ == "__main__":
    main()
