"""FactoredMatrix: A @ B kept as its two factors, since a head's circuits are wide matrices of small rank.

W_V W_O and W_Q W_K^T are [d_model, d_model] of rank d_head (Elhage et al. 2021, A Mathematical Framework for Transformer
Circuits). Their singular values, eigenvalues and norms follow from a [d_head, d_head] matrix:

1. QR of both factors: A = Q_A R_A and B^T = Q_B R_B, so A B = Q_A (R_A R_B^T) Q_B^T.
2. The norm of A B is that of the core R_A R_B^T; so are its singular values, and its singular vectors are the core's
   turned by Q_A and Q_B.
3. A B and B A have the same eigenvalues but for zeros.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """The matrix A @ B [*leading ldim rdim]. Names and index rules are TransformerLens'.

    Raises:
        ValueError: factors that do not fit each other.
    """

    A: Float[Tensor, "..."]
    """Left factor [*leading ldim mdim]; leading axes broadcast against those of B."""
    B: Float[Tensor, "..."]
    """Right factor [*leading mdim rdim]."""

    def __post_init__(self) -> None:
        left, right = self.A, self.B
        if left.ndim < 2 or right.ndim < 2 or left.shape[-1] != right.shape[-2]:
            raise ValueError(
                f"A {tuple(left.shape)} and B {tuple(right.shape)} do not multiply: the inner sizes differ"
            )
        try:
            leading = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except RuntimeError:
            raise ValueError(f"the leading axes of A {tuple(left.shape)} and B {tuple(right.shape)} differ") from None
        object.__setattr__(self, "A", left.expand(*leading, *left.shape[-2:]))
        object.__setattr__(self, "B", right.expand(*leading, *right.shape[-2:]))

    # ---------------------------------------------------------------------------------------------------------- shape

    @property
    def ldim(self) -> int:
        """Rows of the product."""
        return self.A.shape[-2]

    @property
    def mdim(self) -> int:
        """Inner size: an upper bound of the rank."""
        return self.A.shape[-1]

    @property
    def rdim(self) -> int:
        """Columns of the product."""
        return self.B.shape[-1]

    @property
    def shape(self) -> torch.Size:
        """Of the product."""
        return torch.Size((*self.A.shape[:-1], self.rdim))

    @property
    def ndim(self) -> int:
        """Axes of the product."""
        return len(self.shape)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """(A, B)."""
        return self.A, self.B

    @property
    def T(self) -> "FactoredMatrix":
        """The transposed product, factored too."""
        return FactoredMatrix(self.B.transpose(-2, -1), self.A.transpose(-2, -1))

    def unsqueeze(self, axis: int) -> "FactoredMatrix":
        """A new leading axis of size 1; `axis` counts from the front."""
        if not 0 <= axis <= self.ndim - 2:
            raise ValueError(f"axis must be a leading one, 0..{self.ndim - 2}, got {axis}")
        return FactoredMatrix(self.A.unsqueeze(axis), self.B.unsqueeze(axis))

    def __getitem__(self, index: Any) -> "FactoredMatrix":
        """Index leading axes, then rows, then columns. A number for a row or column keeps the axis, with size 1."""
        entries = index if isinstance(index, tuple) else (index,)
        leading = self.ndim - 2
        if len(entries) > self.ndim or any(entry is None or entry is Ellipsis for entry in entries):
            raise ValueError(f"index {index!r} does not fit a matrix of shape {tuple(self.shape)}")
        head, rest = entries[:leading], [_kept(entry) for entry in entries[leading:]]
        left, right = self.A[head], self.B[head]
        if rest:
            left = left[..., rest[0], :]
        if len(rest) == 2:
            right = right[..., rest[1]]
        return FactoredMatrix(left, right)

    def __repr__(self) -> str:
        return f"FactoredMatrix({tuple(self.shape)}, inner size {self.mdim})"

    # -------------------------------------------------------------------------------------------------------- product

    @property
    def AB(self) -> Float[Tensor, "..."]:
        """The product itself [*leading ldim rdim]: large."""
        return self.A @ self.B

    @property
    def BA(self) -> Float[Tensor, "..."]:
        """The product the other way round [*leading mdim mdim], of a square matrix only."""
        self._need_square("BA")
        return self.B @ self.A

    def __matmul__(self, other: "FactoredMatrix | Tensor") -> "FactoredMatrix | Tensor":
        """A vector gives a vector, a matrix a FactoredMatrix with the smaller inner size."""
        if isinstance(other, FactoredMatrix):
            _need_equal(self.rdim, other.ldim, self.shape, other.shape)
            inner = self.B @ other.A
            if self.mdim <= other.mdim:
                return FactoredMatrix(self.A, inner @ other.B)
            return FactoredMatrix(self.A @ inner, other.B)
        _need_equal(self.rdim, other.shape[-2 if other.ndim > 1 else -1], self.shape, other.shape)
        if other.ndim == 1:
            return (self.A @ (self.B @ other[:, None]))[..., 0]
        if self.rdim > self.mdim:
            return FactoredMatrix(self.A, self.B @ other)
        return FactoredMatrix(self.AB, other)

    def __rmatmul__(self, other: Tensor) -> "FactoredMatrix | Tensor":
        _need_equal(other.shape[-1], self.ldim, other.shape, self.shape)
        if other.ndim == 1:
            return ((other[None] @ self.A) @ self.B)[..., 0, :]
        if self.ldim > self.mdim:
            return FactoredMatrix(other @ self.A, self.B)
        return FactoredMatrix(other, self.AB)

    def __mul__(self, scalar: float | Tensor) -> "FactoredMatrix":
        """Times a number."""
        if isinstance(scalar, Tensor) and scalar.numel() != 1:
            raise ValueError(f"* takes a number, got a tensor of shape {tuple(scalar.shape)}: @ multiplies matrices")
        return FactoredMatrix(self.A * scalar, self.B)

    __rmul__ = __mul__

    # ------------------------------------------------------------------------------------------------- decompositions

    @functools.cached_property
    def _qr(self) -> tuple[Tensor, Tensor, Tensor]:
        """(Q_A, R_A R_B^T, Q_B), in at least fp32."""
        q_left, r_left = torch.linalg.qr(_wide(self.A))
        q_right, r_right = torch.linalg.qr(_wide(self.B).transpose(-2, -1))
        return q_left, r_left @ r_right.transpose(-2, -1), q_right

    @functools.cached_property
    def _svd(self) -> tuple[Tensor, Tensor, Tensor]:
        q_left, core, q_right = self._qr
        u, s, vh = torch.linalg.svd(core, full_matrices=False)
        return q_left @ u, s, q_right @ vh.transpose(-2, -1)

    def svd(self) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
        """(U [*leading ldim rank], S [*leading rank], V [*leading rdim rank]) with A B = U diag(S) V^T.

        The third is V and not its transpose, as in TransformerLens.
        """
        return self._svd

    @property
    def U(self) -> Float[Tensor, "..."]:
        """Left singular vectors, one a column [*leading ldim rank]."""
        return self._svd[0]

    @property
    def S(self) -> Float[Tensor, "..."]:
        """Singular values, largest first [*leading rank]."""
        return self._svd[1]

    @property
    def V(self) -> Float[Tensor, "..."]:
        """Right singular vectors, one a column [*leading rdim rank]."""
        return self._svd[2]

    @property
    def Vh(self) -> Float[Tensor, "..."]:
        """Right singular vectors, one a row [*leading rank rdim]. TransformerLens hands out V under this name."""
        return self._svd[2].transpose(-2, -1)

    @property
    def eigenvalues(self) -> Complex[Tensor, "..."]:
        """The mdim eigenvalues [*leading mdim] of a square matrix; its other eigenvalues are 0."""
        return torch.linalg.eigvals(_wide(self.BA))

    def norm(self) -> Float[Tensor, "..."]:
        """Frobenius norm [*leading]."""
        return torch.linalg.matrix_norm(self._qr[1])

    def collapse_l(self) -> Float[Tensor, "..."]:
        """S V^T [*leading rank rdim]: the matrix without the rotation on its left, of the same norm."""
        return self.S[..., :, None] * self.Vh

    def collapse_r(self) -> Float[Tensor, "..."]:
        """U S [*leading ldim rank]: the matrix without the rotation on its right."""
        return self.U * self.S[..., None, :]

    def make_even(self) -> "FactoredMatrix":
        """The same matrix with orthogonal factors that share the singular values: U sqrt(S) and sqrt(S) V^T."""
        root = self.S.sqrt()
        return FactoredMatrix(self.U * root[..., None, :], root[..., :, None] * self.Vh)

    def get_corner(self, k: int = 3) -> Float[Tensor, "..."]:
        """The first k entries of every axis of the product."""
        corner = tuple(slice(k) for _ in range(self.ndim))
        return self[corner].AB

    def _need_square(self, what: str) -> None:
        if self.ldim != self.rdim:
            raise ValueError(f"{what} and eigenvalues need a square matrix, got {tuple(self.shape)}")


def composition_scores(left: FactoredMatrix, right: FactoredMatrix) -> Float[Tensor, "..."]:
    """|left right| / (|left| |right|) in Frobenius norms, of every matrix of `left` with every one of `right`.

    Elhage et al. 2021, section "Composition of heads". Shape: the leading axes of `left`, then those of `right`.

    Raises:
        ValueError: `left` has other columns than `right` has rows.
    """
    _need_equal(left.rdim, right.ldim, left.shape, right.shape)
    # Q_A on the left and Q_B on the right are rotations and change no norm: R_A B and A R_B^T stand for the matrices.
    lefts = torch.linalg.qr(_wide(left.A))[1] @ _wide(left.B)
    rights = _wide(right.A) @ torch.linalg.qr(_wide(right.B).transpose(-2, -1))[1].transpose(-2, -1)
    lefts, rights = lefts.reshape(-1, *lefts.shape[-2:]), rights.reshape(-1, *rights.shape[-2:])
    # One matrix of the left side at a time: all pairs at once would hold n_left x n_right x rank x rank numbers.
    together = torch.stack([torch.linalg.matrix_norm(one @ rights) for one in lefts])
    scores = together / torch.linalg.matrix_norm(lefts)[:, None] / torch.linalg.matrix_norm(rights)[None]
    return scores.reshape(*left.shape[:-2], *right.shape[:-2])


def _wide(x: Tensor) -> Tensor:
    """At least fp32: there is no decomposition in 16 bits."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _kept(entry: Any) -> Any:
    """A number as a slice of length 1."""
    if not isinstance(entry, int):
        return entry
    return slice(entry, entry + 1 if entry != -1 else None)


def _need_equal(left: int, right: int, left_shape: torch.Size, right_shape: torch.Size) -> None:
    if left != right:
        raise ValueError(f"shapes {tuple(left_shape)} and {tuple(right_shape)} do not multiply: the inner sizes differ")
