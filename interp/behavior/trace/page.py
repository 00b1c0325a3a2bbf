"""What a trace says: summary, notes, page and charts."""

import json
import math
from typing import Any

import pandas as pd

from interp.behavior.report import BehaviorReport
from interp.plot import Chart, to_svg
from interp.plot.lenses import followed_tokens
from interp.plot.style import INK
from interp.plot.trace import MOST_TOKENS, answer_layers, token_lines
from interp.report import Figure, Section, Spans, Table

CHARTS = ("layers", "tokens", "rivals")
BEFORE = 6
"""Tokens of the prompt that the chart of layers shows before the answer."""
SHOWN = 48
"""Most tokens along the axis of the other chart."""
LINES = {
    "entropy": "entropy before the token, nats",
    "attention_diffusion": "attention diffusion, 0 to 1",
    "attention_subject": "attention to the subject, 0 to 1",
}
SURPRISE = 0.5
"""A token of the answer with less probability is marked."""
LIMITS = (
    "One answer was read, once. That a sign of doubt is high here does not say that the answer is wrong, nor the reverse: how "
    "well a sign ranks errors is measured over many questions."
)
LOGIT = (
    "The logit lens reads each layer by the final unembedding, which early layers do not write for: what it says of the first "
    "half of the model is mostly not a thought of the model's. A trained lens is nearer to what the layers hold."
)


def notes(values: dict[str, Any], logit: bool) -> tuple[str, ...]:
    """Reasons to be careful."""
    found = [LIMITS]
    found += [LOGIT] if logit else []
    if values["merged"]:
        found.append(
            "The prompt's end and the answer's beginning are one token, which is scored as the answer's first."
        )
    if values["ended"] is False:
        found.append("The answer ran to the limit of new tokens: it may not be whole.")
    return tuple(found)


def _said(token: str) -> str:
    return f"“{token}”"


def _layers(first: float, last: float) -> str:
    if first == last:
        return "the embedding" if first < 0 else f"layer {first:.0f}"
    begin = "the embedding" if first < 0 else f"layers {first:.0f}"
    return f"{begin} to {last:.0f}"


def answer_rows(report: BehaviorReport) -> pd.DataFrame:
    """Rows of the answer's tokens."""
    tokens = report.tables["tokens"]
    return tokens.loc[tokens["part"] == "answer"].reset_index(drop=True)


def summary(report: BehaviorReport) -> str:
    """Plain sentences, the finding first."""
    values, own = report.values, answer_rows(report)
    first = own.iloc[0]
    how = "was given" if values["given"] else "is what the model writes"
    total = sum(own["logprob"].tolist())
    head = (
        f"The answer “{values['answer'].strip()}” ({len(own)} token{'s' * (len(own) > 1)}) {how}; its probability is "
        f"{math.exp(total):.3g} ({total:.2f} nats)."
    )
    return "\n\n".join([f"{head} {_formation(report, first)}", *_losses(own), *_rival_words(report), _doubt(report)])


def _formation(report: BehaviorReport, first: Any) -> str:
    """Where the first token formed, and what stood there before."""
    name, runs, last = _said(first["token"]), report.values["runs"], report.values["n_layers"] - 1
    before = [run for run in runs[:-1] if not run["said"]][-2:]
    listed = " and then ".join(f"{_said(run['token'])} ({_layers(run['from'], run['to'])})" for run in before)
    if not math.isnan(first["formed_layer"]):
        layer = first["formed_layer"]
        where = "only in the last layer" if layer == last else f"at layer {layer:.0f} of {last}"
        if layer < 0:
            where = "at the embedding"
        said = (
            f"Its first token {name} becomes the lens' top guess for good {where}; its probability is {first['p']:.2f}."
        )
        if first["first_layer"] < layer:
            said += f" It was on top before, from layer {first['first_layer']:.0f}, and was displaced in between."
        return said + (f" Before it stood {listed}." if listed else "")
    ends = (
        f"The model ends on {_said(first['expected'])} ({first['p_expected']:.2f}), and gives {name} {first['p']:.3g}."
    )
    if math.isnan(first["first_layer"]):
        return f"Its first token {name} is not the lens' top guess at any layer. {ends}"
    return (
        f"Its first token {name} was the lens' top guess from layer {first['first_layer']:.0f}, last at layer "
        f"{first['lost_layer']:.0f}, and was lost. {ends}"
    )


def _losses(own: pd.DataFrame) -> list[str]:
    """Later tokens that the model would not have said."""
    later = own.iloc[1:]
    strange = later.loc[later["rank"] > 0]
    if strange.empty:
        return []
    told = [
        f"{_said(row['token'])} (rank {row['rank'] + 1:.0f}, {_said(row['expected'])} expected)"
        for row in strange.head(3).to_dict("records")
    ]
    more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
    return [f"Of its later tokens these were not the model's first choice: {', '.join(told)}{more}."]


