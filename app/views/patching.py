"""Patching: where in the model the answer is carried, by moving values between a clean and a corrupted prompt."""

from dataclasses import replace

import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, states
from ui.panels import patching_cell, patching_prompt

WHAT = """
Two prompts that differ in what matters, **clean** and **corrupted**, are run. Then one value at a time is moved from one
run into the other, and the answer is read again (activation patching, Meng et al. 2022).

- **Denoise** puts clean values into the corrupted run: where does the answer come back?
- **Noise** puts corrupted values into the clean run: where is it lost?

0 is the corrupted run and 1 the clean one, in both. A patch may reach beyond that. The prompts must have as many tokens,
with the same role at each place; the table shows where they differ. Click a cell to run that patch.

**Causal trace** and **attention knockout** need one prompt only: noise on its subject, or a look that is cut.
"""
TASKS = {
    "indirect_objects": "Indirect objects",
    "capitals": "Capitals",
    "greater_than": "Greater than",
    "repeats": "Repeated tokens",
}
SITES = {
    "resid_pre": "Stream into a block",
    "resid_mid": "Stream after attention",
    "resid_post": "Stream after a block",
    "attn_out": "Attention output",
    "mlp_out": "MLP output",
    "z": "Heads: output",
    "q": "Heads: query",
    "k": "Heads: key",
    "v": "Heads: value",
    "pattern": "Heads: attention",
}
WAYS = {"sweep": "Patch two prompts", "trace": "Causal trace", "knockout": "Attention knockout"}
MODES = {"denoise": "Denoise", "noise": "Noise"}
METHODS = {"exact": "Every patch", "gradient": "Estimate by gradient"}
OWN_PROMPTS = {
    "clean": ("Clean prompt", "When Mary and John went to the store, John gave a drink to"),
    "corrupted": ("Corrupted prompt", "When Mary and John went to the store, Mary gave a drink to"),
    "answer": ("Answer", "·Mary"),
    "against": ("Against", "·John"),
}


def own_prompts() -> dict[str, str]:
    """The four texts of one's own pair."""
    with st.form("own_pair", border=False):
        typed = {}
        for name in ("clean", "corrupted"):
            label, first = OWN_PROMPTS[name]
            typed[name] = st.text_input(label, first, key=f"pair_{name}", bind="query-params", max_chars=500)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            for name in ("answer", "against"):
                label, first = OWN_PROMPTS[name]
                written = st.text_input(
                    label, first, key=f"pair_{name}", bind="query-params", max_chars=60, width=160,
                    help="One token; `·` is the space before a word.",
                )  # fmt: skip
                typed[name] = controls.typed(written)
            st.form_submit_button("Align", icon=":material/align_horizontal_left:")
    return typed


def pairs_asked() -> services.Sweep:
    """The prompts that are chosen, with the default sweep."""
    known = {name: TASKS.get(name, name.replace("_", " ").capitalize()) for name in services.tasks()}
    task = controls.choice("Prompts", {services.OWN: "Own prompts", **known}, "task")
    if task == services.OWN:
        own = own_prompts()
        return services.Sweep(
            task, own["clean"], own["corrupted"], own["answer"], own["against"], n=1, seed=frame.seed()
        )
    n = st.slider("Pairs", 1, services.MAX_PAIRS, 4, key="pairs", bind="query-params", width=260)
    return services.Sweep(task, n=n, seed=frame.seed())


def code(asked: services.Sweep, last: str) -> str:
    """Python that makes the pairs."""
    if asked.task == services.OWN:
        texts = [asked.clean, asked.corrupted, asked.answer, asked.against or None]
        made = "interp.prompt_pairs(\n    model,\n" + "".join(f"    {value!r},\n" for value in texts) + ")"
    else:
        made = f"interp.task_pairs(model, {asked.task!r}, n={asked.n}, seed={asked.seed})"
    return f"""
import interp

model = interp.load({services.model_name()!r})
pairs = {made}
{last}
"""


