"""Compare: two prompts in one model, or two models on the same texts."""

import pandas as pd
import streamlit as st

from interp import plot
from interp.plot.prompts import next_token_pairs, prompt_distances
from ui import controls, figure, frame, library, services, state, states, text
from ui.services import compare

WHAT = """
**Two prompts** that differ in a word show what the word does: what is predicted after each, from which layer on the two
part, and which heads write something else. Pin prompts as A and B under the token strip, or write them here.

Everything is read at the **last token** of each prompt. Distances between the two distributions: **Jensen-Shannon** is 0
where they are equal and ln 2 = 0.693 nats where they share nothing; **total variation** is the most by which the
probability of anything differs, 0 to 1. By layer it is what the logit lens would say there.

**Two models** on the same texts are compared by `interp diff A B TEXTS --out FILE`; what lies in the workspace is shown.
"""
WAYS = {"prompts": "Two prompts", "models": "Two models"}
OTHER = "The Colosseum is located in the city of"
COLUMNS = {"pos_a": "A: token", "token_a": "A", "pos_b": "B: token", "token_b": "B", "differs": "Differs"}


def prompts() -> tuple[str, str]:
    """The two prompts: the pins, else the prompt of the sidebar and an example."""
    first = {"a": state.pinned("a") or state.prompt(), "b": state.pinned("b") or OTHER}
    with st.form("compare_form", border=False):
        for column, side in zip(st.columns(2), first):
            key = f"compare_{side}"
            # A new pin is a new text; what was typed stays until then.
            if st.session_state.get(f"_{key}_of") != first[side]:
                st.session_state[key] = st.session_state[f"_{key}_of"] = first[side]
            column.text_area(f"Prompt {side.upper()}", key=key, height=90, max_chars=state.MAX_CHARS)
        if st.form_submit_button("Compare", icon=":material/compare_arrows:"):
            for side in first:
                state.pin(side, str(st.session_state[f"compare_{side}"] or ""))
                st.session_state[f"_compare_{side}_of"] = st.session_state[f"compare_{side}"]
    return str(st.session_state["compare_a"] or ""), str(st.session_state["compare_b"] or "")


def code(a: str, b: str, last: str) -> str:
    """Python that makes the comparison."""
    return f"""
import interp
from interp.diff import prompt_diff
from interp.plot import prompts as charts

model = interp.load({services.model_name()!r})
found = prompt_diff(model, {a!r}, {b!r})
{last}
"""


def figures(found: compare.Compared) -> None:
    """The final distances."""
    names = {
        "js": "Jensen-Shannon (nats)",
        "tv": "Total variation",
        "kl_ab": "KL(A‖B) (nats)",
        "kl_ba": "KL(B‖A) (nats)",
    }
    for column, (name, title) in zip(st.columns(4), names.items()):
        column.metric(title, f"{found.card[name]:.3f}", border=True)


def two_prompts() -> None:
    """Controls, figures, and four cards."""
    a, b = prompts()
    if not (a and b):
        states.empty("One prompt is missing", "Write both, or pin them under the token strip of any page.")
        return
    with states.busy("Comparing the prompts"):
        found = compare.compared(a, b)
    figures(found)
    left, right = st.columns(2)
    with left, figure.card("compare_next", "Next token", "The most probable next tokens of either prompt.") as card:
        card.chart(
            next_token_pairs(found.following),
            found.following,
            code=code(a, b, "print(found.following)\nchart = charts.next_token_pairs(found.following)"),
            caption=f"After the last token of each · {text.plain(services.model_name())}",
        )
    what = "What the logit lens says after each layer, A against B. Flat at 0: nothing has told the prompts apart yet."
    with right, figure.card("compare_layers", "Where they part", what) as card:
        card.chart(
            prompt_distances(found.layers),
            found.layers,
            code=code(a, b, "print(found.layers)\nchart = charts.prompt_distances(found.layers)"),
            caption=f"After the last token of each · {text.plain(services.model_name())}",
        )
    aligned(found, a, b)
    heads(found, a, b)


def aligned(found: compare.Compared, a: str, b: str) -> None:
    """The tokens of both, one beside the other."""
    shown = found.tokens.assign(
        **{f"token_{side}": [_label(token) for token in found.tokens[f"token_{side}"]] for side in ("a", "b")},
        differs=["" if same else "≠" for same in found.tokens["same"]],
    )
    differ = sum(not same for same in found.tokens["same"].tolist())
    what = "Tokens are aligned by their longest common runs, so that an insertion does not shift everything after it."
    with figure.card("compare_tokens", "Tokens", what) as card:
        card.table(
            shown.loc[:, list(COLUMNS)].rename(columns=COLUMNS),
            code=code(a, b, "print(found.tokens)"),
            caption=f"{differ} of {len(shown)} places differ",
            height=min(38 + 35 * len(shown), 420),
        )


def heads(found: compare.Compared, a: str, b: str) -> None:
    """Which heads write something else."""
    what = (
        "|A − B| / |A| of what each head writes into the stream at the last token. Heads that read the word that differs stand "
        "out; after them, all that read those. Hover for the number, click to open the head."
    )
    with figure.card("compare_heads", "Heads that write something else", what) as card:
        card.chart(
            plot.head_differences(found.heads, "output"),
            found.heads,
            code=code(a, b, "print(found.heads)\nchart = interp.plot.head_differences(found.heads, 'output')"),
            caption=f"{len(found.heads)} heads · {text.plain(services.model_name())}",
            on_select=_clicked,
        )
    if st.session_state.pop("_compare_open", False):
        st.switch_page("views/head.py")


def _clicked() -> None:
    picked = st.session_state["compare_heads"]["selection"].get("head") or []
    if picked:
        state.choose_head(picked[0]["layer"], picked[0]["head"])
        st.session_state["_compare_open"] = True


def two_models() -> None:
    """A comparison that lies in the workspace."""
    chosen = library.pick("model diff", "Comparison", "compare_diff")
    if chosen is None:
        states.empty(
            "No comparison of two models",
            "The workspace holds none. Two checkpoints of one family on the same texts, for example full precision and int8:",
            "interp diff MODEL_A MODEL_B TEXTS --out runs/diff.json",
        )
        return
    found = compare.model_diff(chosen.key)
    load = f"import interp\n\ndiff = interp.load_model_diff({'runs/' + chosen.key!r})\n"
    for kind, title in {"layers": "By layer", "heads": "By head", "tokens": "Where they differ most"}.items():
        what = "Two models on the same tokens; `interp.model_diff` says how."
        with figure.card(f"diff_{kind}", title, what) as card, states.guard(f"There is no table of {kind}"):
            card.chart(found.plot(kind), found.to_frame(kind), code=f"{load}diff.plot({kind!r})")
    with figure.card(
        "diff_summary", "In numbers", "Losses, divergences and agreement, with 95 % intervals over texts."
    ) as card:
        card.table(found.to_frame("summary"), code=f"{load}print(diff.to_frame())")


def _label(token: object) -> str:
    return "" if token is None or token is pd.NA or token != token else plot.token_label(str(token))


def render() -> None:
    frame.head("Compare", WHAT)
    frame.prompt_strip()
    way = controls.choice("Compare", WAYS, "compare_way", visibility="collapsed")
    with states.guard("These cannot be compared"):
        (two_prompts if way == "prompts" else two_models)()


render()
