"""Rows in memory: shuffled batches of tensors, moments of rows, and what is not finite."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.sae.roles import UNNAMED
from interp.store import Batches, Moments


def tensor_batches(
    x: Tensor | Mapping[str, Tensor], *, size: int, seed: int, epochs: int, rank: int = 0, world_size: int = 1
) -> Batches[Any]:
    """Shuffled batches of a tensor's rows, or of the same rows of several. ValueError where one is not float [row d_model],
    has no row, or has other rows than the rest."""
    tensors = {UNNAMED: x} if isinstance(x, Tensor) else x
    for each in tensors.values():
        if not isinstance(each, Tensor) or each.ndim != 2 or not each.is_floating_point() or len(each) == 0:
            what = f"{each.dtype} {list(each.shape)}" if isinstance(each, Tensor) else type(each).__name__
            raise ValueError(f"activations are a float tensor [row d_model] with at least one row, got {what}")
    n_rows = same_length(tensors)

    def read(numbers: Int[np.ndarray, " n"]) -> Any:
        index = torch.from_numpy(numbers)
        found = {site: each[index.to(each.device)] for site, each in tensors.items()}
        return found[UNNAMED] if isinstance(x, Tensor) else found

    widths = [each.shape[1] for each in tensors.values()]
    where = {"site": UNNAMED, "d": widths[0]} if isinstance(x, Tensor) else {"site": list(tensors), "d": widths}
    row_bytes = sum(each.shape[1] * each.element_size() for each in tensors.values())
    return Batches(
        read, np.arange(n_rows), **where, row_bytes=row_bytes, size=size, seed=seed, epochs=epochs, drop_last=False,
        rank=rank, world_size=world_size,
    )  # fmt: skip


def same_length(tensors: Mapping[str, Tensor]) -> int:
    """Number of rows of all of them. ValueError where they differ."""
    lengths = {name: len(each) for name, each in tensors.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"row i of every site is the same token, so all have as many rows; got {lengths}")
    return next(iter(lengths.values()))


def moments_of(batches: Iterable[Tensor]) -> Moments:
    """Count, mean and squared deviations of all rows. ValueError for NaN, infinity, several widths, or no row."""
    total: Moments | None = None
    for batch in batches:
        require_finite(batch)
        part = Moments.of(batch.detach().cpu())
        total = part if total is None else total.merge(part)
    if total is None or total.count == 0:
        raise ValueError("there are no rows")
    return total


def require_finite(batch: Float[Tensor, "row d_model"]) -> None:
    """ValueError where a batch of activations holds NaN or infinity."""
    bad = (~batch.isfinite().all(dim=1)).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(batch)} rows of a batch hold NaN or infinity (the first is row {int(bad[0])}): "
            "leave them out, or record them again in float32"
        )
