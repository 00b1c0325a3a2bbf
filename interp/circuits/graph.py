"""A model as a graph: what writes into the residual stream, and what reads from it.

- *Senders* are the input (the stream before block 0), every head and every MLP: what each adds to the stream.
- *Receivers* are the query input of every head, the key and value inputs of every kv head, the input of every MLP, and the
  output (the stream that is unembedded).
- An edge leads from a sender to each receiver that reads the stream after it was written. In a parallel block attention
  does not feed the MLP beside it.

Edges are entries of a matrix [sender receiver], in the order of computation.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from interp.model import HookedTransformer

KINDS = ("q", "k", "v", "mlp")
"""Inputs of a block, in the order of its receivers."""


@dataclass(frozen=True)
class Node:
    """A sender: `input`, `L5H1` or `MLP 5`."""

    kind: str
    """input, head or mlp."""
    layer: int
    """-1 for the input."""
    head: int
    """-1 where it is no head."""

    @property
    def name(self) -> str:
        """As a person reads it."""
        return {"input": "input", "head": f"L{self.layer}H{self.head}", "mlp": f"MLP {self.layer}"}[self.kind]


@dataclass(frozen=True)
class Port:
    """A receiver: `L5H1.q`, `L5KV0.k`, `MLP 5` or `output`."""

    kind: str
    """q, k, v, mlp or output."""
    layer: int
    """n_layers for the output."""
    head: int
    """Query head, or kv head; -1 where it is no head."""
    shared: bool = False
    """Several heads read through it."""

    @property
    def name(self) -> str:
        """As a person reads it."""
        if self.kind in ("output", "mlp"):
            return "output" if self.kind == "output" else f"MLP {self.layer}"
        return f"L{self.layer}{'KV' if self.shared else 'H'}{self.head}.{self.kind}"


@dataclass(frozen=True)
class Graph:
    """Senders, receivers and the edges that exist between them."""

    n_layers: int
    """Blocks."""
    n_heads: int
    """Query heads of each."""
    kv_heads: int
    """Key and value heads of each."""
    mlps: tuple[bool, ...]
    """Which blocks have an MLP."""
    parallel: bool
    """Attention and MLP of a block read the same stream."""

    @cached_property
    def senders(self) -> tuple[Node, ...]:
        """In the order of computation, the input first."""
        found = [Node("input", -1, -1)]
        for layer, has_mlp in enumerate(self.mlps):
            found += [Node("head", layer, head) for head in range(self.n_heads)]
            found += [Node("mlp", layer, -1)] if has_mlp else []
        return tuple(found)

    @cached_property
    def receivers(self) -> tuple[Port, ...]:
        """In the order of computation, the output last."""
        shared, found = self.kv_heads != self.n_heads, []
        for layer, has_mlp in enumerate(self.mlps):
            found += [Port("q", layer, head) for head in range(self.n_heads)]
            found += [Port(kind, layer, head, shared) for kind in ("k", "v") for head in range(self.kv_heads)]
            found += [Port("mlp", layer, -1)] if has_mlp else []
        return (*found, Port("output", self.n_layers, -1))

    @cached_property
    def allowed(self) -> Bool[np.ndarray, "sender receiver"]:
        """Edges that exist."""
        found = np.zeros((len(self.senders), len(self.receivers)), dtype=bool)
        for column, port in enumerate(self.receivers):
            found[: self.before(port.kind, port.layer), column] = True
        return found

    @property
    def n_edges(self) -> int:
        """Edges that exist."""
        return int(self.allowed.sum())

    def before(self, kind: str, layer: int) -> int:
        """How many senders a receiver reads: they are the first ones."""
        heads = self.n_heads if kind == "mlp" and not self.parallel else 0
        return 1 + layer * self.n_heads + sum(self.mlps[:layer]) + heads

    def heads_of(self, layer: int) -> slice:
        """The senders that are a block's heads."""
        start = self.before("q", layer)
        return slice(start, start + self.n_heads)

    def mlp_of(self, layer: int) -> int:
        """The sender that is a block's MLP."""
        assert self.mlps[layer]
        return self.before("q", layer) + self.n_heads

    def ports_of(self, kind: str, layer: int) -> slice:
        """The receivers that are a block's inputs of one kind; `attn` for q, k and v together."""
        width = self.n_heads + 2 * self.kv_heads
        start = layer * width + sum(self.mlps[:layer])
        sizes = {"q": (0, self.n_heads), "k": (self.n_heads, self.kv_heads), "attn": (0, width), "mlp": (width, 1)}
        sizes["v"] = (self.n_heads + self.kv_heads, self.kv_heads)
        first, size = sizes[kind]
        return slice(start + first, start + first + size)

    @cached_property
    def reads(self) -> tuple[Int[np.ndarray, "port"], ...]:
        """The receivers through which each sender reads; none for the input."""
        group, found = self.n_heads // self.kv_heads, []
        for node in self.senders:
            if node.kind == "input":
                found.append(np.zeros(0, dtype=int))
            elif node.kind == "mlp":
                found.append(np.array([self.ports_of("mlp", node.layer).start]))
            else:
                kv = node.head // group
                starts = [(kind, node.head if kind == "q" else kv) for kind in ("q", "k", "v")]
                found.append(np.array([self.ports_of(kind, node.layer).start + head for kind, head in starts]))
        return tuple(found)

    def connected(self, kept: Bool[np.ndarray, "sender receiver"]) -> Bool[np.ndarray, "sender receiver"]:
        """The edges on a path from the input to the output.

        The others carry nothing: a sender that no kept edge leads to has the value of the run that corrupts it.
        """
        n = len(self.senders)
        reached, useful = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        reached[0] = True
        for sender in range(1, n):
            reached[sender] = bool((kept[:, self.reads[sender]] & reached[:, None]).any())
        readers = [[] for _ in self.receivers]
        for sender, ports in enumerate(self.reads):
            for port in ports:
                readers[port].append(sender)
        heard = np.zeros(len(self.receivers), dtype=bool)
        heard[-1] = True
        for sender in range(n - 1, -1, -1):
            useful[sender] = bool((kept[sender] & heard).any())
            heard[self.reads[sender]] |= useful[sender]
        return kept & reached[:, None] & heard

    def edge_frame(self, index: Int[np.ndarray, "edge 2"]) -> pd.DataFrame:
        """Edges by name: sender, receiver, and layer and head of both (-1 where there is none)."""
        pairs = [(self.senders[s], self.receivers[r]) for s, r in index.tolist()]
        columns = ["sender", "receiver", "sender_layer", "sender_head", "receiver_layer", "receiver_head", "kind"]
        rows = [(a.name, b.name, a.layer, a.head, b.layer, b.head, b.kind) for a, b in pairs]
        return pd.DataFrame(rows, columns=pd.Index(columns))


def circuit_graph(model: HookedTransformer) -> Graph:
    """The graph of a model.

    Raises:
        ValueError: an encoder, a stream that is normed itself (post-LN), or latent attention, whose heads have no inputs of
            their own.
    """
    cfg = model.cfg
    if not cfg.causal:
        raise ValueError(f"{cfg.name} is an encoder: it predicts no next token, so no circuit answers a prompt")
    if cfg.norm_placement == "post_ln":
        raise ValueError(
            f"{cfg.name} norms the stream itself (post-LN), which is then no sum of what parts wrote, so there are no edges"
        )
    if cfg.latent is not None:
        raise ValueError(
            f"{cfg.name} has latent attention: its heads share compressed keys and values and have no inputs of their own"
        )
    mlps = tuple(block.mlp is not None for block in model.iter_blocks())
    return Graph(cfg.n_layers, cfg.n_heads, cfg.kv_heads, mlps, cfg.parallel)
