"""Head scores and head attribution against TransformerLens, with the memory that each takes.

Same weights, token ids, dtype and threads, in one run, each contestant once a round; peak memory is that of a process of
its own, above what it holds once the model is loaded and has run one short text.

    python benchmarks/heads.py
    python benchmarks/heads.py --rounds 7
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peers
import torch
from measure import alternate, ratio, report
from torch import Tensor

import interp
from interp.attribution.direct import direct_logit_attribution
from interp.model import HookedTransformer

ROWS, PERIOD, LENGTH = 8, 64, 256
OFFSETS = {"induction": PERIOD - 1, "duplicate_token": PERIOD, "previous_token": 1, "current_token": 0}
DETECTED = ("previous_token_head", "duplicate_token_head", "induction_head")
CASES = ("scores", "attribution")


def main() -> None:
    """Both cases; with `--peak`, the memory of one contestant in this process alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "CONTESTANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        case, contestant = options.peak
        print(json.dumps(peak_of(case, contestant)))
        return
    ours, lens = interp.load("smollm2-135m"), peers.hooked_transformer(torch.float32)
    with torch.no_grad():
        rows = [scores_row(ours, lens, options.rounds), attribution_row(ours, lens, options.rounds)]
    report("heads", rows)


# ----------------------------------------------------------------------------------------------------------- scores


def repeated_ids() -> Tensor:
    """Random tokens twice behind one id 1."""
    ids = torch.randint(1000, 40000, (ROWS, PERIOD), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.ones(ROWS, 1, dtype=torch.long), ids, ids], 1)


def our_scores(model: HookedTransformer, ids: Tensor) -> dict[str, Tensor]:
    """Every metric [layer head] of `head_scores`, with its nulls and losses, which the peer does not make."""
    found = interp.head_scores(model, ids, period=PERIOD)
    return {name: found.scores[name].mean(-1) for name in (*OFFSETS, "first_token", "attention_entropy")}


def lens_scores(lens: Any, ids: Tensor) -> dict[str, Tensor]:
    """The same of the peer's cached patterns: the usual recipe, with the diagonals cut to the queries that count."""
    _, cache = lens.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"))
    patterns = torch.stack([cache["pattern", layer] for layer in range(lens.cfg.n_layers)])
    found = {}
    for name, distance in OFFSETS.items():
        diagonal = patterns.diagonal(-distance, -2, -1)
        start = 2 if name == "previous_token" else PERIOD + 1
        found[name] = diagonal[..., start - distance :].mean(-1).mean(1)
    found["first_token"] = patterns[..., PERIOD + 1 :, 0].mean(-1).mean(1)
    found["attention_entropy"] = torch.special.entr(patterns[..., PERIOD + 1 :, :]).sum(-1).mean(-1).mean(1)
    return found


def lens_detects(lens: Any, ids: Tensor) -> list[Tensor]:
    """The peer's own detector: one kind and one sequence a call, since it takes no batch."""
    from transformer_lens.head_detector import detect_head

    found = []
    for tokens in ids[:, None]:
        # It reads text alone, and random ids are no text: it is handed the ids where it asks for the text's tokens.
        lens.to_tokens = lambda text, tokens=tokens: tokens  # noqa: ARG005
        found += [detect_head(lens, "", kind) for kind in DETECTED]
    return found


def scores_row(ours: HookedTransformer, lens: Any, rounds: int) -> dict[str, Any]:
    """All scores of all heads."""
    ids = repeated_ids()
    own, theirs = our_scores(ours, ids), lens_scores(lens, ids)
    differences = {name: float((own[name] - theirs[name]).abs().max()) for name in own}
    assert max(differences.values()) < 1e-4, f"the contestants computed different things: {differences}"
    contestants: dict[str, Callable[[], Any]] = {
        "ours": lambda: our_scores(ours, ids),
        "transformer_lens": lambda: lens_scores(lens, ids),
        "detect_head": lambda: lens_detects(lens, ids),
    }
    return row("scores", f"all head scores, {ROWS}x{2 * PERIOD + 1}", contestants, rounds, max(differences.values()))


