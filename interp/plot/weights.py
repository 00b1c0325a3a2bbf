"""What the weights of heads say: singular values with their tokens, copying, composition by layer and by pair."""

import altair as alt
import pandas as pd

from interp.plot.patching import signed
from interp.plot.style import BLUE, GREY, INK, MONO, ORANGE, clamp, fill, layered, need, rows, token_label, words


def singular_values(frame: pd.DataFrame, *, total: float | None = None, tokens: int = 3) -> alt.LayerChart:
    """Bars of the singular values of one circuit, each named by the first tokens of its two sides.

    Args:
        frame: a row per token: `component`, `singular_value`, `side`, `sign`, `rank` (from 0) and `token`. The tokens of
            `+` name the bar; the tooltip has those of both signs.
        total: sum of the squares of all singular values, for the share in the tooltip.
        tokens: tokens of each side in a label.
    """
    need(frame, "component", "singular_value", "side", "sign", "rank", "token")
    sides = list(dict.fromkeys(frame["side"]))
    shown = []
    for component, part in frame.groupby("component"):
        value = float(part["singular_value"].tolist()[0])
        said = {sign: " → ".join(_first(part, side, sign, tokens) for side in sides) for sign in ("+", "-")}
        share = "" if total is None else f"{value**2 / max(total, 1e-30):.1%}"
        shown.append((int(str(component)), value, said["+"], said["-"], share))
    table = pd.DataFrame(shown, columns=["component", "value", "plus", "minus", "share"])
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("component:O", title="component", axis=alt.Axis(ticks=False, domain=False)),
        x=alt.X("value:Q", title="singular value").scale(
            domainMin=0, domainMax=2.6 * max(value for _, value, *_ in shown)
        ),
        tooltip=[
            alt.Tooltip("value:Q", title="singular value", format=".4g"),
            alt.Tooltip("share:N", title="share of the squared norm"),
            alt.Tooltip("plus:N", title="+"),
            alt.Tooltip("minus:N", title="-"),
        ],
    )
    bars = base.mark_bar(color=BLUE, cornerRadiusEnd=2)
    text = base.mark_text(align="left", dx=4, color=INK, font=MONO, fontSize=10).encode(text="plus:N")
    return layered([bars, text], 620, 22 * len(table))