def alignment(asked: services.Sweep) -> None:
    """The pairs, and where the tokens of the first one differ."""
    with states.busy("Aligning the prompts"):
        pairs, tokens = services.aligned(asked)
    what = "The tokens of the first pair side by side. Patching moves a value to the same place, so both must have as many."
    with figure.card("alignment", "Do the prompts align?", what) as card:
        shown = pd.DataFrame(
            {
                "pos": tokens["pos"],
                **{side: [plot.token_label(str(token)) for token in tokens[side]] for side in ("clean", "corrupted")},
                "differs": ["≠" if differs else "" for differs in tokens["differs"]],
            }
        )
        first = pairs.iloc[0]
        against = "" if first["against"] is None else f" against {_shown(first['against'])}"
        st.text(f"Answer {_shown(first['answer'])}{against}")
        card.table(
            shown,
            code=code(asked, "print(pairs.alignment(0))"),
            columns={
                "pos": st.column_config.NumberColumn("Token", width=60),
                "clean": st.column_config.TextColumn("Clean"),
                "corrupted": st.column_config.TextColumn("Corrupted"),
                "differs": st.column_config.TextColumn("Differs", width=70),
            },
            height=min(38 + 35 * len(shown), 600),
            caption=f"Pair 1 of {len(pairs)}, {len(shown)} tokens, {sum(tokens['differs'].tolist())} of them differ",
        )


def sweep_asked(asked: services.Sweep) -> services.Sweep:
    """What is patched, chosen in one row."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        site = st.selectbox(
            "Site", list(SITES), format_func=SITES.__getitem__, key="site", bind="query-params", width=210
        )
        mode = controls.choice("Direction", MODES, "mode")
        metric = st.selectbox(
            "Metric",
            services.metrics(),
            format_func=lambda name: name.replace("_", " "),
            key="measured_by",
            bind="query-params",
            width=170,
        )
        method = controls.choice("Method", METHODS, "method")
    by = "head" if SITES[site].startswith("Heads") else "pos"
    return replace(asked, site=site, mode=mode, metric=metric, by=by, exact=method == "exact")


def sweep(asked: services.Sweep) -> None:
    """The sweep: its controls, its button, and its chart where it was run."""
    what = (
        "Layers down; positions across, or heads. Blue is what came back (denoise) or was lost (noise); vermilion the "
        "opposite. Hover a cell for its number and interval. The estimate takes one backward pass, and is compared with "
        "some exact patches."
    )
    with figure.card("patching", "What carries the answer", what) as card, states.guard("The sweep cannot be run"):
        asked = sweep_asked(asked)
        found = services.swept(asked)
        if found is None:
            st.caption(
                "Every patch is a run from its layer on: seconds for a short prompt, minutes for many pairs. Leaving the page "
                "stops it."
            )
            if not st.button("Run the sweep", key="run_sweep", icon=":material/play_arrow:"):
                return
            with controls.progress("Patching") as move:
                services.run_sweep(asked, move)
            st.rerun()
        table, facts = found
        call = "patch_sweep" if asked.exact else "attribution_patch"
        options = (
            f"site={asked.site!r}, by={asked.by!r}, mode={asked.mode!r}, metric={asked.metric!r}, seed={asked.seed}"
        )
        agreement = "" if facts["agreement"] is None else (
            f" · rank agreement {facts['agreement']:.2f} with {facts['n_checked']} exact patches"
        )  # fmt: skip
        card.chart(
            plot.patch_grid(table, mode=asked.mode),
            table,
            code=code(asked, f"found = interp.{call}(model, pairs, {options})\nprint(found.top())\nfound.plot()"),
            caption=(
                f"{asked.metric.replace('_', ' ')} {facts['clean']:.2f} clean, {facts['corrupted']:.2f} corrupted; "
                f"n = {facts['n']} pair{'s' if facts['n'] > 1 else ''}{agreement}"
            ),
            on_select=patching_cell.clicked,
        )
    patching_cell.one(asked, table, code)


def _shown(token: str) -> str:
    return f"“{plot.token_label(str(token), 40)}”"


def render() -> None:
    frame.head("Patching", WHAT)
    found = frame.prompt_strip()
    way = controls.choice("Way", WAYS, "way")
    if way == "sweep":
        st.caption("The sweep takes prompts of its own: the two below, not the one in the sidebar.")
        with states.guard("The prompts do not align"):
            asked = pairs_asked()
            alignment(asked)
            sweep(asked)
    elif found is not None:
        tokens, _ = found
        st.caption("Of the prompt in the sidebar; the answer is read after its **last** token.")
        (patching_prompt.trace if way == "trace" else patching_prompt.knockout)(len(tokens))


render()
