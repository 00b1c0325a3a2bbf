"""Panels of what probe jobs left: figures by layer, transfer, scores and threshold, mistakes."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import streamlit as st

from interp import plot, sites
from interp.plot.probe_scan import roc_curve
from interp.report import printable
from ui import figure, library, state, states, text
from ui.panels.job_status import start_button
from ui.services import jobs
from ui.services import probes as found_probes

LOAD = "import interp\n\nreport = {load}({path!r})\n"
LOADERS = {
    "probe job": "interp.load_probe_job_report", "probe report": "interp.load_probe_report",
    "transfer report": "interp.load_transfer_report",
}  # fmt: skip


def code(entry: library.Entry, rest: str) -> str:
    """Python that loads an entry and goes on with `rest`."""
    return LOAD.format(load=LOADERS[entry.kind], path=str(entry.path)) + rest


def layers(entry: library.Entry) -> None:
    """Figures to quote and AUROC by layer of a job of the workspace."""
    found = found_probes.found(entry.key)
    if found.question:
        text.say(found.question)
    for column, row in zip(st.columns(len(found.selected)), found.selected.to_dict("records")):
        with column.container(border=True, height="stretch"):
            st.metric(f"AUROC, {text.plain(str(row['kind']).replace('_', '-'))} probe", f"{row['auroc']:.3f}")
            st.caption(
                f"at {text.plain(sites.short_name(str(row['site'])))}  \n95 % {row['low']:.3f} to {row['high']:.3f}  \n"
                f"n = {row['n']:,.0f} in {row['n_groups']:,.0f} groups"
            )
    what = "Bands are 95 % intervals, whole groups resampled. Dashed lines need no model."
    with figure.card("probes_job_layers", "AUROC by layer", what) as card:
        table = found.figures.dropna(subset=["layer"]).assign(kind=lambda f: f["kind"].str.replace("_", "-"))
        if table.empty:
            states.empty("No layers", "This job read places that belong to no layer.")
            return
        lows = [0.5, *table["low"].dropna(), *(v for v in found.baselines.values() if math.isfinite(v))]
        card.chart(
            plot.layer_curve(
                table.astype({"layer": int}), "auroc", low="low", high="high", colour="kind", baselines=found.baselines,
                domain=(max(0.0, math.floor(min(lows) * 10) / 10), 1.0), title="AUROC",
            ),
            table,
            code=code(entry, "print(report.summary())\nreport.to_frame()\n"),
            caption=text.plain(entry.title),
        )  # fmt: skip
    with st.container(border=True):
        st.header("In words", anchor=False)
        text.say(found.summary)


def transfer() -> None:
    """Trained on one set, tested on another."""
    offered = found_probes.with_transfer()
    if not offered:
        nothing_to_show(
            "No transfer matrix yet", "A job that asks for transfer fits a probe on each set and judges it on all."
        )
        return
    by_key = {each.key: each for each in offered}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        key = st.selectbox(
            "Result", list(by_key), format_func=lambda k: printable(by_key[k].title), key="probes_matrix",
            bind="query-params", width=320,
        )  # fmt: skip
        entry = by_key.get(str(key), offered[0])
        table = found_probes.matrices(entry.key)
        by = one_of("Sets by", table["by"].tolist(), "probes_by")
        kind = one_of("Kind", table["kind"].tolist(), "probes_kind")
    cells = table.loc[(table["by"] == by) & (table["kind"] == kind)]
    what = "Each probe is trained on the set at the left and judged on unseen groups of the one above. Dashed: not told from 1/2."
    with figure.card("probes_transfer", "Transfer", what) as card:
        field = "report.selected" if entry.kind == "transfer report" else "report.transfer"
        rest = f'cells = {field}\ncells = cells[cells["kind"] == {kind!r}]\n'
        rest += f'cells = cells[cells["by"] == {by!r}]\n' if entry.kind == "probe job" else ""
        card.chart(
            plot.transfer_matrix(cells), cells, width="content",
            code=code(entry, f"{rest}interp.plot.transfer_matrix(cells)\n"),
            caption=f"{text.plain(entry.title)}, AUROC; place and threshold were chosen on the training set alone",
        )  # fmt: skip


def one_of(label: str, values: Iterable[object], key: str) -> str:
    """A box of the values of a column."""
    names = [str(each) for each in dict.fromkeys(values)]
    taken = st.selectbox(label, names, format_func=printable, key=key, width=200)
    return str(taken) if taken in names else names[0]


def nothing_to_show(title: str, why: str) -> None:
    """What is missing, and the job that makes it."""
    states.empty(title, why)
    with states.guard("A job cannot be started from here"):
        name = st.text_input("Name of the result", "truth-transfer", key="probes_job_name", max_chars=60, width=260)
        argv = jobs.probe_argv("truth-transfer", (), name)
        start_button(
            "Train probes and test transfer", kind="probe job", argv=argv, title="Does the truth probe transfer?",
            key="probes_start",
        )  # fmt: skip


def predictions() -> tuple[library.Entry, pd.DataFrame] | None:
    """The held-out predictions of one kind of probe of a chosen job; None where there is none."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        entry = library.pick(found_probes.SWEEPS, "Job", "probes_job")
        if entry is None:
            table = None
        else:
            table = found_probes.found(entry.key).predictions
            kind = one_of("Kind", table["kind"].tolist(), "probes_scores_kind")
            table = table.loc[table["kind"] == kind].reset_index(drop=True)
    if entry is None or table is None:
        nothing_to_show("No probe job yet", "A probe job keeps its held-out predictions, one for each text.")
        return None
    return entry, table


