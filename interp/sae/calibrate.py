"""Set the threshold of a JumpReLU SAE so that a chosen number of latents fire on average.

A threshold that was learned from training batches lets more or fewer latents fire on other texts. On rows of its own,
which are neither trained nor measured on, one factor for all thresholds brings the mean L0 to where it should be: with
r = pre / threshold of every latent and row, it is the n_rows x l0 largest r.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.sae.evaluate import trained_l0
from interp.sae.model import SAE
from interp.sae.rows import row_numbers
from interp.sae.select import above
from interp.sae.tensors import require_finite
from interp.store import Store

_LOWEST = 0.25
"""Share of its threshold that a pre-activation must reach to be looked at."""


@torch.no_grad()
def calibrate_l0(
    sae: SAE, data: Any, l0: float | Any | None = None, *, rows: Any = None, batch_size: int = 4096
) -> SAE:
    """A copy of the SAE whose mean L0 on these rows is `l0`.

    Args:
        sae: a JumpReLU SAE with thresholds above 0, such as a trained BatchTopK or Matryoshka one.
        data: a store that has its sites (typical rows are used), or a float tensor [row d_in].
        l0: mean active latents per row. None: the k or l0 of its training.
        rows: for a store: numbers, a mask or a slice of its rows, None for all.
        batch_size: rows at a time.

    Returns:
        The SAE; `card["calibrated"]` says the L0, the factor, and the number of rows.

    Raises:
        ValueError: another architecture, a threshold that is not above 0, no rows, no L0, or one that no factor reaches.
    """
    if sae.threshold is None or not bool((sae.threshold > 0).all()):
        raise ValueError(f"calibration moves thresholds above 0; this SAE is {sae.architecture} and has none to move")
    wanted = l0 if l0 is not None else trained_l0(sae)
    if not isinstance(wanted, int | float) or not 0 < wanted < sae.n_latents:
        raise ValueError(f"l0 is a number of latents between 0 and {sae.n_latents}, got {wanted!r}")
    n_rows, ratios = 0, []
    for x in _batches(sae, data, rows, batch_size):
        require_finite(x)
        relative = sae.pre_activations(sae.rows_of(x)) / sae.threshold
        ratios.append(above(relative, _LOWEST).at(relative))
        n_rows += len(x)
    if n_rows == 0:
        raise ValueError("there is no row to calibrate on: none was given, or none of them is typical")
    ratio = torch.cat(ratios)
    count = round(wanted * n_rows)
    if not 0 < count < len(ratio):
        raise ValueError(
            f"an L0 of {wanted} asks for thresholds below a quarter of those that were learned, or for none at all; "
            f"now {(ratio > 1).sum().item() / n_rows:.1f} latents of a row fire"
        )
    low, high = ratio.topk(count + 1).values[-2:].flip(0).double().tolist()
    factor = math.sqrt(low * high)
    card = {**sae.card, "calibrated": {"l0": float(wanted), "factor": factor, "n_rows": n_rows}}
    return SAE(
        sae.W_enc.data, sae.b_enc.data, sae.W_dec.data, sae.b_dec.data, threshold=sae.threshold * factor,
        W_skip=None if sae.W_skip is None else sae.W_skip.data, apply_b_dec_to_input=sae.apply_b_dec_to_input, card=card,
    )  # fmt: skip


def _batches(sae: SAE, data: Any, rows: Any, batch_size: int) -> Iterator[Float[Tensor, "row d_in"]]:
    if isinstance(data, Store):
        sae.require_raw()
        missing = set(sae.sites) - set(data.sites)
        if missing or not sae.sites:
            raise ValueError(
                f"the store has {', '.join(data.sites)}, the SAE reads {', '.join(sae.sites) or 'no known site'}"
            )
        wanted = row_numbers(data, rows)
        for name in {*sae.sites, *sae.targets} & set(data.sites):
            wanted = wanted[data.typical(name)[wanted]]
        for start in range(0, len(wanted), batch_size):
            part = wanted[start : start + batch_size]
            yield torch.cat([data.rows(name, part) for name in sae.sites], dim=1)
    elif isinstance(data, Tensor) and rows is None:
        yield from data.split(batch_size)
    else:
        raise ValueError(f"calibration takes a store, or a tensor without rows=; got {type(data).__name__}")
