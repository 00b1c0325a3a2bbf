"""Five ways to change an activation along a unit direction d; a is the amount, a length in the activations.

- `add`:       h + a d
- `rotate`:    h + a d, scaled back to the norm of h (repeng's `normalize`)
- `piecewise`: h + sign(h.d) a d: further along d for what lies on its side, against it for the others (Zou et al. 2023,
               Representation engineering, arXiv 2310.01405)
- `clamp`:     h + (a - h.d) d: the coordinate along d becomes a
- `ablate`:    h - s (h.d) d: with the share s = 1 nothing is left along d (Arditi et al. 2024, Refusal in language models is
               mediated by a single direction, arXiv 2406.11717)

All but `add` are computed in float64: a coordinate along d is a sum over dimensions some of which hold thousands, and the
rest of an ablation must be small beside the others.
"""

import torch
from jaxtyping import Float
from torch import Tensor

KINDS = ("add", "rotate", "piecewise", "clamp", "ablate")


def edited(
    kind: str,
    rows: Float[Tensor, "*row d"],
    direction: Float[Tensor, "*part d"],
    amount: Float[Tensor, "*part 1"],
) -> Float[Tensor, "*row d"]:
    """Rows after the edit.

    Args:
        kind: one of `KINDS`.
        rows: activations.
        direction: a unit direction in float64, or one for each head, which is the last axis but one of `rows`.
        amount: a of each direction, in float64; for `ablate` the share s.

    Returns:
        In the dtype of `rows`.
    """
    if kind == "add":
        return rows + (amount * direction).to(rows.dtype)
    h = rows.double()
    if kind == "rotate":
        moved = h + amount * direction
        norm = moved.norm(dim=-1, keepdim=True)
        # Where the push cancels the row there is no direction left to scale: it stays as it was.
        turned = torch.where(norm > 0, moved * (h.norm(dim=-1, keepdim=True) / norm), h)
        return turned.to(rows.dtype)
    along = (h * direction).sum(-1, keepdim=True)
    change = {"piecewise": along.sign() * amount, "clamp": amount - along, "ablate": -amount * along}[kind]
    return (h + change * direction).to(rows.dtype)
