"""What a lens says of a row, reduced at once: nothing of size [site, row, vocabulary] is ever held.

1. Rows are taken so many at a time that their logits take 16 MB.
2. The final stream is unembedded once for all sites; each site's own logits live until the next site's.
3. What stays of each is a handful of numbers.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.lens.source import Passage
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.model.norm import accumulate

LOGITS = 1 << 22
"""Logits at a time: 16 MB in fp32; half a dozen values of this size live at once."""


def rows_at_once(d_vocab: int) -> int:
    """Rows whose logits are held together."""
    return max(1, LOGITS // d_vocab)


def read_passage(
    model: HookedTransformer,
    passage: Passage,
    names: Sequence[str],
    *,
    lens: Translator | None,
    answers: Sequence[int],
    k: int,
) -> dict[str, Tensor]:
    """All statistics of a passage, by the names of `LensResult`'s fields, on the CPU.

    Args:
        model: the model.
        passage: rows and their streams.
        names: sites, the final one last.
        lens: what translates the streams of its sites; None for the logit lens.
        answers: token ids to follow; without any the final top prediction of each row is.
        k: top tokens to keep.
    """
    n, step = len(passage.ids), rows_at_once(model.cfg.d_vocab)
    found: dict[str, Tensor] = {}
    for start in range(0, n, step):
        rows = slice(start, start + step)
        final = log_probabilities(model, passage.take(names[-1], start, start + step))
        reader = _Reader(final, passage.following[rows], answers, k)
        _place(found, "target_ids", reader.targets, (n,))[rows] = reader.targets
        for site, name in enumerate(names):
            logp = final
            if name != names[-1]:
                stream = passage.take(name, start, start + step)
                logp = log_probabilities(model, stream if lens is None else lens.translate(stream, name))
            for key, value in reader.read(logp).items():
                _place(found, key, value, (len(names), n, *value.shape[1:]))[site, rows] = value
    return found


def _place(found: dict[str, Tensor], key: str, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Where a statistic is collected. Made whole at its first value: small tensors that stay alive between the large ones
    of each step would leave holes into which the next large one does not fit, 2 GB of them in a thousand rows."""
    if key not in found:
        found[key] = torch.empty(shape, dtype=like.dtype)
    return found[key]


def joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Statistics of several groups of rows as one. Rows are the first axis of target_ids and the second of all others."""
    return {key: torch.cat([part[key] for part in parts], dim=int(key != "target_ids")) for key in parts[0]}


def log_probabilities(model: HookedTransformer, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
    """Of the next token, in at least fp32: the final norm of each row, then the unembedding."""
    return accumulate(model.unembed_logits(rows)).log_softmax(-1)


class _Reader:
    """Statistics of some rows at one site after the other; what they share is computed once."""

    def __init__(
        self, final: Float[Tensor, "row d_vocab"], following: Int[Tensor, "row"], answers: Sequence[int], k: int
    ) -> None:
        self.final, self.final_probs, self.following, self.k = final, final.exp(), following, k
        self.answers = [torch.full_like(following, answer) for answer in answers]
        self.targets = self.answers[0] if self.answers else final.argmax(-1)

    def read(self, logp: Float[Tensor, "row d_vocab"]) -> dict[str, Tensor]:
        """Of one site: [row], [row k] and [row answer]."""
        top = logp.topk(self.k, dim=-1)
        loss = -logp.gather(-1, self.following.clamp(min=0)[:, None])[:, 0]
        prob, rank = _place_of(logp, self.targets)
        places = [(prob, rank), *(_place_of(logp, answer) for answer in self.answers[1:])][: len(self.answers)]
        none = (logp.new_empty(len(logp), 0), rank.new_empty(len(logp), 0))
        probs, ranks = (torch.stack(found, -1) for found in zip(*places)) if places else none
        divergence = (self.final - logp).mul_(self.final_probs).sum(-1)
        return {
            "top_ids": top.indices,
            "top_probs": top.values.exp(),
            "entropy": -logp.exp().mul_(logp).sum(-1),
            "kl": divergence.clamp(min=0.0),
            "loss": loss.masked_fill(self.following < 0, torch.nan),
            "target_probs": prob,
            "target_rank": rank,
            "answer_probs": probs,
            "answer_rank": ranks,
        }


def _place_of(logp: Float[Tensor, "row d_vocab"], ids: Int[Tensor, "row"]) -> tuple[Tensor, Tensor]:
    """Probability and rank of one token of each row; rank 0 is the top."""
    own = logp.gather(-1, ids[:, None])
    return own[:, 0].exp(), torch.count_nonzero(logp > own, dim=-1)
