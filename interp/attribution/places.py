"""The places where a logit is read, which token is asked there, and the direction in the stream that is its logit.

A place is a text and a position. Positions count real tokens, so padding on either side changes nothing. At each place:

1. The final norm's scale is held at what the pass computed. The logit is then linear in the final stream: part . u + bias
   with u = gain * W_U[answer] / scale, less its mean where the norm centres what it reads, and
   bias = ln_final.b . W_U[answer] + b_U[answer].
2. Places that ask for the same token share one direction up to its scale. Products with weights are made once for each
   direction, not once for each place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.vocabulary import token_id
from interp.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Places:
    """Where logits are read, and of which tokens."""

    text: Int[Tensor, "place"]
    """Which text."""
    column: Int[Tensor, "place"]
    """Column of the batch."""
    pos: Int[Tensor, "place"]
    """Position among the text's real tokens."""
    answer: Int[Tensor, "place"]
    """Token whose logit it is."""
    against: Int[Tensor, "place"] | None
    """Token whose logit is subtracted."""


@dataclass(frozen=True, eq=False)
class Directions:
    """The linear map from the final stream to the logits that are asked for, in fp64."""

    base: Float[Tensor, "direction d_model"]
    """Gain times columns of W_U, centred where the final norm centres."""
    which: Int[Tensor, "place"]
    """The direction of each place."""
    scale: Float[Tensor, "place"]
    """Of the final norm at each place."""
    bias: Float[Tensor, "place"]
    """What the final norm's bias and the bias of the logits add."""
    logit: Float[Tensor, "place"]
    """The logit (or difference) as the model's own norm and unembedding give it, before a soft-cap."""

    def read(self, values: Float[Tensor, "place d_model"]) -> Float[Tensor, "place"]:
        """What a contribution to the final stream adds to each logit."""
        return (values.double() * self.base[self.which]).sum(-1) / self.scale


def find_places(model: HookedTransformer, tokens: Tokens, answer: Any, against: Any, pos: Any) -> Places:
    """Places of a batch; see `direct_logit_attribution` for the arguments."""
    lengths, first = tokens.lengths.tolist(), tokens.first.tolist()
    found = [(i, p) for i, n in enumerate(lengths) for p in _positions(pos, n, i, drop_last=answer is None)]
    if not found:
        raise ValueError("there is no place to read: a text of one token has no next token; give answer=")
    text, place = (torch.tensor(each, device=tokens.ids.device) for each in zip(*found))
    column = place + torch.tensor(first, device=text.device)[text]
    if answer is None:
        late = [(i, p) for i, p in found if p + 1 >= lengths[i]]
        if late:
            raise ValueError(
                f"text {late[0][0]} has no token after position {late[0][1]}, its last; give answer= to ask for one"
            )
        asked = tokens.ids[text, column + 1]
    else:
        asked = _ids(model, answer, len(tokens), "answer").to(text.device)[text]
    other = None if against is None else _ids(model, against, len(tokens), "against").to(text.device)[text]
    if other is not None and bool((other == asked).any()):
        raise ValueError(
            f"answer and against are the same token {int(asked[(other == asked).nonzero()[0, 0]])}: their difference is 0"
        )
    return Places(text, column, place, asked, other)


def find_directions(
    model: HookedTransformer, places: Places, final: Float[Tensor, "place d_model"], *, centred: bool
) -> Directions:
    """Directions and logits of all places, from the final stream there."""
    norm, unembed, biases = model.ln_final, model.unembedding(), model.b_U.double()
    other = torch.full_like(places.answer, -1) if places.against is None else places.against
    asked, which = torch.stack([places.answer, other], 1).unique(dim=0, return_inverse=True)
    columns, shift = unembed[asked[:, 0]].double(), biases[asked[:, 0]]
    if places.against is not None:
        columns, shift = columns - unembed[asked[:, 1]].double(), shift - biases[asked[:, 1]]
    elif centred:
        columns, shift = columns - unembed.mean(0, dtype=torch.float64), shift - biases.mean()
    base, scale = columns, torch.ones(len(which), dtype=torch.float64, device=columns.device)
    normed = final
    if norm is not None and norm.kind != "none":
        gain = norm.multiplier()
        assert gain is not None, "a norm with a kind has a gain"
        shift = shift if norm.bias is None else shift + columns @ norm.bias.double()
        base = through(norm, columns)
        scale, normed = norm.scale(final)[:, 0].double(), norm.silent(final)
    own = biases[places.answer]
    if places.against is not None:
        own = own - biases[places.against]
    elif centred:
        own = own - biases.mean()
    logit = (normed.double() * columns[which]).sum(-1) + own
    return Directions(base, which, scale, shift[which], logit)


def through(norm: Any, directions: Float[Tensor, "direction d_model"]) -> Float[Tensor, "direction d_model"]:
    """The directions in front of a norm, but for its scale, that are `directions` behind it."""
    gain = norm.multiplier()
    turned = directions if gain is None else directions * gain.double()
    return turned - turned.mean(-1, keepdim=True) if norm.centred else turned


def _positions(pos: Any, n: int, text: int, *, drop_last: bool) -> list[int]:
    if isinstance(pos, str):
        if pos != "all":
            raise ValueError(f"pos must be a position, a list of them or 'all', got {pos!r}")
        return list(range(n - drop_last))
    wanted = list(pos) if isinstance(pos, Sequence) else [pos]
    if not wanted or not all(isinstance(p, int) and not isinstance(p, bool) for p in wanted):
        raise ValueError(f"pos must be a position, a list of them or 'all', got {pos!r}")
    beyond = [p for p in wanted if not -n <= p < n]
    if beyond:
        raise ValueError(f"position {beyond[0]} lies outside text {text}, which has {n} tokens")
    found = [p % n for p in wanted]
    if len(set(found)) < len(found):
        raise ValueError(f"pos={pos!r} names a position of text {text} twice: it would count double")
    return found


def _ids(model: HookedTransformer, wanted: Any, n: int, name: str) -> Int[Tensor, "text"]:
    """One id for each text."""
    given = wanted.tolist() if isinstance(wanted, Tensor) else wanted
    each = list(given) if isinstance(given, list | tuple) else [given] * n
    if len(each) != n:
        raise ValueError(f"there are {len(each)} entries in {name} for {n} texts: give one token, or one for each")
    return torch.tensor([token_id(model, token, name) for token in each])
