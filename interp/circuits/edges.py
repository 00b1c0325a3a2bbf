"""Edge attribution: the effect of corrupting each edge, estimated for all edges from a few backward passes.

Edge attribution patching (Syed et al. 2023, arXiv 2310.10348), and with integrated gradients (Hanna et al. 2024, arXiv
2403.17806):

1. Run both prompts and keep what each sender adds to the stream.
2. Take the gradient of the metric at the input of each receiver. It comes from the gradient of the queries, keys and
   values, back through their weights and the norm before them, so heads need no copies of the stream in the pass.
3. An edge's score is (corrupted - clean) sender . gradient at the receiver, summed over positions.
4. `eap_ig` averages the gradient along the straight line between the clean and the corrupted input, at the midpoints of
   `steps` equal parts. Where the metric is flat at the clean run, as probabilities and KL are, `eap` sees nothing.

A score estimates the change of the normalised metric when that edge alone is corrupted: -0.2 for an edge that carries a
fifth of the gap. It is exact where the metric is linear in what the edge carries.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import artifact
from interp.circuits.graph import Graph, circuit_graph
from interp.circuits.run import written
from interp.hooks import Request, attached
from interp.model import HookedTransformer
from interp.model.norm import Norm
from interp.plot.circuits import circuit_graph_chart
from interp.task import Effect, PairMetric, PromptPairs, mean_effect, pair_metric
from interp.tokens import Tokens

METHODS = ("eap", "eap_ig")
ELEMENTS = 2**26
"""Most numbers that senders and receivers of one batch of pairs take: a quarter of a gigabyte."""


@dataclass(frozen=True, eq=False)
class EdgeScores:
    """Estimated effects of all edges."""

    graph: Graph
    """Whose edges."""
    raw: Float[Tensor, "edge pair"]
    """Estimated change of the metric itself when the edge is corrupted, fp32, in the order of `index`."""
    clean: Float[Tensor, "pair"]
    """The metric in the clean run."""
    corrupted: Float[Tensor, "pair"]
    """The metric in the corrupted run."""
    card: dict[str, Any]
    """Provenance: method, steps, metric, task, model."""

    @cached_property
    def index(self) -> Int[np.ndarray, "edge 2"]:
        """Sender and receiver of each edge."""
        return np.argwhere(self.graph.allowed)

    @cached_property
    def scores(self) -> Float[np.ndarray, "edge"]:
        """Mean over pairs, as a share of the gap between clean and corrupted."""
        return (self.raw.mean(1, dtype=torch.float64) / (self.clean - self.corrupted).mean()).numpy()

    @cached_property
    def order(self) -> Int[np.ndarray, "edge"]:
        """Edges from the largest size of score down."""
        return np.argsort(-np.abs(self.scores), kind="stable")

    def strongest(self, n: int | Any) -> Bool[np.ndarray, "sender receiver"]:
        """The n edges of the largest scores, as a matrix."""
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= len(self.scores):
            raise ValueError(f"n={n!r}: there are {len(self.scores)} edges")
        kept = np.zeros_like(self.graph.allowed)
        kept[tuple(self.index[self.order[:n]].T)] = True
        return kept

    def effect(self, edges: Int[np.ndarray, "some"]) -> Effect:
        """Scores of some edges with their 95 % bootstrap intervals over pairs."""
        gap = float((self.clean - self.corrupted).mean())
        return mean_effect(self.raw[edges] + self.corrupted, self.clean, self.corrupted, gap, int(self.card["seed"]))

    def to_frame(self, n: int = 200) -> pd.DataFrame:
        """The n strongest edges: sender, receiver, their layers and heads, score, low, high, n."""
        edges = self.order[:n]
        effect = self.effect(edges)
        frame = self.graph.edge_frame(self.index[edges])
        return frame.assign(score=effect.mean, low=effect.low, high=effect.high, n=effect.n)

    def plot(self, n: int = 60) -> alt.LayerChart:
        """The n strongest edges between heads and MLPs, layer by layer."""
        frame = self.to_frame(n)
        return circuit_graph_chart(frame, n_layers=self.graph.n_layers, n_heads=self.graph.n_heads, top=n)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_edge_scores` reads it."""
        tensors = {"raw": self.raw, "clean": self.clean, "corrupted": self.corrupted}
        return artifact.save_artifact(Path(path), "edge scores", tensors, self.card | {"graph": graph_card(self.graph)})


