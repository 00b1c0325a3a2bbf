"""Other ways of the patching page: causal tracing and attention knockout, both of the prompt in the sidebar."""

from typing import Any

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states
from ui.services import traces


def _answer(n: int, key: str, *, against: bool = False) -> tuple[controls.Token | None, controls.Token | None]:
    with states.busy("Asking the model"):
        best = services.candidates(state.prompt(), n - 1)
    answer = controls.token("Answer", best, f"{key}_answer")
    other = None
    if against:
        other = controls.token("Against", best, f"{key}_against", index=min(1, len(best) - 1), none="nothing")
    return answer, other


def trace(n: int) -> None:
    """Causal tracing."""
    what = (
        "The subject's embeddings become noise; then one value at a time is put back to what it was without the noise (causal "
        "tracing, Meng et al. 2022). Blue: how much of the answer's probability comes back with that value alone. Tokens before "
        "the subject are not touched by the noise, so nothing can come back there."
    )
    with figure.card("trace", "Where the fact comes back", what) as card, states.guard("The prompt cannot be traced"):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            subject = st.text_input("Subject", "", key="trace_subject", bind="query-params", max_chars=200, width=240,
                                    placeholder="Words of the prompt")  # fmt: skip
            answer, _ = _answer(n, "trace")
            site = st.selectbox(
                "Site", list(traces.TRACE_SITES), format_func=traces.TRACE_SITES.__getitem__, key="trace_site",
                bind="query-params", width=200,
            )  # fmt: skip
            draws = st.slider(
                "Draws of noise", 1, traces.MAX_DRAWS, 4, key="trace_draws", bind="query-params", width=160
            )
        if not subject or answer is None:
            states.empty(
                "What is the prompt about?",
                "Write the words of it that shall become noise, such as its subject.",
            )
            return
        asked = traces.Trace(state.prompt(), subject, answer, site, draws, seed=frame.seed())
        found = _run(asked, "Trace it", "run_trace", "Tracing")
        if found is None:
            return
        table, facts = found
        card.chart(
            plot.trace_grid(table, "probability brought back"),
            table,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
found = interp.causal_trace(
    model, {state.prompt()!r}, {subject!r}, {answer!r}, n_noise={draws}, sites=[{site!r}], seed={asked.seed}
)
print(found.to_frame())
found.plot()
""",
            width="content",
            caption=(
                f"probability {facts['clean']:.3f} clean, {facts['corrupted']:.3f} under noise; n = {draws} draws · "
                f"{frame.stamp()}"
            ),
        )


def knockout(n: int) -> None:
    """Attention knockout."""
    what = (
        "The last token is kept from looking at one other token, in one layer or a window of layers, and the answer is read "
        "again. **Vermilion**: the answer loses, so what it needs passes there. The other tokens see as before."
    )
    with figure.card("knockout", "Which look matters", what) as card, states.guard("The prompt cannot be cut"):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            answer, against = _answer(n, "cut", against=True)
            window = st.slider("Layers at once", 1, 15, 5, key="cut_window", bind="query-params", width=160)
        if answer is None or answer == against:
            states.empty("Nothing to follow", "Choose an answer, and another token to hold against it.")
            return
        asked = traces.Cuts(state.prompt(), answer, against, window, frame.seed())
        found = _run(asked, "Cut it", "run_cut", "Cutting")
        if found is None:
            return
        table, facts = found
        unit = "logit difference" if facts["measure"] == "logit_diff" else "probability"
        card.chart(
            plot.trace_grid(table, f"change of the {unit}"),
            table,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
found = interp.knockout_sweep(model, {state.prompt()!r}, {answer!r}, {against!r}, window={window}, seed={asked.seed})
print(found.to_frame())
found.plot()
""",
            width="content",
            caption=f"{unit} {facts['plain']:.3f} without a cut; {window} layers at once, n = 1 prompt · {frame.stamp()}",
        )


def _run(
    asked: traces.Trace | traces.Cuts, label: str, key: str, what: str
) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    found = traces.found(asked)
    if found is None:
        st.caption(
            f"A run for every layer and token: seconds for a short prompt (at most {traces.MAX_TRACE_TOKENS} tokens). Leaving "
            "the page stops it."
        )
        if not st.button(label, key=key, icon=":material/play_arrow:"):
            return None
        with controls.progress(what) as move:
            traces.run_trace(asked, move) if isinstance(asked, traces.Trace) else traces.run_cuts(asked, move)
        st.rerun()
    return found