# ------------------------------------------------------------------------------------------------------ attribution


def prompt_ids() -> Tensor:
    """One long row of random tokens."""
    return torch.randint(1000, 40000, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def our_attribution(model: HookedTransformer, ids: Tensor) -> Tensor:
    """Logit of the next token from every head, [layer head pos], at every place but the last."""
    found = direct_logit_attribution(model, ids, by="head", pos="all")
    heads = [index for index, label in enumerate(found.labels) if label[3] >= 0]
    return found.values[heads].unflatten(0, (model.cfg.n_layers, model.cfg.n_heads)).float()


def lens_attribution(lens: Any, ids: Tensor) -> Tensor:
    """The same by the peer's recipe: every head's output at every place, then the product with the answers."""
    _, cache = lens.run_with_cache(ids)
    stack = cache.stack_head_results(layer=-1)
    answers = lens.W_U.T[ids[0, 1:]] * lens.ln_final.w
    scaled = cache.apply_ln_to_stack(stack, layer=-1)[:, 0, :-1]
    return torch.einsum("hpd,pd->hp", scaled, answers).unflatten(0, (lens.cfg.n_layers, lens.cfg.n_heads))


def attribution_row(ours: HookedTransformer, lens: Any, rounds: int) -> dict[str, Any]:
    """Each head's share of every next token's logit."""
    ids = prompt_ids()
    own, theirs = our_attribution(ours, ids), lens_attribution(lens, ids)
    # The first place carries a stream a hundred times as long as the others': its parts are compared by their size.
    difference = float(((own - theirs).abs() / theirs.abs().clamp(min=1.0)).max())
    assert difference < 1e-4, f"the contestants computed different things: {difference}"
    contestants = {"ours": lambda: our_attribution(ours, ids), "transformer_lens": lambda: lens_attribution(lens, ids)}
    return row("attribution", f"head attribution, {LENGTH} tokens", contestants, rounds, difference)


# ---------------------------------------------------------------------------------------------------- what rows hold


def row(
    case: str, what: str, contestants: dict[str, Callable[[], Any]], rounds: int, difference: float
) -> dict[str, Any]:
    """Median seconds and peak memory of each, and how many times ours they are."""
    seconds = alternate(contestants, rounds)
    found: dict[str, Any] = {"what": what}
    found |= {f"{name}_s": statistics.median(values) for name, values in seconds.items()}
    found |= {f"{name}_over_ours": ratio(seconds, "ours", name) for name in contestants if name != "ours"}
    peaks = {name: in_process_of_its_own(case, name) for name in contestants}
    found |= {f"{name}_peak_mb": peak for name, peak in peaks.items()}
    found |= {f"{name}_peak_over_ours": peaks[name] / peaks["ours"] for name in peaks if name != "ours"}
    return found | {"rounds": rounds, "max_difference": difference}


def in_process_of_its_own(case: str, contestant: str) -> float:
    """MB above the loaded model."""
    command = [sys.executable, __file__, "--peak", case, contestant]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def peak_of(case: str, contestant: str) -> float:
    """MB of resident memory that one run takes above what the process held before, sampled each millisecond."""
    assert case in CASES, f"there is no case {case!r}"
    model = interp.load("smollm2-135m") if contestant == "ours" else peers.hooked_transformer(torch.float32)
    runs: dict[str, Callable[..., Any]] = {
        "scores ours": our_scores, "scores transformer_lens": lens_scores, "scores detect_head": lens_detects,
        "attribution ours": our_attribution, "attribution transformer_lens": lens_attribution,
    }  # fmt: skip
    run, ids = runs[f"{case} {contestant}"], repeated_ids() if case == "scores" else prompt_ids()
    with torch.no_grad():
        model(ids[:1, :8])
        before, highest, done = resident(), [0], threading.Event()

        def watch() -> None:
            while not done.is_set():
                highest[0] = max(highest[0], resident())
                time.sleep(0.001)

        watcher = threading.Thread(target=watch)
        watcher.start()
        run(model, ids)
        done.set()
        watcher.join()
    return max(highest[0] - before, 1) / 1e6


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
