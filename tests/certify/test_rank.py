"""Numerical rank: known ranks, degenerate sizes, scales, and matrices that have no clear one."""

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conserved.certify.rank import CLEAR_GAP, Rank, Span, complement_gap, gap_in, numerical_rank, unit_rows

EPS = torch.finfo(torch.float64).eps
SEEDS = st.integers(0, 2**31)


def normal(generator, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=generator, dtype=dtype)


def orthonormal(generator, rows, size, dtype=torch.float64):
    return torch.linalg.qr(normal(generator, size, rows, dtype=dtype)).Q.mH


def with_values(generator, rows, size, values):
    """A matrix with these singular values."""
    values = torch.tensor(values, dtype=torch.float64)
    left, right = orthonormal(generator, len(values), rows), orthonormal(generator, len(values), size)
    return left.mT @ (values[:, None] * right)


def hilbert(size):
    at = torch.arange(size, dtype=torch.float64)
    return 1 / (at[:, None] + at + 1)


# --- one matrix ---

KNOWN = [(1, 1, 1), (1, 7, 1), (7, 1, 1), (5, 3, 3), (3, 5, 2), (9, 4, 1), (30, 50, 17), (200, 40, 39), (40, 200, 40)]


@pytest.mark.parametrize(("rows", "size", "rank"), KNOWN, ids=[f"{r}x{s}-{k}" for r, s, k in KNOWN])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
def test_products_have_the_rank_of_their_middle(rows, size, rank, dtype, generator):
    matrix = normal(generator, rows, rank, dtype=dtype) @ normal(generator, rank, size, dtype=dtype)
    found = numerical_rank(matrix)
    assert found.rank == rank == torch.linalg.matrix_rank(matrix)
    assert found.clear
    assert found.gap >= CLEAR_GAP


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)], ids=str)
def test_no_entries(shape):
    assert numerical_rank(torch.zeros(shape, dtype=torch.float64)) == Rank(0, inf)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (3, 5)], ids=str)
@pytest.mark.parametrize("unit", [False, True], ids=["as-is", "unit"])
def test_zero_has_rank_zero(shape, unit):
    found = numerical_rank(torch.zeros(shape, dtype=torch.float64), unit=unit)
    assert found.rank == 0
    assert found.clear


@pytest.mark.parametrize("value", [1.0, -3.0, 1e-200, 1e200])
def test_one_number_has_rank_one(value):
    found = numerical_rank(torch.tensor([[value]], dtype=torch.float64))
    assert found.rank == 1
    assert found.clear


def test_dust_has_rank_zero_only_where_lengths_matter(generator):
    dust = EPS * normal(generator, 3, 5)
    assert numerical_rank(dust).rank == 3
    assert numerical_rank(dust, unit=False).rank == 0


@pytest.mark.parametrize("size", [2, 3])
def test_small_hilbert_matrices_are_regular(size):
    found = numerical_rank(hilbert(size))
    assert found.rank == size
    assert found.clear


@pytest.mark.parametrize("size", [8, 10, 12, 15, 20, 40])
def test_hilbert_matrices_have_no_clear_rank(size):
    """Regular, but their singular values decay evenly down to rounding: no number may be claimed."""
    assert not numerical_rank(hilbert(size)).clear


def test_what_a_fixed_tolerance_would_claim():
    """The control: torch names a rank for Hilbert matrices, and it is wrong."""
    assert torch.linalg.matrix_rank(hilbert(20)) < 20


@pytest.mark.parametrize(("factor", "number"), [(1e-1, 17), (1e-2, 9), (1e-3, 7), (1e-5, 4)])
def test_even_decay_to_rounding_is_not_clear(factor, number, generator):
    found = numerical_rank(with_values(generator, number + 2, number, [factor**k for k in range(number)]), unit=False)
    assert found.gap < CLEAR_GAP
    assert not found.clear


def test_small_values_clear_of_rounding_are_not_zeros(generator):
    """A gap above values of 1e-8 decides nothing: near a point where the rank drops, it looks like this."""
    found = numerical_rank(with_values(generator, 8, 6, [1, 0.5, 0.25, 0.25e-8, 0.2e-8, 0.1e-8]), unit=False)
    assert found.rank == 3
    assert not found.clear


def test_rows_that_are_not_finite_leave_the_rank_open(generator):
    rows = with_values(generator, 8, 6, [1, 0.5, 0.25])
    assert numerical_rank(rows).clear
    rows[2, 1] = float("nan")
    found = numerical_rank(rows)
    assert found.rank == 3
    assert not found.clear


@pytest.mark.parametrize("gap", [1e9, 1e10, 1e12])
def test_the_gap_is_the_ratio_at_the_break(gap, generator):
    found = numerical_rank(with_values(generator, 8, 6, [1, 0.5, 0.25, 0.25 / gap, 0.2 / gap, 0.1 / gap]), unit=False)
    assert found.rank == 3
    assert found.gap == pytest.approx(gap, rel=0.05)  # rounding of the matrix is 1e-2 of its smallest values
    assert found.clear


@pytest.mark.parametrize("ratio", [1e2, 1e4])
def test_small_values_far_above_rounding_count(ratio, generator):
    """The larger break is the one to rounding."""
    found = numerical_rank(with_values(generator, 8, 6, [1, 0.5, 0.25, 0.25 / ratio, 0.2 / ratio, 0.1 / ratio]), unit=False)
    assert found.rank == 6
    assert found.gap == pytest.approx(0.1 / ratio / (8 * EPS), rel=1e-6)


