"""What stands around every page: the sidebar with the prompt, the page's head, and the strip of the prompt's tokens."""

import hashlib

import pandas as pd
import streamlit as st

from interp.report import printable
from ui import pages, services, state, states, text
from ui.strip import Track, token_strip
from ui.token_card import token_card

EXAMPLES = {
    "A fact": "The Eiffel Tower is located in the city of",
    "Induction": "Mr and Mrs Dursley of number four Privet Drive were proud. Mr and Mrs Durs",
    "Indirect object": "When Mary and John went to the store, John gave a drink to",
    "Code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
}
_TRACKS = (
    Track("surprisal", "surprisal", "nats", high=12.0),
    Track("entropy", "entropy after it", "nats", high=8.0),
    Track("rank", "rank of the next", "", high=100.0),
)


def sidebar() -> None:
    """Prompt, run, model and seed: the same on every page."""
    state.settle_prompt(services.default_prompt())
    with st.sidebar:
        with st.form("prompt_form", border=False):
            st.text_area(
                "Prompt",
                key="prompt",
                height=120,
                max_chars=state.MAX_CHARS,
                help=f"At most {state.MAX_CHARS:,} characters and {state.MAX_TOKENS:,} tokens. It stands in the URL.",
            )
            st.form_submit_button("Analyse", width="stretch", icon=":material/play_arrow:")
        with st.popover("Examples", icon=":material/lightbulb:", type="tertiary"):
            for name, text in EXAMPLES.items():
                st.button(name, key=f"example_{name}", width="stretch", on_click=state.set_prompt, args=(text,))
        if state.view_is_lost():
            st.caption(
                ":material/warning: The URL names a saved prompt that is not on this machine; here is another one."
            )
        if state.prompt()[-1:].isspace():
            st.caption(":material/warning: The prompt ends in a space or line break; most models never see one there.")
            st.button("Trim it", key="trim", on_click=state.set_prompt, args=(state.prompt().rstrip(),))
        _origin()
        pages.menu()


def _origin() -> None:
    with st.expander("Model, run, seed", icon=":material/tune:", expanded=False):
        try:
            _run()
            _model()
            if wrong := services.mismatch():
                text.say(f"⚠ {wrong}")
        except ValueError as error:
            text.say(str(error))
        st.number_input(
            "Seed",
            min_value=0,
            max_value=2**31 - 1,
            value=0,
            key="seed",
            bind="query-params",
            help="Of everything that is sampled live, such as the random tokens of the head scores.",
        )


def _run() -> None:
    """The run whose results the pages show."""
    offered = services.runs_offered()
    if not offered:
        st.caption("Run")
        text.say("none: start with interp app --run FOLDER")
        return
    st.selectbox(
        "Run",
        list(offered),
        format_func=printable,
        key="run",
        bind="query-params",
        help="Finished demo runs of the workspace. Their results are shown as they lie; nothing is computed again.",
    )
    found = services.run()
    if found and found.model.get("note"):
        text.say(str(found.model["note"]))


def _model() -> None:
    """The model that answers live."""
    offered = services.models_offered()
    if len(offered) > 1:
        st.selectbox(
            "Model",
            offered,
            format_func=printable,
            key="model",
            bind="query-params",
            help="One model is loaded at a time, for all who use this server; another choice replaces it.",
        )
    else:
        st.caption("Model")
        text.say(services.model_name())


def seed() -> int:
    """The seed in the sidebar."""
    return int(st.session_state.get("seed") or 0)


def head(title: str, what: str) -> None:
    """Title of the page, and what the page is for behind a button."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.title(title, anchor=False, width="content")
        with st.popover("What am I seeing?", icon=":material/help:", type="tertiary"):
            st.markdown(what)


def prompt_strip() -> tuple[pd.DataFrame, int] | None:
    """The token strip of the prompt: its frame and the chosen position, None where the prompt cannot be shown."""
    try:
        with states.busy("Reading the prompt"):
            frame, _ = services.tokens(state.prompt())
    except Exception as error:  # the border between the library and the page
        states.problem("This prompt cannot be analysed", error)
        return None
    frame = frame.loc[frame["text"] == 0] if "text" in frame else frame
    frame = frame.assign(surprisal=-frame["logprob"]) if "logprob" in frame else frame
    tracks = [track for track in _TRACKS if track.column in frame]
    pos = state.position(len(frame))
    place = st.container()
    if (tint := token_card(frame, pos)) is not None:
        track, values = tint
        frame, tracks = frame.assign(**{track.column: values}), [track, *tracks]
    with place:
        token_strip(frame, tracks, selected=pos, on_pick=state.choose_position, key="strip")
    return frame, pos


def stamp() -> str:
    """Model and prompt of a figure, as Markdown: the prompt by the first digits of its hash."""
    digest = hashlib.sha256(state.prompt().encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text.plain(services.model_name())} · prompt {digest}"


def source_note(source: services.Source) -> str:
    """Where a figure's numbers come from."""
    return "from the run" if source == "run" else "computed live"
