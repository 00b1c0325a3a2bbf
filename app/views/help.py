"""Help: a tour of two minutes, what every score means, the keyboard, how to start, what makes missing results, limits."""

import pandas as pd
import streamlit as st

from ui import controls, frame, glossary, state, states, text
from ui.services import system

WHAT = """
Where to begin, what the words mean, and what to type when something is missing. Every score that the app shows stands in
the glossary, with its formula and the function of the library that computes it.
"""
FACT = "The Eiffel Tower is located in the city of"
TOUR = (
    ("heads", "The strongest induction head", "Each cell is a head. The page opens on the one with the highest induction score: "
     "hover for its figures, click another, then open its page.", None),
    ("lens", "An answer as it forms", "For the prompt about the Eiffel Tower: rows are tokens, columns are layers. In the last "
     "row the answer comes up some layers before the end. Write a prompt of your own in the sidebar.", FACT),
    ("features", "What a latent responds to", "Search the latents of a sparse autoencoder by a word, and open one: the texts "
     "that make it fire, and what it adds to the next token.", None),
    ("steering", "The model, steered", "The same prompt without and with a vector, side by side; below it how the effect and the "
     "damage grow with the strength, beside random directions.", None),
    ("calibration", "Whether it knows what it knows", "On the diagonal stated and observed agree. The null band says what chance "
     "alone would show.", None),
)  # fmt: skip
"""Page, title, words, and the prompt that it sets."""
KEYS = (
    ("Tab, Shift + Tab", "go to the next or the previous control, chart or token strip"),
    ("← →", "in a token strip: the token before or after"),
    ("Enter or Space", "press what has the focus; in a token strip choose the token"),
    ("Ctrl + Enter", "in the prompt: analyse it"),
    ("Esc", "close what is open: a menu, a window, a full-screen chart"),
)
WIDE = 64
"""Signs of a formula up to which it stands beside its words."""
COMMANDS = (
    ("everything at once, on a small model", "interp demo"),
    ("this app, on results elsewhere", "interp app --run runs/demo --workspace runs"),
    ("a store", "interp record smollm2-135m cities --sites 'resid_post:*' --tokens last --out runs/cities"),
    ("a tuned lens", "interp tune-lens smollm2-135m runs/corpus --out runs/tuned.safetensors"),
    ("head scores with ablation", "interp heads smollm2-135m --texts python_docs --top 20"),
    ("a circuit", "interp circuit smollm2-135m --task indirect_objects --n 32 --out runs/circuit.json"),
    ("probes", "interp probe train truth --out runs/truth"),
    (
        "a sparse autoencoder",
        "interp sae train --store runs/corpus --site resid_post:10 --k 32 --out runs/sae.safetensors",
    ),
    (
        "its latents",
        "interp sae features runs/sae.safetensors --store runs/corpus --model smollm2-135m --out runs/latents",
    ),
    (
        "a steering vector",
        "interp steer make smollm2-135m sentiment --site resid_post:12 --out runs/sentiment.safetensors",
    ),
    ("layer by strength", "interp steer map smollm2-135m sentiment --texts python_docs --out runs/map.json"),
    ("calibration of answers", "interp behave questions smollm2-135m --questions questions --out runs/answers"),
    ("a check of the model", "interp doctor smollm2-135m --save runs/doctor.json"),
    ("others let in", "INTERP_APP_PASSWORD=... interp app --host 0.0.0.0 --name lab.example --allow-remote"),
)
"""What it makes, and the command."""


def tour() -> None:
    """Five steps, each with a button that goes there."""
    for number, (page, title, words, prompt) in enumerate(TOUR, 1):
        with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"help_step_{number}"):
            with st.container():
                st.markdown(f"**{number}. {title}**")
                st.markdown(words)
            if st.button("Go there", key=f"help_go_{number}", icon=":material/arrow_forward:", type="tertiary"):
                for name in ("pos", "layer", "head", "latent"):
                    state.choose(name, None)
                if prompt is not None:
                    state.set_prompt(prompt)
                st.switch_page(f"views/{page}.py")


def words() -> None:
    """The glossary, searchable."""
    search = st.text_input(
        "Search",
        key="help_search",
        bind="query-params",
        max_chars=100,
        width=320,
        placeholder="entropy, induction, FVU ...",
    )
    found = glossary.matching(search or "")
    st.caption(f"{len(found)} of {len(glossary.TERMS)} scores")
    if not found:
        states.empty("Nothing of that name", "Search for a part of a word, or for a function of the library.")
    for area in dict.fromkeys(term.area for term in found):
        st.header(area, anchor=False)
        for term in (each for each in found if each.area == area):
            with st.container(border=True):
                # A long formula would be cut beside the words.
                beside = 0 < len(term.formula) <= WIDE
                left, right = st.columns([3, 2], vertical_alignment="center") if beside else (st.container(), st)
                with left:
                    st.markdown(f"**{term.name}**  \n{term.words}")
                    st.caption(f"`interp.{term.function}`")
                if term.formula:
                    right.latex(term.formula)


def keyboard() -> None:
    """What the keys do."""
    st.table(pd.DataFrame(KEYS, columns=pd.Index(["Key", "What it does"])), border="horizontal", hide_index=True)


def commands() -> None:
    """What makes results that are missing, and what the app takes at most."""
    st.markdown(
        "The app shows what lies in its **workspace**, the folder that holds the run. Whatever a command writes there is "
        "offered at once. Long work can also be started from the pages; it goes on as a job when the browser is closed."
    )
    for made, command in COMMANDS:
        with st.container(gap="xxsmall"):
            st.caption(made)
            st.code(command, language=None, wrap_lines=True)
    st.header("Limits", anchor=False)
    st.table(text.map_texts(system.limits(), text.plain), border="horizontal", hide_index=True)
    st.markdown(
        "A prompt and what was clicked stand in the **URL**: who opens it on the same server sees the same page. Long prompts "
        "are kept on the server, under a name in the URL."
    )


PARTS = {
    "tour": ("Tour", tour),
    "words": ("Glossary", words),
    "keys": ("Keyboard", keyboard),
    "commands": ("Commands and limits", commands),
}


def render() -> None:
    frame.head("Help", WHAT)
    shown = controls.choice(
        "Show", {name: title for name, (title, _) in PARTS.items()}, "help_show", visibility="collapsed"
    )
    with states.guard("This part cannot be shown"):
        PARTS[shown][1]()


render()
