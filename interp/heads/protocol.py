"""The sequences that heads are scored on: random tokens, twice, behind a BOS.

Nothing but the first copy can predict the second, so what a head attends to there is what it is for (Olsson et al. 2022, on
in-context learning).
"""

import torch
from jaxtyping import Int
from torch import Tensor

from interp.model import HookedTransformer


def repeated_tokens(
    model: HookedTransformer, *, n_rows: int = 8, period: int = 64, bos: int | bool | None = None, seed: int = 0
) -> tuple[Int[Tensor, "row pos"], int]:
    """Random ids repeated twice behind a BOS, and the number of BOS columns (0 or 1).

    Ids are drawn from 1000..40000 (as far as the vocabulary goes), which leaves out special tokens, single bytes and
    the rarest words. `bos=None` uses the tokenizer's BOS if it has one; an id uses that; False none.
    """
    low, high = min(1000, model.cfg.d_vocab // 4), min(40000, model.cfg.d_vocab)
    ids = torch.randint(low, high, (n_rows, period), generator=torch.Generator().manual_seed(seed))
    return _behind_bos(model, ids.repeat(1, 2), bos)


def _behind_bos(model: HookedTransformer, ids: Tensor, bos: int | bool | None) -> tuple[Int[Tensor, "row pos"], int]:
    known = model.tokenizer.bos_id if model.tokenizer is not None else None
    if bos is True and known is None:
        raise ValueError("bos=True, but the tokenizer has no BOS; give the id to put in front, or bos=False")
    token = known if bos is None or bos is True else bos
    if token is None or token is False:
        return ids, 0
    return torch.cat([torch.full((ids.shape[0], 1), int(token)), ids], dim=1), 1


def given_tokens(
    model: HookedTransformer, ids: Tensor, period: int | None, bos: int | bool | None
) -> tuple[Int[Tensor, "row pos"], int]:
    """The whole repeated sequence from what the caller gave, and its BOS columns."""
    if ids.is_floating_point() or ids.ndim not in (1, 2) or not ids.numel():
        raise ValueError(f"tokens must be integer ids of shape [row pos], got {ids.dtype} {tuple(ids.shape)}")
    ids = ids.long() if ids.ndim == 2 else ids.long()[None]
    width = ids.shape[1]
    for n_bos in (0, 1):
        n = (width - n_bos) // 2
        whole = (width - n_bos) % 2 == 0 and n >= 2 and torch.equal(ids[:, n_bos : n_bos + n], ids[:, n_bos + n :])
        if whole and period in (None, n):
            return (ids, n_bos) if n_bos or bos in (None, False) else _behind_bos(model, ids, bos)
    if period not in (None, width):
        raise ValueError(
            f"the tokens ({width} columns) are neither one copy of {period} nor that copy twice, with or without a BOS"
        )
    if width < 2:
        raise ValueError("one copy needs at least two tokens")
    return _behind_bos(model, ids.repeat(1, 2), bos)
