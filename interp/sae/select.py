"""Choose latents: the k largest of each row, or all above zero.

Both look at the largest of every sixteen entries first, which is one fast pass, and then only into those groups that
can hold an answer. A group is a column of the row seen as [16, width / 16]: neighbours in memory belong to different
groups, so the pass runs over whole vectors.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from interp.sae.sparse import Pattern, starts_of

GROUP = 16
"""Entries of a group."""


def top_of_rows(pre: Float[Tensor, "row latent"], k: int) -> Int64[Tensor, "row k"]:
    """The k largest entries of each row, in no order.

    The k groups with the largest maxima hold them: any other group's entries are below k maxima.
    """
    n_rows, width = pre.shape
    n_groups = width // GROUP
    if n_groups < 2 * k:
        return pre.topk(k, dim=1, sorted=False).indices
    even = pre[:, : n_groups * GROUP].unflatten(1, (GROUP, n_groups))
    groups = even.amax(1).topk(k, dim=1, sorted=False).indices
    columns = groups[:, None, :] + torch.arange(GROUP, device=pre.device)[:, None] * n_groups
    columns = columns.flatten(1)
    if width > n_groups * GROUP:
        rest = torch.arange(n_groups * GROUP, width, device=pre.device).expand(n_rows, -1)
        columns = torch.cat([columns, rest], dim=1)
    best = pre.gather(1, columns).topk(k, dim=1, sorted=False).indices
    return columns.gather(1, best)


def pattern_of_rows(latent: Int64[Tensor, "row k"], n_latents: int) -> Pattern:
    """k latents of each row as a pattern."""
    n_rows, k = latent.shape
    return Pattern(torch.arange(0, n_rows * k + 1, k, device=latent.device), latent.flatten(), n_latents)


def above(pre: Float[Tensor, "row latent"], level: float | Tensor = 0.0) -> Pattern:
    """All entries above a level."""
    n_rows, width = pre.shape
    n_groups = width // GROUP
    if n_groups == 0:
        return _all(pre > level)
    even = pre[:, : n_groups * GROUP].unflatten(1, (GROUP, n_groups))
    some = even.amax(1) > level
    if 4 * int(some.sum()) > some.numel():  # most groups hold an answer
        return _all(pre > level)
    row, group = some.nonzero(as_tuple=True)
    which, member = (even[row, :, group] > level).nonzero(as_tuple=True)
    row, latent = row[which], member * n_groups + group[which]
    if width > n_groups * GROUP:
        more, rest = (pre[:, n_groups * GROUP :] > level).nonzero(as_tuple=True)
        row, latent = torch.cat([row, more]), torch.cat([latent, rest + n_groups * GROUP])
    flat = (row * width + latent).sort().values
    return Pattern(starts_of(torch.bincount(row, minlength=n_rows)), flat % width, width)


def _all(mask: Bool[Tensor, "row latent"]) -> Pattern:
    return Pattern(starts_of(mask.sum(1)), mask.nonzero(as_tuple=True)[1], mask.shape[1])
