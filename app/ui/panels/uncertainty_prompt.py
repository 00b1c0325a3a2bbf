"""Uncertainty along the prompt, token by token and layer by layer."""

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.uncertainty import entropy_map
from ui import controls, figure, frame, services, state, states, text
from ui.services import lenses, uncertainty

ALONG = {
    "surprisal": "Surprisal",
    "entropy": "Entropy",
    "varentropy": "Varentropy",
    "margin": "Margin",
    "p_top1": "Top probability",
}
UNITS = {
    "surprisal": "nats",
    "entropy": "nats",
    "varentropy": "nats²",
    "margin": "probability",
    "p_top1": "probability",
}
BY_LAYER = {"entropy": "Entropy", "kl": "KL to final"}
COLUMNS = ["pos", "token", "surprisal", "entropy", "varentropy", "margin", "p_top1", "top1", "rank"]


def show(tokens: pd.DataFrame, pos: int) -> None:
    """Figures of the whole prompt, its tokens, and its layers."""
    _whole(tokens)
    n = len(tokens)
    shown = lenses.places(n, pos) if n > state.WINDOW else range(n)
    part = tokens.loc[tokens["pos"].isin(list(shown))]
    if len(part) < n:
        st.caption(
            f":material/info: Tokens {shown.start} to {shown.stop - 1} of {n:,} are drawn, those around the chosen "
            "one. Choose another token in the strip to move there; the figures above are of all."
        )
    _along(part, shown, pos)
    with states.guard("The layers cannot be shown"):
        _layers(shown, n, pos)
    _table(part)


def _whole(tokens: pd.DataFrame) -> None:
    said = uncertainty.along(tokens)
    first, second, third = st.columns(3)
    if said["n"]:
        first.metric("Mean surprisal", f"{said['surprisal']:.2f} nats", border=True, help=f"Over {said['n']:,} tokens.")
        third.metric(
            f"Most surprising: token {said['strangest']['pos']}, {said['strangest']['surprisal']:.2f} nats",
            plot.token_label(said["strangest"]["token"], 18),
            border=True,
        )
    second.metric(
        "Mean entropy", f"{said['entropy']:.2f} nats", border=True, help="Of the next token, after each token."
    )


def _code(last: str) -> str:
    return f"""
import interp
from interp import plot
from interp.plot.uncertainty import entropy_map

model = interp.load({services.model_name()!r})
{last}
"""


def _along(part: pd.DataFrame, shown: range, pos: int) -> None:
    what = (
        "**Surprisal** is −ln p of the token that stands there. The others are of the distribution *after* it: **entropy**, how "
        "open the choice is; **varentropy**, how unequal the surprises in it are; **margin**, the lead of the first token over "
        "the second."
    )
    with figure.card("uncertainty_along", "Along the prompt", what) as card:
        y = controls.choice("Show", {key: name for key, name in ALONG.items() if key in part}, "uncertainty_along_y")
        view = part.dropna(subset=[y])
        if view.empty:
            states.empty("Nothing to draw", "Nothing predicts the first token: write a longer prompt.")
            return
        surprise = "frame['surprisal'] = -frame['logprob']\n" if y == "surprisal" else ""
        inside = f"frame[frame['pos'].isin({shown!r})].dropna(subset=[{y!r}])"
        card.chart(
            plot.token_bars(view, y, unit=UNITS[y], selected=pos),
            view.loc[:, [name for name in COLUMNS if name in view]],
            code=_code(
                f"frame = interp.token_uncertainty(model, {state.prompt()!r}).to_frame()\n{surprise}"
                f"chart = plot.token_bars({inside}, {y!r}, unit={UNITS[y]!r}, selected={pos})"
            ),
            caption=f"{len(view)} tokens · {frame.stamp()}",
        )


def _clicked() -> None:
    picked = st.session_state["uncertainty_layers"]["selection"].get("cell") or []
    if picked:
        state.choose("layer", max(0, int(picked[0]["layer"])))
        state.choose_position(picked[0]["pos"])


def _layers(shown: range, n: int, pos: int) -> None:
    what = (
        "Each layer is read through the final norm and unembedding, as if the model stopped there (the logit lens). Dark is "
        "unsure; where a column turns light, the prediction after that token is made up. Early layers are not written for the "
        "unembedding, so their entropy is mostly the lens' own. Click a cell to choose its token and layer."
    )
    with figure.card("uncertainty_layers", "Entropy by layer", what) as card:
        value = controls.choice("Colour", BY_LAYER, "uncertainty_layers_value")
        places = f", positions={shown!r}" if len(shown) < n else ""
        with states.busy("Reading every layer"):
            found, source = lenses.lens(state.prompt(), at=pos)
        found = found.loc[found["text"] == 0] if "text" in found else found
        found = found.loc[found["pos"].isin(list(shown))]
        card.chart(
            entropy_map(found, value, selected=pos),
            found,
            code=_code(
                f"lens = interp.logit_lens(model, {state.prompt()!r}{places}).to_frame()\n"
                f"chart = entropy_map(lens, {value!r}, selected={pos})"
            ),
            caption=f"Logit lens, {len(set(found['layer']))} places of the stream, {frame.source_note(source)} · {frame.stamp()}",
            on_select=_clicked,
        )


def _table(part: pd.DataFrame) -> None:
    what = "Exact numbers. Rank is how many tokens are more probable than the one that does follow; top1 is the likeliest one."
    columns = {
        name: st.column_config.NumberColumn(name.replace("_", " "), format="%.3f")
        for name in ("surprisal", "entropy", "varentropy", "margin", "p_top1")
    }
    with figure.card("uncertainty_tokens", "Token by token", what) as card:
        table = part.loc[:, [name for name in COLUMNS if name in part]]
        card.table(
            table.assign(token=[plot.token_label(str(each)) for each in table["token"]]),
            code=_code(f"print(interp.token_uncertainty(model, {state.prompt()!r}).to_frame())"),
            columns=columns,
            caption=f"{len(table)} tokens, model {text.plain(services.model_name())}",
        )
