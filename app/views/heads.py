"""Heads: what every attention head does on repeated random tokens, and one head's attention on the prompt."""

import math

import numpy as np
import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text

WHAT = """
Sequences of random tokens are repeated once. Nothing but the first copy can predict the second, so what a head attends
to there is what it is for (Olsson et al. 2022). Scores are mean attention, 0 to 1, over the queries that carry the
meaning:

- **Induction**: from a token of the second copy to the one *after* its first occurrence.
- **Previous token**: from any token to the one before it.
- **Duplicate token**: from a token of the second copy to its first occurrence.
- **Attention entropy**: how spread the head's attention is, in nats. Low means that it looks at one place.

Click a cell, or a row of the table, to see that head's attention on the prompt.
"""
METRICS = {
    "induction": "Induction",
    "previous_token": "Previous token",
    "duplicate_token": "Duplicate token",
    "attention_entropy": "Attention entropy",
}
ENTROPY = "attention_entropy"
WIDEST = 64  # tokens of an attention matrix; beyond them a window around the chosen token is shown


def scores() -> tuple[pd.DataFrame, str, services.Source]:
    """The head scores and the metric that is shown; one that the run lacks comes from the live model."""
    metric = controls.choice("Score", METRICS, "metric", visibility="collapsed")
    table, source = services.heads(frame.seed())
    if metric not in table:
        with states.busy("Scoring every head"):
            table, source = services.live_heads(frame.seed()), "live"
    return table, metric, source


def code(last: str) -> str:
    """Python that makes the scores."""
    return f"""
import interp

model = interp.load({services.model_name()!r})
scores = interp.head_scores(model, seed={frame.seed()})
{last}
"""


def clicked() -> None:
    """A click on a cell chooses its head; a click beside the cells changes nothing."""
    picked = st.session_state["heads"]["selection"].get("head") or []
    if picked:
        state.choose_head(picked[0]["layer"], picked[0]["head"])


def grid(table: pd.DataFrame, metric: str, chosen: tuple[int, int], source: services.Source) -> None:
    """Layer by head."""
    what = (
        "Layers down, heads across. Full colour is 1; for the entropy it is the next whole number. Hover a cell for all its "
        "scores and their rank. Click it to choose the head."
    )
    with figure.card("heads", f"{METRICS[metric]} by head", what) as card:
        n = f", n = {table['n'].iloc[0]:,} queries" if "n" in table else ""
        card.chart(
            plot.head_grid(table, metric, selected=chosen),
            table,
            code=code(f"scores.plot({metric!r})"),
            caption=f"{len(table)} heads{n}, {frame.source_note(source)} · {text.plain(services.model_name())}",
            on_select=clicked,
        )


def ranking(table: pd.DataFrame, metric: str) -> None:
    """The heads with the highest score; choosing a row chooses the head."""
    what = "Sorted by the score above; for the entropy, lowest first. Choose a row to see that head."
    title = "Most focused heads" if metric == ENTROPY else "Strongest heads"
    with figure.card("ranking", title, what) as card:
        top = st.slider("Heads listed", 1, min(64, len(table)), min(8, len(table)), key="top", bind="query-params")
        ranked = table.sort_values(metric, ascending=metric == ENTROPY, kind="stable").head(top).reset_index(drop=True)
        shown = pd.DataFrame(
            {
                "head": [f"L{layer}H{head}" for layer, head in zip(ranked["layer"], ranked["head"])],
                metric: ranked[metric],
                "rank": [f"{i} of {len(table)}" for i in range(1, len(ranked) + 1)],
            }
        )
        if {f"{metric}_low", f"{metric}_high"} <= set(ranked):
            bounds = zip(ranked[f"{metric}_low"], ranked[f"{metric}_high"])
            shown["95 % interval"] = [f"{low:.2f} – {high:.2f}" for low, high in bounds]
        full = float(math.ceil(max(table[metric]))) if metric == ENTROPY else 1.0
        key = f"ranking_{metric}_{top}"

        def choose() -> None:
            rows = st.session_state[key]["selection"]["rows"]
            if rows:
                state.choose_head(ranked["layer"].iloc[rows[0]], ranked["head"].iloc[rows[0]])

        card.table(
            shown,
            code=code(f"print(scores.top({metric!r}, {top}))"),
            columns={
                "head": st.column_config.TextColumn("Head", width=60),
                metric: st.column_config.ProgressColumn(
                    METRICS[metric], min_value=0, max_value=full, format="%.3f", width=120
                ),
                "rank": st.column_config.TextColumn("Rank", width=75),
                "95 % interval": st.column_config.TextColumn("95 % interval", width=95),
            },
            key=key,
            on_select=choose,
            selection_mode="single-row",
        )


def facts(table: pd.DataFrame, chosen: tuple[int, int]) -> None:
    """All scores of the chosen head with their ranks."""
    row = table[(table["layer"] == chosen[0]) & (table["head"] == chosen[1])].iloc[0]
    with st.container(border=True):
        st.subheader(f"Layer {chosen[0]}, head {chosen[1]}", anchor=False)
        for metric in METRICS:
            if metric in table:
                rank = int((table[metric] > row[metric]).sum()) + 1
                st.markdown(f"{METRICS[metric]} **{row[metric]:.3f}** ({rank} of {len(table)})")


def pattern(tokens: pd.DataFrame, pos: int, layer: int, head: int) -> None:
    """One head's attention on the prompt."""
    what = (
        "A row is the token that looks (and predicts what comes next), a column the token that is looked at. Rows sum to 1. "
        "Cells right of the diagonal are masked: a token cannot see what follows."
    )
    with (
        figure.card("attention", f"Attention of layer {layer}, head {head}", what) as card,
        states.guard("The attention cannot be shown"),
    ):
        sink = st.toggle(
            "Drop position 0 and renormalise",
            key="no_sink",
            bind="query-params",
            help="Many heads rest on the first token when they have nothing to do, which hides everything else.",
        )
        with states.busy("Computing the attention"):
            weights = services.attention(state.prompt(), layer)[head]
        shown = state.window(len(tokens), pos, WIDEST)
        start = shown.start
        view = weights[start : shown.stop, start : shown.stop].astype(float)
        if sink and start == 0:
            view, start = services.without_sink(view), 1
        labels = [str(token) for token in tokens["token"].iloc[start : shown.stop]]
        if not labels:
            states.empty("Nothing is left", "The prompt has one token only, and position 0 is dropped.")
            return
        query, key = np.tril_indices(len(labels))
        card.chart(
            plot.attention_matrix(view, labels, start=start),
            pd.DataFrame({"query": query + start, "key": key + start, "attention": view[query, key]}),
            code=f"""
import interp

model = interp.load({services.model_name()!r})
_, cache = model.run_with_cache({state.prompt()!r}, sites="pattern:{layer}")
print(cache["pattern:{layer}"][0, {head}])   # [query key]
""",
            caption=f"{len(labels)} of {len(tokens)} tokens · {frame.stamp()}",
            width="content",
        )


def render() -> None:
    frame.head("Heads", WHAT)
    found = frame.prompt_strip()
    with states.guard("The head scores cannot be shown"):
        table, metric, source = scores()
        chosen = state.head()
        if chosen not in set(zip(table["layer"], table["head"])):
            strongest = table.loc[table["induction"].idxmax()]
            chosen = (int(strongest["layer"]), int(strongest["head"]))
        left, right = st.columns(2)
        with left:
            grid(table, metric, chosen, source)
        with right:
            ranking(table, metric)
            facts(table, chosen)
        if found is not None:
            pattern(*found, *chosen)


render()
