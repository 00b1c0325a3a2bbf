"""One head: its scores, its attention on the prompt, what it does on ordinary text, its weights, its partners."""

import pandas as pd
import streamlit as st

from ui import controls, figure, frame, services, state, states, text
from ui.panels import head_attention, head_text, head_weights

WHAT = """
One attention head from four sides. Its **scores** stand with their rank among all heads: of how many it is the first is
what makes a number large or small. **On the prompt** shows where it looks here; **on text** what it does on ordinary
passages, strong and weak ones; **circuits** what its weights would do, whatever the text; **partners** the heads whose output
it reads, and those that read it.

The arrow buttons step to the next head and layer; the keys `k` and `j` do the same.
"""
METRICS = {
    "induction": "Induction",
    "previous_token": "Previous token",
    "duplicate_token": "Duplicate token",
    "current_token": "Current token",
    "first_token": "First token",
    "attention_entropy": "Attention entropy",
    "mean_distance": "Mean distance",
}
PANELS = {"attention": "On the prompt", "text": "On text", "circuit": "Circuits", "composition": "Partners"}


def scores_of(table: pd.DataFrame, chosen: tuple[int, int]) -> None:
    """All scores of the head, each with its rank, interval and null."""
    row = table.loc[(table["layer"] == chosen[0]) & (table["head"] == chosen[1])].iloc[0]
    told = []
    for name, title in METRICS.items():
        for column, where in ((name, "repeated tokens"), (f"natural_{name}", "natural text")):
            if column not in table:
                continue
            bounds = f"{row[f'{column}_low']:.3f} to {row[f'{column}_high']:.3f}" if f"{column}_low" in table else ""
            rank = int((table[column] > row[column]).sum()) + 1
            null = row.get(f"{column}_null", float("nan"))
            told.append((title, where, float(row[column]), bounds, float(null), f"{rank} of {len(table)}"))
    columns = ["score", "on", "value", "95 % interval", "null", "rank"]
    what = "Every score of this head; `rank` counts from the largest. The page Heads says what each score means."
    with figure.card("head_scores", "Scores", what) as card:
        frame_of = pd.DataFrame(told, columns=pd.Index(columns))
        if all(value != value for value in frame_of["null"].tolist()):
            frame_of = frame_of.drop(columns="null")
        card.table(
            frame_of,
            code=f"""
import interp

scores = interp.head_scores(interp.load({services.model_name()!r}), seed={frame.seed()}).to_frame()
print(scores.query("layer == {chosen[0]} and head == {chosen[1]}").T)
""",
            columns={name: st.column_config.NumberColumn(name, format="%.3f") for name in ("value", "null")},
            height=38 + 35 * len(frame_of),
        )
    found = services.causal_check()
    if found is not None:
        report, facts, _ = found
        own = report.loc[(report["layer"] == chosen[0]) & (report["head"] == chosen[1])].iloc[0]
        said = f"Causal check: {own['verdict']}, effect {own['effect']:+.2f} nats ({facts['kind']}-ablation)."
        st.caption(text.plain(said))


def steps(table: pd.DataFrame, chosen: tuple[int, int]) -> None:
    """Buttons to the neighbours."""
    heads = sorted(zip(table["layer"].tolist(), table["head"].tolist()))
    at = heads.index(chosen)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        for label, icon, step, key in (
            ("Previous head", "chevron_left", -1, "k"),
            ("Next head", "chevron_right", 1, "j"),
        ):
            st.button(
                label,
                key=f"head_step_{step}",
                icon=f":material/{icon}:",
                type="tertiary",
                shortcut=key,
                on_click=state.choose_head,
                args=heads[(at + step) % len(heads)],
            )
        st.page_link("views/heads.py", label="All heads", icon=":material/grid_view:")


def render() -> None:
    found_table = None
    with states.guard("The head cannot be shown"):
        found_table, _ = services.heads(frame.seed())
    if found_table is None:
        frame.head("Head", WHAT)
        return
    known = set(zip(found_table["layer"], found_table["head"]))
    chosen = state.head()
    if chosen not in known:
        strongest = found_table.loc[found_table["induction"].idxmax()]
        chosen = (int(strongest["layer"]), int(strongest["head"]))
    frame.head(f"Layer {chosen[0]}, head {chosen[1]}", WHAT)
    found = frame.prompt_strip()
    steps(found_table, chosen)
    with states.guard("The scores cannot be shown"):
        scores_of(found_table, chosen)
    panel = controls.choice("Show of the head", PANELS, "panel", visibility="collapsed")
    if panel == "text":
        head_text.on_text(*chosen)
    elif panel == "circuit":
        head_weights.circuits(*chosen)
    elif panel == "composition":
        head_weights.partners(*chosen)
    elif found is not None:
        head_attention.attention_card(found[0], *chosen)


render()
