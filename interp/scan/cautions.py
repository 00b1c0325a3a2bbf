"""What makes a scan of this prompt mean less than it seems: said before anything else."""

import math
from collections.abc import Iterator

import pandas as pd

from interp.scan.question import Question

LOW = 0.1
"""A top probability under this is a diffuse prediction."""
TIE = 0.5
"""A logit difference under this is a tie: effects divided by it say little."""
SINK = 0.9
"""Attention to the first token from which a head looks at nothing else."""
PIECES = 4
"""Tokens of one word from which it is cut oddly."""


def cautions(question: Question, prediction: pd.DataFrame, heads: pd.DataFrame) -> list[str]:
    """Sentences, those about the question first."""
    return [
        *_prediction(question, prediction),
        *_spelling(question),
        *_prompt(question),
        *_sinks(heads, len(question.labels)),
    ]


def _prediction(question: Question, table: pd.DataFrame) -> Iterator[str]:
    top = table.iloc[0]
    by_role = table.set_index("role")
    rank, answer = int(by_role.loc["answer", "rank"]), question.read(question.answer)
    if rank >= 10:
        yield (
            f"“{answer}” is not among the ten top tokens: its rank is {rank + 1:,}, its probability "
            f"{float(by_role.loc['answer', 'probability']):.2g}. The scan explains a prediction that the model does not make."
        )
    elif question.difference < 0:
        yield (
            f"The model prefers “{question.read(question.against)}” to “{answer}” by {-question.difference:.2f} logits: parts "
            "that support the answer are outvoted here."
        )
    if abs(question.difference) < TIE:
        yield (
            f"“{answer}” and “{question.read(question.against)}” are {abs(question.difference):.2f} logits apart, nearly a tie: "
            "small effects decide it. Compare the answer with a token that the model holds for wrong."
        )
    if float(top["probability"]) < LOW:
        entropy = float(-(question.logits.softmax(-1) * question.logits.log_softmax(-1)).nansum())
        yield (
            f"The prediction is diffuse: its top token “{top['token']}” has {float(top['probability']):.3f}, the entropy is "
            f"{entropy:.2f} of at most {math.log(len(question.logits)):.2f} nats."
        )


def _spelling(question: Question) -> Iterator[str]:
    """Another spelling of the answer that the model finds likelier."""
    tokenizer = question.model.tokenizer
    if tokenizer is None:
        return
    text = tokenizer.decode([question.answer])
    other = text[1:] if text.startswith(" ") else f" {text}"
    ids = tokenizer.encode(other, False) if other.strip() else []
    if len(ids) == 1 and ids[0] != question.answer and question.logits[ids[0]] > question.logits[question.answer]:
        yield (
            f"“{question.read(ids[0])}” is likelier than “{question.read(question.answer)}”: the two differ by the space before "
            "the word only, and the prompt asks for the other one."
        )


def _prompt(question: Question) -> Iterator[str]:
    tokenizer, ids = question.model.tokenizer, question.base.tokens.row(0)
    if len(ids) == 1:
        yield "The prompt is a single token: attention has nothing to read but that token."
    if tokenizer is None:
        return
    views = tokenizer.views(ids)
    if views[-1].kind == "space":
        yield "The prompt ends in a space of its own; most tokenizers put it before the next word, so what follows is unusual."
    split = [f"{v.display} ({v.pos})" for v in views if v.kind == "partial_utf8"]
    if split:
        yield f"Some characters are split between tokens: {', '.join(split[:8])}."
    words, held = [], []
    for view in [*views, None]:
        inside = view is not None and view.kind == "text" and view.text[:1].isalpha()
        if not inside:
            if len(held) >= PIECES:
                words.append("|".join(held))
            held = (
                [view.text.strip()] if view is not None and view.text[:1] == " " and view.text.strip().isalpha() else []
            )
        else:
            assert view is not None
            held.append(view.text)
    if words:
        yield f"Words in {PIECES} or more tokens, whose last one carries the word: {', '.join(words[:4])}."
    special = [view.pos for view in views if view.kind == "special"]
    if tokenizer.add_bos and ids[0] != tokenizer.bos_id:
        yield "The prompt does not begin with the BOS that this model was trained with: its first word takes that role."
    if tokenizer.bos_id is not None and ids[:2] == [tokenizer.bos_id] * 2:
        yield "The prompt begins with two BOS tokens: the text holds one already, and the tokenizer added another."
    if tokenizer.chat_template is not None and not special:
        yield "The model has a chat template and the prompt does not use it: this is how it continues raw text."


def _sinks(heads: pd.DataFrame, n_tokens: int) -> Iterator[str]:
    rest = heads.head(10)
    sunk = rest.loc[rest["first_weight"] >= SINK, "part"].tolist()
    if sunk and n_tokens > 1:
        yield (
            f"In {', '.join(sunk)} over {SINK:.0%} of the last token's attention is on the first token, which often means that "
            "a head is at rest there: its effect comes from earlier tokens, or from what the first token holds."
        )
