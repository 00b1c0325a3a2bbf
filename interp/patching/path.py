"""Path patching: what one part says to another, apart from what it says to the rest (Wang et al. 2022, arXiv 2211.00593;
Goldowsky-Dill et al. 2023, arXiv 2304.05969).

1. Run both prompts. A *sender* (a head or an MLP) of the base run is given the other run's output.
2. All parts between it and the *receivers* are held at the base run, so what the first receiver reads changes by the
   sender's own change and by nothing else: the stream of the base run plus that difference, through the receiver's own norm.
3. The receivers (queries, keys or values of heads, MLPs, or the logits) act on it, and everything after them runs. So with
   receivers in several layers a later one reads the sender's change and, on top, all that the earlier ones set off. Give
   them one by one to hear each direct path alone.
4. Read the metric, on the scale of `patch_sweep`.

With `noise` (the usual way) the base run is clean and 1 means that the path did not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.block import Block
from interp.patching.result import PatchResult
from interp.patching.sweep import MODES, Progress, given_pairs, sweep_card
from interp.rerun import BaseRun, base_run
from interp.sites import Selector, kind_of, layer_of
from interp.task import PairMetric, PromptPairs, pair_metric

RECEIVERS = {"q": "q_input", "k": "k_input", "v": "v_input", "mlp_in": "mlp_in"}
"""What can read a path, and the site through which it is given its own stream."""
LOGITS = "logits"


def path_patch(
    model: HookedTransformer,
    pairs: PromptPairs | None = None,
    *,
    receivers: str | Sequence[str] | Any,
    senders: str | Sequence[str] | Any = "heads",
    clean: Any = None,
    corrupted: Any = None,
    answer: Any = None,
    against: Any = None,
    metric: Any = "logit_diff",
    mode: str | Any = "noise",
    positions: Sequence[int] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> PatchResult:
    """The effect of each sender through its direct paths to the receivers.

    Args:
        model: any loaded model that predicts the next token; its stream must be a sum (no post-LN).
        pairs, clean, corrupted, answer, against, metric, mode, batch_size, seed, progress: as in `patch_sweep`.
        receivers: `logits`, or some of `q:9.6` (queries of head 6 of layer 9), `k:9.6` and `v:9.6` (kv heads), `mlp_in:9`.
            They read the path together.
        senders: "heads", "mlps", "all", or some of `z:5.3`, `mlp_out:4`; one patch each. Those of the receivers' own layer
            or later reach nothing and are left out.
        positions: the sender's change at these positions only; negatives count from the end.

    Returns:
        Places with the columns part ("head" or "mlp"), layer, head (-1 for an MLP).

    Raises:
        ValueError: as in `patch_sweep`; receivers that no sender reaches.
    """
    pairs = given_pairs(model, pairs, clean, corrupted, answer, against)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; choose from {', '.join(MODES)}")
    if model.cfg.norm_placement == "post_ln":
        raise ValueError(
            f"{model.cfg.name} norms the stream itself (post-LN), which is then no sum of what parts wrote"
        )
    ends = _receivers(model, receivers)
    places = _senders(model, senders, ends)
    measured = pair_metric(model, pairs, metric)
    _ = measured.gap
    raw = _run(model, measured, ends, places, mode, positions, batch_size, progress)
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    card = sweep_card(
        model, measured, site="path to " + ", ".join(names), mode=mode, by="sender", method="exact", seed=seed,
        positions=None if positions is None else list(positions),
    )  # fmt: skip
    return PatchResult(places, raw, measured.clean.cpu(), measured.corrupted.cpu(), (), card)


@dataclass(frozen=True)
class _Ends:
    """Where paths end."""

    logits: bool
    """The final stream itself reads."""
    inputs: dict[str, set[int] | None]
    """Site of the stream that a part reads -> heads there; None for all of it."""
    first: int
    """Layer of the first receiver; n_layers for the logits alone."""
    last_attention: int
    """Senders that are heads must lie before this layer."""
    last_mlp: int
    """The same for MLPs."""


def _receivers(model: HookedTransformer, receivers: Any) -> _Ends:
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    if not names:
        raise ValueError("receivers= is empty: name what reads the path, such as 'q:9.6' or 'logits'")
    n_layers = model.cfg.n_layers
    found: list[Selector] = [each for name in names if name != LOGITS for each in model.select_sites(name)]
    inputs: dict[str, set[int] | None] = {}
    for each in found:
        kind, layer = kind_of(each.name).kind, layer_of(each.name)
        if kind not in RECEIVERS:
            raise ValueError(
                f"{each.name} cannot receive: choose from logits, {', '.join(f'{k}:LAYER' for k in RECEIVERS)}"
            )
        site = model.expand_sites(f"{RECEIVERS[kind]}:{layer}")[0]
        known = inputs.setdefault(site, set())
        if each.component is None:
            inputs[site] = None
        elif known is not None:
            known.add(each.component)
    logits = LOGITS in names
    layers = {site: layer_of(site) or 0 for site in inputs}
    # The MLP of a layer reads what its attention wrote, but for parallel blocks.
    own = {site: layer + (site.endswith("hook_mlp_in") and not model.cfg.parallel) for site, layer in layers.items()}
    return _Ends(
        logits, inputs, min(layers.values(), default=n_layers), n_layers if logits else max(own.values()),
        n_layers if logits else max(layers.values()),
    )  # fmt: skip


def _senders(model: HookedTransformer, senders: Any, ends: _Ends) -> pd.DataFrame:
    """Senders that come before a receiver: part, layer, head."""
    cfg = model.cfg
    heads = [("head", layer, head) for layer in range(ends.last_attention) for head in range(cfg.n_heads)]
    mlps = [
        ("mlp", layer, -1) for layer, block in enumerate(model.iter_blocks()) if block.mlp and layer < ends.last_mlp
    ]
    if isinstance(senders, str) and senders in ("heads", "mlps", "all"):
        found = {"heads": heads, "mlps": mlps, "all": heads + mlps}[senders]
    else:
        found = []
        for name in [senders] if isinstance(senders, str) else list(senders):
            for each in model.select_sites(name):
                kind, layer = kind_of(each.name).kind, layer_of(each.name)
                if kind not in ("z", "mlp_out") or layer is None:
                    raise ValueError(
                        f"{name!r} cannot send: choose from z:LAYER.HEAD, mlp_out:LAYER, 'heads', 'mlps', 'all'"
                    )
                own = range(cfg.n_heads) if each.component is None else [each.component]
                found += [("mlp", layer, -1)] if kind == "mlp_out" else [("head", layer, head) for head in own]
        found = [one for one in found if one in set(heads + mlps)]
    if not found:
        raise ValueError("no sender comes before a receiver, so there is no path")
    return pd.DataFrame(found, columns=["part", "layer", "head"])


def _run(
    model: HookedTransformer,
    measured: PairMetric,
    ends: _Ends,
    places: pd.DataFrame,
    mode: str,
    positions: Sequence[int] | None,
    batch_size: int | None,
    progress: Progress | None,
) -> Float[Tensor, "place pair"]:
    pairs = measured.pairs
    sides = (pairs.corrupted, pairs.clean) if mode == "denoise" else (pairs.clean, pairs.corrupted)
    wanted = sorted(
        {("z" if part == "head" else "mlp_out", layer) for part, layer in zip(places["part"], places["layer"])}
    )
    names = [f"{kind}:{layer}" for kind, layer in wanted]
    with torch.no_grad():
        old, new = (model.run_with_cache(side, names)[1] for side in sides)
    n_layers = model.cfg.n_layers
    base = base_run(model, sides[0], [ends.first] if ends.first < n_layers else [])
    at = _places(pairs, positions)
    raw = torch.zeros(len(places), len(pairs), dtype=torch.float64)
    rows = base.copies_at_once(batch_size)
    blocks = list(model.iter_blocks())
    for start in range(0, len(places), rows):
        chunk = list(places.itertuples(index=False, name=None))[start : start + rows]
        with torch.no_grad():
            deltas = (
                torch.stack([_written(blocks[layer], part, layer, head, old, new) for part, layer, head in chunk]) * at
            )
        raw[start : start + len(chunk)] = _received(model, measured, ends, base, deltas, chunk)
        if progress is not None:
            progress(start + len(chunk), len(places))
    return raw


def _places(pairs: PromptPairs, positions: Sequence[int] | None) -> Bool[Tensor, "pair pos 1"]:
    """Where the sender's change counts."""
    ids, mask = pairs.clean.ids, pairs.clean.mask
    chosen = torch.ones_like(ids, dtype=torch.bool)
    if positions is not None:
        lengths, index = pairs.clean.lengths[:, None], pairs.clean.positions
        outside = [p for p in positions if not -int(lengths.min()) <= p < int(lengths.min())]
        if outside:
            raise ValueError(f"position {outside[0]} lies outside a prompt of {int(lengths.min())} tokens")
        chosen = torch.stack([index == (lengths + p if p < 0 else p) for p in positions]).any(0)
    return (chosen & mask)[..., None]


