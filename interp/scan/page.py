"""The page of a scan: what to look at first, then a section for each question, with the Python that goes on."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from interp.plot import to_svg
from interp.plot.style import INK
from interp.report import Figure, Section, Table
from interp.scan import figures
from interp.scan.fields import ScanTables, each

FIRST = 10
"""Findings that the page begins with."""
SHOWN = 15
"""Rows of a table."""
LIMITS = (
    "One prompt was read. Nothing here generalises beyond it: an effect can come from this wording, this name, this order. To "
    "test a finding, write pairs of prompts that differ in what it is about, and repeat it over them with intervals."
)


def opening(report: ScanTables) -> str:
    """What the model says, in two sentences."""
    card, top = report.card, report.prediction.iloc[0]
    by_role = report.prediction.set_index("role")
    told = {name: by_role.loc[name] for name in ("answer", "against")}
    said = [
        f"“{card[name]}” has probability {float(row['probability']):.3f} (rank {int(row['rank']) + 1:,})"
        for name, row in told.items()
    ]
    chosen = card["chosen"]
    how = (
        f" {' and '.join(chosen).capitalize()} {'was' if len(chosen) == 1 else 'were'} taken from the prediction."
        * bool(chosen)
    )
    return (
        f"After this prompt {card['model']} puts “{top['token']}” first, with probability {float(top['probability']):.3f}; the "
        f"entropy is {card['entropy']:.2f} nats. {said[0]}, {said[1]}: a lead of {card['logit_difference']:+.2f} logits.{how}"
    )


def header(report: ScanTables) -> str:
    """The paragraphs before the first section."""
    return f"Prompt: {report.card['text']}\n\n{opening(report)}\n\n{LIMITS}"


def interval(row: Any) -> str:
    """`2.10 logits, 1.72 to 2.49 over 8 draws`."""
    value = (
        f"{row.value:+.2f}"
        if row.unit == "logits"
        else f"{row.value:.0f}"
        if row.unit == "layer"
        else f"{row.value:.3f}"
    )
    if math.isnan(row.low):
        return f"{value} {row.unit}, one run" if row.unit != "layer" else f"layer {value}, one run"
    return f"{value} {row.unit}, {row.low:+.2f} to {row.high:+.2f} over {row.n} draws"


def facts(report: ScanTables) -> dict[str, Any]:
    """What stands at the end of the page."""
    hidden = ("ids", "text", "chosen", "direct_miss")
    return {key: value for key, value in report.card.items() if key not in hidden}


def sections(report: ScanTables) -> list[Section]:
    """In reading order; what a model does not have has no section."""
    found = [_first(report), _says(report), _tokens(report), _exact(report), _heads(report)]
    found += [_patches(report)] if report.patching else []
    found += [_direct(report)] if not report.direct.empty else []
    return [*found, _lens(report), _method(report)]


def _figure(report: ScanTables, kind: str, caption: str) -> Figure:
    return Figure(to_svg(figures.draw(report, kind), ink=INK), caption)


def _table(frame: pd.DataFrame, columns: dict[str, str], caption: str, formats: dict[str, str] | None = None) -> Table:
    """The columns that are there, under a reader's names."""
    kept = {old: new for old, new in columns.items() if old in frame}
    return Table(
        frame.loc[:, list(kept)].rename(columns=kept), caption,
        {kept[old]: spec for old, spec in (formats or {}).items() if old in kept},
    )  # fmt: skip


def _first(report: ScanTables) -> Section:
    table = report.findings.head(FIRST)
    shown = pd.DataFrame(
        {
            "": table["rank"].tolist(),
            "finding": table["finding"].tolist(),
            "effect": [interval(row) for row in each(table)],
            "check": table["check"].tolist(),
        }
    )
    warned = "\n\n".join(f"Beware. {warning}" for warning in report.warnings)
    text = warned + (
        "\n\nRanked by share of the lead: parts by their mean ablation, which all of them have, tokens by the mean of their "
        "draws, both lowered where a change meets all tokens alike. The check says which ablation an effect is of. “·” is a "
        "space at the edge of a token."
    )
    code = _setup(report) + _look(table)
    tables = (
        [Table(shown, f"The first {len(shown)} of {len(report.findings)} findings; intervals are 95 %.")]
        if len(shown)
        else []
    )
    text += "" if len(shown) else "\n\nNo part moves the lead by a fiftieth: nothing stands out."
    return Section("Look at this first", text, tables=tables, code=code)


