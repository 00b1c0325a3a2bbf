"""Attribution: which parts of the model add to the logit of an answer, directly."""

from typing import Any

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text
from ui.panels import attribution_parts as panels
from ui.services import attribute

WHAT = """
The stream that the model unembeds is a **sum** of what the embedding, every attention head and every MLP wrote into it.
With the final norm's scale held, so is the logit of an answer, or the difference of two logits (direct logit
attribution, Elhage et al. 2021). Blue adds to the answer, vermilion takes from it; the parts sum to the logit.

It is the *direct* effect only: what a later layer makes of a part is not counted. Patching measures that.

**Unexplained** is what the parts miss; where its bar is not near 0, believe none of the others.

The answer is read **after the chosen token** of the strip. Click a bar, or choose a part below, to see which tokens it
promotes.
"""
WHERE = {
    "component": "Attention and MLP of each layer, the embedding, and the biases: the largest shares, in the model's order.",
    "layer": "The logit as it grows from the embedding to the last block. The last bar is the logit itself.",
    "head": "Layers down, heads across.",
    "source": "The heads with the most to say, and the tokens that they read it from.",
    "neuron": "The strongest neurons, and the others of each layer as one part.",
}


def chart(table: pd.DataFrame, by: str, tokens: list[str]) -> plot.Chart:
    """The chart that goes with the way to divide."""
    if by == "head":
        return plot.attribution_heads(table)
    if by == "source":
        return plot.attribution_sources(table, tokens)
    return plot.attribution_waterfall(table) if by == "layer" else plot.attribution_bars(attribute.shown_shares(table))


def figures(table: pd.DataFrame, facts: dict[str, Any], answer: controls.Token, against: controls.Token | None) -> None:
    """The logit, and the parts that add and take most."""
    asked, most, least = st.columns(3)
    name = plot.token_label(str(answer), 14) + (
        "" if against is None else f" over {plot.token_label(str(against), 14)}"
    )
    kind = "logit" if against is None else "logit difference"
    asked.metric(f"{kind.capitalize()} of {text.plain(name)}", f"{facts['logit']:+.2f}", border=True)
    for column, title, row in (
        (most, "Adds most", table.loc[table["mean"].idxmax()]),
        (least, "Takes most", table.loc[table["mean"].idxmin()]),
    ):
        column.metric(title, f"{row['part']}  {row['mean']:+.2f}", border=True)


def shares(prompt: str, tokens: pd.DataFrame, pos: int) -> None:
    """Controls, figures and the chart."""
    with states.busy("Asking the model"):
        best = services.candidates(prompt, pos)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        answer = controls.token("Answer", best, f"answer_{pos}")
        against = controls.token(
            "Against",
            best,
            f"against_{pos}",
            index=min(1, len(best) - 1),
            none="nothing",
            about="The token whose logit is subtracted; nothing: the answer's logit itself.",
        )
    by = controls.choice("By", services.WAYS, "by")
    if answer is None or answer == against:
        states.empty("Nothing to attribute", "Choose an answer, and another token to hold against it.")
        return
    with states.busy("Dividing the logit"):
        table, facts = services.attribution(prompt, pos, answer, against, by)
    figures(table, facts, answer, against)
    with figure.card("attribution", f"Shares by {services.WAYS[by].lower()}", WHERE[by]) as card:
        cap = " · before the soft-cap" if facts["before_softcap"] else ""
        card.chart(
            chart(table, by, facts["tokens"]),
            table,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
found = interp.direct_logit_attribution(
    model, {prompt!r}, {answer!r}, {against!r}, by={by!r}, pos={pos}
)
print(found.top(10))
found.plot()
""",
            caption=(
                f"{len(table):,} parts after token {text.plain(f'{pos}: {plot.token_label(str(tokens.token.iloc[pos]))}')}; "
                f"their sum misses the logit by {facts['unexplained']:.1e}{cap} · {frame.stamp()}"
            ),
            on_select=panels.part_clicked if by in panels.CLICKABLE else None,
        )
    panels.promoted(table, pos)
    panels.by_place(pos, answer, against)


def render() -> None:
    frame.head("Attribution", WHAT)
    found = frame.prompt_strip()
    if found is None:
        return
    with states.guard("The answer cannot be attributed"):
        shares(state.prompt(), *found)


render()
