"""One head on ordinary text: how strongly it looks, how far back, between which tokens, and passages of every strength."""

import streamlit as st

from interp.plot import token_label
from interp.plot.head_examples import attention_distances, attention_maxima
from ui import controls, figure, services, states, text
from ui.services import head_answers
from ui.strip import Track, token_strip

SHOWN = 8
TRACK = (Track("weight", "attention of the marked token"),)


def on_text(layer: int, head: int) -> None:
    """Two charts, two tables, and the passages."""
    with states.guard("The head cannot be read on text"):
        with states.busy(f"Reading {services.NATURAL_TEXTS} passages"):
            found = head_answers.examples(layer, head)
        code = f"""
import interp
from interp.heads.examples import head_examples
from interp.plot import head_examples as charts

model = interp.load({services.model_name()!r})
found = head_examples(model, {layer}, {head}, {head_answers.PASSAGES_CODE})
"""
        n = f"n = {len(found.maxima):,} queries in {found.card['n_texts']} bundled passages, position 0 left out"
        left, right = st.columns(2)
        what = "Of every token the attention on its strongest key. A head that does something shows a second hill at the right."
        with left, figure.card("head_maxima", "How strongly it looks", what) as card:
            card.chart(
                attention_maxima(found.maxima),
                found.maxima,
                code=code + "charts.attention_maxima(found.maxima)",
                caption=n,
            )
        what = "How many tokens back the strongest key lies. 0 is the token itself, 1 the one before it."
        with right, figure.card("head_distances", "How far back", what) as card:
            card.chart(
                attention_distances(found.maxima),
                found.maxima,
                code=code + "charts.attention_distances(found.maxima)",
                caption=n,
            )
        left, right = st.columns(2)
        for place, role, title in ((left, "query", "Tokens that look"), (right, "key", "Tokens that are looked at")):
            what = "Mean attention of the strongest keys, of tokens that occur three times or more."
            with place, figure.card(f"head_{role}s", title, what) as card:
                table = found.tokens.loc[found.tokens["role"] == role, ["token", "mean", "n"]].head(SHOWN)
                card.table(
                    table.assign(token=[token_label(str(token)) for token in table["token"]]),
                    code=code + f"print(found.tokens.query('role == {role!r}').head({SHOWN}))",
                    columns={"mean": st.column_config.ProgressColumn("mean", min_value=0, max_value=1, format="%.3f")},
                )
        passages(found, layer, head, code)


def passages(found: head_answers.HeadExamples, layer: int, head: int, code: str) -> None:
    """Examples of an interval."""
    what = (
        "Passages by their largest attention, in five intervals. The strongest stand beside random ones of each weaker interval: "
        "the top alone makes any head look tidy. The marked token looks; colour is where it looks."
    )
    with figure.card("head_passages", "Passages", what) as card:
        table = found.passages
        there = sorted(int(i) for i in table["interval"].unique())
        end = max(table["largest"].tolist())
        names = {
            str(i): "Strongest" if i == 0 else f"{end * (4 - i) / 5:.2f} to {end * (5 - i) / 5:.2f}" for i in there
        }
        interval = int(controls.choice("Interval", names, "head_interval", visibility="collapsed"))
        shown = found.examples(interval)
        share = float(shown["share"].iloc[0])
        card.widget(
            lambda: _strips(shown, layer, head),
            shown,
            code=code + f"print(found.examples({interval}))",
            caption=f"{len(shown)} of {sum(table['interval'] == interval)} passages; {share:.0%} of all lie in this interval",
        )


def _nothing(pos: int) -> None:
    """A click changes nothing."""


def _strips(shown, layer: int, head: int) -> None:
    for row in shown.to_dict("records"):
        number, query = int(row["text"]), int(row["query"])
        st.caption(text.plain(f"Passage {number}: {row['largest']:.3f} from token {query} to token {int(row['key'])}"))
        tokens = head_answers.example_row(layer, head, number, query)
        token_strip(
            tokens,
            TRACK,
            selected=query,
            on_pick=_nothing,
            key=f"passage_{number}",
        )
