"""Logit lens: what the model would predict if it stopped after each layer."""

from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.lens_cells import MOST, lens_columns
from interp.report import printable
from ui import controls, figure, frame, services, state, states, text
from ui.panels import lens_cells
from ui.services import lenses

WHAT = """
The residual stream after each layer is read through the model's **final norm and unembedding**, as if the model stopped
there (the logit lens, nostalgebraist 2020). A row is a token of the prompt, a column a layer; the cell shows the most
probable *next* token at that point.

The **orange edge** marks the layer at which the answer settles: from there on the top prediction is the final one at
every later layer. A prediction that is wrong in early layers is no error: the early stream is not written for the
unembedding.

A **tuned lens** (Belrose et al. 2023) first takes each layer's stream to the basis of the last one, by a map that was
trained for it; a **Jacobian lens** by the average derivative of the layers between. Both are offered where a file of
theirs lies in the run's folder or in `lenses` of the home folder.
"""
STATISTICS = {
    "p_top1": "Probability",
    "entropy": "Entropy",
    "kl": "KL to final",
    "rank": "Rank of final",
    "loss": "Cross-entropy",
}
CURVES = {"p_target": "Probability", "rank": "Rank", "entropy": "Entropy", "kl": "KL", "loss": "Cross-entropy"}
AXES = {
    "p_target": "probability",
    "rank": "rank (0 is the top)",
    "entropy": "entropy (nats)",
    "kl": "KL(final || layer) (nats)",
    "loss": "−ln p of the true next token (nats)",
}
PLACES = {"end": "After each block", "middle": "After each attention"}


@dataclass(frozen=True)
class Asked:
    """Which lens, and where it reads."""

    file: str
    middles: bool
    positions: range | None = None
    """Of a long prompt, the positions that are read."""


def asked() -> Asked:
    """The lens and the places that are chosen."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        files = services.lens_files()
        file = services.LOGIT
        if len(files) > 1:
            file = st.selectbox(
                "Lens", list(files), format_func=lambda key: printable(files[key]), key="lens_file", width=280
            )
        place = controls.choice("Read the stream", PLACES, "place")
    return Asked(file, place == "middle")


def choose(lens: pd.DataFrame, names: dict[str, str]) -> dict[str, str]:
    """The choices that the frame has numbers for."""
    return {key: title for key, title in names.items() if key in lens and bool(lens[key].notna().to_numpy().any())}


def code(what: Asked, last: str, answers: tuple[controls.Token, ...] = ()) -> str:
    """Python that makes the page's numbers."""
    loading, options = "", ", sites='resid_mid:*'" if what.middles else ""
    if what.file != services.LOGIT:
        loading = f"chosen = {services.lens_code(what.file)}\n"
        options += ", lens=chosen"
    options += f", answer={list(answers)!r}" if answers else ""
    if what.positions is not None:
        options += f", positions={what.positions!r}"
    return f"""
import interp
from interp import plot

model = interp.load({services.model_name()!r})
{loading}lens = interp.logit_lens(model, {state.prompt()!r}{options})
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


def grid(lens: pd.DataFrame, pos: int, what_asked: Asked, n_tokens: int) -> None:
    """Tokens by layers."""
    what = (
        "Full colour is near the final answer, or certain: the scales of entropy, KL and rank are turned round. "
        "KL is KL(final || layer); cross-entropy is −ln p of the token that really comes next, unknown at the last one. Hover "
        "a cell for its exact numbers, click it for its ten best tokens below."
    )
    with figure.card("lens_grid", "Predictions by layer", what) as card:
        # Not in one row: there a choice that is wider than a narrow page is cut off instead of broken.
        statistic = controls.choice("Colour", choose(lens, STATISTICS), "statistic")
        columns = st.slider("Layers shown", 4, 32, 12, key="columns", bind="query-params", width=220)
        n = len(set(lens["pos"]))
        sideways = n <= MOST and st.toggle(
            "Tokens across", key="sideways", bind="query-params", help=f"For texts of up to {MOST} tokens: layers up."
        )
        total = len({layer for layer in lens["layer"] if layer >= 0})
        kept = [layer for layer in plot.kept_layers(lens["layer"].unique().tolist(), columns) if layer >= 0]
        some = "all layers" if len(kept) == total else (
            f"{len(kept)} of {total} layers, the last one always among them"
        )  # fmt: skip
        if sideways:
            chart, call = lens_columns(lens, statistic, columns=columns), "lens_columns(lens.to_frame()"
        else:
            chart = plot.lens_grid(lens, statistic, columns=columns, selected=pos)
            call = "plot.lens_grid(lens.to_frame()"
        import_it = "from interp.plot.lens_cells import lens_columns\n\n" if sideways else ""
        card.chart(
            chart,
            lens,
            code=code(what_asked, f"{import_it}chart = {call}, {statistic!r}, columns={columns})"),
            caption=f"{n} of {n_tokens:,} tokens, {some} · {frame.stamp()}",
            on_select=lens_cells.cell_clicked,
        )


def trajectories(lens: pd.DataFrame, pos: int, what_asked: Asked) -> None:
    """The final answer across layers, for the chosen position and those that are pinned."""
    labels = {int(p): f"{p}: {plot.token_label(str(t), 14)}" for p, t in zip(lens["pos"], lens["token"])}
    what = (
        "One token followed through all layers, for each chosen position: the answer that was named, or else the token that "
        "is on top after the **last** layer. The large dot is where the top prediction settles. Pin positions to compare them."
    )
    with figure.card("lens_trajectory", "The answer across layers", what) as card:
        y = controls.choice("Follow", choose(lens, CURVES), "follow")
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
        view = view.dropna(subset=[y])  # nobody knows what comes after the last token
        if view.empty:
            states.empty(
                "Nothing to draw", "The token that comes after the chosen one is not known: choose an earlier one."
            )
            return
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
            code=code(
                what_asked, f"frame = lens.to_frame()\nprint(frame[frame.pos == {pos}][['layer', 'top1', {y!r}]])"
            ),
            caption=f"{', '.join(text.plain(labels[p]) for p in chosen)} · {frame.stamp()}",
        )


def followed(view: pd.DataFrame) -> str:
    """Which token the curves follow: one for all positions where an answer was named, else each position's own."""
    targets = set(view["target"]) if "target" in view else set()
    return plot.token_label(str(targets.pop()), 18) if len(targets) == 1 else "each position's final answer"


