"""The charts of a scan."""

import pandas as pd

from interp import plot
from interp.plot import Chart
from interp.plot.scans import lead_bars
from interp.plot.style import row_labels
from interp.scan.fields import ScanTables

GRID = 28
"""Last tokens of a lens grid: a longer one is not read."""
BARS = 20


def draw(report: ScanTables, kind: str) -> Chart:
    """See `ScanReport.plot`."""
    ways = {
        "prediction": _prediction, "lens": _lens, "lens_grid": _lens_grid, "direct": _direct, "heads": _heads,
        "sources": _sources, "parts": _parts, "tokens": _tokens, "stream": _stream, "patched_heads": _patched_heads,
    }  # fmt: skip
    if kind not in ways:
        raise ValueError(f"kind must be one of {', '.join(ways)}, got {kind!r}")
    return ways[kind](report)


def _prediction(report: ScanTables) -> Chart:
    return plot.next_token_bars(report.prediction.rename(columns={"probability": "prob"}))


def _lens(report: ScanTables) -> Chart:
    lens, card = report.lens, report.card
    both = [
        pd.DataFrame({"layer": lens["layer"], "answer": card[name], "probability": lens[f"p_{name}"]})
        for name in ("answer", "against")
    ]
    return plot.followed_tokens(pd.concat(both))


def _lens_grid(report: ScanTables) -> Chart:
    grid = report.lens_grid
    return plot.lens_grid(grid.loc[grid["pos"] > grid["pos"].max() - GRID], "p_top1", columns=12)


def _direct(report: ScanTables) -> Chart:
    _need(report.direct, "direct shares", report)
    return plot.attribution_bars(report.direct.loc[report.direct["head"] < 0], k=BARS)


def _heads(report: ScanTables) -> Chart:
    _need(report.direct, "direct shares", report)
    return plot.attribution_heads(report.direct)


def _sources(report: ScanTables) -> Chart:
    _need(report.sources, "direct shares", report)
    tokens = report.tokens["token"].tolist()
    return plot.attribution_sources(report.sources, tokens, k=12)


def _parts(report: ScanTables) -> Chart:
    return lead_bars(strongest(report.parts, BARS), "fall of the lead without it (logits)")


def _tokens(report: ScanTables) -> Chart:
    frame = report.tokens.dropna(subset=["effect"])
    frame = frame.assign(part=row_labels(frame["pos"], frame["token"]))
    return lead_bars(frame, "fall of the lead with another token there (logits)")


def _stream(report: ScanTables) -> Chart:
    return plot.patch_grid(_patched(report, "stream"))


def _patched_heads(report: ScanTables) -> Chart:
    return plot.patch_grid(_patched(report, "heads"))


def _patched(report: ScanTables, name: str) -> pd.DataFrame:
    if name not in report.patching:
        raise ValueError(f"there are no patches of the {name}: a scan makes them with corrupted=")
    return report.patching[name]


def _need(frame: pd.DataFrame, what: str, report: ScanTables) -> None:
    if frame.empty:
        raise ValueError(f"this scan has no {what}: {' '.join(report.notes)}")


def strongest(parts: pd.DataFrame, n: int) -> pd.DataFrame:
    """The n parts with the largest effect, of either sign."""
    return parts.sort_values("effect", key=abs, ascending=False, kind="stable").head(n)
