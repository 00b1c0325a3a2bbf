"""Circuits of the workspace: reports and saved circuits, as frames."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp import artifact
from ui import library
from ui.services.runs import KEPT

KINDS = ("circuit report", "circuit")
_EDGES = ("sender", "receiver", "sender_layer", "sender_head", "receiver_layer", "receiver_head", "score")


@dataclass(frozen=True)
class Found:
    """One circuit with its figures."""

    kind: str
    """Of `KINDS`."""
    summary: str
    edges: pd.DataFrame
    """A row per kept edge, the strongest first."""
    nodes: pd.DataFrame
    """A row per head, MLP or input that sends: node, edges_out, edges_in, score."""
    effects: pd.DataFrame
    """A row per node ablated alone: node, effect, low, high, n; empty for a saved circuit."""
    kept: pd.DataFrame
    """What is kept of the gap: part, effect, low, high; random ones are one row each."""
    facts: dict[str, Any]
    """faithfulness, low, high, n, n_edges, n_edges_in_all, agreement."""
    card: dict[str, Any]
    n_layers: int
    n_heads: int


def load(entry: library.Entry) -> Found:
    """The circuit of an entry of the workspace.

    Raises:
        ValueError: a damaged file, or one of another kind.
    """
    return _load(entry.kind, str(entry.path), entry.stamp)


@st.cache_data(**KEPT)
def _load(kind: str, path: str, stamp: int) -> Found:  # noqa: ARG001 (the stamp is part of the key)
    if kind not in KINDS:
        raise ValueError(f"a {kind} is no circuit: choose another one")
    try:
        return _report(path) if kind == "circuit report" else _circuit(path)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"the {kind} is damaged ({type(error).__name__} {error}): make it again") from None


def _report(path: str) -> Found:
    held = artifact.read_json(path)
    figures, edges = held["circuit"], pd.DataFrame(held["edges"])
    effects = _numbers(pd.DataFrame(held["node_effects"]), "effect", "low", "high")
    missing = [name for name in _EDGES if name not in edges]
    if missing or effects.empty:
        raise ValueError(f"the circuit report lacks {', '.join(missing) or 'its nodes'}: make it again")
    out = _numbers(pd.DataFrame(held["knocked_out"]), "kept", "low", "high").rename(columns={"kept": "effect"})
    counts = out["what"].value_counts().to_dict()
    out["part"] = [
        f"{what} {number + 1}" if counts[what] > 1 else what for what, number in zip(out["what"], out["number"])
    ]
    names = ("faithfulness", "low", "high", "n", "n_edges", "n_edges_in_all", "agreement")
    # The effects have a row for every head and MLP, also those that no edge of the circuit touches.
    return Found(
        kind="circuit report", summary=str(held["summary"]), edges=edges, nodes=pd.DataFrame(held["nodes"]), effects=effects,
        kept=out.loc[:, ["part", "effect", "low", "high", "n"]], facts={name: figures[name] for name in names},
        card=dict(figures["card"]) | {"off": held["card"]["off"]}, n_layers=max(effects["layer"].tolist()) + 1,
        n_heads=max(effects["head"].tolist()) + 1,
    )  # fmt: skip


def _circuit(path: str) -> Found:
    found = interp.load_circuit(path)
    parts = [("circuit", found.faithfulness, found.low, found.high, found.n)]
    nan = float("nan")
    parts += [(f"random {i + 1}", value, nan, nan, found.n) for i, value in enumerate(found.random.tolist())]
    return Found(
        kind="circuit", summary=found.summary(), edges=found.to_frame(), nodes=found.nodes(), effects=pd.DataFrame(),
        kept=pd.DataFrame(parts, columns=pd.Index(["part", "effect", "low", "high", "n"])),
        facts={
            "faithfulness": found.faithfulness, "low": found.low, "high": found.high, "n": found.n,
            "n_edges": found.n_edges, "n_edges_in_all": found.graph.n_edges, "agreement": found.agreement,
        },
        card=found.card, n_layers=found.graph.n_layers, n_heads=found.graph.n_heads,
    )  # fmt: skip


def _numbers(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """JSON has None where a number is unknown."""
    return frame.assign(**{name: frame[name].astype(float) for name in columns})
