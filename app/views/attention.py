"""Attention: all heads of a layer on the prompt, the matrix of one, and the text with lines."""

import streamlit as st

from ui import frame, state, states
from ui.panels import head_attention
from ui.services import live

WHAT = """
Attention says where each head *looks*: how it divides one unit of attention among the tokens before it, and itself. It does
not say what the head does with what it sees there, nor whether the model would miss it: the page Heads asks that.

Choose a layer; its heads stand above the matrix. What is hovered or chosen in one of the three pictures is shown in all.
"""


def chosen() -> tuple[int, int]:
    """Layer and head; a layer in the middle where none was chosen."""
    cfg = live.engine().model.cfg
    found = state.head()
    layer, head = found if found is not None else (cfg.n_layers // 2, 0)
    layer, head = min(layer, cfg.n_layers - 1), min(head, cfg.n_heads - 1)
    if cfg.n_layers == 1:
        return 0, head
    # The slider follows what was chosen elsewhere; what it says itself is chosen before the page is drawn.
    st.session_state["attention_layer"] = layer
    st.slider(
        "Layer",
        0,
        cfg.n_layers - 1,
        key="attention_layer",
        on_change=lambda: state.choose_head(int(st.session_state["attention_layer"]), head),
        width=420,
    )
    return layer, head


def render() -> None:
    frame.head("Attention", WHAT)
    found = frame.prompt_strip()
    if found is None:
        return
    with states.guard("The attention cannot be shown"):
        layer, head = chosen()
        head_attention.attention_card(found[0], layer, head)
        st.page_link("views/head.py", label=f"More about layer {layer}, head {head}", icon=":material/arrow_forward:")


render()
