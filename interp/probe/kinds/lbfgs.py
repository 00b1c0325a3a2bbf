"""The memory of L-BFGS for many small problems at once (Nocedal & Wright, Numerical Optimization, 2nd ed., algorithm 7.4)."""

import torch
from jaxtyping import Bool, Float64
from torch import Tensor


class Memory:
    """What the last moves of each problem say about its curvature. A problem never sees another's."""

    def __init__(self, size: int = 10) -> None:
        self.size = size
        self.moves: list[tuple[Tensor, Tensor, Tensor]] = []
        """Moves, changes of the gradient, and 1 / their product, the oldest first."""
        self.factor: Tensor | None = None
        """What the inverse Hessian is away from the moves: a multiple [problem 1] of the identity."""

    def add(self, move: Float64[Tensor, "problem k"], change: Float64[Tensor, "problem k"]) -> None:
        """Remember a move and the change of the gradient over it; one without positive curvature counts for nothing."""
        product = (move * change).sum(1, True)
        useful = product > 1e-12 * move.norm(dim=1, keepdim=True) * change.norm(dim=1, keepdim=True)
        inverse = torch.where(useful, 1 / product, 0.0)
        found = product / change.pow(2).sum(1, True)
        before = torch.ones_like(found) if self.factor is None else self.factor
        self.factor = torch.where(useful, found, before)
        self.moves = [*self.moves[1 - self.size :], (move, change, inverse)]

    def keep(self, left: Bool[Tensor, "problem"]) -> None:
        """Forget the problems that are solved."""
        self.moves = [(s[left], y[left], r[left]) for s, y, r in self.moves]
        self.factor = None if self.factor is None else self.factor[left]

    def step(self, gradient: Float64[Tensor, "problem k"]) -> Float64[Tensor, "problem k"]:
        """Minus the inverse Hessian times the gradient."""
        q, shares = gradient, []
        for move, change, inverse in reversed(self.moves):
            share = inverse * (move * q).sum(1, True)
            q = q - share * change
            shares.append(share)
        if self.factor is not None:
            q = q * self.factor
        for (move, change, inverse), share in zip(self.moves, reversed(shares)):
            q = q + (share - inverse * (change * q).sum(1, True)) * move
        return -q
