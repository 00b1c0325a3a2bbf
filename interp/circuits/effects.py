"""Exact effects: of corrupting one edge in the clean run, and of ablating one head or MLP.

1. Run both prompts and keep the clean streams and what each sender adds.
2. One edge: its receiver reads the clean stream plus (corrupted - clean) of the sender. The run begins at the receiver's
   layer, and edges into one layer stand side by side.
3. One node: its z, or its MLP's output, is replaced by that of the corrupted run, or by its mean over both sides of all
   other pairs. The run begins at its layer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.circuits.graph import Graph, Node, circuit_graph
from interp.circuits.run import check_off, others_mean, written
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.rerun import BaseRun, base_run
from interp.task import PairMetric, PromptPairs, pair_metric

Progress = Callable[[int, int], None]


def edge_effects(
    model: HookedTransformer,
    pairs: PromptPairs,
    edges: Int[np.ndarray, "edge 2"],
    *,
    metric: Any = "logit_diff",
    scale: float = 1.0,
    batch_size: int | None = None,
) -> Float[Tensor, "edge pair"]:
    """The metric with one edge corrupted and all others as they are, for each edge; fp64.

    Args:
        model: any model that has a `circuit_graph`.
        pairs: the prompts.
        edges: sender and receiver of each, as in `EdgeScores.index`.
        metric: as in `interp.task.pair_metric`.
        scale: share of the change that is made; 1 is all of it.
        batch_size: edges at once; None for what suits a CPU.

    Raises:
        ValueError: an edge that does not exist.
    """
    graph = circuit_graph(model)
    missing = [tuple(edge) for edge in edges.tolist() if not graph.allowed[tuple(edge)]]
    if missing:
        raise ValueError(f"edge {missing[0]} does not exist in this model's graph")
    measured = pair_metric(model, pairs, metric)
    change = scale * (written(model, graph, pairs.corrupted).senders - written(model, graph, pairs.clean).senders)
    layers = np.array([graph.receivers[receiver].layer for _, receiver in edges.tolist()])
    base = base_run(model, pairs.clean, sorted(set(layers.tolist()) - {graph.n_layers}))
    found = torch.zeros(len(edges), len(pairs), dtype=torch.float64)
    for layer in sorted(set(layers.tolist())):
        mine = np.flatnonzero(layers == layer)
        rows = base.copies_at_once(batch_size)
        for chunk in (mine[start : start + rows] for start in range(0, len(mine), rows)):
            found[chunk.tolist()] = _edges_of_layer(graph, measured, base, change, edges[chunk], layer)
    return found


def _edges_of_layer(
    graph: Graph, measured: PairMetric, base: BaseRun, change: Tensor, edges: np.ndarray, layer: int
) -> Float[Tensor, "edge pair"]:
    said = change[edges[:, 0].tolist()]  # [edge pair pos d_model]
    if layer == graph.n_layers:
        return measured.of_streams(base, base.final + said)
    ports = [graph.receivers[receiver] for receiver in edges[:, 1].tolist()]

    def reach(kind: str) -> Any:
        mine = [(copy, port.head) for copy, port in enumerate(ports) if port.kind == kind]

        def read(value: Tensor, ctx: HookContext) -> Tensor:
            del ctx
            copies = value.unflatten(0, (len(ports), -1))
            for copy, head in mine:
                if head < 0:
                    copies[copy] += said[copy]
                else:
                    copies[copy][:, :, head] += said[copy]
            return value

        return read

    sites = {kind: "mlp_in" if kind == "mlp" else f"{kind}_input" for kind in {port.kind for port in ports}}
    hooks = {f"{site}:{layer}": reach(kind) for kind, site in sites.items()}
    return measured.of_streams(base, base.stream(layer, hooks, copies=len(ports)))


def node_effects(
    model: HookedTransformer,
    pairs: PromptPairs,
    *,
    metric: Any = "logit_diff",
    off: str | Any = "mean",
    nodes: Sequence[Node] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """What the metric loses when one head or MLP of the clean run is ablated.

    Args:
        model, pairs, metric: as in `edge_effects`.
        off: what takes the node's place: "mean" over both sides of all other pairs (at each position where prompts have
            one length), or "corrupted", its value in the corrupted run.
        nodes: some heads and MLPs of `circuit_graph(model).senders`; None for all.
        batch_size: nodes at once; None for what suits a CPU.
        seed: of the bootstrap over pairs.
        progress: fn(nodes done, nodes in all).

    Returns:
        A row per node: node, kind, layer, head (-1 for an MLP), effect (change of the normalised metric: -1 loses all of
        the gap), low, high (95 % over pairs), n; the largest first.

    Raises:
        ValueError: an unknown `off`, a mean of a single pair, or no head or MLP.
    """
    check_off(off, pairs)
    graph = circuit_graph(model)
    chosen = [node for node in (graph.senders if nodes is None else nodes) if node.kind != "input"]
    if not chosen:
        raise ValueError("no head or MLP is left to ablate")
    measured = pair_metric(model, pairs, metric)
    _ = measured.gap
    base = base_run(model, pairs.clean, {node.layer for node in chosen})
    raw = torch.zeros(len(chosen), len(pairs), dtype=torch.float64)
    done = 0
    for site, layer, index in _by_site(chosen, base.copies_at_once(batch_size)):
        name = model.expand_sites(f"{site}:{layer}")[0]
        new = _replacement(model, pairs, name, layer, off)
        heads = [chosen[i].head for i in index]
        stream = base.stream(layer, {name: _replace(new, heads)}, copies=len(index))
        raw[index] = measured.of_streams(base, stream)
        done += len(index)
        if progress is not None:
            progress(done, len(chosen))
    effect = measured.effect(raw, seed)
    frame = pd.DataFrame(
        {"node": [node.name for node in chosen], "kind": [node.kind for node in chosen],
         "layer": [node.layer for node in chosen], "head": [node.head for node in chosen],
         "effect": effect.mean - 1.0, "low": effect.low - 1.0, "high": effect.high - 1.0, "n": effect.n}
    )  # fmt: skip
    order = np.argsort(-np.abs(frame["effect"].to_numpy()), kind="stable")
    return frame.iloc[order].reset_index(drop=True)


def _by_site(nodes: Sequence[Node], rows: int) -> Iterator[tuple[str, int, list[int]]]:
    """Nodes of one layer and kind, at most `rows` at once."""
    groups: dict[tuple[int, str], list[int]] = {}
    for number, node in enumerate(nodes):
        groups.setdefault((node.layer, "z" if node.kind == "head" else "mlp_out"), []).append(number)
    for (layer, site), index in groups.items():
        for start in range(0, len(index), rows):
            yield site, layer, index[start : start + rows]


def _replacement(model: HookedTransformer, pairs: PromptPairs, name: str, layer: int, off: str) -> Tensor:
    """What takes the place of a site's value, [pair pos ...], or [pair 1 ...] for a mean over tokens."""
    sides = [pairs.corrupted] if off == "corrupted" else [pairs.clean, pairs.corrupted]
    with torch.no_grad():
        found = [model.run_with_cache(side, [name], stop_at_layer=layer + 1)[1][name] for side in sides]
    return found[0] if off == "corrupted" else others_mean(found[0], found[1], pairs)


def _replace(new: Tensor, heads: list[int]) -> Any:
    def replace(value: Tensor, ctx: HookContext) -> Tensor:
        del ctx
        copies = value.unflatten(0, (len(heads), -1))
        for copy, head in zip(copies, heads, strict=True):
            if head < 0:
                copy[:] = new
            else:
                copy[:, :, head] = new[:, :, head]
        return value

    return replace
