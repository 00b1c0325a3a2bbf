"""Forms that start background jobs: a store, an autoencoder, a lens, probes, steering, behaviour, the demo."""

from collections.abc import Callable

import streamlit as st

from interp.report import printable
from ui import controls, library, states
from ui.panels.job_status import start_button
from ui.services import jobs, live

KINDS = {
    "record": "Record a store", "sae": "Train an autoencoder", "probe": "Train probes", "steer": "Steering",
    "behave": "Behaviour",
    "lens": "Tune a lens", "demo": "The demo",
}  # fmt: skip
SPECS = {
    "truth": "Is truth linear, and at which layer?",
    "truth-transfer": "Does the probe hold elsewhere?",
    "heads": "In which heads is it readable?",
}
REPORTS = {
    "questions": "Does it know when it is wrong?",
    "text": "Are its next-token probabilities honest?",
    "sycophancy": "Does it follow the user's opinion?",
    "ground": "What does evidence change?",
}
PROBES = ["logistic", "mass_mean", "ttpd", "ccs", "lda"]


def start() -> None:
    """Choose what to start; one form at a time."""
    kind = controls.choice("What to start", KINDS, "start_kind", visibility="collapsed")
    with st.container(border=True), states.guard("This cannot be started"):
        FORMS[kind]()


def _record() -> None:
    st.caption(
        "Runs the model over texts and keeps its activations: what probes, autoencoders and lenses are trained on."
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        data = str(
            st.selectbox("Data", jobs.datasets("statements", "corpus", "questions"), key="record_data", width=200)
        )
        sites = st.text_input("Sites", "resid_post:*", key="record_sites", max_chars=200, width=200)
        tokens = controls.choice("Tokens", {"last": "Last", "all": "All", "mean": "Mean"}, "record_tokens")
        limit = int(st.number_input("Most texts", 2, 100_000, 600, key="record_limit", width=130))
        name = st.text_input("Name", f"{data}-store", key=f"record_name_{data}", max_chars=60, width=200)
    argv = jobs.record_argv(data, sites, tokens, limit, name)
    if st.button("What would it take?", key="record_plan", type="tertiary", icon=":material/straighten:"):
        with states.busy("Counting"):
            found = jobs.plan(live.engine().fingerprint, data, sites, tokens, limit)
        st.caption(
            " · ".join(
                f"{printable(str(key)).replace('_', ' ')} {value}" for key, value in found.items() if value is not None
            )
        )
    start_button("Record", kind="store", argv=argv, title=f"Record {data}", key="record_start")


def _sae() -> None:
    stores = {entry.key: entry for entry in library.entries("store")}
    if not stores:
        states.empty("No store to train on", "Record one first: a corpus, all tokens, one site such as resid_post:10.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        store = str(st.selectbox("Store", list(stores), format_func=printable, key="train_store", width=260))
        site = str(st.selectbox("Site", jobs.store_sites(store), key=f"train_site_{store}", width=180))
        width = controls.choice("Latents", {"8x": "8x", "4x": "4x", "16x": "16x"}, "train_width")
        k = int(st.number_input("Active a row (k)", 1, 512, 32, key="train_k", width=130))
        epochs = int(st.number_input("Epochs", 1, 20, 2, key="train_epochs", width=110))
        name = st.text_input("Name", "sae-new", key="train_name", max_chars=60, width=180)
    argv = jobs.sae_argv(store, site, k, width, epochs, name)
    start_button("Train", kind="sae", argv=argv, title=f"Autoencoder on {store}", key="train_start")


def _lens() -> None:
    stores = [entry.key for entry in library.entries("store")]
    if not stores:
        states.empty("No store to train on", "Record a corpus at resid_post:* first.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        store = str(st.selectbox("Store", stores, format_func=printable, key="tune_store", width=260))
        epochs = int(st.number_input("Epochs", 1, 10, 1, key="tune_epochs", width=110))
        name = st.text_input("Name", "tuned-lens", key="tune_name", max_chars=60, width=180)
    start_button(
        "Train", kind="lens", argv=jobs.lens_argv(store, epochs, name), title=f"Tuned lens on {store}", key="tune_start",
    )  # fmt: skip


def _probe() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        spec = str(st.selectbox("Question", list(SPECS), format_func=SPECS.__getitem__, key="start_spec", width=330))
        kinds = st.multiselect("Kinds", PROBES, ["logistic", "mass_mean"], key="start_kinds", width=320)
        name = st.text_input("Name", f"{spec}-job", key=f"start_name_{spec}", max_chars=60, width=200)
    st.caption(
        "Records the statements that are missing, fits a probe at every layer, and judges it on other groups: minutes."
    )
    start_button(
        "Train",
        kind="probe job",
        argv=jobs.probe_argv(spec, kinds, name),
        title=SPECS[spec],
        key="probe_start",
    )


def _steer() -> None:
    way = controls.choice("Make", {"map": "Where and how strongly", "make": "One vector"}, "steer_way")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        pairs = str(st.selectbox("Pairs", ["sentiment", "formality"], key="steer_pairs", width=180))
        middle = live.engine().model.cfg.n_layers // 2
        site = (
            st.text_input("Site", f"resid_post:{middle}", key="steer_site", max_chars=40, width=180)
            if way == "make"
            else ""
        )
        name = st.text_input("Name", f"{pairs}-{way}", key=f"steer_name_{pairs}_{way}", max_chars=60, width=200)
    argv = jobs.steer_map_argv(pairs, name) if way == "map" else jobs.steer_make_argv(pairs, site, name)
    start_button("Start", kind="steering", argv=argv, title=f"Steering {pairs}", key="steer_start")


def _behave() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        what = str(
            st.selectbox("Question", list(REPORTS), format_func=REPORTS.__getitem__, key="behave_what", width=330)
        )
        n = int(st.number_input("Questions or documents", 10, 2000, 60, key="behave_n", width=190))
        name = st.text_input("Name", f"{what}-report", key=f"behave_name_{what}", max_chars=60, width=200)
    st.caption(
        "Minutes for some dozens of questions on two cores. The interval of every figure grows as they get fewer."
    )
    start_button(
        "Start",
        kind="behaviour",
        argv=jobs.behave_argv(what, n, name),
        title=REPORTS[what],
        key="behave_start",
    )


def _demo() -> None:
    name = st.text_input("Name", "demo-new", key="demo_name", max_chars=60, width=200)
    st.caption("Every analysis on the demo's model: about six minutes on two cores. It goes on where it was.")
    start_button("Run the demo", kind="run", argv=jobs.demo_argv(name), title="The demo", key="demo_start")


FORMS: dict[str, Callable[[], None]] = {
    "record": _record, "sae": _sae, "lens": _lens, "probe": _probe, "steer": _steer, "behave": _behave, "demo": _demo,
}  # fmt: skip