def _rival_words(report: BehaviorReport) -> list[str]:
    """Other answers: how high they rose."""
    rivals, said = report.tables["rivals"], []
    for answer, part in rivals.loc[~rivals["given"].astype(bool)].groupby("answer", sort=False):
        ordered = part.sort_values("layer")
        top = ordered.loc[ordered["rank"] == 0]
        last = ordered.iloc[-1]
        rank = 1 + ordered["rank"].tolist()[-1]
        name = f"“{answer}” (first token {_said(last['token'])})"
        if rank == 1:
            said.append(
                f"The other answer {name} is the model's first choice, with probability {last['probability']:.2f}."
            )
        elif len(top):
            span = _layers(min(top["layer"].tolist()), max(top["layer"].tolist()))
            said.append(
                f"The other answer {name} was the top guess at {len(top)} layer{'s' * (len(top) > 1)} ({span}) and was lost: it "
                f"ends at probability {last['probability']:.3g}, rank {rank:,}."
            )
        else:
            best = ordered.sort_values("probability").iloc[-1]
            said.append(
                f"The other answer {name} is the top guess at no layer; it is highest at layer {best['layer']:.0f} with "
                f"{best['probability']:.3g}, and ends at rank {rank:,}."
            )
    return said


def _doubt(report: BehaviorReport) -> str:
    """Which signs are high among the reference."""
    table = report.tables["signals"]
    known = table.loc[table["quantile"].notna() & (table["signal"] != "n_tokens")]
    if known.empty:
        by = table.set_index("signal")["value"]
        return (
            f"The first token was drawn from a distribution with an entropy of {by['entropy_first']:.2f} nats; no reference was "
            "given, so nothing here is called high or low."
        )
    high = known.loc[known["high"].astype(bool)].sort_values("quantile", ascending=False)
    n = min(known["n_reference"].tolist())
    if high.empty:
        return f"No sign of doubt is among the highest tenth of the {n} reference answers."
    names = ", ".join(f"{row['signal']} (quantile {row['quantile']:.2f})" for row in high.to_dict("records"))
    return (
        f"{len(high)} of {len(known)} signs of doubt are among the highest tenth of the {n} reference answers: {names}. "
        "Many of them measure the same thing, and of so many one or two are high by chance."
    )


# --------------------------------------------------------------------------------------------------------------- charts


