"""Overview: what the run found, what the model would say next, and how sure it was of each token."""

import numpy as np
import pandas as pd
import streamlit as st

from interp import plot
from ui import controls, figure, frame, services, state, states, text
from ui.panels import overview_model as panels

WHAT = """
**What the run found** is the list of figures that the run itself thought worth saying, and the file that holds each.

**Next token**: the model reads the prompt up to the chosen token and gives every token of its vocabulary a probability.

**Surprisal** of a token is −ln p of that token after the ones before it; **entropy** is how spread the model's
distribution *after* the token is, in nats: 0 means certain, and the largest possible is ln of the vocabulary (10.8 for
49,152 tokens). The first token has no surprisal, since nothing stands before it.

Click a token in the strip to choose it; arrow keys and Enter do the same.
"""
ALONG = {"surprisal": "Surprisal", "entropy": "Entropy"}


def findings() -> None:
    """The run's own list of what it found."""
    run = services.run()
    if run is None:
        states.empty(
            "No run is open",
            "Pages work on a typed prompt with the live model. For results, make a run and start the app on it:",
            "interp demo\ninterp app --run runs/demo",
        )
        return
    for step in run.info.get("steps", []):
        if step.get("state") == "failed":
            states.empty(
                f"Step failed: {step.get('title', step.get('name'))}", str(step.get("headline", "")), "interp demo"
            )
    found = pd.DataFrame(run.info.get("findings", []), columns=["what", "figure", "where"]).astype(str)
    if found.empty:
        states.empty(
            "No findings yet", "The run has not finished. Start it again: it goes on where it was.", "interp demo"
        )
        return
    with figure.card(
        "findings", "What the run found", "One line for each result; the file is in the run's folder."
    ) as card:
        card.prose(
            found,
            code="# The whole story, with every figure: report.html in the run's folder.\n"
            "import webbrowser\n\nwebbrowser.open('runs/demo/report.html')",
            caption=f"Run {text.plain(run.name)}, {run.info.get('seconds', 0):.0f} s in all.",
        )


def next_token(pos: int, tokens: pd.DataFrame) -> None:
    """The distribution after the chosen token."""
    what = (
        "The ten most probable tokens **after** the chosen one, and the token that really came there. `·` is a space, `↵` a "
        "line break."
    )
    with figure.card("next_token", "Next token", what) as card, states.guard("The model cannot be asked"):
        token_facts(pos, tokens)
        with states.busy("Asking the model"):
            table = services.next_tokens(state.prompt(), pos)
        card.chart(
            plot.next_token_bars(table),
            table,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
logits = model({state.prompt()!r})   # [batch pos d_vocab]
probability = logits[0, {pos}].softmax(-1)
print(probability.topk(10))
""",
            caption=f"After token {text.plain(f'{pos}: {plot.token_label(str(tokens.token.iloc[pos]))}')} · {frame.stamp()}",
        )


def token_facts(pos: int, tokens: pd.DataFrame) -> None:
    """The chosen token as a prediction: what came before it, what came, and how likely that was."""
    if pos == 0 or "logprob" not in tokens or pd.isna(tokens["logprob"].iloc[pos]):
        st.caption("Nothing stands before the chosen token, so nothing predicted it.")
        return
    before, token = (text.plain(plot.token_label(str(tokens.token.iloc[i]))) for i in (pos - 1, pos))
    # The rank at a position is of the token that comes next (`token_uncertainty`).
    rank = tokens["rank"].iloc[pos - 1] if "rank" in tokens else None
    said = "" if rank is None or pd.isna(rank) else f", rank {int(rank) + 1:,}"
    p = float(np.exp(float(tokens["logprob"].iloc[pos])))
    st.markdown(f"After {before} came **{token}**: probability {p:.3g}{said}.")


def along(pos: int, tokens: pd.DataFrame) -> None:
    """Surprisal or entropy along the prompt."""
    what = "**Surprisal**: −ln p of the token itself. **Entropy**: of the distribution after it. Both in nats."
    with figure.card("along", "Along the prompt", what) as card, states.guard("The tokens cannot be drawn"):
        shown = {name: title for name, title in ALONG.items() if name in tokens}
        y = controls.choice("Show", shown, "along", visibility="collapsed")
        view = tokens.iloc[list(state.window(len(tokens), pos))]
        card.chart(
            plot.token_bars(view, y, selected=pos),
            view,
            code=f"""
import interp

model = interp.load({services.model_name()!r})
print(interp.token_uncertainty(model, {state.prompt()!r}).to_frame())
""",
            caption=f"{len(view)} of {len(tokens)} tokens · {frame.stamp()}",
        )


def steps() -> None:
    """What the run did, and how long it took."""
    run = services.run()
    if run is None or not run.info.get("steps"):
        return
    rows = pd.DataFrame(run.info["steps"])
    if "files" in rows:
        rows["files"] = [", ".join(map(str, files)) for files in rows["files"]]
    if "seconds" in rows:
        rows["seconds"] = [f"{seconds:.0f} s" for seconds in rows["seconds"]]
    shown = [c for c in ("title", "state", "seconds", "headline", "files") if c in rows]
    with figure.card(
        "steps", "Steps of the run", "Each step of `interp demo`, its state, and the files that it wrote."
    ) as card:
        card.prose(
            rows.loc[:, shown], code="# In a shell: goes on where it was, and skips what is done.\n# interp demo"
        )


def recorded() -> None:
    """The stores that the analyses read."""
    if services.run() is None:
        return
    with states.guard("A store cannot be read"):
        table = services.stores()
        if table.empty:
            return
        what = "Activations on the disk: safetensors and parquet that pandas reads as they lie, one folder a store."
        with figure.card("stores", "Stores of the run", what) as card:
            code = (
                f"import interp\n\nstore = interp.open_store({'runs/demo/stores/' + str(table['store'].iloc[0])!r})\n"
            )
            card.prose(table.astype(str), code=code + "print(store.to_frame())")


def render() -> None:
    frame.head("Overview", WHAT)
    found = frame.prompt_strip()
    with states.guard("The run cannot be read"):
        findings()
    if found is not None:
        tokens, pos = found
        left, right = st.columns(2)
        with left:
            next_token(pos, tokens)
        with right:
            along(pos, tokens)
        with left:
            panels.drift(pos, tokens)
        with right:
            panels.sinks(tokens)
        panels.scan(tokens)
    panels.model_card()
    panels.hook_points()
    with states.guard("The run cannot be read"):
        steps()
        recorded()


render()