def tokens_followed(pos: int, what_asked: Asked) -> None:
    """Chosen answers across layers, at the chosen position."""
    what = (
        "Any tokens, side by side, at the chosen position: how probable each is after every layer. A token is typed as it is, "
        "with `·` for the space before a word, as in `·Paris`; each must be one token of the model."
    )
    with figure.card("followed", "Tokens across layers", what) as card, states.guard("The tokens cannot be followed"):
        with states.busy("Asking the model"):
            best = services.candidates(state.prompt(), pos)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
            statistic = controls.choice("Statistic", {"probability": "Probability", "rank": "Rank"}, "followed_by")
            typed = controls.tokens("Tokens", best, f"answers_{pos}", default=3, most=6)
        if not typed:
            states.empty("No token is chosen", "Choose some of the most probable ones, or type your own.")
            return
        with states.busy("Following the tokens"):
            table = lenses.followed(state.prompt(), typed, file=what_asked.file, middles=what_asked.middles, at=pos)
        view = table.loc[table["pos"] == pos]
        last = f"frame = lens.followed()\nchart = plot.followed_tokens(frame[frame.pos == {pos}], {statistic!r})"
        card.chart(
            plot.followed_tokens(view, statistic),
            view,
            code=code(what_asked, last, typed),
            caption=f"After token {pos}, {len(typed)} followed · {frame.stamp()}",
        )


def compared() -> None:
    """The run's lenses side by side on held-out text."""
    with states.guard("The comparison of lenses cannot be shown"):
        found = services.comparison()
        if found is None:
            return
        table, card_of = found
        what = (
            "KL(final || lens) on text that no lens was fitted on: lower is nearer to what the model says in the end. The "
            "band holds 95 % of a bootstrap over texts."
        )
        with figure.card("lens_comparison", "Lenses on held-out text", what) as card:
            shown = table.rename(columns={"kl_low": "low", "kl_high": "high"})
            card.chart(
                plot.lens_comparison(shown),
                table,
                code=f"""
import interp

comparison = interp.load_lens_comparison({"runs/demo/" + str(card_of["file"])!r})
print(comparison.to_frame())
comparison.plot()
""",
                caption=f"n = {max(table['n'].tolist()):,} tokens of {max(table['n_texts'].tolist()):,} texts, from the run",
            )


def render() -> None:
    frame.head("Logit lens", WHAT)
    found = frame.prompt_strip()
    if found is None:
        return
    tokens, pos = found
    with states.guard("The lens cannot be shown"):
        what = asked()
        with states.busy("Reading every layer"):
            lens, source = lenses.lens(state.prompt(), file=what.file, middles=what.middles, at=pos)
        lens = lens.loc[lens["text"] == 0] if "text" in lens else lens
        if len(tokens) > state.WINDOW:
            what = replace(what, positions=lenses.places(len(tokens), pos))
            lens = lens.loc[lens["pos"].isin(list(lenses.places(len(tokens), pos)))]
            st.caption(
                f":material/info: {len(tokens):,} tokens are many: this page reads {state.WINDOW} of them, those around the "
                "chosen one. Choose another token in the strip to move there."
            )
        answer(lens, pos)
        grid(lens, pos, what, len(tokens))
        left, right = st.columns(2)
        with left:
            # The row of the last place is the answer; the layer comes from a click.
            top = code(replace(what, positions=None), f"frame = lens.to_frame()\nprint(frame[frame.pos == {pos}])")
            lens_cells.cell(pos, what.file, what.middles, max(lens["layer"]) + 1, top)
        with right:
            trajectories(lens, pos, what)
        tokens_followed(pos, what)
        pair = "frame = lens.followed().pivot_table(index=['pos', 'layer'], columns='answer_id', values='probability')"
        lens_cells.two_tokens(
            pos, what.file, what.middles, code(what, pair).replace(")\nframe", ", answer=ANSWERS)\nframe")
        )
        both = "plain = interp.logit_lens(model, " + repr(state.prompt()) + ")\nprint((plain.kl - lens.kl).mean(1))"
        lens_cells.two_lenses(pos, what.file, what.middles, code(what, both))
        st.caption(f"{len(lens):,} predictions, {frame.source_note(source)}.")
    compared()


render()