def _look(findings: pd.DataFrame) -> str:
    """Each line to go on with once, under the findings that it is for."""
    said: dict[str, list[str]] = {}
    for row in each(findings):
        said.setdefault(row.look, []).append(f"{row.rank}. {row.place}")
    return "\n".join(f"# {', '.join(places)}\n{line}" for line, places in said.items())


def _setup(report: ScanTables) -> str:
    card = report.card
    corrupted = f"{card['corrupted_text']!r}" if card.get("corrupted_text") else '"..."  # as many tokens, other answer'
    return (
        f'import interp\n\nmodel = interp.load("...")  # {card["model"]}\n'
        f"prompt = {card['prompt_input']!r}\n"
        f"answer, against = {card['answer_id']}, {card['against_id']}\ncorrupted = {corrupted}\n"
        "pairs = interp.prompt_pairs(model, prompt, corrupted, answer, against)\n\n"
    )


def _says(report: ScanTables) -> Section:
    frame = report.prediction.assign(rank=report.prediction["rank"] + 1)
    columns = {"rank": "rank", "token": "token", "probability": "probability", "logit": "logit", "role": "compared as"}
    return Section(
        "What the model says",
        figures=[_figure(report, "prediction", "Probability of the next token.")],
        tables=[_table(frame, columns, "Top next tokens, and the two that are compared.", {"logit": ".2f"})],
        code="model.generate(prompt, max_new_tokens=5).text",
    )


def _tokens(report: ScanTables) -> Section:
    n = int(report.card["draws"])
    columns = {
        "pos": "pos", "token": "token", "effect": "effect", "low": "low", "high": "high", "specific": "specific",
        "logprob": "log p", "rank": "rank", "expected": "expected instead",
    }  # fmt: skip
    formats = {"effect": "+.2f", "low": "+.2f", "high": "+.2f", "specific": ".1f", "logprob": ".2f", "rank": ",.0f"}
    return Section(
        "Which tokens matter, and which surprised it",
        f"Each token is exchanged for {n} random ones. What the lead loses is its effect; where it grows the token spoke for "
        "the other answer. The log-probability says how expected a token was after those before it.",
        figures=[_figure(report, "tokens", f"Effect of each token on the lead, with 95 % intervals over {n} draws.")],
        tables=[_table(report.tokens, columns, "Tokens in reading order; log p in nats, rank 0 was the top.", formats)],
        code="interp.token_uncertainty(model, prompt).to_frame()\n"
        "interp.causal_trace(model, prompt, (1, 2), answer).plot()",
    )


def _exact(report: ScanTables) -> Section:
    columns = {
        "part": "part", "effect": "effect", "low": "low", "high": "high", "mean_ablated": "by mean", "zero_ablated": "by zero",
        "specific": "specific", "kl": "KL",
    }  # fmt: skip
    formats = dict.fromkeys(("effect", "low", "high", "mean_ablated", "zero_ablated"), "+.2f") | {
        "specific": ".1f",
        "kl": ".2f",
    }
    order = figures.strongest(report.parts, SHOWN)
    n = int(report.card["draws"])
    return Section(
        "What the lead falls by without a part",
        f"Attention and MLP of each layer, and heads, say at every token what they say on random texts of this length. "
        f"The strongest were run with {n} texts, one by one (the effect and its interval), with their mean, and with zeros; the "
        "others with the mean alone. Specific: the effect against what the same change does to two tokens drawn at random; "
        "about 1 is a part that everything needs.",
        figures=[
            _figure(report, "parts", f"The largest effects, with 95 % intervals over {n} draws where these were run.")
        ],
        tables=[_table(order, columns, "Exact effects in logits, KL in nats.", formats)],
        code="# the same over pairs of prompts\ninterp.circuit_report(model, pairs)",
    )


