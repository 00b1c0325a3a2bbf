"""How sure the model is, and whether that can be believed: this prompt, sampled answers, the run, and one's own numbers."""

import streamlit as st

from ui import controls, frame, states
from ui.panels import uncertainty_answers, uncertainty_file, uncertainty_prompt, uncertainty_run

WHAT = """
**This prompt**: how sure the model is at each token, and from which layer on. **Answers**: several answers are drawn, and put
into classes of meaning; many meanings are doubt. **The run**: whether what is said with probability 0.8 comes true in 80 of
100 cases. **Own file**: the same for a table of your own probabilities and outcomes.

The **expected calibration error** (ECE) is the mean distance from that, over bins of probability. It is never 0, even for a
perfectly calibrated source: the **null band** says what such a source would show with this n. **Temperature scaling** divides
all logits by one number. It changes how sure the model is, and never which answer it gives.
"""
PARTS = {"run": "The run", "prompt": "This prompt", "answers": "Answers", "file": "Own file"}


def render() -> None:
    frame.head("Uncertainty", WHAT)
    found = frame.prompt_strip()
    part = controls.choice("Show", PARTS, "uncertainty_part", visibility="collapsed")
    if part == "run":
        with states.guard("The calibration of the run cannot be shown"):
            uncertainty_run.show()
    elif part == "file":
        uncertainty_file.show()
    elif found is None:
        st.caption("The prompt above cannot be read; The run and Own file do not need it.")
    elif part == "prompt":
        with states.guard("The uncertainty of this prompt cannot be shown"):
            uncertainty_prompt.show(*found)
    else:
        with states.guard("The answers cannot be shown"):
            uncertainty_answers.show()


render()
