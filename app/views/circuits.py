"""Circuits: the edges that do a task, how much of it they keep, and what breaks without them."""

import streamlit as st

from interp import plot
from ui import figure, frame, library, services, states, text
from ui.panels.circuit_start import start
from ui.services import circuits

WHAT = """
Heads and MLPs read from and write to one stream; each pair of a writer and a later reader is an **edge**. A circuit is the
small set of edges that does a task: the others are scored by edge attribution (Syed et al. 2023; integrated gradients,
Hanna et al. 2024), and the weakest are taken away as long as the task holds.

**Faithfulness** is the metric with all other edges ablated: 1 is the whole model, 0 the corrupted run. It is measured on
pairs that did not choose the circuit, beside random circuits of as many edges.

A circuit is an answer for *this* task, these pairs and this ablation, not *the* mechanism.
"""


def graph(found: circuits.Found, code: str) -> None:
    """The strongest edges."""
    what = (
        "Layers up, heads side by side, MLPs at the right; the input at the bottom and the output on top. Width is the size of "
        "an edge's score, colour its sign: **blue** edges help the task. Hover a line for its number."
    )
    with figure.card("circuit_graph", "The circuit", what) as card:
        most = min(200, len(found.edges))
        top = most
        if most > 10:
            top = st.slider("Edges drawn", 10, most, min(40, most), key="circuit_top", bind="query-params", width=260)
        drawn = found.edges.head(top)
        card.chart(
            plot.circuit_graph_chart(drawn, n_layers=found.n_layers, n_heads=found.n_heads, top=top,
                                     left_out=len(found.edges) - len(drawn)),
            found.edges,
            code=f"{code}from interp import plot\n\nchart = plot.circuit_graph_chart(\n    edges, n_layers={found.n_layers}, "
            f"n_heads={found.n_heads}, top={top}\n)",
            width="content",
            caption=f"{len(drawn):,} of {len(found.edges):,} kept edges, of {found.facts['n_edges_in_all']:,} in the model",
        )  # fmt: skip


def faithfulness(found: circuits.Found, code: str) -> None:
    """What is kept of the task."""
    what = (
        "The metric between the corrupted run (0) and the whole model (1), with edges ablated. A good circuit keeps much *alone*"
        ", and the model loses much *without* it; random edges are what any set of that size would do. "
        "Lines are 95 % intervals over held-out pairs."
    )
    with figure.card("circuit_kept", "Faithfulness", what) as card:
        card.chart(
            plot.lead_bars(found.kept, "share of the gap that is kept"),
            found.kept,
            code=f"{code}print(kept)",
            caption=f"n = {found.facts['n']} held-out pairs",
        )


def nodes(found: circuits.Found, code: str) -> None:
    """Effects of nodes alone, or the nodes of a saved circuit."""
    if found.effects.empty:
        table, title = found.nodes, "Nodes of the circuit"
        what = "Edges into and out of each node, and the sum of the sizes of its edges' scores."
    else:
        table, title = found.effects.sort_values("effect", key=abs, ascending=False), "Each node alone"
        what = (
            "Change of the normalised metric when one head or MLP is ablated alone: below 0 the task suffers. About one interval "
            "in twenty leaves 0 out by chance."
        )
    with figure.card("circuit_nodes", title, what) as card:
        order = ("node", "effect", "low", "high", "n", "edges_in", "edges_out", "score")
        shown = table.loc[:, [name for name in order if name in table]]
        numbers = {name: st.column_config.NumberColumn(format="%.3f") for name in ("effect", "low", "high", "score")}
        card.table(
            shown.head(100),
            code=f"{code}print(nodes)",
            columns=numbers,
            height=390,
            caption=f"{min(100, len(shown))} of {len(shown):,} nodes, the strongest first",
        )


def reading(entry: library.Entry) -> str:
    """Python that reads the circuit: by name, from the folder that the reader keeps it in."""
    if entry.kind == "circuit":
        return f"""
import interp

circuit = interp.load_circuit({entry.key!r})  # below the workspace
edges, nodes, kept = circuit.to_frame(), circuit.nodes(), circuit.summary()
"""
    return f"""
import json

import pandas as pd

report = json.load(open({entry.key!r}))  # below the workspace
edges, nodes, kept = (pd.DataFrame(report[name]) for name in ("edges", "node_effects", "knocked_out"))
"""


def show(entry: library.Entry) -> None:
    """One circuit."""
    with states.busy("Reading the circuit"):
        found = circuits.load(entry)
    facts = found.facts
    with st.container(horizontal=True):
        st.metric("Faithfulness", f"{facts['faithfulness']:.2f}", border=True, width=180)
        low, high = facts["low"], facts["high"]
        known = low is not None and high is not None and low == low
        st.metric("95 % interval", f"{low:.2f} to {high:.2f}" if known else "unknown", border=True, width=200)
        st.metric("Edges", f"{facts['n_edges']:,}", border=True, width=160)
        st.metric("Of the model's", f"{facts['n_edges'] / facts['n_edges_in_all']:.2%}", border=True, width=180)
    if facts["n"] < 8:
        st.caption(f":material/warning: Only {facts['n']} held-out pairs: take such figures as a first look.")
    text.say(found.summary)
    code = reading(entry)
    graph(found, code)
    left, right = st.columns(2)
    with left:
        faithfulness(found, code)
    with right:
        nodes(found, code)
    card = found.card
    st.caption(
        " · ".join(
            text.plain(f"{name} {card[name]}")
            for name in ("model", "task", "metric", "method", "off", "seed")
            if name in card
        )
    )


def render() -> None:
    frame.head("Circuits", WHAT)
    frame.prompt_strip()
    fingerprint = None
    with states.guard("The model cannot be loaded"):
        fingerprint = services.engine().fingerprint
    entry = library.pick(circuits.KINDS, "Circuit", "circuit_entry", model=fingerprint)
    if entry is None:
        states.empty(
            "No circuit yet",
            "The workspace holds no circuit. Find one for a bundled task below, or in a shell:",
            "interp circuit smollm2-135m --task indirect_objects --n 16 --out runs/io_circuit.json",
        )
    else:
        if fingerprint is not None and entry.model not in (None, fingerprint):
            st.caption(":material/warning: This circuit belongs to another model than the one in the sidebar.")
        with states.guard("The circuit cannot be shown"):
            show(entry)
    with states.guard("A circuit cannot be looked for"):
        start()


render()
