"""Panels of probes on one's own words: the prompt token by token, and statements."""

import pandas as pd
import streamlit as st

from interp import plot, sites
from interp.plot.probe_scan import probe_scan
from ui import figure, library, services, state, states, text
from ui.services import probes as found_probes
from ui.strip import Track, token_strip

EXAMPLES = "The city of Paris is in France.\nThe city of Paris is in Japan."
CODE = """
import interp

model = interp.load({model!r})
probes = {probes!r}
frame = interp.score_tokens(model, {{name: interp.load_probe(path) for name, path in probes.items()}}, {prompt!r})
print(frame)
"""


def choose(key: str) -> library.Entry | None:
    """A box of the workspace's probes; those of other models come last."""
    return library.pick("probe", "Probe", key, model=services.engine().fingerprint)


def scan(pos: int) -> None:
    """One probe on every token of the prompt; and all probes of its folder as a map."""
    entry = choose("probes_scan")
    if entry is None:
        states.empty("No saved probe", "A probe job keeps one for each kind: train probes on the page Runs.")
        return
    with states.busy("Asking the probe"):
        near = found_probes.siblings(entry.key)
        table = found_probes.scan(state.prompt(), [each.key for each in near])
    own = table.loc[table["probe"] == entry.title].reset_index(drop=True)
    code = CODE.format(
        model=services.model_name(), probes={each.title: str(each.path) for each in near}, prompt=state.prompt()
    )
    _strip(own, pos, code)
    if len(near) > 1:
        _map(table, pos, code)
    else:
        st.caption("With several probes in one folder, such as those of a probe job, a map of all of them stands here.")


def _strip(own: pd.DataFrame, pos: int, code: str) -> None:
    limit = float(own["threshold"].iloc[0])
    what = (
        "The probe on every token. Neutral at its threshold, blue above, orange below. It was fitted on the last token of "
        "whole statements: elsewhere it says less. Position 0 and special tokens are left out."
    )
    with figure.card("probes_tokens", "Token scan", what) as card:
        track = Track("probability", "P(true) by the probe", "", low=0.0, high=1.0, mid=limit)
        read = sum(value == value for value in own["probability"].tolist())
        card.widget(
            lambda: token_strip(own, [track], selected=pos, on_pick=state.choose_position, key="probes_strip"),
            own,
            code=code,
            caption=f"{text.plain(str(own['probe'].iloc[0]))}, threshold {limit:.3f}; {read} of {len(own)} tokens read",
        )
        with st.expander("As a table"):
            shown = own.loc[:, ["pos", "token", "probability", "logit"]].assign(
                token=[plot.token_label(str(token)) for token in own["token"]]
            )
            st.dataframe(
                text.readable(shown), hide_index=True, key="probes_token_table",
                column_config={"logit": st.column_config.NumberColumn("log-odds from the threshold", format="%+.3f")},
            )  # fmt: skip


def _map(table: pd.DataFrame, pos: int, code: str) -> None:
    n = max(table["pos"].tolist()) + 1
    seen = state.window(n, pos)
    shown = table.loc[table["pos"].isin(seen)]
    with figure.card(
        "probes_map",
        "All probes of the folder",
        "Rows are probes, the last layer on top. A white dot: beyond full colour.",
    ) as card:
        if shown["logit"].isna().all():
            states.empty("Nothing was read", "No token here is one that a probe is asked about.")
            return
        note = "" if len(seen) == n else f"; tokens {seen.start} to {seen.stop - 1} of {n:,}, around the chosen one"
        card.chart(
            probe_scan(shown, selected=pos),
            shown,
            code=code,
            width="content",
            caption=f"{shown['probe'].nunique()} probes{note}",
        )


def statements() -> None:
    """A saved probe on statements that the user types."""
    with st.container(border=True):
        st.header("Try the probe", anchor=False)
        offered = library.entries("probe")
        key = None
        if len(offered) > 1:
            taken = library.pick("probe", "Probe", "probes_try")
            key = taken.key if taken else None
        elif offered:
            key = offered[0].key
        with st.form("statements_form", border=False):
            st.text_area(
                "Statements, one a line",
                value=EXAMPLES,
                key="statements",
                height=110,
                max_chars=state.MAX_CHARS,
                help=f"At most {services.MAX_STATEMENTS} lines. The probe reads the last token of each.",
            )
            if st.form_submit_button("Score", icon=":material/straighten:"):
                st.session_state["_scored"] = True
        if not st.session_state.get("_scored"):
            st.caption("The model is loaded when you ask.")
            return
        lines = [line.strip() for line in str(st.session_state["statements"] or "").splitlines() if line.strip()]
        if not lines:
            states.empty("No statements", "Write one or more, each on its own line.")
            return
        with states.guard("The statements cannot be scored"):
            _scored(lines, key)


def _scored(lines: list[str], key: str | None) -> None:
    with states.busy("Scoring"):
        # Without an entry the run is asked, which says what is missing.
        table, probe = services.score_statements(lines) if key is None else found_probes.score(lines, key)
    st.dataframe(
        text.readable(table),
        hide_index=True,
        column_config={
            "statement": st.column_config.TextColumn("Statement", width="large"),
            "probability": st.column_config.ProgressColumn(
                "P(true) by the probe", min_value=0, max_value=1, format="%.3f"
            ),
            "says": st.column_config.TextColumn("Says", width="small"),
        },
    )
    kind, site = str(probe["kind"]).replace("_", "-"), sites.short_name(str(probe["site"]))
    st.caption(
        f"{text.plain(kind)} probe at {text.plain(site)}, threshold {probe['threshold']:.2f}. On other kinds of "
        "statement than those it was fitted on, its probability means little."
    )
