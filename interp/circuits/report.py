"""Circuit report: what does a task in a model, how sure that is, and what the rest contributes.

1. `find_circuit` on half of the pairs; all figures come from the other half.
2. The exact effect of every head and MLP alone, by mean ablation or by the corrupted run's values.
3. *Faithfulness* of the circuit with all other edges ablated, and *completeness*: what is left of the task when the
   circuit's own edges are ablated and the rest works. A complete circuit leaves as little as a model without the
   task; random sets of as many edges, switched off in the same way, stand beside it (Wang et al. 2022, arXiv 2211.00593).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from interp import artifact, plot
from interp.circuits.circuit import Circuit
from interp.circuits.effects import node_effects
from interp.circuits.run import circuit_runs
from interp.circuits.search import check_same, find_circuit, random_circuits
from interp.model import HookedTransformer
from interp.report import Figure, Section, Table
from interp.task import PromptPairs, pair_metric


@dataclass(frozen=True, eq=False)
class CircuitReport:
    """A circuit, the nodes that matter, and how much of the task is inside and outside."""

    circuit: Circuit
    """The edges."""
    node_effects: pd.DataFrame
    """node, kind, layer, head, effect, low, high, n: change of the normalised metric when it is ablated alone."""
    knocked_out: pd.DataFrame
    """what (`nothing`, `circuit alone`, `all but the circuit`, `all but random`), number, kept, low, high (95 % over pairs),
    n: the normalised metric (1 is the model, 0 the corrupted run) with the other edges ablated."""
    card: dict[str, Any]
    """Provenance."""

    def to_frame(self) -> pd.DataFrame:
        """The effects of nodes."""
        return self.node_effects

    def share_kept(self, what: str) -> float:
        """Mean over the rows of `knocked_out` of one kind."""
        return float(self.knocked_out.loc[self.knocked_out["what"] == what, "kept"].mean())

    def summary(self) -> str:
        """What was found, in sentences."""
        clear = self.node_effects[(self.node_effects["low"] > 0) | (self.node_effects["high"] < 0)]
        first = ", ".join(f"{node} ({effect:+.2f})" for node, effect in zip(clear["node"][:6], clear["effect"][:6]))
        nodes = f"Ablated alone, {len(clear)} of {len(self.node_effects)} heads and MLPs have an interval without 0"
        nodes += f" (about 5 %, {0.05 * len(self.node_effects):.0f}, would by chance)"
        at = "at their mean" if self.card["off"] == "mean" else "corrupted"
        text = f"{self.circuit.summary()} {nodes}{': ' + first if first else ''}."
        text += f" With all other edges {at} the circuit keeps {self.share_kept('circuit alone'):.2f} of the gap"
        text += f" (no edge at all: {self.share_kept('nothing'):.2f}); with its own edges {at} the rest keeps"
        text += f" {self.share_kept('all but the circuit'):.2f}"
        if "all but random" in self.knocked_out["what"].tolist():
            text += f", where the loss of as many random edges leaves {self.share_kept('all but random'):.2f}"
        return text + "."

    def plot(self, top: int = 60) -> alt.LayerChart:
        """The circuit."""
        return self.circuit.plot(top)

    def sections(self) -> list[Section]:
        """For `interp.report.write_report`."""
        circuit = self.circuit
        figure = Figure(
            plot.to_svg(self.plot(), ink="currentColor"),
            f"The strongest of {circuit.n_edges:,} kept edges; n = {circuit.n} held-out pairs.",
        )
        tables = [
            Table(self.node_effects.head(20), "Change of the normalised metric when one head or MLP is ablated alone."),
            Table(self.knocked_out, "The normalised metric (1: the model, 0: corrupted) with the other edges ablated."),
        ]
        if circuit.checked is not None:
            tables.append(Table(circuit.checked, "Scores of edges beside the exact effects of corrupting them alone."))
        return [Section("Circuit", self.summary(), [figure], tables)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what has no interval has None."""
        circuit = self.circuit
        figures = {
            "faithfulness": circuit.faithfulness, "low": _number(circuit.low), "high": _number(circuit.high),
            "n": circuit.n, "n_edges": circuit.n_edges, "n_edges_in_all": circuit.graph.n_edges,
            "random": circuit.random.tolist(), "random_edges": circuit.random_edges.tolist(),
            "agreement": None if circuit.agreement is None else _number(circuit.agreement), "card": circuit.card,
        }  # fmt: skip
        return {
            "kind": "circuit report", "summary": self.summary(), "circuit": figures, "card": self.card,
            "edges": _records(circuit.to_frame()), "nodes": _records(circuit.nodes()),
            "checked": None if circuit.checked is None else _records(circuit.checked),
            "node_effects": _records(self.node_effects), "knocked_out": _records(self.knocked_out),
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write JSON. The circuit itself is kept by `report.circuit.save`."""
        return artifact.write_json(path, self.to_dict())


def circuit_report(
    model: HookedTransformer,
    pairs: PromptPairs,
    *,
    circuit: Circuit | None = None,
    metric: Any = "logit_diff",
    off: str | Any = "mean",
    n_random: int | Any = 20,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **search: Any,
) -> CircuitReport:
    """Find the circuit of a task and say how much it explains.

    Args:
        model: any model that has a `circuit_graph`.
        pairs: at least 4; every second one is held out.
        circuit: one that was found on `pairs[::2]` already; None searches.
        metric: as in `find_circuit`.
        off: what an ablated node or edge has: "mean", or "corrupted".
        n_random: random circuits, and random sets that are switched off.
        seed: of all draws.
        progress: fn(nodes ablated, nodes in all).
        search: further arguments of `find_circuit`.

    Raises:
        ValueError: as in `find_circuit`.
    """
    if circuit is None:
        circuit = find_circuit(model, pairs, metric=metric, n_random=n_random, seed=seed, **search)
    elif search:
        raise ValueError(f"{', '.join(search)}= are for the search, but a circuit was given")
    held = pairs[1::2]
    check_same(model, pair_metric(model, held, metric).name, circuit.card, "circuit's edges")
    effects = node_effects(model, held, metric=metric, off=off, seed=seed, progress=progress)
    runs = circuit_runs(model, held, metric=metric, off=off)
    allowed = circuit.graph.allowed
    random = random_circuits(circuit.graph, circuit.n_edges, n_random, seed + 1)
    kept = [np.zeros_like(allowed)[None], circuit.kept[None], (allowed & ~circuit.kept)[None], allowed & ~random]
    effect = runs.measured.effect(runs.metric(np.concatenate(kept)).to(runs.measured.clean.device), seed)
    frame = pd.DataFrame(
        {
            "what": ["nothing", "circuit alone", "all but the circuit", *["all but random"] * n_random],
            "number": [0, 0, 0, *range(n_random)], "kept": effect.mean, "low": effect.low, "high": effect.high, "n": effect.n,
        }
    )  # fmt: skip
    card = artifact.provenance(
        analysis="circuit report", model=model.cfg.name, fingerprint=model.fingerprint, task=pairs.name,
        metric=runs.measured.name, off=off, n_held_out=len(held), n_random=n_random, seed=seed,
    )  # fmt: skip
    return CircuitReport(circuit, effects, frame, card)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return [
        {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in row.items()}
        for row in frame.to_dict("records")
    ]
