"""What steering breaks, on text and questions that have nothing to do with the vector.

1. *Loss* on held-out text: the rise of the next-token loss, nats a token.
2. *KL* from the unsteered model to the steered one on the same text, nats: at the last position, and over all positions. They
   are different numbers, and papers report either.
3. *Accuracy* on multiple choices, the option with the largest log-probability being the answer.

All are teacher-forced on text that the unsteered model is given as well. The loss of *generated* text would not do: a model
that repeats one phrase writes very probable text.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from interp.bootstrap import ratio_interval
from interp.dataset import Question
from interp.intervene import Condition, Where
from interp.intervene.place import part_of
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.probe.completions import encoded
from interp.steering.figures import wrong_share
from interp.steering.measures.base import prompt_ids
from interp.steering.runner import Batch, Sheet, log_probabilities, response_logprobs

KEPT = 2**26
"""Most log-probabilities of the unsteered model that are kept, 256 MB; those of more text are computed each time."""


@dataclass(frozen=True, eq=False)
class TextDamage:
    """Of each text, under one intervention."""

    loss: Float64[np.ndarray, " text"]
    """Sum of the next-token losses, nats."""
    n_predicted: Float64[np.ndarray, " text"]
    """Tokens that are predicted."""
    kl: Float64[np.ndarray, " text"]
    """Sum over positions of KL(unsteered || steered), nats."""
    n_positions: Float64[np.ndarray, " text"]
    """Positions."""
    kl_last: Float64[np.ndarray, " text"]
    """At the last position."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class DamageTexts:
    """Texts on which damage is measured; the unsteered model has run over them."""

    def __init__(
        self,
        model: HookedTransformer,
        texts: Sequence[str],
        layers: Sequence[int],
        where: Any,
        batch_size: int,
        when: Condition | None = None,
    ) -> None:
        """Run the texts once.

        Args:
            model: a decoder with a tokenizer.
            texts: of at least two tokens.
            layers: where steered runs begin.
            where: which tokens are steered. A text has no prompt: all of it counts as `generated`, or as `prompt`. Where
                positions from the end or a condition need one, its first half is the prompt, and figures are of the rest.
            batch_size: texts in a pass.
            when: the condition that steering stands under.
        """
        refuse_encoder(model.cfg, "a next-token loss")
        ids = prompt_ids(model, texts)
        short = [index for index, row in enumerate(ids) if len(row) < 2]
        if short:
            raise ValueError(
                f"text {short[0]} of the damage texts is a single token, which nothing predicts: remove it"
            )
        self.halved = _needs_prompt(where, when)
        whole = 1 if part_of(where) == "generated" else None
        lengths = [len(row) // 2 if self.halved else whole or len(row) for row in ids]
        self.layers, self.sheet = list(layers), Sheet(model, ids, lengths, layers, batch_size)
        self._base = [stream[batch.tokens.mask] for batch, stream in self.sheet.runs(self.layers[0])]
        values = sum(map(len, self._base)) * model.cfg.d_vocab
        self._logp = [list(self._fresh(rows)) for rows in self._base] if values <= KEPT else None
        self.unsteered = self._figures(zip(self.sheet.batches, self._base))
        """Losses without the vector."""

    def _fresh(self, rows: Float[Tensor, "read d_model"]) -> Iterator[Float[Tensor, "read d_vocab"]]:
        return (logp for _, logp in log_probabilities(self.sheet.model, rows))

    @torch.inference_mode()
    def read(self, interventions: Sequence[Any], layer: int | None = None) -> TextDamage:
        """Loss and KL of each text under interventions that change nothing before `layer` (None: the first of the layers)."""
        runs = self.sheet.runs(self.layers[0] if layer is None else layer, interventions)
        return self._figures((batch, stream[batch.tokens.mask]) for batch, stream in runs)

    @torch.inference_mode()
    def _figures(self, runs: Iterable[tuple[Batch, Float[Tensor, "read d_model"]]]) -> TextDamage:
        found = {each.name: np.zeros(self.sheet.n) for each in fields(TextDamage)}
        for index, (batch, rows) in enumerate(runs):
            mask = batch.tokens.mask
            row, place = mask.nonzero(as_tuple=True)
            # What comes next; wrong only at last positions, which no loss counts.
            targets = batch.tokens.ids.roll(-1, 1)[mask]
            last = place == batch.lengths[row] - 1
            counted = (place >= batch.prompt_len[row] - 1).cpu().numpy() if self.halved else np.ones(len(row), bool)
            losses, kls = torch.empty(2, len(row), dtype=torch.float64)
            base = iter(self._logp[index] if self._logp is not None else self._fresh(self._base[index]))
            for part, logp in log_probabilities(self.sheet.model, rows):
                plain = next(base)
                losses[part] = -logp.gather(1, targets[part, None])[:, 0].double().cpu()
                # A small KL is the difference of large sums.
                kls[part] = (plain.double().exp() * (plain.double() - logp.double())).sum(1).cpu()
            owner, ends = batch.texts[row.cpu().numpy()], last.cpu().numpy()
            predicts = counted & ~ends
            np.add.at(found["loss"], owner[predicts], losses.numpy()[predicts])
            np.add.at(found["n_predicted"], owner[predicts], 1)
            np.add.at(found["kl"], owner[counted], kls.numpy()[counted])
            np.add.at(found["n_positions"], owner[counted], 1)
            found["kl_last"][owner[ends]] = kls.numpy()[ends]
        return TextDamage(**found)


def _needs_prompt(where: Any, when: Condition | None) -> bool:
    """Whether what is steered hangs on where a prompt ends."""
    place = where if isinstance(where, Where) else Where(where)
    from_end = any(position < 0 for position in place.positions or ())
    return from_end or (when is not None and when.over != "token" and place.part == "generated")


def damage_figures(now: TextDamage, base: TextDamage, seed: int) -> dict[str, float | int]:
    """The columns of a damage table that texts give."""
    rise = now.loss - base.loss
    low, high = ratio_interval(rise, base.n_predicted, seed)
    return {
        "loss_rise": float(rise.sum() / base.n_predicted.sum()), "loss_low": float(low), "loss_high": float(high),
        "kl_last": float(now.kl_last.mean()), "kl_mean": float(now.kl.sum() / now.n_positions.sum()),
        "n_texts": len(rise), "n_tokens": int(base.n_predicted.sum()),
    }  # fmt: skip


class ChoiceQuestions:
    """Multiple-choice questions whose options are scored as text."""

    def __init__(
        self, model: HookedTransformer, questions: Sequence[Question] | Any, layer: int, batch_size: int
    ) -> None:
        """Run the questions once.

        Raises:
            ValueError: no questions, an option without tokens, or one that shares no token with its prompt.
        """
        if model.tokenizer is None:
            raise ValueError("questions are texts; load the model with a tokenizer")
        if not all(isinstance(each, Question) for each in questions):
            raise ValueError("choices= takes questions: interp.load_questions(...), or a list of Question")
        sequences, starts = [], []
        for question in questions:
            ids, start = encoded(model.tokenizer, question.prompt, question.options)
            sequences += ids
            starts += [start] * len(ids)
        self.layer, self.answers = layer, [question.answer for question in questions]
        self.groups = [question.group for question in questions]
        self.counts = np.array([len(question.options) for question in questions])
        self.sheet = Sheet(model, sequences, starts, [layer], batch_size)

    def read(self, interventions: Sequence[Any]) -> Bool[np.ndarray, " question"]:
        """Whether the most probable option is the right one, for each question."""
        scores = response_logprobs(self.sheet, self.layer, interventions)
        parts = np.split(scores, np.cumsum(self.counts)[:-1])
        return np.array([int(part.argmax()) == answer for part, answer in zip(parts, self.answers)])


def choice_figures(
    right: Bool[np.ndarray, " question"], groups: Sequence[Hashable] | None = None
) -> dict[str, float | int]:
    """The columns of a damage table that questions give; the interval counts groups."""
    share, low, high = wrong_share(right, groups)
    return {"accuracy": share, "accuracy_low": low, "accuracy_high": high, "n_choices": len(right)}
