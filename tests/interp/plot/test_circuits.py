"""The drawing of a circuit."""

import pandas as pd
import pytest

from interp.plot.circuits import circuit_graph_chart
from interp.plot.style import to_svg


def edges(n: int) -> pd.DataFrame:
    rows = [
        ("input", "L0KV0.v", -1, -1, 0, 0, -0.5),
        ("L0H1", "MLP 1", 0, 1, 1, -1, 0.3),
        ("MLP 1", "output", 1, -1, 2, -1, -0.2),
    ]
    columns = ["sender", "receiver", "sender_layer", "sender_head", "receiver_layer", "receiver_head", "score"]
    return pd.DataFrame(rows[:n], columns=pd.Index(columns))


def test_the_strongest_edges_are_drawn_and_the_rest_counted() -> None:
    chart = circuit_graph_chart(edges(3), n_layers=2, n_heads=4, top=2, left_out=7)
    assert chart.to_dict()["title"] == "2 strongest edges; 8 more are not drawn"
    svg = to_svg(chart)
    assert "L0KV0" in svg
    assert "output" not in svg  # only the edge that was left out touches it


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        circuit_graph_chart(edges(0), n_layers=2, n_heads=4)
    with pytest.raises(ValueError, match="top=0"):
        circuit_graph_chart(edges(2), n_layers=2, n_heads=4, top=0)
