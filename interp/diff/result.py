"""ModelDiff: the tables of a comparison, its charts, its file and its sections of a report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.plot import Chart, to_svg
from interp.plot.diffs import head_differences, layer_differences, score_pairs, token_differences
from interp.plot.style import INK
from interp.report import Figure, Section, Table

KIND = "model diff"
KINDS = ("summary", "texts", "tokens", "layers", "heads", "scores")
LINES = {"residual": "stream", "own_attention": "this attention alone", "own_mlp": "this MLP alone"}
SHOWN = 20
"""Rows of a table in the report."""


@dataclass(frozen=True, eq=False)
class ModelDiff:
    """What two models do differently on the same tokens. Bounds `_low` and `_high` are 95 %, by bootstrap over texts."""

    summary: pd.DataFrame
    """metric, value, low, high: loss_a, loss_b, loss_difference (b - a), kl_ab, kl_ba (nats), agreement (share of places with
    one top token); n (places with a next token) and n_texts."""
    texts: pd.DataFrame
    """text (its number among those given), n, loss_a, loss_b, kl_ab, kl_ba, agreement: means of each text."""
    tokens: pd.DataFrame
    """The places of the largest KL(a||b): text, pos, token, context, next, kl, kl_reverse, top_a, p_a, top_b, p_b."""
    layers: pd.DataFrame
    """layer (-1 is what enters the first block), residual (|a - b| / |a| of the stream), cosine, own_attention and own_mlp
    (the same quotient of what the parts of this block write when b's block runs on a's stream)."""
    heads: pd.DataFrame
    """layer, head, output (|a - b| / |a| of what the head writes), pattern (total variation of attention, 0 to 1), and both
    as `own_`, where b's block runs on a's stream: a head that itself was changed has these."""
    scores: pd.DataFrame
    """layer, head, and the scores of `interp.head_scores` with `_a`, `_b` and `_difference` (b - a). Scores have bounds on
    both sides (`induction_a_low`), 95 % over the repeated sequences; nulls and floors are constants without any."""
    card: dict[str, Any]
    """Both models and fingerprints, hash of the tokens, seed, and notes on what could not be compared."""

    def to_frame(self, kind: str = "summary") -> pd.DataFrame:
        """One of the tables, by the name of its field.

        Raises:
            ValueError: another name, or a table that these two models do not have.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        frame: pd.DataFrame = getattr(self, kind)
        if frame.empty:
            raise ValueError(f"there is no table of {kind}: {self.card['notes'] or 'heads=False left it out'}")
        return frame.copy()

    def plot(self, kind: str = "layers", metric: str | None = None) -> Chart:
        """A chart of "layers", "heads" (metric own_output, output, pattern or own_pattern), "tokens", or "scores" (metric a
        head score)."""
        draw: dict[str, Callable[[pd.DataFrame], Chart]] = {
            "layers": self._layer_chart,
            "heads": lambda frame: head_differences(frame, metric or "own_output"),
            "tokens": token_differences,
            "scores": lambda frame: score_pairs(frame, metric or "induction"),
        }
        if kind not in draw:
            raise ValueError(f"kind must be one of {', '.join(draw)}, got {kind!r}")
        return draw[kind](self.to_frame(kind))

    def _layer_chart(self, frame: pd.DataFrame) -> Chart:
        figures = {name: line for name, line in LINES.items() if not np.isnan(frame[name].to_numpy()).all()}
        return layer_differences(frame, figures)

    def save(self, path: str | Path) -> Path:
        """A JSON file; `load_model_diff` reads it."""
        tables = {kind: _records(getattr(self, kind)) for kind in KINDS}
        return artifact.write_json(path, {"kind": KIND, "tables": tables, "card": self.card})

    def sections(self) -> list[Section]:
        """For `interp.report.write_report`."""
        a, b = self.card["model_a"], self.card["model_b"]
        n, n_texts = int(self.summary["n"].iloc[0]), int(self.summary["n_texts"].iloc[0])
        on = f"n = {n:,} places in {n_texts:,} texts"
        first = Section(
            "What they predict",
            f"a is {a}, b is {b}. Intervals are 95 %, by bootstrap over texts." + _paragraph(self.card["notes"]),
            tables=[Table(self.summary, f"Loss and divergence in nats, {on}; loss_difference is b - a.")],
        )
        places = Section(
            "Where they differ most",
            figures=[self._figure("tokens", None, "Largest KL(a || b), and what a and b expect next.")],
            tables=[Table(self.tokens.head(SHOWN), f"The places of the largest KL(a || b) of {on}.")],
        )
        found = [first, places]
        if not self.layers.empty:
            caption = "Difference of the stream, and of what each part writes when both models' blocks read a's stream."
            found.append(Section("Layers", figures=[self._figure("layers", None, caption)], tables=[self.layers]))
        if not self.heads.empty:
            own = "What each head writes differently on a's stream: heads that themselves changed."
            top = self.heads.sort_values("own_output", ascending=False).head(SHOWN)
            figures = [self._figure("heads", "own_output", own)]
            figures.append(self._figure("heads", "pattern", "Total variation of attention in the whole runs, 0 to 1."))
            found.append(Section("Heads", figures=figures, tables=[Table(top, "Heads with the largest own_output.")]))
        if not self.scores.empty:
            order = np.argsort(-np.abs(self.scores["induction_difference"].to_numpy()), kind="stable")[:SHOWN]
            ends = [f"induction_{side}{end}" for side in "ab" for end in ("", "_low", "_high")]
            others = [str(c) for c in self.scores if str(c).endswith(("_a", "_b")) and c not in ends]
            shown = ["layer", "head", *ends, *others]
            caption = "Heads whose induction score differs most; its bounds are 95 %, over the repeated sequences."
            figure = self._figure("scores", "induction", "Induction score of each head in both models.")
            found.append(
                Section("Head scores", figures=[figure], tables=[Table(self.scores[shown].iloc[order], caption)])
            )
        return found

    def _figure(self, kind: str, metric: str | None, caption: str) -> Figure:
        return Figure(to_svg(self.plot(kind, metric), ink=INK), caption)


def load_model_diff(path: str | Path) -> ModelDiff:
    """Read what `ModelDiff.save` wrote."""
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} is not a {KIND}: load it with the function for its kind")
    tables = {kind: _frame(found["tables"][kind]) for kind in KINDS}
    return ModelDiff(**tables, card=found["card"])


def _records(frame: pd.DataFrame) -> list[list[Any]]:
    """[name, values] of each column, in order, with None for NaN, which JSON does not have."""
    return [
        [column, [None if isinstance(v, float) and np.isnan(v) else v for v in frame[column].tolist()]]
        for column in frame
    ]


def _frame(columns: list[list[Any]]) -> pd.DataFrame:
    """The frame again: where a value is None the column holds numbers, for texts are never None."""
    made = {name: np.array(values, dtype=float) if None in values else values for name, values in columns}
    return pd.DataFrame(made)


def _paragraph(note: str) -> str:
    return f"\n\n{note}" if note else ""
