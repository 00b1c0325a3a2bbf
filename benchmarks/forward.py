"""Forward passes and recording against transformers (SDPA), TransformerLens' bridge and nnsight.

Same weights, inputs, dtype and threads, in one run, each contestant once a round. python benchmarks/forward.py
"""

import statistics
import time
from typing import Any

import torch
from measure import alternate, ratio, report
from peers import bridge, reference, traced

import interp
from interp.model import HookedTransformer

BATCH, LENGTH, STOP = 8, 256, 16


def main() -> None:
    """The whole pass, one site with an early stop, and all sites that TransformerLens has as well."""
    ours, theirs = interp.load("smollm2-135m"), reference(torch.float32)
    lens, nnsight = bridge(), traced(theirs)
    ids = torch.randint(1000, 40000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    peak = matmul_peak()
    with torch.inference_mode():
        rows = [whole(ours, theirs, lens, nnsight, ids, peak), one_site(ours, nnsight, ids), all_sites(ours, lens, ids)]
    report("forward", rows)


def whole(
    ours: HookedTransformer, theirs: Any, lens: Any, nnsight: Any, ids: torch.Tensor, peak: float
) -> dict[str, Any]:
    """Logits of the batch."""

    def by_trace() -> torch.Tensor:
        with nnsight.trace(ids):
            saved = nnsight.output.logits.save()
        # The name means something only after the block.
        return saved.detach()

    contestants = {
        "ours": lambda: ours(ids),
        "transformers": lambda: theirs(ids).logits,
        "transformer_lens": lambda: lens(ids),
        "nnsight": by_trace,
    }
    expected = theirs(ids).logits
    differences = {name: float((run() - expected).abs().max()) for name, run in contestants.items()}
    assert max(differences.values()) < 5e-3, f"the contestants computed different things: {differences}"
    found = row(f"forward {BATCH}x{LENGTH}", contestants, max_difference=max(differences.values()))
    found["share_of_matmul_peak"] = flops(ours, ids) / found["ours_s"] / peak
    return found


def one_site(ours: HookedTransformer, nnsight: Any, ids: torch.Tensor) -> dict[str, Any]:
    """The stream after block 15, against the bare pass that stops there, and against nnsight with its own stop."""
    site = f"resid_post:{STOP - 1}"

    def by_trace() -> torch.Tensor:
        with nnsight.trace(ids) as tracer:
            hidden = nnsight.model.layers[STOP - 1].output.save()
            tracer.stop()
        return hidden[0] if isinstance(hidden, tuple) else hidden

    def recorded() -> torch.Tensor:
        return ours.run_with_cache(ids, sites=site, stop_at_layer=STOP)[1][site]

    error = (by_trace() - recorded()).norm(dim=-1) / recorded().norm(dim=-1)
    assert float(error.max()) < 1e-4, "the contestants recorded different things"
    contestants = {"ours": recorded, "bare": lambda: ours(ids, stop_at_layer=STOP), "nnsight": by_trace}
    return row(f"{site} recorded, {BATCH}x{LENGTH}", contestants)


def all_sites(ours: HookedTransformer, lens: Any, ids: torch.Tensor) -> dict[str, Any]:
    """Every site of ours that the bridge records under the same name with the same values."""
    ids = ids[:2]  # the patterns of all layers at 8 x 256 take gigabytes on both sides
    _, cache = ours.run_with_cache(ids)
    _, other = lens.run_with_cache(ids)
    same = [name for name in cache if name in other and agree(cache[name], other[name])]
    assert len(same) >= 10 * ours.cfg.n_layers, f"only {len(same)} common sites"
    del cache, other
    wanted = set(same)
    contestants = {
        "ours": lambda: ours.run_with_cache(ids, sites=same),
        "transformer_lens": lambda: lens.run_with_cache(ids, names_filter=lambda name: name in wanted),
    }
    return row(f"{len(same)} common sites recorded, 2x{LENGTH}", contestants)


def agree(own: torch.Tensor, theirs: Any) -> bool:
    """Same shape, and each row within 1e-3 of its norm; masked scores may be -inf on one side and a large number on the other."""
    if not isinstance(theirs, torch.Tensor) or own.shape != theirs.shape:
        return False
    return bool(((own - theirs).norm(dim=-1) <= 1e-3 * own.norm(dim=-1) + 1e-5).all())


def flops(model: HookedTransformer, ids: torch.Tensor) -> float:
    """Of one forward pass: the products with weights, and attention's two, of which the causal half is needed."""
    cfg, n = model.cfg, ids.numel()
    weights = sum(w.numel() for name, w in model.named_parameters() if w.ndim == 2 and not name.startswith("embed"))
    weights += cfg.d_vocab * cfg.d_model
    attention = 2 * cfg.n_layers * cfg.n_heads * cfg.d_head * ids.shape[1]
    return 2.0 * n * weights + n * attention


def matmul_peak(size: int = 2048) -> float:
    """FLOP/s of a large fp32 product on this machine: the median of nine."""
    a, b = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        _ = a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds)


def row(what: str, contestants: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Median seconds of each, and how many times faster ours is than each of the others."""
    seconds = alternate(contestants, rounds=7)
    medians = {f"{name}_s": statistics.median(values) for name, values in seconds.items()}
    ratios = {f"{name}_over_ours": ratio(seconds, "ours", name) for name in contestants if name != "ours"}
    return {"what": what, **medians, **ratios, "rounds": 7, **more}


if __name__ == "__main__":
    main()
