"""The attribution page's panels: what a part writes, as tokens; and shares by layer along the prompt."""

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text
from ui.services import attribute

CLICKABLE = ("component", "neuron")
"""Ways whose bars can be clicked."""
KINDS = {"attn": "Attention", "mlp": "MLP"}


def part_clicked() -> None:
    """A click on a bar chooses its part."""
    picked = st.session_state["attribution"]["selection"].get("part") or []
    if picked:
        st.session_state["part"] = str(picked[0]["part"])


def promoted(table: pd.DataFrame, pos: int) -> None:
    """The tokens that a part's output promotes and suppresses."""
    parts = attribute.parts_of(table)
    if not parts:
        return
    what = (
        "The part's output after the chosen token goes alone through the final norm, with the scale that it had there, and the "
        "unembedding: the logits that it adds directly, less their mean over the vocabulary."
    )
    with figure.card("promoted", "What a part writes", what) as card, states.guard("The part cannot be read"):
        largest = (
            table.loc[table["part"].isin(list(parts)), ["part", "mean"]].sort_values("mean", key=abs)["part"].iloc[-1]
        )
        if st.session_state.get("part") not in (None, *parts):
            del st.session_state["part"]
        part = st.selectbox(
            "Part", list(parts), index=list(parts).index(largest), key="part", bind="query-params", width=200,
            help="Or click a bar above. At first the largest one.",
        )  # fmt: skip
        component, layer, head = parts[str(part)]
        with states.busy("Reading what it writes"):
            found = attribute.promoted(state.prompt(), pos, component, layer, head)
        # One chart for both sides: the scale is shared, so that a part that only suppresses looks so.
        shown = found.assign(
            part=[f"{i + 1}: {plot.token_label(str(token), 18)}" for i, token in enumerate(found["token"])],
            low=float("nan"), high=float("nan"),
        )  # fmt: skip
        card.chart(
            plot.lead_bars(shown, "logits that it adds directly"),
            found,
            code=f"""
import interp
from interp.attribution.promoted import promoted_tokens

model = interp.load({services.model_name()!r})
print(promoted_tokens(model, {state.prompt()!r}, {component!r}, {layer}, {head}, pos={pos}))
""",
            caption=f"{text.plain(str(part))} after token {pos}: ten tokens on each side · {frame.stamp()}",
        )


def by_place(pos: int, answer: controls.Token, against: controls.Token | None) -> None:
    """Attention and MLP of each layer, at each position up to the chosen one."""
    what = (
        "The same answer, read after **each** position: what each layer's attention or MLP adds to its logit there. A row of the "
        "chosen token is the bars above; the others show where along the prompt the answer is already being written."
    )
    with figure.card("by_place", "Along the prompt", what) as card, states.guard("The positions cannot be read"):
        kind = controls.choice("Part of the layer", KINDS, "place_part", visibility="collapsed")
        with states.busy("Dividing the logits"):
            table = attribute.at_places(state.prompt(), pos, answer, against)
        view = table.loc[table["component"] == kind]
        n, first = view["pos"].nunique(), int(view["pos"].min())
        card.chart(
            plot.trace_grid(view, "share of the logit"),
            view,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
found = interp.direct_logit_attribution(
    model, {state.prompt()!r}, {answer!r}, {against!r}, pos=list(range({first}, {pos + 1}))
)
frame = found.by_place()
print(frame[frame.component == {kind!r}])
""",
            width="content",
            caption=f"{n} of the {pos + 1:,} tokens up to the chosen one · {frame.stamp()}",
        )
