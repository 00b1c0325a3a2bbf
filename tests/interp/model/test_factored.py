"""FactoredMatrix against the dense product."""

import pytest
import torch
from torch import Tensor

from interp.model.factored import FactoredMatrix, composition_scores

close = torch.testing.assert_close


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def stack() -> FactoredMatrix:
    """[2, 3] matrices of 7 x 9 with inner size 4, the left factors shared along the first axis."""
    return FactoredMatrix(random(3, 7, 4), random(2, 3, 4, 9, seed=1))


def test_shape_product_and_transpose(stack: FactoredMatrix) -> None:
    dense = stack.A @ stack.B
    assert stack.shape == dense.shape == (2, 3, 7, 9)
    assert (stack.ndim, stack.ldim, stack.mdim, stack.rdim) == (4, 7, 4, 9)
    close(stack.AB, dense)
    close(stack.T.AB, dense.mT)
    close((2 * stack).AB, 2 * dense)
    close((stack * torch.tensor(0.5)).AB, dense / 2)
    close(stack.get_corner(2), dense[:2, :2, :2, :2])
    assert stack.unsqueeze(1).shape == (2, 1, 3, 7, 9)


def test_svd_norm_and_even_factors(stack: FactoredMatrix) -> None:
    dense, (u, s, v) = stack.AB, stack.svd()
    close(u * s[..., None, :] @ v.mT, dense)
    close(s, torch.linalg.svdvals(dense)[..., :4])
    close(u.mT @ u, torch.eye(4, dtype=u.dtype).expand(2, 3, 4, 4))
    close(stack.Vh, stack.V.mT)
    close(stack.norm(), torch.linalg.matrix_norm(dense))
    even = stack.make_even()
    close(even.AB, dense)
    close(torch.linalg.matrix_norm(even.A), torch.linalg.matrix_norm(even.B))
    close(stack.collapse_l().mT @ stack.collapse_l(), dense.mT @ dense)
    close(stack.collapse_r() @ stack.collapse_r().mT, dense @ dense.mT)


def test_eigenvalues_are_those_of_the_dense_matrix() -> None:
    square = FactoredMatrix(random(8, 3), random(3, 8, seed=1))
    ours, dense = square.eigenvalues, torch.linalg.eigvals(square.AB)
    largest = dense[dense.abs().argsort(descending=True)][:3]
    close(torch.sort(ours.real).values, torch.sort(largest.real).values)
    close(torch.sort(ours.abs()).values, torch.sort(largest.abs()).values)
    assert FactoredMatrix(random(8, 3).bfloat16(), random(3, 8).bfloat16()).eigenvalues.dtype == torch.complex64


def test_products_with_matrices_vectors_and_each_other(stack: FactoredMatrix) -> None:
    dense, right, left = stack.AB, random(9, 5, seed=2), random(6, 7, seed=3)
    close((stack @ right).AB, dense @ right)
    close((left @ stack).AB, left @ dense)
    close(stack @ right[:, 0], dense @ right[:, 0])
    close(left[0] @ stack, left[0] @ dense)
    other = FactoredMatrix(random(9, 2, seed=4), random(2, 5, seed=5))
    product = stack @ other
    assert isinstance(product, FactoredMatrix)
    assert product.mdim == 2
    close(product.AB, dense @ other.AB)
    wide = FactoredMatrix(random(3, 6), random(6, 3, seed=1))  # the product is smaller than its factors
    close((wide @ random(3, 4)).AB, wide.AB @ random(3, 4))
    close((random(4, 3) @ wide).AB, random(4, 3) @ wide.AB)


@pytest.mark.parametrize(
    "index", [1, (1, 2), (slice(None), 0), (0, 1, 3), (0, 1, -1, slice(2, 5)), (0, 1, slice(None), 4), ([1, 0],)]
)
def test_indexing(stack: FactoredMatrix, index: object) -> None:
    entries = list(index) if isinstance(index, tuple) else [index]
    kept = [e if axis < 2 or not isinstance(e, int) else slice(e, (e + 1) or None) for axis, e in enumerate(entries)]
    close(stack[index].AB, stack.AB[tuple(kept)])


def test_composition_scores_are_ratios_of_norms(stack: FactoredMatrix) -> None:
    right = FactoredMatrix(random(5, 9, 2, seed=6), random(5, 2, 4, seed=7))
    scores, norm = composition_scores(stack, right), torch.linalg.matrix_norm
    assert scores.shape == (2, 3, 5)
    expected = norm(stack.AB[1, 2] @ right.AB[4]) / norm(stack.AB[1, 2]) / norm(right.AB[4])
    close(scores[1, 2, 4], expected)
    one = FactoredMatrix(stack.A[0, 0], stack.B[0, 0])
    close(composition_scores(one, right), scores[0, 0])


def test_what_does_not_fit_is_refused(stack: FactoredMatrix) -> None:
    with pytest.raises(ValueError, match="inner sizes differ"):
        FactoredMatrix(random(7, 4), random(5, 9))
    with pytest.raises(ValueError, match="leading axes"):
        FactoredMatrix(random(2, 7, 4), random(3, 4, 9))
    with pytest.raises(ValueError, match=r"\(5, 5\) do not multiply"):
        stack @ random(5, 5)
    with pytest.raises(ValueError, match="do not multiply"):
        random(5, 5) @ stack
    with pytest.raises(ValueError, match="square"):
        _ = stack.eigenvalues
    with pytest.raises(ValueError, match="does not fit"):
        stack[0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="@ multiplies"):
        stack * random(9)
