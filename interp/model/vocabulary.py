"""Single tokens: from what a person writes to an id, and back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from interp.model.transformer import HookedTransformer


def token_id(model: "HookedTransformer", given: Any, what: str = "token") -> int:
    """The id of a text that is one token, or a checked id.

    Args:
        model: its tokenizer reads the text.
        given: a text (mind the space before a word) or an id.
        what: how the caller calls it, for messages.

    Raises:
        ValueError: a text of several tokens, an id outside the vocabulary, or something else.
    """
    if isinstance(given, str):
        if model.tokenizer is None:
            raise ValueError(f"{what}={given!r} is a text, and this model has no tokenizer: give a token id")
        return model.tokenizer.to_single_token(given)
    given = given.item() if isinstance(given, np.integer) else given
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < model.cfg.d_vocab:
        raise ValueError(
            f"{what}={given!r}: it takes texts of one token, or an id in 0..{model.cfg.d_vocab - 1}, a whole number of the "
            "vocabulary"
        )
    return given


def token_labels(model: "HookedTransformer", ids: Sequence[int]) -> list[str]:
    """The tokens of one text as a person reads them; numbers where the model has no tokenizer."""
    if model.tokenizer is None:
        return [str(i) for i in ids]
    return [view.display for view in model.tokenizer.views(list(ids))]
