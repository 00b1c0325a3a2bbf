"""Chart of what one latent does to all tokens."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.style import BLUE, VERMILION, layered, rows


def logit_histogram(edges: Any, counts: Any) -> alt.LayerChart:
    """How many tokens a direction raises or lowers by how much, on a symlog axis so that the few at the ends are seen.

    Args:
        edges: ends of the bins in logits, ascending, one more than there are bins.
        counts: tokens in each bin.

    Raises:
        ValueError: another number of counts than bins, or edges that do not ascend.
    """
    ends, n = np.asarray(edges, dtype=float), np.asarray(counts)
    if ends.ndim != 1 or n.shape != (len(ends) - 1,) or not (np.diff(ends) > 0).all():
        raise ValueError(f"{n.size} counts need {n.size + 1} ascending edges, got {list(ends.shape)}")
    table = pd.DataFrame({"low": ends[:-1], "high": ends[1:], "tokens": n, "raised": ends[:-1] + ends[1:] > 0})
    bars = alt.Chart(rows(table)).mark_rect()
    bars = bars.encode(
        x=alt.X("low:Q", title="change of the logit", axis=alt.Axis(grid=False)).scale(zero=False, nice=False),
        x2="high:Q",
        y=alt.Y("tokens:Q", title="tokens").scale(type="symlog"),
        y2=alt.datum(0),
        color=alt.when("datum.raised").then(alt.value(BLUE)).otherwise(alt.value(VERMILION)),
        tooltip=[
            alt.Tooltip("low:Q", title="from", format="+.3f"),
            alt.Tooltip("high:Q", title="to", format="+.3f"),
            alt.Tooltip("tokens:Q", format=",d"),
        ],
    )
    return layered([bars], 420, 160)
