"""Rows that an SAE of another library normalises by themselves before it reads them.

Some SAEs (OpenAI's TopK ones for GPT-2, and those of SAELens with `layer_norm` or `constant_norm_rescale`) read
z = (x - centre) / scale, with a centre and a scale from each row itself, and undo it on what they write. `SAE` is a
function of raw rows, and no weights can hold that. Such a file is refused, unless the caller asks for the SAE of
normalised rows; these functions then make the rows and take its output back:

    rows = normalize_rows(x, "layer_norm")
    x_hat = rows.undo(sae(rows.z))
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

ROW_NORMS = ("layer_norm", "constant_norm_rescale")
EPSILON = 1e-5


@dataclass(frozen=True, eq=False)
class NormalizedRows:
    """Rows, each normalised by itself."""

    z: Float[Tensor, "*batch d"]
    """What the SAE reads."""
    centre: Float[Tensor, "*batch 1"]
    scale: Float[Tensor, "*batch 1"]

    def undo(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """What the SAE writes, in the units of the raw rows."""
        return z * self.scale + self.centre


def normalize_rows(x: Float[Tensor, "*batch d"], how: str) -> NormalizedRows:
    """Normalise each row by itself.

    Args:
        x: raw rows.
        how: `layer_norm`: minus the mean of the row, over its standard deviation (of d - 1 degrees of freedom) plus
            1e-5; undone without the 1e-5, as the SAEs do. `constant_norm_rescale`: to the norm sqrt(d).

    Raises:
        ValueError: another name, or a row without a norm.
    """
    if how not in ROW_NORMS:
        raise ValueError(f"rows are normalised by {' or '.join(ROW_NORMS)}, got {how!r}")
    if how == "layer_norm":
        centre, scale = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return NormalizedRows((x - centre) / (scale + EPSILON), centre, scale)
    norm = x.norm(dim=-1, keepdim=True)
    if not bool((norm > 0).all()):
        raise ValueError("a row of zeros has no direction, so it cannot be rescaled: leave it out")
    scale = norm / x.shape[-1] ** 0.5
    return NormalizedRows(x / scale, torch.zeros_like(norm), scale)


def check_row_norm(how: str, normalized: bool, path: object) -> None:
    """Refuse a file whose SAE normalises rows, unless the SAE of normalised rows was asked for."""
    if not normalized:
        raise ValueError(
            f"the SAE in {path} normalises each row by itself ({how}), which no SAE of raw rows can do. With "
            f"normalized=True it is read as an SAE of normalised rows: sae(rows.z) with rows = normalize_rows(x, {how!r}), "
            "and rows.undo of what it writes"
        )
