"""Find the circuit of a task: few edges that keep the metric, with random circuits beside it.

1. Half of the pairs chooses, the other half is kept for the figures.
2. Score all edges (`edge_attribution`), and keep the n strongest that lie on a path from the input to the output. n is the
   smallest, by doubling and bisection, whose exact faithfulness reaches the wished one with the lower end of its 95 %
   interval over pairs: a circuit that just reaches it on the pairs that chose it falls short on others.
3. Take away what does not hold up: groups of kept edges, weakest first, are switched off exactly; a group goes if the
   faithfulness stays where it is wished, is halved if not, and single edges that are needed stay.
4. On the held-out pairs: the exact faithfulness of the circuit, of random circuits with at least as many connected edges,
   and the exact effects of single edges against their scores.

Faithfulness is (m(circuit) - m(corrupted)) / (m(model) - m(corrupted)), of means over pairs (Wang et al. 2022, arXiv
2211.00593; Conmy et al. 2023, arXiv 2304.14997 for circuits of edges). It passes 1 where the circuit leaves out what works
against the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import artifact
from interp.circuits.circuit import Circuit
from interp.circuits.edges import EdgeScores, edge_attribution
from interp.circuits.effects import edge_effects
from interp.circuits.graph import Graph
from interp.circuits.run import CircuitRuns, circuit_runs
from interp.model import HookedTransformer
from interp.task import Effect, PromptPairs, mean_effect, pair_metric

FIRST = 0.01
"""Share of the edges that the search begins with."""
CLOSE = 1.1
"""The search for n ends when two sizes, one too small and one large enough, are this near."""
GROUPS = 16
"""Parts that the kept edges are first taken away in."""


def find_circuit(
    model: HookedTransformer,
    pairs: PromptPairs,
    *,
    scores: EdgeScores | None = None,
    method: str | Any = "eap_ig",
    metric: Any = "logit_diff",
    share: float | Any = None,
    faithfulness: float | Any = 0.9,
    n_checks: int | Any = 24,
    n_random: int | Any = 20,
    n_exact: int | Any = 32,
    seed: int = 0,
) -> Circuit:
    """Search for the smallest circuit that does the task.

    Args:
        model: any model that has a `circuit_graph`.
        pairs: at least 4, of which every second one chooses and the others give the figures.
        scores: of the edges, made on the choosing half (`pairs[::2]`); None computes them.
        method: of the scores.
        metric: as in `interp.task.pair_metric`; a name, since a function of the caller's sees all pairs.
        share: take this share of the edges, 0 to 1; none of them is left out afterwards, but those off every path.
        faithfulness: wished of the circuit, for the lower end of the interval on the choosing half.
        n_checks: most exact runs that step 3 may take; 0 leaves it out.
        n_random: random circuits; 0 for none.
        n_exact: edges whose exact effect is measured: half of them the strongest, the others from all ranks.
        seed: of random circuits and bootstraps.

    Raises:
        ValueError: too few pairs, a share or faithfulness that makes no sense, or what `edge_attribution` refuses.
    """
    _check(pairs, metric, share, faithfulness, {"n_checks": n_checks, "n_random": n_random, "n_exact": n_exact})
    chosen, held = pairs[::2], pairs[1::2]
    if scores is None:
        scores = edge_attribution(model, chosen, metric=metric, method=method, seed=seed)
    search = _Search(circuit_runs(model, chosen, metric=metric), scores, seed)
    if search.graph != scores.graph:
        raise ValueError("the scores are of another graph than this model's")
    check_same(model, search.runs.measured.name, scores.card, "scores")
    first = (
        search.smallest(float(faithfulness)) if share is None else search.strongest(round(share * scores.graph.n_edges))
    )
    if not first.any():
        raise ValueError(f"share={share} keeps no path from the input to the output: take a larger one")
    wished = float(faithfulness) if share is None else None
    # A share that the caller names is kept as it is; only the search may leave edges out.
    kept, n_runs = (first, 0) if wished is None else search.without_idle(first, wished, n_checks)
    runs = circuit_runs(model, held, metric=metric)
    random = random_circuits(scores.graph, int(kept.sum()), n_random, seed)
    raw = runs.metric(np.concatenate([kept[None], random]))
    effect = faithfulness_effect(runs, raw[0], seed)
    card = artifact.provenance(
        analysis="circuit", model=model.cfg.name, fingerprint=model.fingerprint, task=pairs.name, metric=runs.measured.name,
        method=scores.card["method"], wished=wished, n_chosen=len(chosen), n_held_out=len(held), share=share, seed=seed,
        n_before_check=int(first.sum()), n_checks=n_runs, chosen_faithfulness=search.faithfulness(kept),
    )  # fmt: skip
    return Circuit(
        scores=scores, kept=kept, faithfulness=float(effect.mean), low=float(effect.low), high=float(effect.high), n=effect.n,
        random=runs.faithfulness(raw[1:]).numpy(), random_edges=random.sum((1, 2)),
        checked=_exact(model, held, scores, metric, n_exact, seed) if n_exact else None, card=card,
    )  # fmt: skip


def faithfulness_effect(runs: CircuitRuns, raw: Float[Tensor, "*circuits pair"], seed: int) -> Effect:
    """Faithfulness with its 95 % bootstrap interval over pairs."""
    return mean_effect(raw, runs.measured.clean.cpu(), runs.nothing, runs.gap, seed)


def _check(pairs: PromptPairs, metric: Any, share: Any, faithfulness: Any, counts: dict[str, Any]) -> None:
    if len(pairs) < 4:
        raise ValueError(f"there are {len(pairs)} pairs; half of them choose and half are held out, so give at least 4")
    if not isinstance(metric, str):
        raise ValueError(
            "a circuit is chosen on half of the pairs, so metric= must be a name and no function of all pairs"
        )
    for name, value in (("share", share), ("faithfulness", faithfulness)):
        if value is None and name == "share":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ValueError(f"{name}={value!r} must lie above 0 and be at most 1")
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}={value!r}: it is a whole number from 0 on")


def check_same(model: HookedTransformer, metric: str, card: Mapping[str, Any], what: str) -> None:
    """ValueError where scores or a circuit come from another model or metric: their figures would stand beside each other."""
    if card["fingerprint"] != model.fingerprint:
        raise ValueError(
            f"the {what} are of {card['model']} with other weights than this {model.cfg.name}: make them anew"
        )
    if card["metric"] != metric:
        raise ValueError(f"the {what} are for the metric {card['metric']}, not for {metric}: make them anew")


@dataclass(frozen=True, eq=False)
class _Search:
    """Exact runs of circuits on the choosing half."""

    runs: CircuitRuns
    """Of these pairs."""
    scores: EdgeScores
    """What ranks the edges."""
    seed: int
    """Of the bootstrap."""

    @property
    def graph(self) -> Graph:
        return self.runs.graph

    def faithfulness(self, kept: Bool[np.ndarray, "sender receiver"]) -> float:
        return float(self.runs.faithfulness(self.runs.metric(kept[None]))[0])

    def surely(self, kept: Bool[np.ndarray, "sender receiver"]) -> float:
        """The lower end of the interval of the faithfulness."""
        return faithfulness_effect(self.runs, self.runs.metric(kept[None])[0], self.seed).low.item()

    def strongest(self, n: int) -> Bool[np.ndarray, "sender receiver"]:
        """The connected ones among the n strongest edges."""
        return self.graph.connected(self.scores.strongest(n))

    def smallest(self, wished: float) -> Bool[np.ndarray, "sender receiver"]:
        """The smallest set of strongest edges that reaches the wished faithfulness."""
        whole = self.graph.n_edges
        low, high = 0, max(1, round(FIRST * whole))
        best = self.strongest(high)
        while self.surely(best) < wished and high < whole:
            low, high = high, min(2 * high, whole)
            best = self.strongest(high)
        while high > CLOSE * low and high - low > 1:
            middle = round((low * high) ** 0.5) if low else high // 2
            if middle in (low, high):
                break
            kept = self.strongest(middle)
            if self.surely(kept) >= wished:
                high, best = middle, kept
            else:
                low = middle
        return best

    def without_idle(
        self, kept: Bool[np.ndarray, "sender receiver"], wished: float, n_checks: int
    ) -> tuple[Bool[np.ndarray, "sender receiver"], int]:
        """The circuit without edges that it does as well without, and how many runs that took."""
        order = self.scores.index[self.scores.order[::-1]]
        order = order[kept[order[:, 0], order[:, 1]]]
        # A stack with the weakest group on top; a group that is needed comes back as two halves.
        groups = [part for part in np.array_split(order, min(GROUPS, len(order))) if len(part)][::-1]
        done = 0
        while groups and done < n_checks:
            group = groups.pop()
            group = group[kept[group[:, 0], group[:, 1]]]
            if not len(group):
                continue
            tried = kept.copy()
            tried[group[:, 0], group[:, 1]] = False
            tried = self.graph.connected(tried)
            done += 1
            if tried.any() and self.surely(tried) >= wished:
                kept = tried
            elif len(group) > 1:
                groups[:0] = np.array_split(group, 2)  # after all whole groups had their turn
        return kept, done


def random_circuits(graph: Graph, n_edges: int, n: int, seed: int) -> Bool[np.ndarray, "circuit sender receiver"]:
    """Circuits of edges drawn at random, each the smallest draw whose connected part has at least n_edges."""
    rng, index = np.random.default_rng(seed), np.argwhere(graph.allowed)
    found = np.zeros((n, *graph.allowed.shape), dtype=bool)
    for circuit in found:
        drawn = index[rng.permutation(len(index))]
        low, high = n_edges - 1, len(drawn)
        while high - low > 1:
            middle = (low + high) // 2
            if _part(graph, drawn[:middle]).sum() >= n_edges:
                high = middle
            else:
                low = middle
        circuit[:] = _part(graph, drawn[:high])
    return found


def _part(graph: Graph, edges: Int[np.ndarray, "edge 2"]) -> Bool[np.ndarray, "sender receiver"]:
    kept = np.zeros_like(graph.allowed)
    kept[edges[:, 0], edges[:, 1]] = True
    return graph.connected(kept)


def _exact(
    model: HookedTransformer, pairs: PromptPairs, scores: EdgeScores, metric: str, n: int, seed: int
) -> pd.DataFrame:
    """The strongest edges and some of all ranks, each corrupted alone: sender, receiver, score, exact, low, high, n."""
    ranks = np.concatenate([np.arange(n - n // 2), np.geomspace(n, len(scores.order), n // 2 + 1)[:-1].round()])
    ranks = np.unique(ranks[ranks < len(scores.order)].astype(int))
    edges = scores.order[ranks]
    runs = edge_effects(model, pairs, scores.index[edges], metric=metric)
    effect = pair_metric(model, pairs, metric).effect(runs, seed)
    frame = scores.graph.edge_frame(scores.index[edges])
    return frame.assign(
        score=scores.scores[edges], exact=effect.mean - 1, low=effect.low - 1, high=effect.high - 1, n=effect.n
    )
