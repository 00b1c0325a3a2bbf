"""Steering: what a direction does to the model, beside random directions of the same length."""

import pandas as pd
import streamlit as st

from interp import plot
from ui import figure, frame, services, states, text

WHAT = """
A direction is added to the residual stream at one site while the model writes. **Strength** is in *typical norms* of
the site: the median norm over tokens that are not special, not at position 0 and not outliers, so 0.1 means the same at
every layer.

The **effect** is the change of log p(positive) − log p(negative) on held-out contrasts, in nats. Grey ticks are random
directions of the same length: an effect that lies among them is nothing but a push.
"""


def dose(effects: pd.DataFrame, concept: str, site: str) -> None:
    """Effect over strength."""
    what = "The line is the vector with its 95 % interval over held-out pairs; grey ticks are random directions."
    with figure.card("steering", "Dose and response", what) as card:
        card.chart(
            plot.steering_effect(effects),
            effects,
            code="""
import interp

vector = interp.load_steering_vector("runs/demo/steering.safetensors")
report = interp.steering_experiment(model, vector, prompts, strengths=[-0.1, 0.1], pairs=held_out)
report.plot()
""",
            caption=f"{text.plain(concept)} at {text.plain(site)}, n = {effects['n'].max():,} held-out pairs",
        )


def side_by_side(texts: pd.DataFrame) -> None:
    """Each prompt's continuations: the strongest push down, none, the strongest push up."""
    strengths = sorted(texts["strength"].unique())
    shown = list(dict.fromkeys([strengths[0], 0.0, strengths[-1]]))
    for prompt, rows in texts.groupby("prompt", sort=False):
        with st.container(border=True):
            text.say(str(prompt))
            for column, strength in zip(st.columns(len(shown)), shown):
                with column:
                    st.caption("Default" if strength == 0 else f"Steered, strength {strength:+g}")
                    for written in rows.loc[rows["strength"] == strength, "text"]:
                        text.say(str(written))


def render() -> None:
    frame.head("Steering", WHAT)
    frame.prompt_strip()
    with states.guard("The steering results cannot be shown"):
        found = services.run_json("steering")
        dose(pd.DataFrame(found["effects"]), str(found["concept"]), str(found["site"]))
        st.subheader("Side by side", anchor=False)
        texts = pd.DataFrame(found["generations"])
        if texts.empty:
            states.empty("No continuations", "The run saved no steered text.")
        else:
            side_by_side(texts)


render()
