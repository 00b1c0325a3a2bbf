"""Parts of the page of one latent."""

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.latents import logit_histogram
from ui import figure, library, state, states, text
from ui.panels import sae_parts
from ui.services import saes

LOGITS_CODE = """
from interp.sae.features.effects import effects_on_logits, written_directions

rows, _ = written_directions(sae, model, sae.targets[0])
print(effects_on_logits(rows[{n}:{n} + 1], model)[0].topk(10))
"""
MODES = {"Snippet": 8, "Full": 100}
"""Mode of the examples -> tokens to each side."""


def headline(key: str, number: int, found: saes.Latent) -> None:
    """Label, density and flags."""
    labels, facts = saes.labels_of(key), found.facts
    own = None if labels is None else labels.loc[labels["latent"] == number, "label"]
    text.say(f"Label: {own.iloc[0]}" if own is not None and len(own) else "Not labelled")
    shown = [
        ("Decoder norm", f"{facts['decoder_norm']:.3g}", None),
        ("Encoder norm", f"{facts['encoder_norm']:.3g}", None),
    ]
    if "density" in facts:
        worked = f"{facts['n_active']:,} tokens with an activation above 0, of {facts['n_rows']:,} that were read"
        shown = [
            ("Density", f"{facts['density']:.3%}", worked),
            ("Largest activation", f"{facts['max']:.3g}" if facts["n_active"] else "none", None),
            *shown,
        ]
    for column, (title, value, tip) in zip(st.columns(4), shown):
        column.metric(title, value, help=tip, border=True)
    if facts.get("n_active") == 0:
        st.badge("dead: it fires on none of these tokens", icon=":material/block:", color="gray")
    elif facts.get("density", 0) > saes.DENSE:
        st.badge("dense: it fires on more than 1 % of tokens", icon=":material/density_medium:", color="orange")


def effects(key: str, number: int) -> None:
    """Promoted and suppressed tokens, and all of them as a histogram."""
    with states.busy("Reading the decoder"):
        frame, edges, counts = saes.logits(key, number)
    code = saes.load_code(key, model=True) + LOGITS_CODE.format(n=number)
    what = (
        "What the decoder row adds to each token's logit by the direct path: promoted in blue, suppressed in vermilion."
    )
    with figure.card("feature_logits", "Tokens that it promotes and suppresses", what) as card:
        card.chart(plot.latent_logits(frame, top=saes.TOKENS), frame, code=code, caption="logits, direct path")
    what = "The same number for every token of the vocabulary; the count is on a symlog axis."
    with figure.card("feature_logit_histogram", "All tokens", what) as card:
        table = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "tokens": counts})
        card.chart(logit_histogram(edges, counts), table, code=code, caption=f"n = {sum(counts):,} tokens")


def activations(key: str, number: int, found: saes.Latent) -> None:
    """Histogram of its activations over the store."""
    if not found.counts:
        return
    what = "How strongly it fires where it fires, on the tokens of the store."
    with figure.card("feature_activations", "Activations", what) as card:
        table = pd.DataFrame({"low": found.edges[:-1], "high": found.edges[1:], "rows": found.counts})
        card.chart(
            plot.latent_activations(found.edges, found.counts),
            table,
            code=saes.load_code(key, features=True) + f"print(features.latent({number}).row)",
            caption=f"n = {found.facts['n_rows']:,} tokens read",
        )


def neighbours(found: saes.Latent) -> None:
    """Near ones by direction and by when they fire; a button each."""
    for title, frame, column in (
        ("Nearest decoder directions", found.near, "cosine"),
        ("Fires on the same tokens", found.together, "phi"),
    ):
        if frame.empty:
            continue
        with st.container(border=True):
            st.header(title, anchor=False)
            with st.container(horizontal=True):
                for latent, value in zip(frame["latent"], frame[column]):
                    st.button(
                        f"{int(latent)}  ({value:+.2f})",
                        key=f"feature_{column}_{int(latent)}",
                        on_click=state.choose,
                        args=("latent", int(latent)),
                        help=f"{column} {value:.4f}",
                    )


def examples(entry: library.Entry, number: int, found: saes.Latent) -> None:
    """Where it fires in the store; groups Top and intervals."""
    if saes.features_of(entry.key) is None:
        sae_parts.collect(entry)
        return
    what = (
        "Tokens of the store around those on which it fires; at the left value and token of the maximum of each window."
    )
    with figure.card("feature_examples", "Examples", what) as card:
        mode = st.segmented_control("Around", list(MODES), default="Snippet", key="feature_mode", bind="query-params")
        table = saes.examples(entry.key, number, MODES[str(mode or "Snippet")])
        if table.empty:
            states.empty("No example", "The latent fires on none of the tokens that were read.")
            return
        groups = sorted(int(group) for group in table["group"].unique())
        names = {group: "Top" if group == 0 else f"Interval {group}" for group in groups}
        group = st.segmented_control(
            "Group", groups, format_func=names.__getitem__, default=groups[0], key="feature_group",
            help="Top: the strongest of all. Intervals of equal width from 0 to the maximum; 1 is the weakest.",
        )  # fmt: skip
        shown = table.loc[table["group"] == (groups[0] if group is None else group)]
        sae_parts.example_strips(shown, float(found.facts["max"]), "feature_example")
        with st.expander("As a table"):
            code = saes.load_code(entry.key, features=True)
            code += f"print(features.latent({number}).contexts(before=8, after=8))"
            n = shown["rank"].nunique()
            card.table(shown, code=code, caption=f"{min(n, sae_parts.STRIPS)} of {n} windows drawn")


def own_text(key: str, number: int, found: saes.Latent) -> None:
    """The prompt, or one's own text, coloured by this latent."""
    what = "Activation on each token. Without colour it does not fire, or the SAE is not asked: position 0, special tokens."
    with figure.card("feature_own", "On your text", what) as card:
        typed = st.text_area("Text", state.prompt(), key="feature_text", max_chars=state.MAX_CHARS, height=80)
        with states.busy("Encoding"):
            table = saes.on_text(key, number, typed)
        top = max((value for value in table["value"].tolist() if value == value), default=0.0)
        known = float(found.facts.get("max") or 0.0)
        sae_parts.strip(table, known if known > 0 else top, "feature_own_strip")
        said = "it fires nowhere" if not top > 0 else f"largest activation {top:.3g}"
        with st.expander("As a table"):
            card.table(
                table,
                code=saes.load_code(key, model=True)
                + f"hits = interp.search_by_prompt(sae, model, {typed!r}, n=sae.n_latents, per_token=True)\n"
                f'print(hits.loc[hits["latent"] == {number}])',
                caption=f"{said}; {len(table) - table['value'].count()} of {len(table)} tokens not read",
            )


def steer(key: str, number: int, found: saes.Latent) -> None:
    """A continuation with the latent added at each token, beside the plain one."""
    with st.container(border=True):
        st.header("Steer with it", anchor=False)
        largest = float(found.facts.get("max") or 10.0)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            amount = st.number_input(
                "Added activation", value=round(largest, 3), key=f"feature_amount_{number}", width=180,
                help="Added to the latent at each token; the start is its largest activation in the store, where known.",
            )  # fmt: skip
            go = st.button("Continue the prompt", key="feature_steer")
        if go:
            with states.busy("Writing both continuations"):
                plain, changed = saes.steered(key, number, state.prompt(), float(amount), 30)
            left, right = st.columns(2)
            for column, title, said in ((left, "Plain", plain), (right, "Steered", changed)):
                with column:
                    st.caption(f"{title}, greedy, 30 tokens")
                    text.say(said)
