"""Heads: what every attention head does on repeated random tokens and on ordinary text; a click opens a head."""

import math

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text
from ui.panels.job_status import start_button

WHAT = """
Sequences of random tokens are repeated once. Nothing but the first copy can predict the second, so what a head attends
to there is what it is for (Olsson et al. 2022). Scores are mean attention, 0 to 1, over the queries that carry the
meaning:

- **Induction**: from a token of the second copy to the one *after* its first occurrence.
- **Previous token**: from any token to the one before it.
- **Duplicate token**: from a token of the second copy to its first occurrence.
- **Current token**, **first token**: to itself, and to the first token (a place to rest).
- **Attention entropy**: how spread the head's attention is, in nats. Low means that it looks at one place.
- **Mean distance**: how far back it looks, in tokens.

On **natural text** the same is asked of ordinary passages: of places where a token came before. A head that scores on random
tokens only may be about something else there.

The **null** of a score is what the head pays to other places of the kind; a score says something where its interval ends
above it. A score says where a head looks, not what the model loses without it: that is the **causal check**.

Click a cell, or a row of the table, to open that head's page: the prompt, ordinary text, its weights, its partners.
"""
METRICS = {
    "induction": "Induction",
    "previous_token": "Previous token",
    "duplicate_token": "Duplicate token",
    "current_token": "Current token",
    "first_token": "First token",
    "attention_entropy": "Attention entropy",
    "mean_distance": "Mean distance",
}
TOKENS = {"repeated": "Repeated random tokens", "natural": "Natural text"}
ENTROPY = "attention_entropy"


def scores() -> tuple[pd.DataFrame, str, services.Source, bool]:
    """The head scores, the column that is shown, their source, and whether it is of natural text.

    What the run lacks comes from the live model.
    """
    metric = controls.choice("Score", METRICS, "metric", visibility="collapsed")
    natural = controls.choice("On", TOKENS, "score_on", visibility="collapsed") == "natural"
    table, source = services.heads(frame.seed())
    column = f"natural_{metric}" if natural else metric
    if column not in table:
        with states.busy("Scoring every head on natural text" if natural else "Scoring every head"):
            table, source = services.live_heads(frame.seed(), natural=natural), "live"
    return table, column, source, natural


def title_of(metric: str) -> str:
    """A score as a reader knows it."""
    return METRICS[metric.removeprefix("natural_")]


def code(last: str, natural: bool) -> str:
    """Python that makes the scores."""
    return f"""
import interp

model = interp.load({services.model_name()!r})
texts = {services.NATURAL_CODE if natural else None}
scores = interp.head_scores(model, seed={frame.seed()}, texts=texts)
{last}
"""


def clicked() -> None:
    """A click on a cell opens its head; a click beside the cells changes nothing."""
    picked = st.session_state["heads"]["selection"].get("head") or []
    if picked:
        open_head(picked[0]["layer"], picked[0]["head"])


def open_head(layer: int, head: int) -> None:
    """Go to a head's page at the end of this run: a callback cannot."""
    state.choose_head(layer, head)
    st.session_state["_open_head"] = True


def causal(table: pd.DataFrame) -> tuple[pd.DataFrame, services.Source] | None:
    """The heads' effects and verdicts, and the card that shows them or offers to find them."""
    what = (
        "Each head is ablated alone, in its place what it gives on average; **effect** is what the second copy of repeated "
        "tokens then costs more, in nats. *Induction*: score over the null and effect over the band of its layer. "
        "*Redundant*: a score and no effect alone, but the set of the best heads loses more with it than without. "
        "*Upstream*: an effect without the score. *None*: neither."
    )
    with figure.card("causal", "Causal check", what) as card, states.guard("The causal check cannot be shown"):
        found = services.causal_check()
        if found is None:
            st.caption(f"{len(table)} heads, each ablated alone: minutes, in the background.")
            argv = ["heads", services.model_name(), "--seed", str(frame.seed()), "--out", "head-report.json"]
            start_button(
                "Ablate every head", kind="head report", argv=argv, title="Causal check of the heads", key="run_causal"
            )
            return None
        report, facts, source = found
        card.chart(
            plot.score_against_effect(report),
            report,
            code=f"""
import interp
from interp.heads.report import head_report

model = interp.load({services.model_name()!r})
report = head_report(model, seed={frame.seed()})   # minutes
print(report.summary())
report.plot()
""",
            caption=(
                f"{text.plain(str(facts['kind']))}-ablation, n = {facts['n_sequences']} sequences, "
                f"{frame.source_note(source)} · {text.plain(services.model_name())}"
            ),
        )
        for line in str(facts["summary"]).splitlines():
            st.caption(text.plain(line))
        return report, source
    return None


