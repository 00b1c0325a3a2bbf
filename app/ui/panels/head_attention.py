"""The attention of a layer on the prompt: all heads, one matrix, the text with lines."""

import numpy as np
import pandas as pd
import streamlit as st

from interp.widgets import AttentionView, attention_view
from ui import controls, figure, frame, services, state, states
from ui.attention import attention_canvas

WEIGHTS = {"attention": "Attention", "moved": "Share of what is moved"}
WHAT = """
**Above**: all heads of the layer. Hover one to preview it, click it to choose it; Shift and the arrow keys step through them.

**Left**: a row is the token that looks, and that predicts what comes next; a column is the token that is looked at. Rows sum
to 1, and the scale is fixed at 0 to 1. What is grey is masked: a token cannot see what follows it. The wheel zooms, dragging
moves, a double click resets.

**Right**: the text. Hover a token, or use the arrow keys: orange lines lead to where it looks, grey ones come from tokens that
look at it. Its colour says how strongly it looks at its strongest key, position 0 left out.

Many heads rest on position 0 when they have nothing to do. *Drop position 0* takes that column away and lets each row sum to 1
again. **Share of what is moved** weighs each key by the length of the value that it brings: a head that rests on a token often
takes nothing from it.

Numbers are shown where they are among the eight largest of their row and at least 0.005; for all others the picture is right
and the number is said to be below that.
"""


def attention_card(tokens: pd.DataFrame, layer: int, head: int) -> None:
    """The card; a click chooses head and token."""
    with (
        figure.card("attention", f"Attention of layer {layer}, head {head}", WHAT) as card,
        states.guard("The attention cannot be shown"),
    ):
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            moved = controls.choice("Weight", WEIGHTS, "attention_weight", visibility="collapsed") == "moved"
            drop = st.toggle("Drop position 0 and renormalise", key="no_sink", bind="query-params")
        with states.busy("Computing the attention"):
            view, sink = seen(state.prompt(), tokens, layer, head, moved=moved, drop=drop)
        what = "share of what is moved" if moved else "attention"
        card.widget(
            lambda: attention_canvas(view, key="attention_canvas", on_pick=_picked(layer)),
            view.edges(),
            code=_code(layer, head, moved=moved, drop=drop),
            caption=(
                f"{len(tokens):,} tokens; position 0 takes {sink:.0%} of the {what} of this head · {frame.stamp()}"
            ),
            exports={"png": ("image/png", view.to_png), "html": ("text/html", view.to_html)},
        )


def seen(
    prompt: str, tokens: pd.DataFrame, layer: int, head: int, *, moved: bool, drop: bool = False
) -> tuple[AttentionView, float]:
    """The view, and the mean share of position 0 over the other queries of the head."""
    ask = services.value_weighted if moved else services.attention
    weights = ask(prompt, layer)
    if not 0 <= head < len(weights):
        raise ValueError(f"layer {layer} has heads 0 to {len(weights) - 1}, not {head}")
    if moved:
        weights = shares(weights)
    own = weights[head].astype(np.float32)
    sink = float(own[1:, 0].mean()) if len(own) > 1 else 1.0
    labels = [str(token) for token in tokens["token"]]
    return attention_view(weights, labels, layer=layer, head=head, drop_sink=drop), sink


def shares(weights: np.ndarray) -> np.ndarray:
    """Each row divided by its sum; one with nothing in it stays zero."""
    total = weights.astype(np.float32).sum(-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights, dtype=np.float32), where=total > 0)


def _picked(layer: int):
    def picked(head: int, query: int, key: int) -> None:  # noqa: ARG001 (the key is shown by the canvas itself)
        state.choose_head(layer, head)
        state.choose_position(query)

    return picked


def _code(layer: int, head: int, *, moved: bool, drop: bool) -> str:
    prompt, model = state.prompt(), services.model_name()
    if moved:
        made = f"weights = interp.value_weighted_attention(model, prompt, {layer})[0]\n"
        made += "weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)"
    else:
        made = (
            f'_, cache = model.run_with_cache(prompt, sites="pattern:{layer}")\nweights = cache["pattern:{layer}"][0]'
        )
    return f"""
import interp
from interp.widgets import attention_view

model, prompt = interp.load({model!r}), {prompt!r}
{made}
tokens = [view.display for view in model.tokenizer.views(model.tokenize(prompt).row(0))]
attention_view(weights, tokens, layer={layer}, head={head}, drop_sink={drop})   # in a notebook; .save("attention.html") elsewhere
"""
