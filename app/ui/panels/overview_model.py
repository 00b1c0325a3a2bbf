"""The overview's panels on the live model: its card, its stream along the prompt, its sinks and its hook points."""

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text
from ui.services import scans, stream
from ui.services.live import is_of_the_model

SIZES = ("Layers", "Heads", "Key/value heads", "Width", "Vocabulary", "Context", "Parameters")
TURNS = {"norm": "Length", "cosine": "Cosine with the layer before"}


def model_card() -> None:
    """Sizes and origin of the model that answers."""
    with st.container(border=True):
        st.header("Model", anchor=False)
        with states.guard("The model cannot be loaded"):
            facts = stream.model_facts()
            run = services.run()
            note = str(run.model.get("note") or "") if run is not None and is_of_the_model(run) else ""
            text.say(f"{facts['Name']}{f' ({note})' if note else ''}")
            with st.container(horizontal=True, gap="medium"):
                for name in SIZES:
                    value = facts[name]
                    st.metric(name, f"{value:,}" if isinstance(value, int) else str(value), width="content")
            st.caption(text.plain(f"{facts['Dtype']} · fingerprint {facts['Fingerprint']}"))


def drift(pos: int, tokens: pd.DataFrame) -> None:
    """Length of the stream and its turn, by layer."""
    what = (
        "**Length** of the residual stream after each layer at the chosen token, beside the median over the prompt's tokens. "
        "**Cosine**: how far the stream keeps its direction from one layer to the next; 1 is no turn."
    )
    with figure.card("drift", "The stream by layer", what) as card, states.guard("The stream cannot be read"):
        y = controls.choice("Show", TURNS, "drift_of", visibility="collapsed")
        with states.busy("Reading the stream"):
            table = stream.drift(state.prompt(), pos)
        if y == "norm":
            lines = [("chosen token", "norm"), ("median of all", "median")]
            drawn = pd.concat([table[["layer"]].assign(line=name, value=table[column]) for name, column in lines])
            chart = plot.layer_curve(drawn, "value", colour="line", domain=(0.0, 1.05 * max(drawn["value"].tolist())),
                                     title="length of the stream")  # fmt: skip
        else:
            drawn = table.dropna(subset=["cosine"]).assign(line="chosen token")
            chart = plot.layer_curve(drawn, "cosine", colour="line", domain=(min(0.0, *drawn["cosine"].tolist()), 1.0),
                                     title="cosine with the layer before")  # fmt: skip
        card.chart(
            chart,
            table,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
_, cache = model.run_with_cache({state.prompt()!r}, sites="resid_post:*")
for layer in range(model.cfg.n_layers):
    print(layer, cache[f"resid_post:{{layer}}"][0, {pos}].norm())
""",
            caption=f"Token {text.plain(f'{pos}: {plot.token_label(str(tokens.token.iloc[pos]))}')} · {frame.stamp()}",
        )


def sinks(tokens: pd.DataFrame) -> None:
    """Positions with massive activations."""
    what = (
        f"Tokens whose stream is at least {stream.MASSIVE:.0f} times as long as the layer's median (massive activations, Sun et "
        "al. 2024). Heads at rest look at them (attention sinks); averages over positions should leave them out."
    )
    with figure.card("sinks", "Massive positions", what) as card, states.guard("The stream cannot be read"):
        with states.busy("Reading the stream"):
            table = stream.sinks(state.prompt())
        if table.empty:
            st.caption("No position stands out on this prompt.")
            return
        shown = table.assign(token=[plot.token_label(str(tokens.token.iloc[pos])) for pos in table["pos"]])
        shown["layers"] = [f"{first} to {last}" for first, last in zip(table["first"], table["last"])]
        shown = shown.loc[:, ["pos", "token", "layers", "ratio", "dimension", "value"]]
        card.table(
            shown,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
_, cache = model.run_with_cache({state.prompt()!r}, sites="resid_post:*")
for layer in range(model.cfg.n_layers):
    norm = cache[f"resid_post:{{layer}}"][0].norm(dim=-1)
    print(layer, (norm / norm.quantile(0.5) >= {stream.MASSIVE}).nonzero()[:, 0].tolist())
""",
            columns={
                "pos": st.column_config.NumberColumn("Token", width=60),
                "token": st.column_config.TextColumn("Text"),
                "layers": st.column_config.TextColumn("Layers"),
                "ratio": st.column_config.NumberColumn("× median", format="%.0f", width=80),
                "dimension": st.column_config.NumberColumn("Dimension", width=80),
                "value": st.column_config.NumberColumn("Its value", format="%.0f"),
            },
            caption=f"{len(table)} of {len(tokens):,} positions; layer -1 is the embedding · {frame.stamp()}",
        )


def scan(tokens: pd.DataFrame) -> None:
    """Everything in one: a button, then the ranked findings."""
    what = (
        "Lens, direct attribution, surprise, and exact effects of tokens, heads, attentions and MLPs on the answer's lead over "
        "the runner-up, ranked into what to look at first. Each finding has its interval and a check against chance."
    )
    with figure.card("scan", "Scan this prompt", what) as card, states.guard("The prompt cannot be scanned"):
        seed = frame.seed()
        found = scans.scanned(state.prompt(), seed)
        if found is None:
            too_long = len(tokens) > scans.MAX_SCAN_TOKENS
            st.caption(
                f"At most {scans.MAX_SCAN_TOKENS} tokens; half a minute or more, and the model answers nobody else meanwhile. "
                "Leaving the page stops it."
            )
            pressed = st.button("Scan", key="run_scan", icon=":material/radar:", disabled=too_long)
            if not pressed:
                return
            with controls.progress("Scanning") as move:
                scans.run_scan(state.prompt(), seed, move)
            st.rerun()
        table, facts = found
        for warning in facts["warnings"]:
            text.say(f"⚠ {warning}")
        shown = table.head(12)
        card.prose(
            pd.DataFrame({"": shown["rank"].astype(str), "finding": shown["finding"], "check": shown["check"]}),
            code=f"""
import interp

model = interp.load({services.model_name()!r})
report = interp.scan_prompt(model, {state.prompt()!r}, effort={scans.EFFORT!r}, seed={seed})
print(report.summary())
""",
            caption=f"{len(shown)} of {len(table)} findings · {frame.stamp()}",
        )
        with st.container(horizontal=True):
            for name in dict.fromkeys(shown["page"]):
                st.page_link(f"views/{name}.py", label=f"More: {name}", icon=":material/arrow_forward:")
        for note in facts["notes"]:
            text.say(note)


def hook_points() -> None:
    """Every site of the model."""
    with st.expander("Hook points", icon=":material/anchor:"), states.guard("The model cannot be loaded"):
        table, missing = stream.hook_points()
        what = "Every place that can be read and written. Ask for it by its name, or shorter."
        with figure.card("hook_points", "Hook points", what) as card:
            layer = st.selectbox(
                "Layer", ["all", "none", *map(str, sorted(table["layer"].dropna().unique().tolist()))], index=0,
                key="hook_layer", bind="query-params", width=120,
            )  # fmt: skip
            kept = table
            if layer == "none":
                kept = table.loc[table["layer"].isna()]
            elif layer != "all":
                kept = table.loc[table["layer"] == int(layer)]
            card.table(
                kept.astype({"shape": str, "size": str}),
                code=f"import interp\n\nmodel = interp.load({services.model_name()!r})\nprint(model.sites())",
                height=360,
                caption=f"{len(kept):,} of {len(table):,} places",
            )
        if len(missing):
            st.caption("What this model lacks")
            st.dataframe(text.readable(missing.astype(str)), hide_index=True, key="hook_missing")
