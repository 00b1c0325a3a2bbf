"""The search and the report: identities on tiny models, and a task of the real one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import shaken_model

from interp.circuits import (
    circuit_graph,
    circuit_report,
    circuit_runs,
    edge_attribution,
    find_circuit,
    load_circuit,
    node_effects,
)  # fmt: skip
from interp.circuits.search import random_circuits
from interp.model import HookedTransformer
from interp.report import render_report
from interp.task import PromptPairs, pair_metric, prompt_pairs, task_pairs


def some_pairs(model: HookedTransformer, n: int = 6, length: int = 5) -> PromptPairs:
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 200, (n, length))
    corrupted = clean.copy()
    corrupted[:, 2] = (corrupted[:, 2] + 7) % 200
    with torch.no_grad():
        gap = (model(clean.tolist()) - model(corrupted.tolist()))[:, -1]
    return prompt_pairs(model, clean.tolist(), corrupted.tolist(), gap.argmax(-1).tolist(), gap.argmin(-1).tolist())


@pytest.mark.parametrize("family", ["llama", "neox", "sinusoidal"])
def test_report_of_a_tiny_model(family: str, tmp_path: Path) -> None:
    model = shaken_model(family)
    pairs = some_pairs(model)
    report = circuit_report(model, pairs, faithfulness=0.7, n_checks=4, n_random=3, n_exact=8)
    circuit = report.circuit
    # The figure is that of the kept edges on the pairs that were held out.
    runs = circuit_runs(model, pairs[1::2])
    assert circuit.faithfulness == pytest.approx(float(runs.faithfulness(runs.metric(circuit.kept[None]))[0]), abs=1e-5)
    assert circuit.low <= circuit.faithfulness <= circuit.high
    assert (circuit.graph.connected(circuit.kept) == circuit.kept).all()
    assert (circuit.random_edges >= circuit.n_edges).all()
    assert circuit.checked is not None
    assert len(circuit.to_frame()) == circuit.n_edges
    assert "held-out pairs" in report.summary()
    clear = (report.node_effects["low"] > 0) | (report.node_effects["high"] < 0)
    chance = round(0.05 * len(clear))
    assert (
        f"{clear.sum()} of {len(clear)} heads and MLPs have an interval without 0 (about 5 %, {chance},"
        in report.summary()
    )
    assert len(report.node_effects) == len(circuit.graph.senders) - 1
    assert "Circuit" in render_report("t", report.sections())
    data = json.loads(report.save(tmp_path / "report.json").read_text())
    assert data["circuit"]["n_edges"] == len(data["edges"]) == circuit.n_edges
    loaded = load_circuit(circuit.save(tmp_path / "circuit.safetensors"))
    assert (loaded.kept == circuit.kept).all()
    assert loaded.summary() == circuit.summary()


@pytest.mark.parametrize("off", ["corrupted", "mean"])
def test_node_effects_are_those_of_values_put_in_by_hand(off: str) -> None:
    model = shaken_model("llama")
    pairs = some_pairs(model, n=3)
    others = [[1, 2], [0, 2], [0, 1]]
    measured = pair_metric(model, pairs)
    frame = node_effects(model, pairs, off=off).set_index("node")
    _, clean = model.run_with_cache(pairs.clean, ["z:1", "mlp_out:0"])
    _, corrupted = model.run_with_cache(pairs.corrupted, ["z:1", "mlp_out:0"])
    for name, site in (("L1H2", "z"), ("MLP 0", "mlp_out")):
        layer = 1 if site == "z" else 0
        a, b = clean[site, layer], corrupted[site, layer]
        new = b if off == "corrupted" else torch.stack([((a + b) / 2)[rest].mean(0) for rest in others])

        def put(value: torch.Tensor, ctx: object, new: torch.Tensor = new, site: str = site) -> torch.Tensor:
            if site == "mlp_out":
                return new
            value[:, :, 2] = new[:, :, 2]
            return value

        with model.hooks({f"{site}:{layer}": put}):
            logits = model(pairs.clean)[:, -1]
        wanted = float((measured.raw(logits) - measured.corrupted).mean()) / measured.gap - 1
        assert frame.loc[name, "effect"] == pytest.approx(wanted, abs=1e-4)


def test_random_circuits_are_connected_and_large_enough() -> None:
    graph = circuit_graph(shaken_model("llama"))
    for kept in random_circuits(graph, 12, 5, seed=0):
        assert 12 <= kept.sum() <= 30
        assert (graph.connected(kept) == kept).all()
        assert not (kept & ~graph.allowed).any()
    assert (random_circuits(graph, 12, 2, seed=0) == random_circuits(graph, 12, 2, seed=0)).all()


def test_bad_calls_are_refused() -> None:
    model = shaken_model("llama")
    pairs = some_pairs(model)
    with pytest.raises(ValueError, match="at least 4"):
        find_circuit(model, pairs[:3])
    with pytest.raises(ValueError, match=r"share=1\.5"):
        find_circuit(model, pairs, share=1.5)
    with pytest.raises(ValueError, match="no function of all pairs"):
        find_circuit(model, pairs, metric=lambda logits: logits[:, -1, 0])
    with pytest.raises(ValueError, match="n_random=-1"):
        find_circuit(model, pairs, n_random=-1)
    with pytest.raises(ValueError, match="mean of the other pairs"):
        node_effects(model, pairs[:1])
    with pytest.raises(ValueError, match="mean of the other pairs"):
        circuit_runs(model, pairs[:1], off="mean")
    with pytest.raises(ValueError, match="no head or MLP"):
        node_effects(model, pairs, nodes=[])


@pytest.mark.slow
def test_capitals_need_few_edges(smollm: HookedTransformer) -> None:
    circuit = find_circuit(smollm, task_pairs(smollm, "capitals", n=16), share=0.05, n_checks=0, n_exact=16)
    assert circuit.faithfulness > 0.8
    assert circuit.share < 0.2
    assert len(circuit.random) == 20
    assert circuit.random.max() < 0.5
    assert circuit.agreement is not None
    assert circuit.agreement > 0.8


def test_scores_and_circuits_of_another_model_or_metric_are_refused() -> None:
    model, other = shaken_model("llama"), shaken_model("llama", seed=5)
    pairs = some_pairs(model)
    scores = edge_attribution(model, pairs[::2], method="eap")
    with pytest.raises(ValueError, match="with other weights"):
        find_circuit(other, pairs, scores=scores, n_random=0, n_exact=0)
    with pytest.raises(ValueError, match="for the metric logit_diff"):
        find_circuit(model, pairs, scores=scores, metric="log_probability", n_random=0, n_exact=0)
    circuit = find_circuit(model, pairs, scores=scores, share=1.0, n_random=0, n_exact=0)
    assert circuit.n_edges == scores.graph.n_edges  # a share that was named is kept whole
    with pytest.raises(ValueError, match="with other weights"):
        circuit_report(other, pairs, circuit=circuit, n_random=1)
