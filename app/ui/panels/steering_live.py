"""Panel of live steering: the prompt continued as it is, and with a direction added."""

import pandas as pd
import streamlit as st

from interp import plot
from interp.report import printable
from ui import controls, figure, frame, library, services, state, states, text
from ui.services import steering, tints
from ui.strip import Track, token_strip

PLACES = {"all": "All tokens", "prompt": "Prompt", "generated": "New tokens"}
SOURCES = {"vector": "A vector", "latent": "A latent of an SAE"}
TRACKS = (
    Track("surprisal", "surprisal of the token", "nats", high=8.0),
    Track("kl", "KL from Default", "nats", high=2.0),
)
CODE = """
import interp

model = interp.load({model!r})
vector = {vector}
options = {{"max_new_tokens": {n}, "temperature": {temperature}, "seed": {seed}}}
default = model.generate({prompt!r}, **options)
with model.intervene(interp.Steer(vector, {strength}, where={where!r})):
    steered = model.generate({prompt!r}, **options)
print(default.text, steered.text, sep="\\n---\\n")
"""


def live() -> None:
    """Choose a direction and a strength; both continuations are written when asked for."""
    push = _push()
    if push is None:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        strength = st.slider(
            "Strength, in typical norms", -0.3, 0.3, 0.1, 0.01, key="steering_strength", bind="query-params", width=300
        )
        n = st.slider("New tokens", 4, steering.MOST_NEW, 30, key="steering_new", bind="query-params", width=200)
        temperature = st.number_input(
            "Temperature", 0.0, 2.0, 0.0, 0.1, key="steering_temperature", bind="query-params", width=130,
            help="0 takes the most probable token. Over 0 it is drawn, with the seed of the sidebar.",
        )  # fmt: skip
        where = controls.choice("Where it is added", PLACES, "steering_where")
    asked = (state.prompt(), push, float(strength), where, int(n), float(temperature), frame.seed())
    if st.button("Write both", key="steering_go", icon=":material/play_arrow:"):
        st.session_state["_steered"] = asked
    if st.session_state.get("_steered") != asked:
        st.caption("The prompt of the sidebar is continued twice, as it is and with the push. It takes some seconds.")
        return
    with states.guard("It cannot be steered with"):
        with states.busy("Writing both continuations"):
            pair = steering.written(
                state.prompt(),
                push,
                float(strength),
                where=where,
                n=int(n),
                temperature=float(temperature),
                seed=frame.seed(),
            )
        _both(pair, push, asked)


def _push() -> steering.Push | None:
    """The direction, chosen among vectors and latents; None where there is none."""
    vectors, saes = library.entries("steering vector"), library.entries("sae")
    if not vectors and not saes:
        states.empty(
            "Nothing to steer with", "Make a vector on the page Runs, or with the command.", "interp steer make --help"
        )
        return None
    offered = {name: title for name, title in SOURCES.items() if (vectors if name == "vector" else saes)}
    own = services.engine().fingerprint
    with st.container(horizontal=True, vertical_alignment="bottom"):
        source = controls.choice("Direction", offered, "steering_source")
        if source == "vector":
            entry = library.pick("steering vector", "Vector", "steering_vector", model=own)
            return None if entry is None else steering.Push(entry.key)
        keys = [each.key for each in saes]
        asked = state.chosen("sae")
        key = st.selectbox(
            "SAE", keys, index=keys.index(asked) if asked in keys else 0, format_func=printable, width=300
        )
        state.choose("sae", key)
        most = tints.n_latents(str(key)) - 1
        latent = int(st.number_input("Latent", 0, most, min(state.number("latent") or 0, most), width=140))
        state.choose("latent", latent)
    return steering.Push(str(key), latent)


def _both(pair: steering.Pair, push: steering.Push, asked: tuple) -> None:
    prompt, _, strength, where, n, temperature, seed = asked
    if push.latent is None:
        vector = f"interp.load_steering_vector({str(push.entry.path)!r})"
    else:
        vector = f"interp.latent_direction(interp.load_sae({str(push.entry.path)!r}), {push.latent})"
    code = CODE.format(
        model=services.model_name(), vector=vector, n=n, temperature=temperature, seed=seed, prompt=prompt,
        strength=strength, where=where,
    )  # fmt: skip
    what = (
        "Each token is coloured by how improbable it was to the model that wrote it. The framed token is the first at which "
        "the two part. Up to there both have read the same, and **KL** compares what they would say next; afterwards they "
        "read different texts, and there is none."
    )
    table = pd.concat([pair.default.assign(side="default"), pair.steered.assign(side="steered")], ignore_index=True)
    caption = f"{strength:+g} typical norms ({strength * pair.typical_norm:+.3g}) at {text.plain(pair.site)}"
    with figure.card("steering_live", "Default and steered", what) as card:
        card.widget(lambda: _strips(pair), table, code=code, caption=caption)
        st.caption(_parting(pair))
        if pair.note:
            text.say(pair.note)


def _strips(pair: steering.Pair) -> None:
    for column, name, part, written in zip(
        st.columns(2), ("Default", "Steered"), (pair.default, pair.steered), pair.texts, strict=True
    ):
        with column:
            st.subheader(name, anchor=False)
            if part.empty:
                st.caption("It ends at once: the first token is the end of the text.")
                continue
            tracks = [track for track in TRACKS if track.column in part and any(part[track.column].notna().tolist())]
            at = -1 if pair.first is None else pair.first
            token_strip(part, tracks, selected=at, on_pick=lambda pos: None, key=f"steering_{name.lower()}")  # noqa: ARG005
            with st.expander("As text"):
                text.say(written)


def _parting(pair: steering.Pair) -> str:
    if pair.first is None:
        return "Both say the same."
    said = [
        text.plain(plot.token_label(str(part["token"].iloc[pair.first]), 24)) if pair.first < len(part) else "the end"
        for part in (pair.default, pair.steered)
    ]
    return f"They part at new token {pair.first + 1}: {said[0]} by default, {said[1]} steered."
