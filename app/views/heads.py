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
- **Current token**, **first token**: to itself, and to the first token (a place to rest).
- **Attention entropy**: how spread the head's attention is, in nats. Low means that it looks at one place.
- **Mean distance**: how far back it looks, in tokens.

On **natural text** the same is asked of ordinary passages: of places where a token came before. A head that scores on random
tokens only may be about something else there.

The **null** of a score is what the head pays to other places of the kind; a score says something where its interval ends
above it. A score says where a head looks, not what the model loses without it: that is the **causal check**.

Click a cell, or a row of the table, to see that head on the prompt, what its weights do, and whom it works with.
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
PANELS = {"attention": "Attention on the prompt", "circuit": "Circuits", "composition": "Partners"}
CIRCUITS = {"OV": "OV: what it writes", "QK": "QK: whom it looks for"}
WIDEST = 64  # tokens of an attention matrix; beyond them a window around the chosen token is shown


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
    """A click on a cell chooses its head; a click beside the cells changes nothing."""
    picked = st.session_state["heads"]["selection"].get("head") or []
    if picked:
        state.choose_head(picked[0]["layer"], picked[0]["head"])


def causal(table: pd.DataFrame) -> tuple[pd.DataFrame, services.Source] | None:
    """The heads' effects and verdicts, and the card that shows them or offers to find them."""
    what = (
        "Each head is ablated alone, in its place what it gives on average; **effect** is what the second copy of repeated "
        "tokens then costs more, in nats. *Induction*: score over the null and effect over the band of its layer. "
        "*Redundant*: a score and no effect alone, but the set of the best heads loses more with it than without. "
        "*Upstream*: an effect without the score. *None*: neither."
    )
    with figure.card("causal", "Causal check", what) as card, states.guard("The causal check cannot be shown"):
        found = services.causal_check(frame.seed())
        if found is None:
            st.caption(
                f"{len(table)} heads, each ablated alone: that takes minutes, and the model answers nobody else meanwhile. "
                "Leaving the page stops it."
            )
            if not st.button("Ablate every head", key="run_causal", icon=":material/play_arrow:"):
                return None
            with controls.progress("Ablating heads") as move:
                services.run_causal_check(frame.seed(), move)
            st.rerun()
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
        "scores and their rank. Click it to choose the head."
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
    """The heads with the highest score; choosing a row chooses the head."""
    what = "Sorted by the score above; for the entropy, lowest first. Choose a row to see that head."
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
                state.choose_head(ranked["layer"].iloc[rows[0]], ranked["head"].iloc[rows[0]])

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


def facts(table: pd.DataFrame, chosen: tuple[int, int]) -> None:
    """All scores of the chosen head with their ranks."""
    row = table[(table["layer"] == chosen[0]) & (table["head"] == chosen[1])].iloc[0]
    with st.container(border=True):
        st.subheader(f"Layer {chosen[0]}, head {chosen[1]}", anchor=False)
        said = []
        for metric in METRICS:
            if metric in table:
                rank = int((table[metric] > row[metric]).sum()) + 1
                said.append(f"{METRICS[metric]} **{row[metric]:.3f}** ({rank} of {len(table)})")
        st.markdown("  \n".join(said))


def pattern(tokens: pd.DataFrame, pos: int, layer: int, head: int) -> None:
    """One head's attention on the prompt."""
    what = (
        "A row is the token that looks (and predicts what comes next), a column the token that is looked at. Rows sum to 1. "
        "Cells right of the diagonal are masked: a token cannot see what follows. **Weighted by what is moved** multiplies "
        "each cell by the length of the value that it brings: a head that rests on a token often takes nothing from it."
    )
    with (
        figure.card("attention", f"Attention of layer {layer}, head {head}", what) as card,
        states.guard("The attention cannot be shown"),
    ):
        with st.container(horizontal=True, gap="large"):
            sink = st.toggle(
                "Drop position 0 and renormalise",
                key="no_sink",
                bind="query-params",
                help="Many heads rest on the first token when they have nothing to do, which hides everything else.",
            )
            weighted = st.toggle("Weight by what is moved", key="weighted", bind="query-params")
        with states.busy("Computing the attention"):
            ask = services.value_weighted if weighted else services.attention
            weights = ask(state.prompt(), layer)[head]
        shown = state.window(len(tokens), pos, WIDEST)
        start = shown.start
        view = weights[start : shown.stop, start : shown.stop].astype(float)
        if sink and start == 0:
            view, start = (view[1:, 1:], 1) if weighted else (services.without_sink(view), 1)
        labels = [str(token) for token in tokens["token"].iloc[start : shown.stop]]
        if not labels:
            states.empty("Nothing is left", "The prompt has one token only, and position 0 is dropped.")
            return
        query, key = np.tril_indices(len(labels))
        title = "length of what is moved" if weighted else "attention"
        end = max(float(view.max()), 1e-9) if weighted else 1.0
        card.chart(
            plot.attention_matrix(view, labels, start=start, title=title, end=end),
            pd.DataFrame({"query": query + start, "key": key + start, title: view[query, key]}),
            code=pattern_code(layer, head, weighted),
            caption=f"{len(labels)} of {len(tokens)} tokens · {frame.stamp()}",
            width="content",
        )