def test_a_gap_below_rounding_counts_to_rounding_only(generator):
    found = numerical_rank(with_values(generator, 6, 5, [1, 1, 1e-200]), unit=False)
    assert found.rank == 2
    assert found.gap == pytest.approx(1 / (6 * EPS))


def test_values_that_break_off_nowhere():
    assert gap_in(torch.ones(4, dtype=torch.float64), 4, reference=1.0).rank == 4
    assert gap_in(torch.zeros(4, dtype=torch.float64), 4, reference=1.0).rank == 0
    assert gap_in(torch.full((4,), 1e-17, dtype=torch.float64), 4, reference=1.0).rank == 0  # rounding of something of size 1
    assert gap_in(torch.full((4,), 1e-17, dtype=torch.float64), 4, reference=1e-17).rank == 4


@settings(deadline=None)
@given(SEEDS, st.integers(1, 7), st.integers(1, 7), st.integers(0, 7))
def test_scales_and_order_of_rows_do_not_matter(seed, rows, size, rank):
    generator = torch.Generator().manual_seed(seed)
    rank = min(rank, rows, size)
    matrix = orthonormal(generator, rank, rows).mT @ orthonormal(generator, rank, size)
    length = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    matrix = torch.where(length > 1e-6, matrix, 0)  # a row of rounding would become a direction
    scales = 10.0 ** torch.randint(-100, 100, (rows, 1), generator=generator).double()
    order = torch.randperm(rows, generator=generator)
    first, second = numerical_rank(matrix), numerical_rank((scales * matrix)[order])
    assert first.rank == second.rank == int(torch.linalg.matrix_rank(matrix))
    assert numerical_rank(7e-9 * matrix, unit=True).rank == first.rank


@settings(deadline=None)
@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_rotations_of_the_columns_do_not_matter(seed, rows, size):
    generator = torch.Generator().manual_seed(seed)
    matrix = normal(generator, rows, size)
    turned = numerical_rank(matrix @ orthonormal(generator, size, size))
    assert turned.rank == numerical_rank(matrix).rank == min(rows, size)


def test_unit_rows_have_length_one_and_no_zero_among_them(generator):
    rows = torch.cat((normal(generator, 2, 4), torch.zeros(1, 4, dtype=torch.float64), 1e-150 * normal(generator, 1, 4)))
    lengths = torch.linalg.vector_norm(unit_rows(rows), dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 1])


# --- a span that grows ---


def test_a_span_grows_to_the_rank_of_all_rows(generator):
    space = normal(generator, 5, 9)
    span = Span.empty(9)
    assert (span.rank, span.gap) == (0, inf)
    for number, rank in ((2, 2), (1, 3), (7, 5), (4, 5)):
        span = span.extended(normal(generator, number, 5) @ space)
        assert span.rank == rank
        torch.testing.assert_close(span.basis @ span.basis.mT, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-13)
        assert span.gap >= CLEAR_GAP
    torch.testing.assert_close(space @ span.basis.mT @ span.basis, space, rtol=1e-12, atol=1e-12)


def test_complex_rows_make_the_span_complex(generator):
    real = Span.empty(6).extended(normal(generator, 2, 6))
    mixed = real.extended(normal(generator, 2, 6, dtype=torch.complex128))
    assert (mixed.rank, mixed.basis.dtype) == (4, torch.complex128)
    assert mixed.extended(real.basis).rank == 4


def test_nothing_adds_nothing(generator):
    span = Span.empty(4).extended(normal(generator, 2, 4))
    for rows in (torch.zeros(0, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64), 1e200 * span.basis):
        assert span.extended(rows).rank == 2


def test_the_smallest_gap_is_kept(generator):
    """Rows without a clear rank leave their mark, whatever comes later."""
    doubtful = Span.empty(30).extended(torch.cat((hilbert(15), torch.zeros(15, 15, dtype=torch.float64)), 1))
    assert doubtful.gap < CLEAR_GAP
    assert doubtful.extended(normal(generator, 20, 30)).gap <= doubtful.gap


# --- a space and its complement ---


@pytest.mark.parametrize(("size", "laws"), [(3, 1), (8, 0), (12, 5), (40, 12)])
def test_complements_fill_the_space(size, laws, generator):
    turned = orthonormal(generator, size, size)
    complement, space = turned[:laws], turned[laws:]
    words = normal(generator, size + 8, size - laws) @ space
    assert complement_gap(words, complement) >= CLEAR_GAP
    # one direction short, twice
    assert complement_gap(normal(generator, size + 8, size - laws - 1) @ space[1:], complement) < CLEAR_GAP
    if laws:
        assert complement_gap(words, complement[1:]) < CLEAR_GAP


def test_too_few_rows_fill_nothing(generator):
    assert complement_gap(normal(generator, 3, 5), orthonormal(generator, 1, 5)) == 0
    assert complement_gap(torch.zeros(9, 5, dtype=torch.float64), orthonormal(generator, 1, 5)) == 0


def test_the_gap_of_a_complement_is_that_of_the_singular_values(generator):
    rows = with_values(generator, 12, 12, [1, *[1e-3] * 10, 1e-6])
    values = torch.linalg.svdvals(unit_rows(rows))
    assert complement_gap(rows, rows[:0]) == pytest.approx(float(values[-1] / values[0]) / (12 * EPS), rel=0.02)