def copying_scatter(frame: pd.DataFrame, effect: str = "effect_embed", share: str = "eigen_embed") -> alt.LayerChart:
    """Every head by the two measures of copying: effect on the attended token across, eigenvalue share up.

    Args:
        frame: a row per head: `layer`, `head` and both columns.
        effect: mean effect on the token's own logit, in standard deviations.
        share: sum of the eigenvalues over the sum of their sizes, -1 to 1.
    """
    need(frame, "layer", "head", effect, share)
    table = frame.loc[:, ["layer", "head", effect, share]].copy()
    table["name"] = [f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"])]
    base = alt.Chart(rows(table)).encode(
        x=alt.X(f"{effect}:Q", title="effect on the attended token's logit (sd)"),
        y=alt.Y(f"{share}:Q", title="eigenvalue share").scale(domain=[-1, 1]),
        tooltip=[
            alt.Tooltip("name:N", title="head"),
            alt.Tooltip(f"{effect}:Q", title="effect (sd)", format=".2f"),
            alt.Tooltip(f"{share}:Q", title="eigenvalue share", format=".2f"),
        ],
    )
    points = base.mark_circle(size=46, opacity=0.85).encode(color=fill("layer", "layer", (0, _last(table["layer"]))))
    best = base.transform_window(place="rank()", sort=[alt.SortField(effect, order="descending")])
    names = best.transform_filter("datum.place <= 8").mark_text(align="left", dx=6, fontSize=10, color=INK)
    return layered([points, names.encode(text="name:N")], 520, 360)


def composition_grid(
    frame: pd.DataFrame, value: str = "excess", *, title: str = "excess of the best pair"
) -> alt.Chart:
    """The best pair between every two layers: earlier layer down, later layer across.

    Args:
        frame: a row per pair: `earlier_layer`, `earlier_head`, `later_layer`, `later_head` and the value, of one mode.
        value: what is compared and coloured.
        title: of the legend.
    """
    need(frame, "earlier_layer", "earlier_head", "later_layer", "later_head", value)
    best = frame.loc[frame.groupby(["earlier_layer", "later_layer"])[value].idxmax()]
    table = best.loc[:, ["earlier_layer", "later_layer", value]].copy()
    table["pair"] = _pair_names(best)
    end = max(1e-9, float(table[value].abs().max()))
    chart = alt.Chart(rows(table)).mark_rect(cornerRadius=2)
    chart = chart.encode(
        x=alt.X("later_layer:O", title="later layer", axis=alt.Axis(labelAngle=0, ticks=False, domain=False)),
        y=alt.Y("earlier_layer:O", title="earlier layer", axis=alt.Axis(ticks=False, domain=False)),
        color=signed(value, title, end),
        tooltip=[alt.Tooltip("pair:N", title="best pair"), alt.Tooltip(f"{value}:Q", title=words(value), format=".4f")],
    )
    down, across = len(set(table["earlier_layer"])), len(set(table["later_layer"]))
    width, height = across * clamp(480 / across, 14, 40), down * clamp(460 / down, 12, 28)
    return chart.properties(width=width, height=height, background="transparent")


def composition_arrows(frame: pd.DataFrame, value: str = "excess") -> alt.LayerChart:
    """Pairs as lines from the earlier head (left end) to the later one; layers across, heads up.

    Args:
        frame: the pairs to draw, as in `composition_grid`; `mode` where there are several.
        value: sets the width of a line.
    """
    need(frame, "earlier_layer", "earlier_head", "later_layer", "later_head", value)
    table = frame.loc[:, ["earlier_layer", "earlier_head", "later_layer", "later_head", value]].copy()
    table["pair"], table["mode"] = _pair_names(frame), frame.get("mode", "pair")
    heads = pd.concat([_ends(table, "earlier", "writes"), _ends(table, "later", "reads")]).drop_duplicates()
    across = alt.Scale(nice=False, padding=24)
    tips = [alt.Tooltip("pair:N"), alt.Tooltip("mode:N"), alt.Tooltip(f"{value}:Q", title=words(value), format=".4f")]
    lines = alt.Chart(rows(table)).mark_rule(color=BLUE, opacity=0.6)
    lines = lines.encode(
        x=alt.X("earlier_layer:Q", title="layer", scale=across, axis=alt.Axis(tickMinStep=1, grid=False)),
        x2="later_layer:Q",
        y=alt.Y("earlier_head:Q", title="head", axis=alt.Axis(tickMinStep=1)).scale(reverse=True, padding=14),
        y2="later_head:Q",
        strokeWidth=alt.StrokeWidth(f"{value}:Q", legend=None).scale(range=[0.8, 4]),
        tooltip=tips,
    )
    base = alt.Chart(heads).encode(x="layer:Q", y="head:Q", tooltip="name:N")
    colour = alt.Color("does:N", title=None, legend=alt.Legend(orient="top"))
    dots = base.mark_circle(size=60, opacity=1).encode(
        color=colour.scale(domain=["writes", "reads", "both"], range=[ORANGE, BLUE, GREY])
    )
    names = base.mark_text(dy=-9, fontSize=9, color=INK).encode(text="name:N")
    return layered([lines, dots, names], 620, 340)


def _first(part: pd.DataFrame, side: str, sign: str, n: int) -> str:
    chosen = part.loc[(part["side"] == side) & (part["sign"] == sign) & (part["rank"] < n)]
    return " ".join(token_label(token, 12) for token in chosen["token"])


def _pair_names(frame: pd.DataFrame) -> list[str]:
    ends = zip(frame["earlier_layer"], frame["earlier_head"], frame["later_layer"], frame["later_head"])
    return [f"L{a}H{b} → L{c}H{d}" for a, b, c, d in ends]


def _ends(table: pd.DataFrame, side: str, does: str) -> pd.DataFrame:
    """Heads at one end of the pairs; those at both ends do both."""
    other = "later" if side == "earlier" else "earlier"
    here = list(zip(table[f"{side}_layer"], table[f"{side}_head"]))
    there = set(zip(table[f"{other}_layer"], table[f"{other}_head"]))
    found = [(layer, head, f"L{layer}H{head}", "both" if (layer, head) in there else does) for layer, head in here]
    return pd.DataFrame(found, columns=["layer", "head", "name", "does"])


def _last(layers: pd.Series) -> float:
    return float(max(1, int(layers.max())))
