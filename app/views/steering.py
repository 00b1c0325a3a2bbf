"""Steering: what a direction does to the model and what it breaks, beside random directions of the same length."""

from ui import controls, frame, library, states
from ui.panels import steering_live, steering_results

WHAT = """
A direction is added to the residual stream at one site while the model writes. **Strength** is in *typical norms* of
the site: the median norm over tokens that are not special, not at position 0 and not outliers, so 0.1 means the same at
every layer.

The **effect** is the change of what a measure reads, on prompts that the vector never saw; of a preference it is that of
log p(positive) − log p(negative), in nats. Grey ticks are random directions of the same length: an effect that lies among
them is nothing but a push. **Damage** is measured on text that has nothing to do with the vector.
"""
PARTS = {
    "live": "Live", "dose": "Dose and damage", "map": "Layer and strength", "texts": "Side by side", "cosines": "Cosines",
}  # fmt: skip
PANELS = {
    "live": steering_live.live, "dose": steering_results.dose, "map": steering_results.strengths,
    "texts": steering_results.texts, "cosines": steering_results.cosines,
}  # fmt: skip


def render() -> None:
    frame.head("Steering", WHAT)
    frame.prompt_strip()
    # Without a vector the first part would be empty: a run's own results come first then.
    first = "live" if library.entries("steering vector") else "dose"
    parts = {first: PARTS[first]} | PARTS
    part = controls.choice("Part", parts, "steering_part", visibility="collapsed")
    with states.guard("The steering results cannot be shown"):
        PANELS[part]()


render()