def scores() -> None:
    """Histogram by class, the curve, and what a threshold makes of it."""
    held = predictions()
    if held is None:
        return
    entry, table = held
    own = st.toggle("Each fold's own threshold", True, key="probes_own", help="The one that the training part chose.")
    middle = float(np.median(table["threshold"].tolist()))
    taken = st.slider("Threshold", 0.0, 1.0, round(middle, 2), 0.01, key="probes_threshold", disabled=own, width=420)
    threshold = None if own else float(taken)
    counts = found_probes.confusion(table, threshold)
    columns = st.columns(5)
    for column, (name, value) in zip(columns, list(counts.items())[:5]):
        said = f"{value:.3f}" if name == "accuracy" else f"{int(value):,}"
        column.metric(text.plain(name.capitalize()), said)
    left, right = st.columns([3, 2])
    rest = f'p = report.predictions\np = p[p["kind"] == {str(table["kind"].iloc[0])!r}]\n'
    with (
        left,
        figure.card("probes_scores", "Scores by label", "Held-out: no probe saw the groups that it scores.") as card,
    ):
        at = middle if threshold is None else threshold
        card.chart(
            plot.probe_scores(table["probability"].to_numpy(float), table["label"].to_numpy(int), threshold=at),
            table,
            code=code(entry, f'{rest}interp.plot.probe_scores(p["probability"], p["label"], threshold={at:.4g})\n'),
            caption=f"n = {len(table):,}" + ("; the line is the median of the folds' thresholds" if own else ""),
        )
    with (
        right,
        figure.card(
            "probes_roc", "What a threshold trades", "All folds together; the dot: the threshold in use."
        ) as card,
    ):
        curve = found_probes.roc(table)
        card.chart(
            roc_curve(curve, at=(counts["false_positives"], counts["true_positives"])),
            curve,
            code=code(entry, f'{rest}p[["probability", "label", "threshold"]]\n'),
            caption=f"n = {len(table):,}",
        )


def errors() -> None:
    """The most confident mistakes; a click on a row makes its text the prompt."""
    held = predictions()
    if held is None:
        return
    entry, table = held
    wrong = found_probes.mistakes(table)
    what = "Texts on the wrong side of the threshold of their fold, most confident first. A row can be made the prompt."
    with figure.card("probes_errors", "Confident mistakes", what) as card:
        if wrong.empty:
            states.empty("No mistakes", f"All {len(table):,} held-out texts are on the right side.")
            return
        picked = card.table(
            wrong,
            code=code(entry, 'p = report.predictions\np[p["says"] != p["label"]]\n'),
            caption=f"{len(wrong):,} shown, of {len(table):,} texts; off by: log-odds beyond the threshold",
            columns={
                "text": st.column_config.TextColumn("Text", width="large"),
                "probability": st.column_config.NumberColumn("P(true)", format="%.3f"),
                "threshold": st.column_config.NumberColumn("Threshold", format="%.3f"),
                "off_by": st.column_config.NumberColumn("Off by", format="%.2f"),
            },
            selection_mode="single-row", on_select="rerun", key="probes_mistakes",
        )  # fmt: skip
    rows = picked.selection.rows
    if rows and rows[0] < len(wrong):
        chosen = str(wrong["text"].iloc[rows[0]])
        with st.container(border=True, horizontal=True, vertical_alignment="center"):
            text.say(chosen)
            if st.button(
                "Make it the prompt", key="probes_to_prompt", icon=":material/edit:", disabled=chosen == state.prompt()
            ):
                state.set_prompt(chosen)
                st.rerun()
            st.page_link("views/overview.py", label="Overview", icon=":material/dashboard:")
