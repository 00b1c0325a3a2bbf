"""Circuits: which edges between heads and MLPs do a task, by estimates that are checked exactly."""

from interp.circuits.circuit import Circuit, load_circuit
from interp.circuits.edges import EdgeScores, edge_attribution, load_edge_scores
from interp.circuits.effects import edge_effects, node_effects
from interp.circuits.graph import Graph, circuit_graph
from interp.circuits.report import CircuitReport, circuit_report
from interp.circuits.run import CircuitRuns, circuit_runs, run_circuit
from interp.circuits.search import find_circuit

__all__ = [
    "Circuit",
    "CircuitReport",
    "CircuitRuns",
    "EdgeScores",
    "Graph",
    "circuit_graph",
    "circuit_report",
    "circuit_runs",
    "edge_attribution",
    "edge_effects",
    "find_circuit",
    "load_circuit",
    "load_edge_scores",
    "node_effects",
    "run_circuit",
]
