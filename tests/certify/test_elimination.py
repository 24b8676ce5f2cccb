"""Elimination and determinants in every exact scalar: pivots prove minors, and a ball with zero in it proves nothing."""

from fractions import Fraction
from itertools import permutations
from math import prod

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conserved.certify.elimination import Elimination, determinant, is_nonzero, may_be_zero
from conserved.certify.scalars import PrimeField, Rational, RealBalls

BITS = 128
PRIME = 2**61 - 1
SCALARS = {"balls": RealBalls(BITS), "rational": Rational(), "modular": PrimeField(PRIME)}


@pytest.fixture(params=SCALARS, ids=SCALARS)
def scalars(request):
    """Each arithmetic, at its precision."""
    with SCALARS[request.param].precision():
        yield SCALARS[request.param]


def integers(seed, rows, size, rank=None):
    """A matrix of small integers, of lower rank if one is given."""
    random = np.random.default_rng(seed)
    if rank is None:
        return random.integers(-9, 10, (rows, size))
    return random.integers(-4, 5, (rows, rank)) @ random.integers(-4, 5, (rank, size))


def by_permutations(matrix):
    """The determinant as its definition says, in fractions."""
    size, total = len(matrix), Fraction(0)
    for order in permutations(range(size)):
        inversions = sum(order[i] > order[j] for i in range(size) for j in range(i + 1, size))
        total += (-1) ** inversions * prod((Fraction(matrix[i][order[i]]) for i in range(size)), start=Fraction(1))
    return total


def exact_rank(matrix):
    return flint.fmpz_mat([[int(x) for x in row] for row in matrix]).rank()


def rank_of(scalars, matrix, most=99):
    return Elimination().extended(scalars.array(matrix), most)


# --- rank ---

RANKS = [(1, 1, 1), (2, 5, 1), (5, 2, 2), (4, 4, 4), (6, 4, 3), (4, 9, 2), (12, 10, 7)]


@pytest.mark.parametrize(("rows", "size", "rank"), RANKS, ids=[f"{r}x{s}-{k}" for r, s, k in RANKS])
def test_pivots_are_as_many_as_the_rank(scalars, rows, size, rank):
    matrix = integers(rows + 1, rows, size, rank)
    found, used = rank_of(scalars, matrix)
    assert found.rank == len(used) == exact_rank(matrix) == rank
    assert len(set(found.columns)) == len(set(used)) == rank


@pytest.mark.parametrize("shape", [(0, 3), (3, 4)], ids=str)
def test_nothing_has_no_pivots(scalars, shape):
    found, used = rank_of(scalars, np.zeros(shape, dtype=int))
    assert (found.rank, found.columns, used) == (0, (), [])


def test_the_minor_of_the_pivots_is_not_zero(scalars):
    for seed in range(6):
        matrix = integers(seed, 7, 6, 4)
        found, used = rank_of(scalars, matrix)
        minor = matrix[np.ix_(used, found.columns)]
        assert by_permutations(minor.tolist()) != 0
        assert is_nonzero(determinant(scalars.array(minor)))


def test_rows_that_come_later_count_like_rows_at_once(scalars):
    matrix = integers(3, 9, 7, 5)
    found, used = Elimination(), []
    for start in range(0, 9, 2):
        found, new = found.extended(scalars.array(matrix[start : start + 2]), 99)
        used += [start + i for i in new]
    assert found.rank == 5
    assert by_permutations(matrix[np.ix_(used, found.columns)].tolist()) != 0


def test_it_stops_at_the_rank_that_is_asked_for(scalars):
    found, used = rank_of(scalars, np.eye(5, dtype=int), most=2)
    assert (found.rank, len(used)) == (2, 2)
    again, more = found.extended(scalars.array(np.eye(5, dtype=int)), 2)
    assert (again.rank, more) == (2, [])


def test_the_rows_given_are_left_alone(scalars):
    given_rows = scalars.array(integers(1, 3, 4))
    before = [str(x) for x in given_rows.flat]
    Elimination().extended(given_rows, 99)
    assert [str(x) for x in given_rows.flat] == before