def _heads(report: ScanTables) -> Section:
    frame = report.heads.head(SHOWN)
    columns = {
        "part": "head", "effect": "effect", "share": "direct", "looks_at": "the last token looks at",
        "induction": "induction", "previous_token": "previous", "duplicate_token": "duplicate", "writes": "what it writes",
    }  # fmt: skip
    formats = {"effect": "+.2f", "share": "+.2f"} | dict.fromkeys(
        ("induction", "previous_token", "duplicate_token"), ".2f"
    )
    scored = "induction" in frame
    return Section(
        "Heads",
        "Where the last token looks (position and weight), and which tokens' logits rise or fall most by what the head writes "
        "there, where that is telling. "
        "A head can matter by what it moved at earlier tokens: then what it does at the last one says little."
        + (" Scores are those on repeated random tokens, 0 to 1." if scored else ""),
        tables=[_table(frame, columns, "Heads by size of their exact effect (logits); direct is what they write.", formats)],
        code="interp.head_scores(model).top()\n"
        "from interp.heads.circuit import head_circuit\n"
        + (f"head_circuit(model, {int(frame['layer'].iloc[0])}, {int(frame['head'].iloc[0])}).to_frame()" if len(frame) else ""),
    )  # fmt: skip


def _patches(report: ScanTables) -> Section:
    drawn = []
    if "stream" in report.patching:
        caption = "The clean stream put into the corrupted run: what comes back of the gap (1 is all of it)."
        drawn.append(_figure(report, "stream", caption))
    if "heads" in report.patching:
        drawn.append(_figure(report, "patched_heads", "The same for what one head gives, at all positions."))
    agreement = report.patching["agreement"]
    agreed = [
        f"{row.sweep}: {row.rank_agreement:.2f} over {row.n} places" for row in each(agreement)
        if not math.isnan(row.rank_agreement)
    ]  # fmt: skip
    return Section(
        "What the corrupted prompt lacks",
        f"Corrupted prompt: {report.card['corrupted_text']}\n\nPlaces before the first different token are the same in both and "
        "left out." + (f" Rank agreement with attribution patching: {'; '.join(agreed)}." if agreed else ""),
        figures=drawn,
        code='interp.patch_sweep(model, pairs, site="resid_pre").plot()\n'
        'interp.path_patch(model, pairs, receivers="logits").top()',
    )


def _direct(report: ScanTables) -> Section:
    return Section(
        "What is written into the lead directly",
        "The final norm's scale held, the lead is a sum over parts. It leaves out what later layers make of a part; compare "
        f"with the exact effects. The parts sum to the lead within {report.card['direct_miss']:.0e} logits.",
        figures=[
            _figure(report, "direct", "Shares of embeddings, attention and MLP of each layer."),
            _figure(report, "heads", "Shares of heads."),
            _figure(report, "sources", "The heads with the largest shares, by the token that they read."),
        ],
        code='interp.direct_logit_attribution(model, prompt, answer, against, by="head").plot()',
    )


def _lens(report: ScanTables) -> Section:
    settle = int(report.card["settle_layer"])
    return Section(
        "How the prediction forms",
        f"From layer {settle} on the logit lens has the final top token first. It reads each layer by the final unembedding, "
        "which early layers do not write for: a trained lens is nearer to what they hold.",
        figures=[
            _figure(report, "lens", "Probability of both tokens by layer, at the last token."),
            _figure(report, "lens_grid", "Top token by layer and position; the edge is where it settles."),
        ],
        code="interp.logit_lens(model, prompt, answer=[answer, against]).plot()",
    )


def _method(report: ScanTables) -> Section:
    left: Sequence[str] = report.notes or ("Nothing was left out.",)
    return Section(
        "How far this goes",
        "\n\n".join(
            [
                LIMITS,
                "Intervals say how an effect depends on what a part was replaced by. They say nothing about other prompts: for "
                "these n is 1.",
                *left,
            ]
        ),
        code=_setup(report) + 'pairs = interp.task_pairs(model, "indirect_objects", n=16)  # or pairs of your own\n'
        "interp.patch_sweep(model, pairs, site=\"z\").top()\ninterp.circuit_report(model, pairs)",
    )  # fmt: skip