def draw(report: BehaviorReport, name: str | None = None) -> Chart:
    """A chart by name; None for the layers."""
    name = CHARTS[0] if name is None else name
    if name not in CHARTS:
        raise ValueError(f"there is no chart {name!r}; there are {', '.join(CHARTS)}")
    tokens = report.tables["tokens"]
    start = min(answer_rows(report)["pos"].tolist())
    if name == "layers":
        layers = report.tables["layers"]
        shown = layers.loc[(layers["pos"] >= start - BEFORE) & (layers["pos"] < start - BEFORE + MOST_TOKENS // 2)]
        return answer_layers(shown, answer_from=start)
    if name == "rivals":
        return followed_tokens(report.tables["rivals"].assign(answer=lambda frame: frame["token"]))
    table = tokens.loc[tokens["pos"] > max(0, len(tokens) - SHOWN)].copy()
    lines = {column: title for column, title in LINES.items() if table[column].notna().to_numpy().any()}
    for probe, part in report.tables["probes"].groupby("probe", sort=False):
        column = f"probe {probe}"
        table[column] = table["pos"].map(dict(zip(part["pos"], part["probability"])))
        lines[column] = f"{column}, 0 to 1"
    return token_lines(table, lines, answer_from=start)


# ----------------------------------------------------------------------------------------------------------------- page


def _figure(report: BehaviorReport, name: str, caption: str) -> Figure:
    return Figure(to_svg(draw(report, name), ink=INK), caption)


def sections(report: BehaviorReport) -> list[Section]:
    """In reading order."""
    return [_text(report), _formed(report), _along(report), _signs(report), _again(report)]


def _strip(report: BehaviorReport) -> Spans:
    """The text: the prompt quiet, improbable tokens of the answer marked."""
    own = answer_rows(report)
    parts: list[tuple[str, str]] = [(report.values["prompt"], "quiet")]
    for token, p in zip(report.values["pieces"], own["p"].tolist(), strict=True):
        space = token[: len(token) - len(token.lstrip())]
        style = "marked" if p < SURPRISE else ""
        parts += [(space, ""), (token[len(space) :], style)]
    return Spans([(text, style) for text, style in parts if text])


def _text(report: BehaviorReport) -> Section:
    own = answer_rows(report)
    columns = {
        "token": "token", "p": "probability", "rank": "rank", "expected": "expected", "p_expected": "its probability",
        "entropy": "entropy", "settle_layer": "choice settles", "first_layer": "first on top", "formed_layer": "on top for good",
        "lost_layer": "lost after",
    }  # fmt: skip
    table = own.assign(rank=own["rank"] + 1).loc[:, list(columns)].rename(columns=columns)
    table = table.drop(columns=[name for name in table if table[name].isna().to_numpy().all()])
    counts = ("rank", "choice settles", "first on top", "on top for good", "lost after")
    formats = {name: ",.0f" for name in counts if name in table} | {"probability": ".3f", "its probability": ".3f"}
    return Section(
        "The answer",
        tables=[
            Table(
                pd.DataFrame({"text": [_strip(report)]}),
                f"The prompt in grey; of the answer, tokens with a probability under {SURPRISE} are marked.",
            ),
            Table(
                table,
                "Tokens of the answer. Rank 1 is the model's own choice, expected is what that was; entropy in nats; layers by "
                "the lens, counted from 0, -1 the embedding. “·” is a space at the edge of a token.",
                {**formats, "entropy": ".2f"},
            ),
        ],
    )


def _formed(report: BehaviorReport) -> Section:
    last = report.values["n_layers"] - 1
    figures = [
        _figure(
            report,
            "layers",
            "Down the tokens that are predicted (the answer's in bold, after the end of the prompt), across the layers. In a "
            "cell the lens' top guess; blue is the probability of the token that does stand there; an orange edge where the "
            f"guess is that token. The last column, {last}, is what the model says.",
        ),
        _figure(
            report,
            "rivals",
            "Probability of the answer's first token by layer, and of other answers' where any were given.",
        ),
    ]
    runs = (
        pd.DataFrame(report.values["runs"])
        .tail(8)
        .rename(columns={"from": "from layer", "to": "to layer", "p": "highest"})
    )
    runs["said"] = ["the answer" if said else "another" for said in runs["said"]]
    runs = runs.rename(columns={"token": "top guess", "said": "which is"})
    table = Table(runs, "What the lens has on top for the answer's first token, from layer to layer; the last runs.")
    return Section("Where it formed", figures=figures, tables=[table], code='report.plot("layers")')


def _along(report: BehaviorReport) -> Section:
    tokens = report.tables["tokens"]
    left = f" The last {SHOWN} tokens." if len(tokens) > SHOWN else ""
    text = (
        "Entropy says how open the choice of each token was. Diffusion is how evenly the heads spread their attention "
        "while it was made, with the first token of the text, where heads rest, left out: 0 is a single token, 1 is all alike."
    )
    columns = {
        "pos": "pos", "token": "token", "p": "probability", "entropy": "entropy", "attention_diffusion": "diffusion",
        "attention_sink": "first token", "attention_prompt": "prompt", "attention_subject": "subject",
    }  # fmt: skip
    own = tokens.tail(SHOWN).loc[:, list(columns)].rename(columns=columns)
    own = own.drop(columns=[name for name in own if own[name].isna().to_numpy().all()])
    formats = dict.fromkeys((c for c in own if c not in ("pos", "token")), ".2f")
    for probe, part in report.tables["probes"].groupby("probe", sort=False):
        own[str(probe)] = own["pos"].map(dict(zip(part["pos"], part["probability"])))
        formats[str(probe)] = ".2f"
    caption = (
        "Shares of attention: at the first token of all; at the prompt and the subject of what is left without it. Means over "
        "heads and layers."
    )
    drawn = _figure(report, "tokens", f"Along the text; orange is the answer.{left}")
    return Section(
        "Token by token", text, figures=[drawn], tables=[Table(own, caption, formats)], code='report.tables["tokens"]'
    )


def _signs(report: BehaviorReport) -> Section:
    table = report.tables["signals"]
    shown = pd.DataFrame(
        {
            "sign": table["signal"].tolist(),
            "value": table["value"].astype(float).tolist(),
            "doubtful if": ["high" if sign > 0 else "low" for sign in table["doubt"]],
            "quantile of doubt": table["quantile"].astype(float).tolist(),
            "what it is": table["meaning"].tolist(),
        }
    )
    has = table["quantile"].notna().to_numpy().any()
    if not has:
        shown = shown.drop(columns="quantile of doubt")
    about = f"1 is the most doubtful of {max(table['n_reference'].tolist())} reference answers. " if has else ""
    return Section(
        "Signs of doubt",
        f"{about}Which way doubt lies is what one expects; whether a sign ranks this model's errors is measured over many "
        "questions.",
        tables=[Table(shown, "All signs of this answer.", {"value": ".3f"})],
        code="interp.rank_signals(interp.oriented(interp.answer_signals(model, prompts, answers)), wrong)",
    )


def _again(report: BehaviorReport) -> Section:
    def said(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    values = report.values
    options = [f"answer={said(values['answer'])}"]
    options += [f"against={said(values['against'])}"] if values["against"] else []
    options += [f"subject={said(values['subject'])}"] if values["subject"] else []
    return Section(
        "Make it again",
        code=f"import interp\n\nmodel = interp.load({said(report.card['model'])})\n"
        f"report = interp.hallucination_trace(model, {said(values['prompt'])}, {', '.join(options)})",
    )
