"""What stands around a token, and how strongly a latent fires on each of its neighbours."""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.model import HookedTransformer
from interp.sae.features.activations import Activations, Rows


def windows(
    activations: Activations,
    latent: int,
    rows: Int[np.ndarray, " example"],
    *,
    before: int,
    after: int,
    model: HookedTransformer | None,
) -> pd.DataFrame:
    """A row per token of each window: example, offset, row, text, position, token_id, value; with a model also token.

    Windows end where their text ends. The value is 0 where the latent does not fire and NaN where the SAE was not asked.

    Raises:
        ValueError: a row that is not among those of the texts that were read, or a negative width.
    """
    if before < 0 or after < 0:
        raise ValueError(f"a window reaches 0 or more tokens to each side, got before={before} and after={after}")
    known = activations.rows
    centre = np.searchsorted(known.row, rows)
    missing = rows[known.row[centre.clip(0, len(known.row) - 1)] != rows]
    if len(missing):
        raise ValueError(f"row {missing[0]} of the store belongs to none of the texts that were read")
    offset = np.arange(-before, after + 1)
    at = centre[:, None] + offset
    inside = (at >= 0) & (at < len(known.row))
    inside &= known.text[at.clip(0, len(known.row) - 1)] == known.text[centre][:, None]
    example, column = np.nonzero(inside)
    at = at[example, column]
    frame = {
        "example": example,
        "offset": offset[column],
        "row": known.row[at],
        "text": known.text[at],
        "position": known.position[at],
        "token_id": known.token_id[at],
        "value": _values(activations, latent, known, at),
    }
    if model is not None:
        frame["token"] = _tokens(model, known.token_id[at], example)
    return pd.DataFrame(frame)


def _values(activations: Activations, latent: int, known: Rows, at: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    row, value = activations.of_latent(latent)
    found = np.where(known.read[at], 0.0, np.nan)
    place = np.searchsorted(row, known.row[at])
    fires = place < len(row)
    fires[fires] = row[place[fires]] == known.row[at][fires]
    found[fires] = value[place[fires]]
    return found


def _tokens(model: HookedTransformer, ids: Int[np.ndarray, " n"], example: Int[np.ndarray, " n"]) -> list[Any]:
    """What a person sees of each token, window by window: a character that two tokens share needs both of them."""
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so tokens have no text: leave out model=, or load it with one")
    cuts = np.flatnonzero(np.diff(example)) + 1
    return [
        view.display for window in np.split(ids, cuts) if len(window) for view in model.tokenizer.views(window.tolist())
    ]
