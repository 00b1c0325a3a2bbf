"""Which latents belong together: by what they write, and by when they fire.

Decoder cosine says that two latents write the same direction. Co-firing is the phi coefficient, the correlation of the
two indicators "fires": it is 0 for independent latents whatever their densities, where shares such as Jaccard's grow
with them.

    phi = (n_both n - n_a n_b) / sqrt(n_a (n - n_a) n_b (n - n_b))

n_both of all pairs is the sparse product F^T F, F [row latent] being 1 where a latent fires: L0^2 additions a row.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int32
from scipy import sparse
from torch import Tensor

from interp.sae.features.activations import Activations
from interp.sae.model import SAE

_PAIRS = 1 << 26
"""Pairs of latents that are counted at a time, 4 bytes each."""
_STEP = 512
"""Latents whose pairs are multiplied at a time: the product is sparse, but with frequent latents not very."""


@torch.no_grad()
def neighbour_columns(sae: SAE, activations: Activations, count: Int[np.ndarray, " latent"], n: int) -> dict[str, Any]:
    """Columns of the table of latents.

    Args:
        sae: the SAE.
        activations: its activations.
        count: rows in which each latent fires.
        n: neighbours of each kind; those by co-firing fire together at least once, and more often than by chance.
    """
    near, cosine = nearest_rows(sae.W_dec, n)
    together, phi = _cofiring(activations, count, n)
    columns: dict[str, Any] = {
        "decoder_latents": near,
        "decoder_cosines": cosine,
        "cofiring_latents": together,
        "cofiring_phi": phi,
    }
    if not sae.is_transcoder:
        cosines = torch.nn.functional.cosine_similarity(sae.W_enc.T.double(), sae.W_dec.double(), dim=1)
        columns["encoder_decoder_cosine"] = cosines.cpu().numpy()
    return columns


def nearest_rows(rows: Float[Tensor, "latent d"], n: int) -> tuple[list[list[int]], list[list[float]]]:
    """Of each row the n others with the largest cosine, and those cosines."""
    unit = torch.nn.functional.normalize(rows.detach().float(), dim=1)
    n = min(n, len(rows) - 1)
    near: list[list[int]] = []
    cosines: list[list[float]] = []
    for start in range(0, len(unit), _STEP):
        cosine = unit[start : start + _STEP] @ unit.T
        here = torch.arange(len(cosine), device=cosine.device)
        cosine[here, here + start] = -torch.inf
        top = cosine.topk(n, dim=1)
        near += top.indices.tolist()
        cosines += top.values.tolist()
    return near, cosines


def _cofiring(
    activations: Activations, count: Int[np.ndarray, " latent"], n: int
) -> tuple[list[list[int]], list[list[float]]]:
    n_latents = activations.n_latents
    width = max(1, _PAIRS // n_latents)
    found: list[list[int]] = []
    values: list[list[float]] = []
    for start in range(0, n_latents, width):
        both = _counted_together(activations, start, min(start + width, n_latents))
        for at in range(0, len(both), _STEP):
            some = both[at : at + _STEP]
            first, here = start + at, np.arange(len(some))
            phi = _phi(some, count[first : first + len(some)], count, activations.n_rows)
            phi[here, here + first] = -np.inf
            top = torch.from_numpy(phi).topk(min(n, n_latents - 1), dim=1)
            for latents, row in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                above = sum(value > 0 for value in row)
                found.append(latents[:above])
                values.append(row[:above])
    return found, values


def _counted_together(activations: Activations, start: int, stop: int) -> Int32[np.ndarray, "some latent"]:
    """Rows in which both fire, of latents `start` to `stop` with all latents."""
    both = np.zeros((stop - start, activations.n_latents), dtype=np.int32)
    for part in activations.parts():
        fires = sparse.csr_array(
            (np.ones(part.matrix.nnz, dtype=np.int32), part.matrix.indices, part.matrix.indptr), part.matrix.shape
        )
        by_latent = sparse.csr_array(fires.T)
        for at in range(start, stop, _STEP):
            until = min(at + _STEP, stop)
            both[at - start : until - start] += (by_latent[at:until] @ fires).toarray()
    return both


def _phi(
    both: Int32[np.ndarray, "some latent"],
    own: Int[np.ndarray, " some"],
    other: Int[np.ndarray, " latent"],
    n_rows: int,
) -> Float64[np.ndarray, "some latent"]:
    """The phi coefficient; 0 where a latent fires never or always."""
    # own * (n_rows - own) is a variance times n_rows squared; its root comes first, since four such factors overflow.
    spread = np.sqrt(own * (n_rows - own.astype(np.float64))), np.sqrt(other * (n_rows - other.astype(np.float64)))
    scale = np.outer(*spread)
    covariance = both.astype(np.float64) * n_rows - np.outer(own.astype(np.float64), other)
    return np.divide(covariance, scale, where=scale > 0, out=np.zeros_like(scale))