def pattern_code(layer: int, head: int, weighted: bool) -> str:
    """Python that makes the attention."""
    made = f"""_, cache = model.run_with_cache({state.prompt()!r}, sites="pattern:{layer}")
print(cache["pattern:{layer}"][0, {head}])   # [query key]"""
    if weighted:
        made = f"print(interp.value_weighted_attention(model, {state.prompt()!r}, {layer})[0, {head}])   # [query key]"
    return f"""
import interp

model = interp.load({services.model_name()!r})
{made}
"""


def circuits(layer: int, head: int) -> None:
    """What the head's weights do, by tokens."""
    what = (
        "**OV** says what the head writes for what it reads; **QK** which keys a query looks for. Each bar is a direction of the "
        "circuit; its label has the tokens that it reads, and after the arrow those that it writes (for QK: query → key). "
        "Hover for the tokens at the other end of the direction. Position and norms that depend on the text are left out."
    )
    with (
        figure.card("circuit", f"Circuits of layer {layer}, head {head}", what) as card,
        states.guard("The circuit cannot be shown"),
    ):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            which = controls.choice("Circuit", CIRCUITS, "circuit_of")
            asked = st.text_input(
                "For one token", "·Paris", key="circuit_token", bind="query-params", max_chars=60, width=180,
                help="One token; `·` is the space before a word.",
            )  # fmt: skip
        with states.busy("Reading the weights"):
            table, facts = services.circuit(layer, head, which)
        load = f"circuit = head_circuit(model, {layer}, {head}, {which!r})"
        made = f"""
import interp
from interp.heads.circuit import head_circuit

model = interp.load({services.model_name()!r})
{load}
"""
        card.chart(
            plot.singular_values(table, total=facts["total"]),
            table,
            code=made + f"circuit.plot()\nprint(circuit.top_tokens(model, {controls.typed(asked)!r}))",
            caption=f"{table['component'].nunique()} largest directions · {text.plain(services.model_name())}",
        )
        with states.guard("This token cannot be asked"):
            tokens = services.circuit_tokens(layer, head, which, controls.typed(asked))
            does = "It writes, when it looks at" if which == "OV" else "It looks for these keys, from the query"
            st.caption(
                f"{does} {text.plain(plot.token_label(controls.typed(asked)))}: score, and standard deviations over all"
            )
            shown = tokens.assign(token=[plot.token_label(str(t)) for t in tokens["token"]], rank=tokens["rank"] + 1)
            st.dataframe(
                text.readable(shown.loc[:, ["rank", "token", "score", "z"]]),
                hide_index=True,
                height=38 + 35 * len(shown),
                column_config={
                    "rank": st.column_config.NumberColumn(format="localized"),
                    "score": st.column_config.NumberColumn(format="%.3f"),
                    "z": st.column_config.NumberColumn("sd", format="%.1f"),
                },
            )


def partners(layer: int, head: int) -> None:
    """Heads whose weights fit to the chosen one's."""
    what = (
        "**Composition**: how much of what the earlier head writes is read by the later one, as query (Q), key (K) or value (V), "
        "from the weights alone (Elhage et al. 2021). **Excess** is the score over that of pairs that share one of the two "
        "heads; *p* counts how many of those reach it. An induction head finds its key by what a previous-token head wrote (K)."
    )
    with (
        figure.card("partners", f"Partners of layer {layer}, head {head}", what) as card,
        states.guard("The partners cannot be shown"),
    ):
        with states.busy("Comparing the weights of all pairs"):
            found = services.composition(layer, head)
        shown = found.loc[:, ["partner", "does", "mode", "score", "excess", "p", "rank"]]
        numbers = {c: st.column_config.NumberColumn(c.capitalize(), format="%.3f") for c in ("score", "excess")}
        card.table(
            shown.sort_values("excess", ascending=False, kind="stable"),
            code=f"""
import interp
from interp.heads.composition import head_composition

model = interp.load({services.model_name()!r})
pairs = head_composition(model).to_frame()
mine = (pairs.later_layer == {layer}) & (pairs.later_head == {head})
print(pairs[mine].nlargest(10, "excess"))
""",
            columns={
                "partner": st.column_config.TextColumn("Partner"),
                "does": st.column_config.TextColumn("It"),
                "mode": st.column_config.TextColumn("As"),
                **numbers,
                "p": st.column_config.NumberColumn("p", format="%.4f"),
                "rank": st.column_config.NumberColumn("Rank of all pairs", format="localized"),
            },
            height=min(38 + 35 * len(shown), 430),
            caption=f"Best partners in each way, from the weights · {text.plain(services.model_name())}",
        )


def render() -> None:
    frame.head("Heads", WHAT)
    found = frame.prompt_strip()
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
            facts(table, chosen)
        panel = controls.choice("Show of the head", PANELS, "panel", visibility="collapsed")
        if panel == "circuit":
            circuits(*chosen)
        elif panel == "composition":
            partners(*chosen)
        elif found is not None:
            pattern(*found, *chosen)


render()
