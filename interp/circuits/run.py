"""Run a circuit: some edges carry what the run computes, all others what another run computed.

1. Keep what each sender added to the stream in the *off* run: the corrupted prompts, or for each pair the mean over both
   sides of all other pairs. A mean that counts the pair itself would leave 1/n of what is ablated where it was.
2. Run the clean prompts. Each receiver reads its own stream: the off run's, plus (now - off) of every sender whose edge to
   it is kept. A sender's value now follows from what its own inputs were given.
3. The output reads in the same way; its stream is unembedded.

All edges kept is the clean run, none the off run, and all but one is that edge's own effect. Circuits stand side by side
in one batch. What a head adds to the stream is its z through W_O, with an equal part of the output bias; where a norm
follows (sandwich and post placement) through that norm with the scale of the pass, so that the parts sum to what
attention adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.circuits.graph import Graph, circuit_graph
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.model.block import Block
from interp.rerun import BaseRun, base_run
from interp.task import PairMetric, PromptPairs, pair_metric
from interp.tokens import Tokens

OFF = ("corrupted", "mean")
ELEMENTS = 2**27
"""Most numbers that the senders of one batch of circuits take: half a gigabyte."""


@dataclass(frozen=True, eq=False)
class Written:
    """What every sender added to the stream, and the streams that receivers read."""

    senders: Float[Tensor, "sender batch pos d_model"]
    """In the order of the graph."""
    streams: Float[Tensor, "stream batch pos d_model"]
    """Into each block's attention, into each block's MLP, out of the last block."""


def written(model: HookedTransformer, graph: Graph, tokens: Tokens) -> Written:
    """Run the texts and keep what senders wrote."""
    mid = "resid_pre" if graph.parallel else "resid_mid"
    names = [f"{kind}:{layer}" for layer in range(graph.n_layers) for kind in ("resid_pre", "z")]
    names += [f"{kind}:{layer}" for layer in range(graph.n_layers) if graph.mlps[layer] for kind in (mid, "mlp_out")]
    names += [f"resid_post:{graph.n_layers - 1}"]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, list(dict.fromkeys(names)), stop_at_layer=graph.n_layers)
        senders = [cache["resid_pre", 0][None]]
        for layer, block in enumerate(model.iter_blocks()):
            senders.append(head_outputs(block, cache["z", layer]))
            senders += [cache["mlp_out", layer][None]] if graph.mlps[layer] else []
        streams = [cache["resid_pre", layer] for layer in range(graph.n_layers)]
        streams += [cache[mid, layer] if graph.mlps[layer] else streams[layer] for layer in range(graph.n_layers)]
        streams.append(cache["resid_post", graph.n_layers - 1])
    return Written(torch.cat(senders), torch.stack(streams))


def head_outputs(block: Block, z: Float[Tensor, "batch pos head d_v"]) -> Float[Tensor, "head batch pos d_model"]:
    """What each head adds to the stream."""
    out = torch.einsum("bphe,hed->hbpd", z, block.attn.W_O)
    if block.attn.o.bias is not None:
        out = out + block.attn.o.bias / out.shape[0]
    norm = block.ln1_post
    if norm is None or norm.kind == "none":
        return out
    scale = norm.scale(block.attn.o(z.flatten(2)))
    centred = out - out.mean(-1, keepdim=True) if norm.centred else out
    multiplier = norm.multiplier()
    return (centred / scale * (1.0 if multiplier is None else multiplier)).to(out.dtype)


@dataclass(frozen=True, eq=False)
class CircuitRuns:
    """Circuits of one model on one set of pairs; see the module."""

    model: HookedTransformer
    """What runs."""
    graph: Graph
    """Its edges."""
    pairs: PromptPairs
    """The prompts."""
    measured: PairMetric
    """What is read of a run."""
    base: BaseRun
    """The clean run."""
    off: Written
    """What edges outside the circuit carry; one position for all where a mean is over tokens."""
    nothing: Float[Tensor, "pair"] = field(init=False)
    """The metric with no edge kept: of the corrupted run, or with everything at its mean."""

    def __post_init__(self) -> None:
        stream = self.off.streams[-1].expand_as(self.base.final)
        object.__setattr__(self, "nothing", self.measured.of_streams(self.base, stream[None])[0])

    def metric(
        self, kept: Bool[np.ndarray, "circuit sender receiver"], batch_size: int | None = None
    ) -> Float[Tensor, "circuit pair"]:
        """The metric of each circuit and pair, fp64 on the CPU.

        Args:
            kept: edges of each circuit.
            batch_size: circuits run at once; None for what suits a CPU.
        """
        outside = kept & ~self.graph.allowed
        if outside.any():
            raise ValueError(f"{int(outside.sum())} of the kept edges do not exist in this model's graph")
        size = self.base.final.numel() * len(self.graph.senders)
        wished = batch_size is not None
        rows = (
            self.base.copies_at_once(batch_size)
            if wished
            else max(1, min(ELEMENTS // size, self.base.copies_at_once()))
        )
        found = [
            self.measured.of_streams(self.base, self._streams(kept[start : start + rows]))
            for start in range(0, len(kept), rows)
        ]
        return torch.cat(found)

    def faithfulness(self, raw: Float[Tensor, "*circuits pair"]) -> Float[Tensor, "*circuits"]:
        """(m(circuit) - m(nothing)) / (m(model) - m(nothing)), of means over pairs."""
        return (raw - self.nothing).mean(-1) / self.gap

    @property
    def gap(self) -> float:
        """Mean difference between the whole model and nothing. ValueError where it is too small to divide by."""
        gap = float((self.measured.clean.cpu() - self.nothing).mean())
        if abs(gap) < 0.1 * abs(self.measured.gap):
            raise ValueError(
                f"with every edge off {self.measured.name} moves by {gap:.3g} only, so there is nothing to be faithful to"
            )
        return gap

    def _streams(self, kept: Bool[np.ndarray, "circuit sender receiver"]) -> Tensor:
        """Final streams of some circuits."""
        mix = _Mix(self, torch.as_tensor(kept, device=self.base.final.device))
        with torch.no_grad():
            self.base.stream(0, mix.hooks(), copies=len(kept))
            return mix.read(slice(-1, None), len(self.graph.senders), self.off.streams[-1])[..., 0, :]


class _Mix:
    """The state of one batch of circuits: (now - off) of every sender so far."""

    def __init__(self, runs: CircuitRuns, kept: Bool[Tensor, "circuit sender receiver"]) -> None:
        self.runs, self.graph, self.off = runs, runs.graph, runs.off
        self.kept = kept.to(runs.base.final).transpose(1, 2).contiguous()
        shape = (len(kept), len(self.graph.senders), *runs.base.final.shape)
        self.change = runs.base.final.new_zeros(shape)
        self.change[:, 0] = runs.base.streams[0] - self.off.senders[0]
        self.inputs: dict[str, Tensor] = {}

    def read(self, ports: slice, n: int, stream: Tensor) -> Float[Tensor, "circuit pair pos port d_model"]:
        """What receivers read that come after the first n senders."""
        kept, change = self.kept[:, ports, :n], self.change[:, :n].flatten(2)
        heard = kept.any(dim=(0, 1)).nonzero()[:, 0]
        if 2 * len(heard) < n:  # small circuits: most senders say nothing here
            kept, change = kept[:, :, heard], change[:, heard]
        said = torch.bmm(kept, change)
        return said.unflatten(2, self.change.shape[2:]).permute(0, 2, 3, 1, 4) + stream[..., None, :]

    def hooks(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        blocks = list(self.runs.model.iter_blocks())
        for layer in range(self.graph.n_layers):
            found[f"q_input:{layer}"] = self._attention(layer)
            found |= {f"{kind}_input:{layer}": self._kept(kind) for kind in ("k", "v")}
            found[f"z:{layer}"] = self._heads(layer, blocks[layer])
            if self.graph.mlps[layer]:
                found[f"mlp_in:{layer}"] = self._mlp_in(layer)
                found[f"mlp_out:{layer}"] = self._mlp_out(layer)
        return found

    def _attention(self, layer: int) -> Any:
        def q_input(value: Tensor, ctx: HookContext) -> Tensor:
            del ctx
            ports, n = self.graph.ports_of("attn", layer), self.graph.before("q", layer)
            whole = self.read(ports, n, self.off.streams[layer]).flatten(0, 1)
            sizes = [self.graph.n_heads, self.graph.kv_heads, self.graph.kv_heads]
            q, self.inputs["k"], self.inputs["v"] = whole.split(sizes, dim=2)
            return q.to(value.dtype)

        return q_input

    def _kept(self, kind: str) -> Any:
        def kv_input(value: Tensor, ctx: HookContext) -> Tensor:
            del ctx
            return self.inputs.pop(kind).to(value.dtype)  # made with the queries'

        return kv_input

    def _heads(self, layer: int, block: Block) -> Any:
        def z(value: Tensor, ctx: HookContext) -> None:
            del ctx
            senders = self.graph.heads_of(layer)
            now = head_outputs(block, value).unflatten(1, (len(self.kept), -1)).transpose(0, 1)
            self.change[:, senders] = now - self.off.senders[senders]

        return z

    def _mlp_in(self, layer: int) -> Any:
        def mlp_in(value: Tensor, ctx: HookContext) -> Tensor:
            del ctx
            ports, n = self.graph.ports_of("mlp", layer), self.graph.before("mlp", layer)
            stream = self.off.streams[self.graph.n_layers + layer]
            return self.read(ports, n, stream)[..., 0, :].flatten(0, 1).to(value.dtype)

        return mlp_in

    def _mlp_out(self, layer: int) -> Any:
        def mlp_out(value: Tensor, ctx: HookContext) -> None:
            del ctx
            sender = self.graph.mlp_of(layer)
            self.change[:, sender] = value.unflatten(0, (len(self.kept), -1)) - self.off.senders[sender]

        return mlp_out


def circuit_runs(
    model: HookedTransformer, pairs: PromptPairs, *, metric: Any = "logit_diff", off: str | Any = "corrupted"
) -> CircuitRuns:
    """Prepare to run circuits.

    Args:
        model: any model that has a `circuit_graph`.
        pairs: clean prompts run, corrupted ones are what edges outside carry.
        metric: as in `interp.task.pair_metric`.
        off: "corrupted", or "mean": for each pair over both sides of all other pairs, at each position where all prompts
            have one length and over all tokens otherwise.

    Raises:
        ValueError: a model without such a graph, an unknown `off`, a mean of a single pair, or a gap between clean and
            corrupted that says nothing.
    """
    check_off(off, pairs)
    graph = circuit_graph(model)
    measured = pair_metric(model, pairs, metric)
    _ = measured.gap
    values = written(model, graph, pairs.corrupted)
    if off == "mean":
        clean = written(model, graph, pairs.clean)
        sides = ((clean.senders, values.senders), (clean.streams, values.streams))
        values = Written(*(torch.stack([others_mean(*two, pairs) for two in zip(*both)]) for both in sides))
    return CircuitRuns(model, graph, pairs, measured, base_run(model, pairs.clean, [0]), values)


def check_off(off: Any, pairs: PromptPairs) -> None:
    """ValueError for what cannot stand in an ablated part's place."""
    if off not in OFF:
        raise ValueError(f"off={off!r} is unknown; choose from {', '.join(OFF)}")
    if off == "mean" and len(pairs) < 2:
        raise ValueError(
            "off='mean' is the mean of the other pairs, and there is one pair: give more, or off='corrupted'"
        )


