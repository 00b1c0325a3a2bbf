"""Charts of lenses: how far each is from the final layer, and what becomes of chosen tokens."""

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.curves import layer_curve
from interp.plot.style import need, token_label


def lens_comparison(frame: pd.DataFrame, *, title: str = "KL(final || lens) (nats)") -> alt.LayerChart:
    """How far lenses are from the model's own prediction, layer by layer, with intervals where there are some.

    Args:
        frame: a row for each lens and layer: `layer` (-1 is the embedding), `lens`, `kl` (nats), and `low`, `high` and `n`
            where there is an interval. NaN bounds, of a single text, draw no band.
        title: of the vertical axis.

    Raises:
        ValueError: a missing column, no row, or two rows for one lens and layer.
    """
    need(frame, "layer", "lens", "kl")
    _refuse_doubles(frame, "lens")
    bounds = {"low", "high"} <= set(frame) and bool(np.isfinite(frame[["low", "high"]].to_numpy(dtype=float)).all())
    top = _round_up(float(frame[["kl", "high"] if bounds else ["kl"]].to_numpy(dtype=float).max()))
    low, high = ("low", "high") if bounds else (None, None)
    table = frame.sort_values(["lens", "layer"], kind="stable")
    return layer_curve(table, "kl", low=low, high=high, colour="lens", domain=(0.0, top), title=title)


def followed_tokens(frame: pd.DataFrame, statistic: str = "probability") -> alt.LayerChart:
    """What becomes of chosen tokens from layer to layer, at one place of one text.

    Args:
        frame: a row for each layer and token, as `logit_lens(..., answer=[...]).followed()` gives them for one text and
            position: `layer` (-1 is the embedding), `answer`, and the statistic.
        statistic: "probability" (0 to 1), or "rank", drawn as log10(rank + 1): 0 is the most probable token.

    Raises:
        ValueError: another statistic, a missing column, no row, or two rows for one layer and token.
    """
    if statistic not in ("probability", "rank"):
        raise ValueError(f"statistic must be 'probability' or 'rank', got {statistic!r}")
    need(frame, "layer", "answer", statistic)
    _refuse_doubles(frame, "answer")
    table = frame.assign(answer=[token_label(str(token), 24) for token in frame["answer"]])
    table = table.sort_values(["answer", "layer"], kind="stable")
    if statistic == "probability":
        return layer_curve(table, "probability", colour="answer", title="probability")
    table["rank_log"] = np.log10(table["rank"] + 1.0)
    end = max(1.0, float(np.ceil(table["rank_log"].max())))
    return layer_curve(table, "rank_log", colour="answer", domain=(0.0, end), title="log10(rank + 1)")


def _refuse_doubles(frame: pd.DataFrame, line: str) -> None:
    if frame.duplicated(["layer", line]).any():
        raise ValueError(
            f"the frame has several rows for one layer and {line}: pass one site per layer, one text and one position"
        )


def _round_up(value: float) -> float:
    """An end of the axis with little room above the data."""
    step = 10.0 ** np.floor(np.log10(value)) / 2 if value > 0 else 1.0
    return float(np.ceil(value / step) * step) if value > 0 else 1.0
