"""Shares of a logit by part and place, with means and intervals over texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact
from interp.bootstrap import ratio_interval
from interp.plot.attribution import attribution_bars, attribution_heads, attribution_sources, attribution_waterfall

COLUMNS = ("part", "component", "layer", "head", "neuron", "source")


@dataclass(frozen=True, eq=False)
class Attribution:
    """What each part adds directly to the logit (or logit difference) at each place. A place is a text and a position."""

    labels: tuple[tuple[str, str, int, int, int, int], ...]
    """Of each part: name, component, layer, head, neuron, source position; -1 for what does not apply."""
    values: Float[Tensor, "part place"]
    """Shares, in logits, fp64."""
    logit: Float[Tensor, "place"]
    """The logit or difference of the model itself, before a soft-cap."""
    text: Int[Tensor, "place"]
    """Which text."""
    pos: Int[Tensor, "place"]
    """Position among its real tokens."""
    answers: tuple[str, ...]
    """Token asked for at each place."""
    againsts: tuple[str, ...] | None
    """Token whose logit is subtracted there."""
    tokens: tuple[tuple[str, ...], ...]
    """Tokens of each text."""
    by: str
    """How the stream was divided."""
    card: dict[str, Any]
    """Provenance."""

    @property
    def total(self) -> Float[Tensor, "place"]:
        """Sum of all parts."""
        return self.values.sum(0)

    @property
    def residual(self) -> Float[Tensor, "place"]:
        """What the parts miss: the logit less their sum."""
        return self.logit - self.total

    @property
    def parts(self) -> pd.DataFrame:
        """A row for each part: part, component, layer, head, neuron, source."""
        return pd.DataFrame(list(self.labels), columns=pd.Index(COLUMNS))

    def to_frame(self) -> pd.DataFrame:
        """The parts with the mean over places, `low` and `high` (95 % bootstrap over texts; NaN with one), n, n_texts."""
        mean, low, high = _by_text(self.values.numpy(), self.text.numpy(), int(self.card["seed"]))
        counts = {"n": len(self.text), "n_texts": len(set(self.text.tolist()))}
        return self.parts.assign(mean=mean, low=low, high=high, **counts)

    def by_place(self) -> pd.DataFrame:
        """A row for each part and place: the part's columns, text, pos, token, answer, value."""
        n = len(self.text)
        frame = self.parts.loc[np.repeat(np.arange(len(self.labels)), n)].reset_index(drop=True)
        text, pos = self.text.tolist(), self.pos.tolist()
        columns = {
            "text": text, "pos": pos, "token": [self.tokens[i][p] for i, p in zip(text, pos)], "answer": list(self.answers),
        }  # fmt: skip
        repeated = {name: values * len(self.labels) for name, values in columns.items()}
        return frame.assign(**repeated, value=self.values.flatten().numpy())

    def top(self, k: int = 10) -> pd.DataFrame:
        """The k parts with the largest mean share, of either sign."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        return (
            self.to_frame().sort_values("mean", key=abs, ascending=False, kind="stable").head(k).reset_index(drop=True)
        )

    def plot(self) -> alt.Chart | alt.LayerChart:
        """Heads as a grid, sources as heads by token, layers as a waterfall, else the largest parts as bars."""
        frame = self.to_frame()
        if self.by == "head":
            return attribution_heads(frame)
        if self.by == "layer":
            return attribution_waterfall(frame)
        if self.by == "source":
            return attribution_sources(frame, self.tokens[0] if len(self.tokens) == 1 else None)
        return attribution_bars(frame)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_attribution` reads it."""
        tensors = {"values": self.values, "logit": self.logit, "text": self.text, "pos": self.pos}
        said = {
            "labels": self.labels, "answers": self.answers, "againsts": self.againsts, "tokens": self.tokens, "by": self.by,
        }  # fmt: skip
        return artifact.save_artifact(Path(path), "attribution", tensors, {"settings": self.card, **said})


def load_attribution(path: str | Path) -> Attribution:
    """Read what `Attribution.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "attribution")
    return Attribution(
        labels=tuple((str(p), str(c), int(a), int(b), int(d), int(e)) for p, c, a, b, d, e in card["labels"]),
        answers=tuple(card["answers"]),
        againsts=None if card["againsts"] is None else tuple(card["againsts"]),
        tokens=tuple(tuple(row) for row in card["tokens"]),
        by=card["by"],
        card=card["settings"],
        **tensors,
    )


def _by_text(
    values: Float[np.ndarray, "part place"], text: Int[np.ndarray, "place"], seed: int
) -> tuple[Any, Any, Any]:
    """Mean over places, and its interval when texts are drawn again."""
    numbers, member = np.unique(text, return_inverse=True)
    mean, n = values.mean(1), len(numbers)
    held = np.eye(n)[member]
    return mean, *ratio_interval(values @ held, held.sum(0), seed)