def others_mean(
    clean: Float[Tensor, "pair pos *rest"], corrupted: Float[Tensor, "pair pos *rest"], pairs: PromptPairs
) -> Float[Tensor, "pair place *rest"]:
    """For each pair the mean over both sides of all other pairs, summed in fp64: [pair pos *rest], or [pair 1 *rest] over
    all real tokens where prompts differ in length."""
    both, n = clean.double() + corrupted.double(), torch.full((len(pairs),), 2, device=clean.device)
    mask = pairs.clean.mask
    if not pairs.same_length:
        both = both.masked_fill(~mask.view(*mask.shape, *[1] * (both.ndim - 2)), 0.0).sum(1, keepdim=True)
        n = 2 * mask.sum(1)
    others = (n.sum() - n).view(-1, *[1] * (both.ndim - 1))
    return ((both.sum(0) - both) / others).to(clean.dtype)


def run_circuit(
    model: HookedTransformer,
    pairs: PromptPairs,
    kept: Bool[np.ndarray, "sender receiver"],
    *,
    metric: Any = "logit_diff",
    off: str | Any = "corrupted",
) -> Float[Tensor, "pair"]:
    """The metric of each pair with every edge outside the circuit switched off; see the module.

    Args:
        model, pairs, metric, off: as in `circuit_runs`.
        kept: edges of the circuit, as in `circuit_graph(model).allowed`.
    """
    return circuit_runs(model, pairs, metric=metric, off=off).metric(kept[None])[0]