# --- determinants ---


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(st.fractions(-50, 50, max_denominator=30), min_size=n, max_size=n), min_size=n, max_size=n)))
def test_determinants_are_those_of_the_definition(matrix):
    want = by_permutations(matrix)
    exact = flint.fmpq(want.numerator, want.denominator)
    rational, residues, balls = Rational(), PrimeField(PRIME), RealBalls(4 * BITS)
    assert determinant(rational.array(matrix)) == exact
    assert determinant(residues.array(matrix)) == residues.number(want)
    with balls.precision():
        ball = determinant(balls.array(matrix))
        assert (ball * exact.q - exact.p).contains(0)  # not contains(exact): a rational is rounded to a ball first
        assert want == 0 or is_nonzero(ball)  # the smallest is 30⁻²⁵
        assert want != 0 or may_be_zero(ball)


def test_two_equal_rows_have_no_determinant(scalars):
    matrix = integers(2, 4, 4)
    matrix[3] = matrix[1]
    assert may_be_zero(determinant(scalars.array(matrix)))
    assert rank_of(scalars, matrix)[0].rank == 3


# --- balls ---


def ball(middle, radius):
    return flint.arb(middle, radius)


def of_balls(*rows):
    out = np.empty((len(rows), len(rows[0])), dtype=object)
    for i, row in enumerate(rows):
        out[i] = row
    return out


@pytest.mark.parametrize(("middle", "radius", "nonzero"), [(1, 0.5, True), (1, 1, False), (1, 2, False), (0, 0, False), (-3, 2.5, True), (1e-300, 0, True)])
def test_a_ball_with_zero_is_never_called_nonzero(middle, radius, nonzero):
    one = ball(middle, radius)
    assert is_nonzero(one) is nonzero
    assert may_be_zero(one) is not nonzero
    assert rank_of(SCALARS["balls"], of_balls([one]))[0].rank == int(nonzero)


def test_no_number_is_no_proof():
    for one in (flint.arb("nan"), flint.arb("inf") - flint.arb("inf"), flint.arb(1) / flint.arb(0)):
        assert not is_nonzero(one)
        assert rank_of(SCALARS["balls"], of_balls([one]))[0].rank == 0


def test_balls_too_wide_for_a_pivot_are_passed_over():
    """Of the second row, 1 ± 2 may be zero; 3 ± 1 is not."""
    with SCALARS["balls"].precision():
        found, used = rank_of(SCALARS["balls"], of_balls([ball(1, 2), ball(0, 1), ball(-1, 1)], [ball(1, 2), ball(3, 1), ball(0, 0)]))
    assert (found.columns, used) == ((1,), [1])


def test_nearly_singular_balls_prove_only_what_is_certain():
    """[[1, 1], [1, 1 + δ]] has rank 2; balls as wide as δ cannot tell."""
    with SCALARS["balls"].precision():
        for radius, rank in ((2.0**-60, 2), (2.0**-40, 1)):
            matrix = of_balls([ball(1, 0), ball(1, 0)], [ball(1, 0), ball(1 + 2.0**-40, radius)])
            assert rank_of(SCALARS["balls"], matrix)[0].rank == rank
            assert is_nonzero(determinant(matrix)) is (rank == 2)


def test_the_least_doubtful_pivot_comes_first():
    """A huge ball around a huge number is a better pivot than a small number without error; both ranks are proved."""
    with SCALARS["balls"].precision():
        found, _ = rank_of(SCALARS["balls"], of_balls([ball(2.0**-80, 0), ball(1000, 1)], [ball(1, 0), ball(1, 0)]))
    assert found.columns[0] == 1
    assert found.rank == 2


def hilbert(size):
    return [[Fraction(1, i + j + 1) for j in range(size)] for i in range(size)]


def test_hilbert_matrices_are_regular_in_balls_with_enough_bits():
    """Where doubles see rank 13 of 20, 53 bits prove less and 256 bits all."""
    assert np.linalg.matrix_rank(np.array(hilbert(20), dtype=float)) < 20
    ranks = []
    for scalars in (RealBalls(53), RealBalls(256)):
        with scalars.precision():
            ranks.append(rank_of(scalars, np.array(hilbert(20), dtype=object))[0].rank)
    assert ranks[0] < 20 == ranks[1]
    assert rank_of(Rational(), np.array(hilbert(20), dtype=object))[0].rank == 20


def test_a_small_prime_may_lose_rank_and_never_gains_it():
    matrix = np.array([[1, 2], [3, 13]])  # determinant 7
    assert rank_of(PrimeField(7), matrix)[0].rank == 1
    assert may_be_zero(determinant(PrimeField(7).array(matrix)))
    assert rank_of(PrimeField(11), matrix)[0].rank == 2
    for seed in range(20):
        drawn = integers(seed, 5, 6, 3)
        assert rank_of(PrimeField(3), drawn)[0].rank <= exact_rank(drawn)
