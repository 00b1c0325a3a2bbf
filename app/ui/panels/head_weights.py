"""What the weights of one head do: its OV and QK circuits by tokens, and the heads that it works with."""

import streamlit as st

from interp import plot
from ui import controls, figure, services, states, text

CIRCUITS = {"OV": "OV: what it writes", "QK": "QK: whom it looks for"}


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
