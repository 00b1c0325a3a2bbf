"""The lens page's panels on cells: what one cell predicts, two tokens against each other, one lens against the other."""

import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text
from ui.services import lenses


def cell_clicked() -> None:
    """A click on a cell chooses its layer and its token."""
    picked = st.session_state["lens_grid"]["selection"].get("cell") or []
    if picked:
        state.choose("layer", max(0, int(picked[0]["layer"])))
        state.choose_position(picked[0]["pos"])


def cell(pos: int, file: str, middles: bool, n_layers: int, code: str) -> None:
    """The most probable tokens of the chosen cell."""
    layer = state.number("layer")
    layer = n_layers - 1 if layer is None or layer >= n_layers else layer
    what = (
        "The ten most probable tokens at the cell that was clicked: the chosen token's row, the chosen layer's column."
    )
    with figure.card("lens_cell", "One cell", what) as card, states.guard("The cell cannot be read"):
        with states.busy("Reading the cell"):
            table = lenses.cell(state.prompt(), layer, pos, file=file, middles=middles)
        if table.empty:
            states.empty("The lens does not read this layer", "Click a cell of the grid.")
            return
        card.chart(
            plot.next_token_bars(table),
            table,
            code=code,
            caption=f"Layer {layer} of {n_layers - 1}, after token {pos}. Click another cell to see it · {frame.stamp()}",
        )


def two_tokens(pos: int, file: str, middles: bool, code: str) -> None:
    """ln p of one token less that of another, in every cell."""
    what = (
        "ln p(answer) − ln p(against) at each layer and token, in nats: where blue, the answer is the more probable of the two. "
        "A good way to see *when* a choice is made, whatever else the layer would say."
    )
    with figure.card("lens_delta", "One token against another", what) as card, states.guard("They cannot be compared"):
        with states.busy("Asking the model"):
            best = services.candidates(state.prompt(), pos)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            answer = controls.token("Answer", best, f"delta_answer_{pos}")
            against = controls.token("Against", best, f"delta_against_{pos}", index=min(1, len(best) - 1))
        if answer is None or against is None or answer == against:
            states.empty("Nothing to compare", "Choose two tokens.")
            return
        with states.busy("Following the two tokens"):
            table = lenses.difference(state.prompt(), answer, against, file=file, middles=middles, at=pos)
        n = table["pos"].nunique()
        card.chart(
            plot.trace_grid(table, "ln p(answer) − ln p(against)"),
            table,
            code=code.replace("ANSWERS", repr([answer, against])),
            width="content",
            caption=f"{n} tokens, all layers; -1 is the embedding · {frame.stamp()}",
        )


def two_lenses(pos: int, file: str, middles: bool, code: str) -> None:
    """Which lens is nearer to the final prediction."""
    if file == services.LOGIT:
        return
    what = (
        "KL(final || logit lens) − KL(final || chosen lens), in nats: blue where the chosen lens is nearer to the final "
        "prediction, vermilion where the logit lens is."
    )
    with figure.card("lens_nearer", "Against the logit lens", what) as card, states.guard("They cannot be compared"):
        with states.busy("Reading both lenses"):
            table = lenses.nearer(state.prompt(), file, middles=middles, at=pos)
        card.chart(
            plot.trace_grid(table, "KL of the logit lens − of this lens"),
            table,
            code=code,
            width="content",
            caption=f"{text.plain(services.lens_files().get(file, file))} · {frame.stamp()}",
        )
