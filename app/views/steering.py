"""Steering: what a direction does to the model and what it breaks, beside random directions of the same length."""

import pandas as pd
import streamlit as st

from interp.plot.steering import DAMAGE, steering_damage, steering_effect
from interp.report import printable
from interp.steering import SteeringReport
from ui import figure, frame, services, states, text

WHAT = """
A direction is added to the residual stream at one site while the model writes. **Strength** is in *typical norms* of
the site: the median norm over tokens that are not special, not at position 0 and not outliers, so 0.1 means the same at
every layer.

The **effect** is the change of what a measure reads, on prompts that the vector never saw; of a preference it is that of
log p(positive) − log p(negative), in nats. Grey ticks are random directions of the same length: an effect that lies among
them is nothing but a push. **Damage** is measured on text that has nothing to do with the vector.
"""
CODE = """
import interp

vector = interp.load_steering_vector("runs/demo/steering.safetensors")
report = interp.steering_experiment(model, vector, prompts, strengths=[-0.1, 0.1], pairs=held_out, texts=other_text)
"""


def dose(report: SteeringReport, concept: str, site: str) -> None:
    """Effect over strength, of one measure at a time."""
    what = (
        "The line is the vector with its 95 % interval over held-out items; grey ticks are random directions, and the grey "
        "band reaches from the least to the most of them. A dashed line is an instruction without the vector."
    )
    with figure.card("steering", "Dose and response", what) as card:
        chosen = report.measures[:1]
        if len(report.measures) > 1:
            chosen = [st.selectbox("Measure", report.measures, format_func=printable, key="measure", width=320)]
        effects = report.effects.loc[report.effects["measure"].isin(chosen)]
        card.chart(
            steering_effect(effects),
            effects,
            code=f"{CODE}report.plot()\n",
            caption=f"{text.plain(concept)} at {text.plain(site)}, n = {max(effects['n'].tolist()):,.0f} held-out items",
        )


def damage(report: SteeringReport) -> None:
    """Damage over strength."""
    what = "What each strength costs. Random directions of the same length cost something too, and stand beside it."
    with figure.card("steering_damage", "Damage", what) as card:
        card.chart(steering_damage(report.damage, columns=1), report.damage, code=f"{CODE}report.damage\n")


def side_by_side(texts: pd.DataFrame) -> None:
    """Each prompt's continuations: the strongest push down, none, the strongest push up, and the instruction's."""
    steered, told = (texts.loc[texts["direction"] == name] for name in ("vector", "instruction"))
    strengths = sorted(steered["strength"].unique())
    shown = list(dict.fromkeys([strengths[0], 0.0, strengths[-1]]))
    for prompt, rows in steered.groupby("prompt", sort=False):
        columns = {
            "Default" if strength == 0 else f"Steered, strength {strength:+g}": rows.loc[rows["strength"] == strength]
            for strength in shown
        }
        instructed = told.loc[told["prompt"] == prompt]
        if len(instructed):
            columns["Instructed"] = instructed
        with st.container(border=True):
            text.say(str(prompt))
            for column, (name, part) in zip(st.columns(len(columns)), columns.items()):
                with column:
                    st.caption(name)
                    for written in part["text"]:
                        text.say(str(written))


def render() -> None:
    frame.head("Steering", WHAT)
    frame.prompt_strip()
    with states.guard("The steering results cannot be shown"):
        found = services.run_json("steering")
        report = SteeringReport.from_dict(found)
        if report.measures:
            dose(report, str(found["concept"]), str(found["site"]))
        if any(report.damage[name].notna().to_numpy().any() for name in DAMAGE):
            damage(report)
        st.subheader("Side by side", anchor=False)
        if report.generations.empty:
            states.empty("No continuations", "The run saved no steered text.")
        else:
            side_by_side(report.generations)


render()
