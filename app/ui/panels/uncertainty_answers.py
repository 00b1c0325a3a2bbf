"""Sampled answers to the prompt: their meanings as cards, the greedy answer, and what shows doubt in it."""

import math
from typing import Any

import streamlit as st

from interp import plot
from interp.report import printable
from ui import controls, figure, frame, services, state, states, text
from ui.services import uncertainty
from ui.services.uncertainty import Answers, Asked

IN_A_ROW = 3
OTHERS = 4
"""Other wordings of a class that a card quotes."""


def show() -> None:
    """Choose, sample, and what came of it."""
    asked = _asked()
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button("Sample answers", key="uncertainty_sample", icon=":material/casino:")
        st.caption(f"{asked.n} answers and the greedy one: a few seconds on a small model.")
    if pressed:
        with states.guard("The answers cannot be sampled"), states.busy("Sampling answers"):
            uncertainty.sample(asked)
    found = uncertainty.answers(asked)
    if found is None:
        states.empty(
            "No answers yet",
            "Answers are drawn when you press the button. The prompt should end where an answer begins, as in "
            "'Question: What is the capital of France? Answer:'.",
        )
        return
    _figures(found, asked)
    for note in found.notes:
        st.caption(f":material/warning: {text.plain(note)}")
    _classes(found, asked)
    _rows(found, asked)
    _signals(found, asked)


def _asked() -> Asked:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        n = st.slider("Samples", *uncertainty.SAMPLES, 8, key="uncertainty_n", bind="query-params", width=180)
        temperature = st.slider(
            "Temperature", 0.2, 2.0, 1.0, 0.1, key="uncertainty_t", bind="query-params", width=180,
            help="Of the draws. Probabilities and entropies are those of the model itself all the same.",
        )  # fmt: skip
        most = st.slider("Most tokens of an answer", 1, 32, 8, key="uncertainty_most", bind="query-params", width=180)
        offered = uncertainty.matches()
        match = (
            controls.choice("Same meaning by", offered, "uncertainty_match")
            if len(offered) > 1
            else next(iter(offered))
        )
    return Asked(state.prompt(), int(n), float(temperature), int(most), match, frame.seed())


def _code(asked: Asked, last: str) -> str:
    match = (
        "interp.EmbeddingMatch(interp.load_sentence_encoder())" if asked.match == "embedding" else "interp.ExactMatch()"
    )
    options = f"max_new_tokens={asked.max_new_tokens}, temperature={asked.temperature}, seed={asked.seed}"
    return f"""
import interp

model = interp.load({services.model_name()!r})
samples = interp.sample_answers(model, {asked.prompt!r}, {asked.n}, {options})
meanings = interp.semantic_entropies(samples, {match})[0]
{last}
"""


def _figures(found: Answers, asked: Asked) -> None:
    values: dict[str, float] = dict(zip(found.figures["figure"], found.figures["value"].astype(float)))
    titles = {
        "semantic entropy": "Semantic entropy",
        "self-consistency": "Self-consistency",
        "agrees with greedy": "As the greedy one",
        "EigenScore": "EigenScore",
    }
    told = dict(zip(found.figures["figure"], found.figures["meaning"]))
    for column, (name, title) in zip(st.columns(4), titles.items()):
        value = values[name]
        said = (
            "–"
            if math.isnan(value)
            else f"{value:.0%}"
            if name in ("self-consistency", "agrees with greedy")
            else f"{value:.2f}"
        )
        column.metric(title, said, border=True, help=str(told[name]))
    st.caption(
        f"n = {asked.n} samples at temperature {asked.temperature:g}, seed {asked.seed}. Two answers mean the same: "
        f"{text.plain(found.matched_by)}."
    )


def _classes(found: Answers, asked: Asked) -> None:
    what = (
        "Each card is one meaning, with the share of the samples that have it. **Model** is the share by the model's own "
        "probabilities of the distinct answers. n samples cannot show more than n meanings."
    )

    def draw() -> None:
        rows = found.classes.to_dict("records")
        for start in range(0, len(rows), IN_A_ROW):
            for column, row in zip(st.columns(IN_A_ROW), rows[start : start + IN_A_ROW]):
                with column.container(border=True, height="stretch"):
                    _card(row, asked.n)

    table = found.classes.assign(texts=[" | ".join(map(str, each)) for each in found.classes["texts"]])
    with figure.card("uncertainty_classes", "Meanings", what) as card:
        card.widget(
            draw,
            table,
            code=_code(asked, "print(meanings)\nprint(meanings.to_frame())"),
            caption=f"{len(table)} meaning{'s' * (len(table) != 1)} in {asked.n} answers · {frame.stamp()}",
        )


def _card(row: dict[Any, Any], n: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{row['share']:.0%}**", width="content")
        if row["greedy"]:
            st.badge("greedy answer", color="blue")
    st.progress(float(row["share"]))
    text.say(plot.token_label(str(row["text"]), 160) if str(row["text"]) else "(an empty answer)")
    st.caption(f"{row['count']} of {n} · model {row['probability']:.0%}")
    others = [str(each) for each in row["texts"] if str(each) != str(row["text"])]
    if others:
        more = f" and {len(others) - OTHERS} more" if len(others) > OTHERS else ""
        text.say("also: " + ", ".join(printable(each)[:60] for each in others[:OTHERS]) + more)


def _rows(found: Answers, asked: Asked) -> None:
    what = "Every answer as it was drawn; sample −1 is the greedy one. The log-probability is that of the answer and its end."
    with figure.card("uncertainty_rows", "Every answer", what) as card:
        card.table(
            found.rows,
            code=_code(asked, "print(samples.rows)"),
            caption=f"{len(found.rows)} answers; nats",
            columns={
                "logprob": st.column_config.NumberColumn("ln p", format="%.2f"),
                "logprob_mean": st.column_config.NumberColumn("a token", format="%.2f"),
                "n_tokens": st.column_config.NumberColumn("tokens"),
            },
        )


def _signals(found: Answers, asked: Asked) -> None:
    what = (
        "What the answer's own tokens, the attention and the lens say. *Doubt* is the direction in which a value speaks of "
        "doubt; one answer has no scale of its own, so compare several prompts."
    )
    with figure.card("uncertainty_signals", "Signs in the greedy answer", what) as card:
        text.say(f"Greedy answer: {printable(found.greedy)[:200] or '(empty)'}")
        card.table(
            found.signals,
            code=_code(asked, f"print(interp.answer_signals(model, [{asked.prompt!r}], [samples.token_ids(0, -1)]).T)"),
            caption=frame.stamp(),
            columns={
                "value": st.column_config.NumberColumn(format="%.3f"),
                "meaning": st.column_config.TextColumn(width="large"),
            },
        )
