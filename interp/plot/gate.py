"""A gate that abstains: errors against coverage with the threshold that was chosen, and promises against what was found."""

import altair as alt
import pandas as pd

from interp.plot.style import BLUE, GREY, INK, ORANGE, layered, need, rows


def gate_curve(
    frame: pd.DataFrame, *, risk: float, coverage: float | None = None, found: float | None = None, title: str = "risk"
) -> alt.LayerChart:
    """Error rate against the share that is answered, the named risk as a dashed line, the chosen threshold as a point.

    Args:
        frame: a row for each threshold: `coverage`, `value` (the error figure) with `low` and `high`, `n` (rows answered).
        risk: the named one.
        coverage: of the chosen threshold, None where nothing is answered.
        found: the error figure there.
        title: of the vertical axis.
    """
    need(frame, "coverage", "value", "low", "high", "n")
    table = frame.loc[:, ["coverage", "value", "low", "high", "n"]].sort_values("coverage")
    x = alt.X("coverage:Q", title="coverage: share that is answered").scale(domain=[0, 1])
    y = alt.Y("value:Q", title=title).scale(domain=[0, 1], clamp=True)
    tips = [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("coverage", "value", "low", "high")]
    base = alt.Chart(rows(table)).encode(x=x, tooltip=[*tips, alt.Tooltip("n:Q", format=",d")])
    marks: list[alt.Chart] = [
        base.mark_area(color=BLUE, opacity=0.18).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_line(color=BLUE, strokeWidth=2).encode(y=y),
    ]
    named = alt.Chart(pd.DataFrame({"risk": [risk], "end": [1.0], "label": [f"named risk {risk:g}"]}))
    marks.append(named.mark_rule(color=GREY, strokeDash=[5, 4]).encode(y="risk:Q"))
    words = named.mark_text(align="right", dx=-4, dy=-6, color=INK)
    marks.append(words.encode(x=alt.X("end:Q"), y="risk:Q", text="label:N"))
    if coverage is not None and found is not None:
        label = f"chosen: answers {coverage:.0%}, {found:.3f}"
        chosen = alt.Chart(pd.DataFrame({"coverage": [coverage], "value": [found], "label": [label]}))
        marks.append(chosen.mark_rule(color=ORANGE, strokeWidth=1).encode(x="coverage:Q"))
        marks.append(
            chosen.mark_point(color=ORANGE, filled=True, opacity=1, size=90).encode(x="coverage:Q", y="value:Q")
        )
        left = coverage > 0.55
        text = chosen.mark_text(align="right" if left else "left", dx=-6 if left else 6, color=INK)
        marks.append(text.encode(x="coverage:Q", y=alt.datum(0.95), text="label:N"))
    return layered(marks, 560, 300)


def gate_risks(frame: pd.DataFrame, *, title: str = "risk found") -> alt.VConcatChart:
    """What gates for several named risks did on held-out rows: errors under the diagonal are promises kept.

    Args:
        frame: a row for each gate that answers something: `risk` (named), `found` with `found_low` and `found_high`,
            `coverage` with `coverage_low` and `coverage_high`, `named` (True for the one that was asked for).
        title: of the upper vertical axis.
    """
    columns = ["risk", "found", "found_low", "found_high", "coverage", "coverage_low", "coverage_high"]
    need(frame, *columns, "named")
    end = 1.05 * max([0.01, *frame["risk"].tolist()])
    x = alt.X("risk:Q", title="named risk").scale(domain=[0, end], nice=False)
    tips = [alt.Tooltip(f"{name}:Q", format=".3f") for name in columns]
    base = alt.Chart(rows(frame.loc[:, [*columns, "named"]])).encode(x=x, tooltip=tips)
    colour = alt.when("datum.named").then(alt.value(ORANGE)).otherwise(alt.value(BLUE))
    diagonal = alt.Chart(pd.DataFrame({"risk": [0.0, end], "found": [0.0, end]})).mark_line(
        color=GREY, strokeDash=[4, 4]
    )
    panels = []
    for name, words in (("found", title), ("coverage", "coverage")):
        y = alt.Y(f"{name}:Q", title=words)
        marks = [base.mark_rule(opacity=0.6).encode(y=f"{name}_low:Q", y2=f"{name}_high:Q", color=colour)]
        marks.append(base.mark_point(filled=True, opacity=1, size=60).encode(y=y, color=colour))
        if name == "found":
            marks.insert(0, diagonal.encode(x=x, y=y))
        panels.append(alt.layer(*marks).properties(width=560, height=180))
    return alt.vconcat(*panels, spacing=12).properties(background="transparent")