def load_edge_scores(path: str | Path) -> EdgeScores:
    """Read what `EdgeScores.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "edge scores")
    graph = graph_from_card(card.pop("graph"))
    return EdgeScores(graph, tensors["raw"], tensors["clean"], tensors["corrupted"], card)


def graph_card(graph: Graph) -> dict[str, Any]:
    """A graph as JSON."""
    return {
        "n_layers": graph.n_layers, "n_heads": graph.n_heads, "kv_heads": graph.kv_heads, "mlps": list(graph.mlps),
        "parallel": graph.parallel,
    }  # fmt: skip


def graph_from_card(card: dict[str, Any]) -> Graph:
    """The inverse of `graph_card`."""
    return Graph(**{**card, "mlps": tuple(card["mlps"])})


def edge_attribution(
    model: HookedTransformer,
    pairs: PromptPairs,
    *,
    metric: Any = "logit_diff",
    method: str | Any = "eap_ig",
    steps: int | Any = 5,
    batch_size: int | Any = None,
    seed: int = 0,
) -> EdgeScores:
    """Estimate the effect of corrupting each edge.

    Args:
        model: any model that has a `circuit_graph`.
        pairs: prompts of equal length.
        metric: as in `interp.task.pair_metric`; one with a slope.
        method: "eap_ig", or "eap", which is `steps` times faster and takes the gradient at the clean run.
        steps: points along the line, for `eap_ig`.
        batch_size: pairs at once; None for what fits into memory.
        seed: of the bootstrap over pairs.

    Raises:
        ValueError: a model without such a graph, an unknown method, a metric without slope, or a gap between clean and
            corrupted that says nothing.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; choose from {', '.join(METHODS)}")
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if not (name == "batch_size" and value is None) and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise ValueError(f"{name}={value!r}: it is a whole number from 1 on")
    graph = circuit_graph(model)
    measured = pair_metric(model, pairs, metric)
    _ = measured.gap
    if measured.name == "rank" or (measured.name == "kl" and method == "eap"):
        raise ValueError(
            f"{measured.name} has no slope in the clean run, so edges cannot be ranked by it; take logit_diff, or kl by eap_ig"
        )
    points = [0.0] if method == "eap" else [(step + 0.5) / steps for step in range(steps)]
    size = pairs.clean.ids.shape[1] * model.cfg.d_model * (len(graph.senders) + len(graph.receivers))
    # A function of the caller's is made for all pairs together.
    rows = len(pairs) if measured.needs_all_logits else batch_size or max(1, ELEMENTS // size)
    allowed = torch.as_tensor(graph.allowed)
    parts = []
    for start in range(0, len(pairs), rows):
        chunk = list(range(start, min(start + rows, len(pairs))))
        parts.append(_scores(model, graph, measured, chunk, points)[:, allowed])
    card = artifact.provenance(
        analysis="edge attribution", model=model.cfg.name, fingerprint=model.fingerprint, task=pairs.name,
        n_pairs=len(pairs), metric=measured.name, method=method, steps=len(points), seed=seed,
    )  # fmt: skip
    raw = torch.cat(parts).T.contiguous()
    return EdgeScores(graph, raw, measured.clean.cpu(), measured.corrupted.cpu(), card)


def _scores(
    model: HookedTransformer, graph: Graph, measured: PairMetric, chunk: list[int], points: list[float]
) -> Float[Tensor, "pair sender receiver"]:
    """Scores of some pairs."""
    pairs = measured.pairs
    some = pairs[chunk]
    clean, corrupted = (written(model, graph, side) for side in (some.clean, some.corrupted))
    part = replace(
        measured, pairs=some, clean=measured.clean[chunk], corrupted=measured.corrupted[chunk],
        clean_logits=measured.clean_logits[chunk],
    )  # fmt: skip
    total = None
    for point in points:
        stream = torch.lerp(clean.senders[0], corrupted.senders[0], point)
        slopes = _slopes(model, graph, part, some.clean, stream)
        total = slopes if total is None else total + slopes
    assert total is not None
    change = corrupted.senders - clean.senders
    left, right = (x.transpose(0, 1).flatten(2) for x in (change, total / len(points)))
    return torch.bmm(left, right.transpose(1, 2)).float().cpu()


def _slopes(
    model: HookedTransformer,
    graph: Graph,
    measured: PairMetric,
    tokens: Tokens,
    stream: Float[Tensor, "pair pos d_model"],
) -> Float[Tensor, "receiver pair pos d_model"]:
    """The gradient of the metric at the input of each receiver, in the run of an input stream."""
    kept: dict[str, Tensor] = {}
    last = graph.n_layers - 1
    sites = [f"{kind}:{layer}" for layer in range(graph.n_layers) for kind in ("q", "k", "v")]
    sites += [f"mlp_in:{layer}" for layer in range(graph.n_layers) if graph.mlps[layer]]
    names = {site: model.expand_sites(site)[0] for site in [*sites, f"resid_post:{last}"]}
    pre = {layer: model.expand_sites(f"resid_pre:{layer}")[0] for layer in range(graph.n_layers)}

    def keep(value: Tensor, ctx: Any) -> None:
        kept[ctx.name] = value

    entries: list[tuple[str, Any, str]] = [(name, keep, "keep") for name in names.values()]
    entries += [(name, keep, "read") for name in pre.values()]
    with torch.enable_grad(), attached(model.hook_dict, Request(entries), model.run):
        final = model(stream, start_at_layer=0, tokens=tokens, stop_at_layer=graph.n_layers)
    with torch.enable_grad():
        rows = torch.arange(len(tokens), device=final.device)
        read = final if measured.needs_all_logits else final[rows, tokens.last]
        number = measured.raw(model.unembed_logits(read)).sum()
        if not number.requires_grad:
            raise ValueError("the metric has no gradient: it must be computed from the logits by torch operations")
        found = torch.autograd.grad(number, [kept[name] for name in names.values()], allow_unused=True)
    slope = {
        site: torch.zeros_like(kept[name]) if gradient is None else gradient
        for (site, name), gradient in zip(names.items(), found, strict=True)
    }
    parts = []
    for layer, block in enumerate(model.iter_blocks()):
        here = kept[pre[layer]].detach()
        for kind, weight in (("q", block.attn.W_Q), ("k", block.attn.W_K), ("v", block.attn.W_V)):
            back = torch.einsum("bphe,hde->hbpd", slope[f"{kind}:{layer}"], weight)
            parts.append(_through_norm(block.ln1, here, back))
        if graph.mlps[layer]:
            parts.append(slope[f"mlp_in:{layer}"][None])
    return torch.cat([*parts, slope[f"resid_post:{last}"][None]])


def _through_norm(
    norm: Norm | None, stream: Float[Tensor, "pair pos d_model"], back: Float[Tensor, "head pair pos d_model"]
) -> Float[Tensor, "head pair pos d_model"]:
    """The gradient at the stream, from that at the normed stream, for each head apart."""
    if norm is None or norm.kind == "none":
        return back
    with torch.enable_grad():
        wide = stream.expand_as(back).detach().requires_grad_()
        return torch.autograd.grad(norm.silent(wide), wide, back)[0]
