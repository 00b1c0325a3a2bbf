"""How one answer came about, layer by layer and token by token.

1. The answer is given, or the model writes it (greedily, up to a line break).
2. One pass each for the lens (top guess and probability at every layer), the distributions (entropy, rank, margin) and the
   attention (diffusion, share of the sink, of the prompt and of a subject); a probe's score of each token where one is given.
3. The report says where the answer formed, what stood in its place before, whether it was the top guess and was lost, and
   which signs of doubt are high among a reference (the `answer_signals` of other questions) where one is given.

It reads a single answer. What it shows is a description, not a cause: nothing is changed in the model.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd

from interp import artifact
from interp.behavior.report import BehaviorReport
from interp.behavior.trace import page
from interp.behavior.trace.measure import measure
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.plot import Chart
from interp.report import Section
from interp.uncertainty.answers import answer_text


class TraceReport(BehaviorReport):
    """One prompt and one answer; made by `hallucination_trace`.

    Tables: `tokens` (a row per token: what the model thought at the place before it), `layers` (a row per token and layer:
    the lens' guess), `rivals` (probability of the answer's first token, and of other answers', by layer), `signals`, and
    `probes`. Layers are those of the stream at their end, -1 the embedding; NaN is what was not there to be measured.
    """

    KIND: ClassVar[str] = "answer trace"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "tokens": (
            "pos", "token", "part", "p", "logprob", "rank", "expected", "p_expected", "entropy", "margin",
            "attention_diffusion", "attention_sink", "attention_prompt", "attention_subject", "settle_layer", "first_layer",
            "formed_layer", "lost_layer",
        ),
        "layers": ("pos", "token", "part", "layer", "top1", "p_top1", "p_token", "said", "entropy", "kl"),
        "rivals": ("layer", "answer", "token", "given", "probability", "rank"),
        "signals": ("signal", "value", "doubt", "quantile", "n_reference", "high", "meaning"),
        "probes": ("pos", "token", "part", "probe", "score", "probability", "flag"),
    }  # fmt: skip
    WORDS: ClassVar[frozenset[str]] = frozenset(
        {"token", "part", "expected", "top1", "said", "answer", "given", "signal", "high", "meaning", "probe", "flag"}
    )

    def summary(self) -> str:
        """Where the answer formed, what was lost, which signs of doubt are high."""
        return page.summary(self)

    def title(self) -> str:
        """Of the page."""
        return "How an answer formed"

    def sections(self) -> list[Section]:
        """Of the page."""
        return page.sections(self)

    def plot(self, name: str | None = None) -> Chart:
        """A chart by name.

        Args:
            name: "layers" (the lens' guess at each layer and token; None), "tokens" (numbers along the tokens) or "rivals"
                (the answer's first token by layer).
        """
        return page.draw(self, name)

    @property
    def answer(self) -> pd.DataFrame:
        """The rows of `tokens` that are the answer's."""
        tokens = self.tables["tokens"]
        return tokens.loc[tokens["part"] == "answer"].reset_index(drop=True)


def hallucination_trace(
    model: HookedTransformer,
    prompt: str | Any,
    *,
    answer: str | Sequence[int] | Any = None,
    max_new_tokens: int | Any = 8,
    stop: str | Sequence[str] | None = "\n",
    joint: str = " ",
    against: str | Sequence[str] | None = None,
    subject: str | None = None,
    probe: Any = None,
    lens: Translator | None = None,
    reference: pd.DataFrame | None = None,
) -> TraceReport:
    """Trace one answer through the model.

    Args:
        model: a decoder with a tokenizer. Interventions that are active count.
        prompt: text up to where the answer begins.
        answer: the answer to trace, as text or as the ids that were generated; None lets the model write one, greedily.
        max_new_tokens: of an answer that the model writes.
        stop: where such an answer ends.
        joint: put between prompt and answer where neither has a space there; "" for none.
        against: other answers (the right one, if it is known), whose first token is followed beside the answer's.
        subject: words of the prompt (their last occurrence) to which the share of attention is told.
        probe: a probe, several, or name -> probe, whose probability is read at every token (`score_tokens`).
        lens: a trained lens; None for the logit lens.
        reference: `answer_signals` of at least 20 other answers of this model and kind of prompt, for quantiles.

    Raises:
        ValueError: an empty prompt or answer (also one that the model ends at once), an answer that is neither text nor ids,
            another answer that begins with the same token, a subject that is not in the prompt, a text longer than the context, a
            probe or lens of another model.
    """
    refuse_encoder(model.cfg, "how an answer formed")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"the prompt is a text that is not empty, got {prompt!r}")
    given = answer is not None
    if given and not isinstance(answer, str):
        answer = _ids(answer)
    ended = None
    if answer is None:
        out = model.generate(prompt, max_new_tokens, stop=stop)
        answer = list(out.tokens)
        ended = bool(out.stopped)
        if not answer:
            raise ValueError(
                f"the model ends its answer to {prompt[-40:]!r} at once: give answer=, show examples in the prompt, or stop=None"
            )
    text = answer_text(model, prompt, answer, joint)
    if text.start >= len(text.ids):
        raise ValueError("the answer is empty: there is no token to trace")
    others = [against] if isinstance(against, str) else list(against or ())
    found = measure(
        model, prompt, answer, text, joint=joint, against=others, subject=subject, probe=probe, lens=lens, reference=reference
    )  # fmt: skip
    values = {
        "prompt": prompt,
        "answer": text.text,
        "given": given,
        "ended": ended,
        "pieces": [view.text for view in model.tokenizer.views(text.ids)[text.start :]] if model.tokenizer else [],
        "merged": text.merged,
        "against": others,
        "subject": subject,
        **found.values,
    }
    card = {
        "model": model.cfg.name,
        "fingerprint": model.fingerprint,
        "lens": "logit" if lens is None else lens.name,
        "reference": 0 if reference is None else len(reference),
        "provenance": artifact.provenance(),
    }
    return TraceReport(found.tables, values, card, page.notes(values, lens is None))


def _ids(answer: Any) -> list[int]:
    """Token ids as plain whole numbers."""
    try:
        if isinstance(answer, bytes | Mapping) or any(isinstance(each, bool | str) for each in answer):
            raise TypeError
        return [operator.index(each) for each in answer]
    except TypeError:
        raise ValueError(
            f"answer is a text or a list of token ids, got {answer!r:.80}: write a number as text, answer='5', or give the ids "
            "of model.generate(...).tokens"
        ) from None
