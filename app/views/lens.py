"""Logit lens: what the model would predict if it stopped after each layer."""

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text

WHAT = """
The residual stream after each layer is read through the model's **final norm and unembedding**, as if the model stopped
there (the logit lens, nostalgebraist 2020). A row is a token of the prompt, a column a layer; the cell shows the most
probable *next* token at that point.

The **orange edge** marks the layer at which the answer settles: from there on the top prediction is the final one at
every later layer. A prediction that is wrong in early layers is no error: the early stream is not written for the
unembedding.
"""
STATISTICS = {"p_top1": "Probability", "entropy": "Entropy", "kl": "KL to final", "rank": "Rank of final"}
CURVES = {"p_target": "Probability", "rank": "Rank", "entropy": "Entropy", "kl": "KL"}
AXES = {
    "p_target": "probability",
    "rank": "rank (0 is the top)",
    "entropy": "entropy (nats)",
    "kl": "KL(final || layer) (nats)",
}


def code(last: str) -> str:
    """Python that makes the page's numbers."""
    return f"""
import interp
from interp import plot

model = interp.load({services.model_name()!r})
lens = interp.logit_lens(model, {state.prompt()!r})
{last}
"""


def answer(lens: pd.DataFrame, pos: int) -> None:
    """What the model says after the chosen token, and where that settled."""
    row = lens.loc[lens["pos"] == pos].sort_values("layer").iloc[-1]
    last = max(lens["layer"])
    says, sure, settles = st.columns(3)
    says.metric("Answer after the chosen token", plot.token_label(str(row["top1"]), 18), border=True)
    sure.metric("Its probability", f"{row['p_top1']:.3f}", border=True)
    at = int(row["settle_layer"]) if "settle_layer" in row else None
    said = "–" if at is None else "the embedding" if at < 0 else f"layer {at} of {last}"
    settles.metric("Answer settles at", said, border=True, help="First layer from which the top prediction stays.")


def grid(lens: pd.DataFrame, pos: int) -> None:
    """Tokens by layers."""
    what = (
        "Full colour is near the final answer, or certain: the scales of entropy, KL and rank are turned round. "
        "KL is KL(final || layer). Hover a cell for its exact numbers."
    )
    with figure.card("lens_grid", "Predictions by layer", what) as card:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            statistic = controls.choice("Colour", STATISTICS, "statistic")
            columns = st.slider("Layers shown", 4, 32, 12, key="columns", bind="query-params", width=220)
        positions = sorted(set(lens["pos"]))
        shown = state.window(len(positions), pos)
        view = lens.loc[lens["pos"].isin([positions[i] for i in shown])]
        total = len({layer for layer in view["layer"] if layer >= 0})
        inner = [layer for layer in plot.kept_layers(sorted(set(view["layer"])), columns) if layer >= 0]
        some = (
            "all layers" if len(inner) == total else f"{len(inner)} of {total} layers, the last one always among them"
        )
        card.chart(
            plot.lens_grid(view, statistic, columns=columns, selected=pos),
            view,
            code=code(f"chart = plot.lens_grid(lens.to_frame(), {statistic!r}, columns={columns})"),
            caption=f"{len(shown)} of {len(positions)} tokens, {some} · {frame.stamp()}",
        )


def trajectories(lens: pd.DataFrame, pos: int) -> None:
    """The final answer across layers, for the chosen position and those that are pinned."""
    labels = {int(p): f"{p}: {plot.token_label(str(t), 14)}" for p, t in zip(lens["pos"], lens["token"])}
    what = (
        "One token followed through all layers, for each chosen position: the answer that was named, or else the token that "
        "is on top after the **last** layer. The large dot is where the top prediction settles. Pin positions to compare them."
    )
    with figure.card("lens_trajectory", "The answer across layers", what) as card:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            y = controls.choice("Follow", CURVES, "follow")
            pinned = st.multiselect(
                "Pinned tokens",
                list(labels),
                default=[],
                format_func=labels.__getitem__,
                key="pins",
                max_selections=5,
                placeholder="Pin a token",
                bind="query-params",
                width=320,
            )
        chosen = list(dict.fromkeys([pos, *pinned]))
        view = (
            lens.loc[lens["pos"].isin(chosen)].assign(line=lambda f: f["pos"].map(labels)).sort_values(["pos", "layer"])
        )
        settled = dict(zip(view["line"], view["settle_layer"])) if "settle_layer" in view else None
        card.chart(
            plot.layer_curve(
                view,
                y,
                colour="line",
                selected=settled,
                domain=(0.0, 1.0) if y == "p_target" else None,
                title=f"{AXES[y]} of {followed(view)}" if y in ("p_target", "rank") else AXES[y],
            ),
            view.drop(columns="line"),
            code=code(f"frame = lens.to_frame()\nprint(frame[frame.pos == {pos}][['layer', 'top1', {y!r}]])"),
            caption=f"{', '.join(text.plain(labels[p]) for p in chosen)} · {frame.stamp()}",
        )


def followed(view: pd.DataFrame) -> str:
    """Which token the curves follow: one for all positions where an answer was named, else each position's own."""
    targets = set(view["target"]) if "target" in view else set()
    return plot.token_label(str(targets.pop()), 18) if len(targets) == 1 else "each position's final answer"


def render() -> None:
    frame.head("Logit lens", WHAT)
    found = frame.prompt_strip()
    if found is None:
        return
    _, pos = found
    with states.guard("The lens cannot be shown"):
        with states.busy("Reading every layer"):
            lens, source = services.lens(state.prompt())
        lens = lens.loc[lens["text"] == 0] if "text" in lens else lens
        answer(lens, pos)
        grid(lens, pos)
        trajectories(lens, pos)
        st.caption(f"{len(lens):,} predictions, {frame.source_note(source)}.")


render()
