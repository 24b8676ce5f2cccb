"""Exponents: exact on power laws, None wherever a slope would not be that of the quantity."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conserved.experiments.scaling import exponent

CASES = [
    ("second-order", [1, 2, 4], [3.0, 12.0, 48.0], 2),
    ("first-order", [0.001, 0.01, 0.1], [5e-9, 5e-8, 5e-7], 1),
    ("constant", [1, 2, 4], [7.0, 7.0, 7.0], 0),
    ("falling", [1, 10], [1.0, 1e-3], -3),
    ("unsorted", [4, 1, 2], [48.0, 3.0, 12.0], 2),
    ("repeated-x", [1, 1, 10], [1.0, 1.0, 100.0], 2),
    ("tiny", [1e-8, 1e-7], [1e-300, 1e-298], 2),
    ("least-squares", [1, math.e, math.e**2], [1.0, math.e, 1.0], 0),
]


@pytest.mark.parametrize(("x", "y", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_exponent(x: list[float], y: list[float], expected: float) -> None:
    assert exponent(x, y) == pytest.approx(expected, abs=1e-12)


DEGENERATE = [
    ("empty", [], []),
    ("one-point", [1.0], [2.0]),
    ("one-x", [2.0, 2.0], [1.0, 3.0]),
    ("a-zero", [1, 2, 4], [3.0, 0.0, 48.0]),
    ("all-zero", [1, 2], [0.0, 0.0]),
    ("negative", [1, 2, 4], [3.0, -12.0, 48.0]),
    ("missing", [1, 2, 4], [3.0, None, 48.0]),
    ("nan", [1, 2, 4], [3.0, math.nan, 48.0]),
    ("infinite", [1, 2, 4], [3.0, math.inf, 48.0]),
]


@pytest.mark.parametrize(("x", "y"), [case[1:] for case in DEGENERATE], ids=[case[0] for case in DEGENERATE])
def test_no_exponent(x: list[float], y: list[float | None]) -> None:
    assert exponent(x, y) is None


@pytest.mark.parametrize("y", [[1.0], [None, 1.0, 2.0]], ids=["fewer", "more-with-a-gap"])
def test_lengths_must_agree(y: list[float | None]) -> None:
    with pytest.raises(ValueError, match="zip"):
        exponent([1.0, 2.0], y)


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=8, unique=True).filter(lambda x: max(x) > 1.1 * min(x)),
    st.floats(-4, 4),
    st.floats(1e-20, 1e20),
)
def test_power_laws_have_their_exponent(x: list[float], power: float, factor: float) -> None:
    found = exponent(x, [factor * value**power for value in x])
    assert found == pytest.approx(power, abs=1e-9)


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=6, unique_by=lambda pair: round(math.log(pair[0]), 3)))
def test_units_do_not_matter_and_powers_multiply(points: list[tuple[float, float]]) -> None:
    x, y = [a for a, _ in points], [b for _, b in points]
    slope = exponent(x, y)
    assert slope is not None
    assert exponent([1000 * a for a in x], [b / 7 for b in y]) == pytest.approx(slope, rel=1e-6, abs=1e-6)
    assert exponent(x, [b**3 for b in y]) == pytest.approx(3 * slope, rel=1e-6, abs=1e-6)
