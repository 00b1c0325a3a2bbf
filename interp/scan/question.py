"""What is asked: one prompt, the token that answers it and the one that it is measured against."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.model.vocabulary import token_id, token_labels
from interp.rerun import BaseRun, base_run
from interp.tokens import Tokens

LONGEST = 256
"""Most tokens of a prompt: beyond that no page shows them all, and exact effects of each take hours."""

WIDTH = 24
"""Longest label of a token, in characters."""


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt that was run once, and the two tokens whose logits are compared."""

    base: BaseRun
    """The run, with the stream into every block."""
    labels: tuple[str, ...]
    """Tokens as a person reads them."""
    answer: int
    """Token id."""
    against: int
    """Token id."""
    logits: Float[Tensor, "d_vocab"]
    """Of the next token, fp64, on the CPU."""
    chosen: tuple[str, ...]
    """Which of the two tokens were not given but taken from the prediction: `answer`, `against`."""

    @property
    def model(self) -> HookedTransformer:
        """What ran."""
        return self.base.model

    @property
    def difference(self) -> float:
        """Logit of the answer less that of the other token."""
        return float(self.logits[self.answer] - self.logits[self.against])

    def read(self, token: int) -> str:
        """A token as a person reads it."""
        return read_tokens(self.model, [token])[0]


def ask(model: HookedTransformer, prompt: Any, answer: Any, against: Any) -> Question:
    """Run the prompt and settle what is compared.

    Raises:
        ValueError: an encoder; several prompts; more than `LONGEST` tokens; an answer that is no single token, or the same
            as what it is measured against.
    """
    refuse_encoder(model.cfg, "a scan of its next token")
    tokens = model.tokenize(prompt)
    if len(tokens) != 1 or tokens.documents is not None or tokens.parents is not None:
        raise ValueError(
            f"a scan reads one prompt, got {len(tokens)} texts or a row of joined ones: scan each on its own"
        )
    n = int(tokens.lengths[0])
    if n > LONGEST:
        raise ValueError(
            f"the prompt has {n} tokens, a scan reads at most {LONGEST}: keep what matters, or call the analyses one by one"
        )
    tokens = Tokens(tokens.ids[tokens.mask][None], tokens.mask[tokens.mask][None])
    base = base_run(model, tokens)
    logits = base.last_logits(base.final).as_subclass(Tensor)[0].double().cpu()
    first, second = logits.topk(2).indices.tolist()
    right = first if answer is None else token_id(model, answer, "answer")
    other = (second if right == first else first) if against is None else token_id(model, against, "against")
    if right == other:
        raise ValueError(
            f"answer and against are both {read_tokens(model, [right])[0]!r}: name two tokens, or leave one of them out"
        )
    chosen = tuple(name for name, given in (("answer", answer), ("against", against)) if given is None)
    return Question(base, tuple(read_tokens(model, tokens.row(0))), right, other, logits, chosen)


def read_tokens(model: HookedTransformer, ids: list[int]) -> list[str]:
    """Tokens of one text as a person reads them; a very long one loses its middle."""
    return [label if len(label) <= WIDTH else f"{label[:10]}…{label[-9:]}" for label in token_labels(model, ids)]


def random_tokens(question: Question, draws: int, seed: int, *, keep_first: bool) -> Tokens:
    """Other texts of the same length: random ids, special ones left out; with the prompt's first token where it is kept."""
    model, ids = question.model, question.base.tokens.ids
    special = model.tokenizer.special_ids if model.tokenizer is not None else frozenset()
    size = model.cfg.d_vocab if model.tokenizer is None else min(model.cfg.d_vocab, model.tokenizer.vocab_size)
    plain = torch.tensor([i for i in range(size) if i not in special])
    picks = torch.randint(len(plain), (draws, ids.shape[1]), generator=torch.Generator().manual_seed(seed))
    drawn = plain[picks].to(ids.device)
    if keep_first:
        drawn[:, 0] = ids[0, 0]
    return Tokens(drawn, torch.ones_like(drawn, dtype=torch.bool))