def grid(table: pd.DataFrame, metric: str, chosen: tuple[int, int], source: services.Source, natural: bool) -> None:
    """Layer by head."""
    what = (
        "Layers down, heads across. Full colour is 1; for the entropy it is the next whole number. Hover a cell for all its "
        "scores and their rank. Click it to open the head."
    )
    with figure.card("heads", f"{title_of(metric)} by head", what) as card:
        count = f"{metric}_n" if natural else "n"
        n = f", n = {table[count].iloc[0]:,} queries" if count in table else ""
        n += f" in {services.NATURAL_TEXTS} texts" if natural else ""
        card.chart(
            plot.head_grid(table, metric, selected=chosen),
            table,
            code=code(f"scores.plot({metric!r})", natural),
            caption=f"{len(table)} heads{n}, {frame.source_note(source)} · {text.plain(services.model_name())}",
            on_select=clicked,
        )


def ranking(table: pd.DataFrame, metric: str, checked: pd.DataFrame | None, natural: bool) -> None:
    """The heads with the highest score; choosing a row opens the head."""
    what = "Sorted by the score above; for the entropy, lowest first. Choose a row to open that head."
    focused = metric.removeprefix("natural_") == ENTROPY
    title = "Most focused heads" if focused else "Highest scores"
    with figure.card("ranking", title, what) as card:
        top = st.slider("Heads listed", 1, min(64, len(table)), min(8, len(table)), key="top", bind="query-params")
        ranked = table.sort_values(metric, ascending=focused, kind="stable").head(top).reset_index(drop=True)
        shown = pd.DataFrame(
            {
                "head": [f"L{layer}H{head}" for layer, head in zip(ranked["layer"], ranked["head"])],
                metric: ranked[metric],
            }
        )
        if checked is not None:
            said = checked.set_index(["layer", "head"]).loc[list(zip(ranked["layer"], ranked["head"])), :]
            shown["effect"], shown["verdict"] = said["effect"].tolist(), said["verdict"].tolist()
        if {f"{metric}_low", f"{metric}_high"} <= set(ranked):
            bounds = zip(ranked[f"{metric}_low"], ranked[f"{metric}_high"])
            shown["95 % interval"] = [f"{low:.2f} – {high:.2f}" for low, high in bounds]
        if f"{metric}_null" in ranked:
            shown["null"] = ranked[f"{metric}_null"]
        if natural:
            shown["repeated"] = ranked[metric.removeprefix("natural_")]
        shown["rank"] = [f"{i} of {len(table)}" for i in range(1, len(ranked) + 1)]
        full = max(1.0, float(math.ceil(max(table[metric]))))
        key = f"ranking_{metric}_{top}"

        def choose() -> None:
            rows = st.session_state[key]["selection"]["rows"]
            if rows:
                open_head(ranked["layer"].iloc[rows[0]], ranked["head"].iloc[rows[0]])

        card.table(
            shown,
            code=code(f"print(scores.top({metric!r}, {top}))", natural),
            columns={
                "head": st.column_config.TextColumn("Head", width=60),
                metric: st.column_config.ProgressColumn(
                    title_of(metric), min_value=0, max_value=full, format="%.3f", width=120
                ),
                "rank": st.column_config.TextColumn("Rank", width=75),
                "95 % interval": st.column_config.TextColumn("95 % interval", width=95),
                "null": st.column_config.NumberColumn("Null", format="%.3f", width=55),
                "repeated": st.column_config.NumberColumn("Repeated", format="%.3f", width=75),
                "effect": st.column_config.NumberColumn("Effect (nats)", format="%+.2f", width=90),
                "verdict": st.column_config.TextColumn("Verdict", width=85),
            },
            key=key,
            on_select=choose,
            selection_mode="single-row",
        )


def render() -> None:
    frame.head("Heads", WHAT)
    frame.prompt_strip()
    with states.guard("The head scores cannot be shown"):
        table, metric, source, natural = scores()
        chosen = state.head()
        if chosen not in set(zip(table["layer"], table["head"])):
            strongest = table.loc[table["induction"].idxmax()]
            chosen = (int(strongest["layer"]), int(strongest["head"]))
        left, right = st.columns(2)
        place = right.container()
        with left:
            grid(table, metric, chosen, source, natural)
        with right:
            checked = causal(table)
        with place:
            ranking(table, metric, None if checked is None else checked[0], natural)
    if st.session_state.pop("_open_head", False):
        st.switch_page("views/head.py")


render()
