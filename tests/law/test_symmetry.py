"""Symmetries: degree, index, and the closed-form count, against ranks of explicit matrices."""

import pytest
import torch

from conserved.symmetry import Symmetry

F64 = torch.float64


@pytest.mark.parametrize(
    ("name", "degree", "is_matrix", "has_index"),
    [
        ("general_linear", 2, True, True),
        ("rescale", 2, False, True),
        ("rotary", 2, False, True),
        ("scale", 2, False, False),
        ("translation", 1, False, False),
    ],
)
def test_what_a_symmetry_conserves(name: str, degree: int, is_matrix: bool, has_index: bool) -> None:
    """The table of the class."""
    symmetry = Symmetry(name)
    assert (symmetry.degree, symmetry.is_matrix, symmetry.has_index, symmetry.value) == (degree, is_matrix, has_index, name)


def test_the_table_is_complete() -> None:
    """Five members; an unknown name is refused, and a member's repr reads back."""
    assert len(Symmetry) == 5
    with pytest.raises(ValueError, match="rotation"):
        Symmetry("rotation")
    for symmetry in Symmetry:
        assert eval(repr(symmetry), {"Symmetry": Symmetry}) is symmetry


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_matrix_count_is_a_rank(n: int, k: int) -> None:
    """Symmetric S ↦ S·W for W of rank min(n, k): the rank of this map is the closed form."""
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(n * 10 + k), dtype=F64)
    basis = [
        torch.zeros(n, n, dtype=F64).index_put_((torch.tensor([i, j]), torch.tensor([j, i])), torch.tensor(1.0, dtype=F64))
        for i in range(n)
        for j in range(i, n)
    ]
    rank = int(torch.linalg.matrix_rank(torch.stack([(s @ w).flatten() for s in basis])))
    assert Symmetry.GENERAL_LINEAR.independent(n, min(n, k)) == rank
    if k >= n:
        assert rank == n * (n + 1) // 2


def test_the_other_counts() -> None:
    """The size of the index, or one number."""
    assert [s.independent(7, 7) for s in (Symmetry.RESCALE, Symmetry.ROTARY, Symmetry.SCALE, Symmetry.TRANSLATION)] == [7, 7, 1, 1]