def _written(block: Block, part: str, layer: int, head: int, old: Any, new: Any) -> Float[Tensor, "pair pos d_model"]:
    """How what a part adds to the stream differs between the runs."""
    if part == "mlp":
        return new["mlp_out", layer] - old["mlp_out", layer]
    z = old["z", layer]
    changed = z.clone()
    changed[:, :, head] = new["z", layer][:, :, head]
    if block.ln1_post is None:
        return (changed - z)[:, :, head] @ block.attn.W_O[head]
    before, after = (block.ln1_post.silent(block.attn.o(value.flatten(2))) for value in (z, changed))
    return after - before


def _received(
    model: HookedTransformer,
    measured: PairMetric,
    ends: _Ends,
    base: BaseRun,
    deltas: Float[Tensor, "copies pair pos d_model"],
    chunk: list[tuple[str, int, int]],
) -> Float[Tensor, "copies pair"]:
    """The metric after the receivers have read the senders' changes."""
    flat = deltas.flatten(0, 1)

    def reach(name: str, heads: set[int] | None) -> Any:
        # A part that comes after the receiver says nothing to it.
        layer = layer_of(name) or 0
        own = name.endswith("hook_mlp_in") and not model.cfg.parallel
        before = torch.tensor([at < layer or (own and part == "head" and at == layer) for part, at, _ in chunk])
        said = flat * before.to(flat).repeat_interleave(deltas.shape[1])[:, None, None]

        def read(value: Tensor, ctx: object) -> Tensor:
            del ctx
            if value.ndim == 3:
                return value + said
            for head in range(value.shape[2]) if heads is None else sorted(heads):
                value[:, :, head] += said
            return value

        return read

    if ends.inputs:
        stream = base.stream(ends.first, {n: reach(n, heads) for n, heads in ends.inputs.items()}, copies=len(chunk))
    else:
        stream = base.final.expand(len(chunk), *base.final.shape)
    stream = stream + deltas if ends.logits else stream
    return measured.of_streams(base, stream)
