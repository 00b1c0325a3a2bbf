"""The result of a circuit search: which edges, how faithful they are, and what random ones do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import spearmanr

from interp import artifact
from interp.circuits.edges import EdgeScores, graph_card, graph_from_card
from interp.circuits.graph import Graph
from interp.plot.circuits import circuit_graph_chart


@dataclass(frozen=True, eq=False)
class Circuit:
    """Edges that do a task, with figures from pairs that the search did not see."""

    scores: EdgeScores
    """What the edges were ranked by."""
    kept: Bool[np.ndarray, "sender receiver"]
    """The edges, all on a path from the input to the output."""
    faithfulness: float
    """(m(circuit) - m(corrupted)) / (m(model) - m(corrupted)) on the held-out pairs."""
    low: float
    """Lower end of its 95 % bootstrap interval over pairs; NaN for one."""
    high: float
    """Upper end."""
    n: int
    """Held-out pairs."""
    random: Float[np.ndarray, "circuit"]
    """Faithfulness of random circuits on the same pairs."""
    random_edges: Int[np.ndarray, "circuit"]
    """Edges of each, at least as many as the circuit has."""
    checked: pd.DataFrame | None
    """Edges corrupted alone on the held-out pairs: sender, receiver, score, exact, low, high, n."""
    card: dict[str, Any]
    """Provenance: model, task, metric, method, numbers of pairs, seed."""

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.scores.graph

    @property
    def n_edges(self) -> int:
        """Edges kept."""
        return int(self.kept.sum())

    @property
    def share(self) -> float:
        """Share of the model's edges that is kept."""
        return self.n_edges / self.graph.n_edges

    @property
    def agreement(self) -> float | None:
        """Spearman's rank correlation between scores and exact effects of the checked edges; None for fewer than 3."""
        if self.checked is None or len(self.checked) < 3:
            return None
        result: Any = spearmanr(self.checked["score"], self.checked["exact"])
        return float(result.statistic)

    def to_frame(self) -> pd.DataFrame:
        """A row for each kept edge, the strongest first: sender, receiver, their layers and heads, score."""
        index = self.scores.index[self.scores.order]
        mine = self.kept[index[:, 0], index[:, 1]]
        frame = self.graph.edge_frame(index[mine])
        return frame.assign(score=self.scores.scores[self.scores.order[mine]])

    def nodes(self) -> pd.DataFrame:
        """A row for each sender of the circuit: node, kind, layer, head, edges out, edges in, sum of |score| out."""
        scores = np.zeros(self.kept.shape)
        scores[self.scores.index[:, 0], self.scores.index[:, 1]] = np.abs(self.scores.scores)
        rows = [
            (node.name, node.kind, node.layer, node.head, int(self.kept[i].sum()),
             int(self.kept[:, self.graph.reads[i]].sum()), float(scores[i][self.kept[i]].sum()))
            for i, node in enumerate(self.graph.senders) if self.kept[i].any()
        ]  # fmt: skip
        columns = ["node", "kind", "layer", "head", "edges_out", "edges_in", "score"]
        return pd.DataFrame(rows, columns=pd.Index(columns)).sort_values("score", ascending=False, ignore_index=True)

    def plot(self, top: int = 60) -> alt.LayerChart:
        """The strongest kept edges, layer by layer."""
        return circuit_graph_chart(self.to_frame(), n_layers=self.graph.n_layers, n_heads=self.graph.n_heads, top=top)

    def summary(self) -> str:
        """What was found, in sentences."""
        card = self.card
        text = (
            f"{self.n_edges:,} of {self.graph.n_edges:,} edges ({self.share:.1%}) keep {self.faithfulness:.2f} of the "
            f"{card['metric']} of {card['task']} (95 % interval {self.low:.2f} to {self.high:.2f}, n = {self.n} held-out pairs)."
        )
        if len(self.random):
            text += (
                f" {len(self.random)} random circuits of as many connected edges keep {self.random.mean():.2f} on average, "
                f"{self.random.max():.2f} at most."
            )
        if self.agreement is not None and self.checked is not None:
            text += f" Scores and exact effects of {len(self.checked)} edges have a rank correlation of {self.agreement:.2f}."
        return text

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_circuit` reads it."""
        tensors = {
            "kept": torch.as_tensor(self.kept).to(torch.uint8), "raw": self.scores.raw, "clean": self.scores.clean,
            "corrupted": self.scores.corrupted, "random": torch.as_tensor(self.random),
            "random_edges": torch.as_tensor(self.random_edges),
        }  # fmt: skip
        ends = None if np.isnan(self.low) else [self.low, self.high]
        card = {"graph": graph_card(self.graph), "scores": self.scores.card, "faithfulness": self.faithfulness}
        card |= {"interval": ends, "n_held_out": self.n}
        card |= {"checked": None if self.checked is None else self.checked.to_dict("records")}
        return artifact.save_artifact(Path(path), "circuit", tensors, self.card | card)


def load_circuit(path: str | Path) -> Circuit:
    """Read what `Circuit.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "circuit")
    graph, scores, checked = graph_from_card(card.pop("graph")), card.pop("scores"), card.pop("checked")
    low, high = card.pop("interval") or (float("nan"), float("nan"))
    return Circuit(
        scores=EdgeScores(graph, tensors["raw"], tensors["clean"], tensors["corrupted"], scores),
        kept=tensors["kept"].bool().numpy(), faithfulness=card.pop("faithfulness"), low=low, high=high,
        n=card["n_held_out"], random=tensors["random"].numpy(), random_edges=tensors["random_edges"].numpy(),
        checked=None if checked is None else pd.DataFrame(checked), card=card,
    )  # fmt: skip
