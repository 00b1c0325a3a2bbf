"""A user's own probabilities and outcomes: uploaded, judged in memory, never saved."""

import hashlib
from typing import Any

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.uncertainty import smooth_reliability
from interp.report import printable
from ui import controls, figure, frame, states, text
from ui.panels.uncertainty_run import BINS, NUMBERS
from ui.services import uncertainty_file
from ui.services.uncertainty_file import Chosen, Judged

EXAMPLE = "p,y,document\n0.91,1,a\n0.35,0,a\n0.78,1,b\n"


def show() -> None:
    """The place for a file, its columns, and what they are worth."""
    given = st.file_uploader(
        "A table of probabilities and outcomes",
        type=[ending.lstrip(".") for ending in uncertainty_file.ENDINGS],
        max_upload_size=uncertainty_file.MOST_MB,
        key="uncertainty_file",
        help="CSV with a line of names, or JSON lines. It is read in memory and never saved.",
    )
    st.caption(
        f"At most {uncertainty_file.MOST_MB} MB and {uncertainty_file.MOST_ROWS:,} rows. The table is read in memory, is never "
        "written to disk, and goes with this session."
    )
    if given is None:
        states.empty(
            "No table yet",
            "One row for each prediction: its probability, and 1 where it came true, else 0. A third column may say which rows "
            "belong together.",
        )
        st.code(EXAMPLE, language=None)
        return
    with states.guard("This table cannot be judged"):
        data = given.getvalue()
        table = uncertainty_file.read_table(given.name, data)
        chosen = _columns(table)
        if chosen is None:
            return
        _judged(given.name, data, table, chosen)


def _columns(table: pd.DataFrame) -> Chosen | None:
    names = uncertainty_file.numeric(table)
    if len(names) < 2:
        states.empty(
            "There are not two columns of numbers",
            f"The table has the columns {', '.join(printable(str(name))[:40] for name in list(table)[:10])}. A probability "
            "and an outcome (0 or 1) are needed.",
        )
        return None
    p, y, group = uncertainty_file.guess(table)
    every = [str(name) for name in table]
    p, y = p or names[0], y or names[-1]
    # Columns belong to one file: their widgets are named by them, so that another file begins afresh.
    own = hashlib.sha256(repr(every).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        options: dict[str, Any] = {"format_func": _shown, "width": 200}
        p = str(st.selectbox("Probability", names, names.index(p), key=f"uncertainty_p_{own}", **options))
        y = str(st.selectbox("Outcome (0 or 1)", names, names.index(y), key=f"uncertainty_y_{own}", **options))
        groups = [None, *every]
        group = st.selectbox(
            "Rows that belong together", groups, groups.index(group), key=f"uncertainty_group_{own}", **options
        )
        meaning = controls.choice("The probability is", uncertainty_file.MEANINGS, "uncertainty_meaning")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        by = controls.choice("Bins", BINS, "uncertainty_own_bins")
        n_bins = int(
            st.slider("How many bins", 5, 30, 15, key="uncertainty_own_n_bins", bind="query-params", width=160)
        )
    return Chosen(p, y, group, meaning, n_bins, by, frame.seed())


def _shown(name: str | None) -> str:
    return "none" if name is None else printable(name)[:60]


def _judged(name: str, data: bytes, table: pd.DataFrame, chosen: Chosen) -> None:
    """What the chosen columns are worth; kept in this session, so that a click elsewhere computes nothing again."""
    key = (hashlib.sha256(data).hexdigest(), chosen)
    kept = st.session_state.get("_uncertainty_own")
    if kept is None or kept[0] != key:
        with states.busy("Judging the table"):
            kept = (key, uncertainty_file.judge(table, chosen))
        st.session_state["_uncertainty_own"] = kept
    found: Judged = kept[1]
    code = uncertainty_file.code(name, chosen)
    text.say(found.verdict)
    for note in found.notes:
        st.caption(f":material/info: {text.plain(note)}")
    left, right = st.columns(2)
    with left:
        _reliability(table, found, code)
    with right:
        _risk(found, code)
    _table(found, code)
    _temperature(table, found, chosen, code)


def _reliability(table: pd.DataFrame, found: Judged, code: str) -> None:
    what = (
        "On the dashed diagonal, stated and observed agree. The red curve is smoothed and **thick where many rows lie**; the "
        "grey band is its 95 % interval. Blue points are bins with theirs."
    )
    band = found.null_band
    title = "" if band is None else f"a calibrated source with this n has an ECE of {band[0]:.3f} to {band[1]:.3f}"
    with figure.card("uncertainty_own_curve", "Reliability", what) as card:
        card.chart(
            smooth_reliability(found.curve, found.bins, title=title),
            found.bins,
            code=code,
            caption=f"n = {len(table):,} rows, {len(found.bins)} bins with rows; the CSV has the bins",
        )


def _risk(found: Judged, code: str) -> None:
    what = (
        "If only the surest answers are given: the share of them that is wrong, by the share of rows that are answered. Of "
        "probabilities of an outcome the answer is the likelier one. Lower is better; a random order stays on the dashed line."
    )
    with figure.card("uncertainty_own_risk", "Answering only when sure", what) as card:
        if found.selective is None:
            states.empty("There is nothing to rank", found.unranked)
            return
        card.chart(plot.risk_coverage(found.selective, colour=None), found.selective, code=code)
        text.say(found.ranked)


def _table(found: Judged, code: str) -> None:
    what = "Every figure with its 95 % interval, and the band in which it lies for a calibrated source with these probabilities."
    with figure.card("uncertainty_own_figures", "Figures", what) as card:
        columns = ["figure", "value", "low", "high", "null_low", "null_high"]
        rows = found.figures.loc[:, [*columns, "n", "n_groups"]]
        card.table(rows.loc[:, columns], code=code, columns=NUMBERS, caption=f"{uncertainty_file.DRAWS} draws")


def _temperature(table: pd.DataFrame, found: Judged, chosen: Chosen, code: str) -> None:
    what = (
        "Each probability p becomes sigmoid(logit p / T): above 1 nearer to one half, below 1 further from it. The marked T is "
        "the best for these very rows, so on new ones it gains less."
    )
    with (
        figure.card("uncertainty_own_scaled", "Temperature", what) as card,
        states.guard("No temperature can be applied"),
    ):
        if found.temperature is None:
            states.empty("There is no temperature for these rows", found.untempered)
            return
        low, high = uncertainty_file.T_LOW, uncertainty_file.T_HIGH
        best = min(high, max(low, found.temperature))
        with st.container(horizontal=True, vertical_alignment="center", gap="large"):
            t = float(
                st.slider(
                    f"Temperature (best for these rows: {found.temperature:.2f})", low, high, best, 0.05, width=420
                )
            )
        bins, facts = uncertainty_file.at_temperature(table, chosen, t)
        more = f"""
import pandas as pd
from interp.calibration.recalibration import Recalibration

scale = Recalibration("temperature", "p_true", len(p), len(p), float(y.mean()), {{"temperature": [{t!r}]}})
states = {{"as it is": p, "at T = {t:.2f}": scale(p)}}
bins = pd.concat([reliability_bins(q, y, {chosen.n_bins}, {chosen.by!r}).assign(state=name) for name, q in states.items()])
chart = plot.reliability(bins, state="state")
"""
        card.chart(
            plot.reliability(bins, state="state"),
            bins,
            code=code + more,
            caption=f"ECE {facts['ece_before']:.3f} → {facts['ece']:.3f}, NLL {facts['nll_before']:.3f} → "
            f"{facts['nll']:.3f} nats",
            width="content",
        )
