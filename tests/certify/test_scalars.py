"""Scalars: conversions are exact, functions agree with independent ones, what has no meaning raises."""

import cmath
import math
from fractions import Fraction

import flint
import mpmath
import numpy as np
import pytest
import torch

from conserved.certify.scalars import IRRATIONAL, MINUS_INFINITY, Complex, ComplexBalls, Polynomials, PrimeField, Rational, RealBalls, UnsupportedOperation
from conserved.errors import ConservedError

EVERY = [Complex(), RealBalls(96), ComplexBalls(96), Rational(), PrimeField(10007), Polynomials(("x",))]
EXACT = [Rational(), PrimeField(10007), Polynomials(("x",))]
FUNCTIONS = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda z: 1 / mpmath.sqrt(z),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tanh": mpmath.tanh,
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
}


def name(scalars):
    return type(scalars).__name__


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 0.1, -2.5, 1e-300, 2.0**-1074, 1e300, 3, True, np.int64(-7), np.float64(0.3), Fraction(1, 3)])
def test_conversion_is_exact(value):
    exact = Fraction(value if not isinstance(value, (np.int64, np.float64)) else value.item())
    got = Rational().number(value)
    assert (int(got.p), int(got.q)) == (exact.numerator, exact.denominator)
    ball = RealBalls(64).number(value)
    assert ball.contains(flint.fmpq(exact.numerator, exact.denominator))
    assert ball.is_exact() == (exact.denominator & (exact.denominator - 1) == 0)
    assert Polynomials(("x",)).number(value) == got


@pytest.mark.parametrize("scalars", EVERY, ids=name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)], ids=str)
def test_arrays_keep_their_shape(scalars, shape):
    values = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape) / 4
    array = scalars.array(values)
    assert isinstance(array, np.ndarray)
    assert array.shape == shape
    assert array.dtype == scalars.dtype
    again = scalars.array(array)
    assert again.shape == shape
    assert all(a == b for a, b in zip(array.flat, again.flat, strict=True))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("point", [0.3, 2.0, 7.5, 0.25 + 1.5j, -3 + 0.5j, -20 - 2j], ids=str)
def test_functions_agree_with_mpmath(function, point):
    with mpmath.workdps(60):
        want = FUNCTIONS[function](mpmath.mpmathify(point))
    got = complex(getattr(Complex(), function)(Complex().array([point]))[0])
    assert cmath.isclose(got, complex(want), rel_tol=1e-13)
    kinds = [ComplexBalls(160)] + ([RealBalls(160)] if isinstance(point, float) else [])
    for scalars in kinds:
        x = scalars.array([point])
        with scalars.precision():
            ball = getattr(scalars, function)(x)[0]
            near = flint.acb(*(flint.arb(mpmath.nstr(part, 55, strip_zeros=False)) for part in (want.real, want.imag)))
            assert float(abs(ball - near).mid()) < 1e-40 * max(1, abs(complex(want)))
            assert float(flint.acb(ball).rad()) < 1e-40 * max(1, abs(complex(want)))


def test_irrational_constants_are_those_doubles():
    formulas = {
        0.7071067811865476: lambda: mpmath.sqrt(mpmath.mpf(1) / 2),
        0.3989422804014327: lambda: 1 / mpmath.sqrt(2 * mpmath.pi),
        0.7978845608028654: lambda: mpmath.sqrt(2 / mpmath.pi),
        1.1283791670955126: lambda: 2 / mpmath.sqrt(mpmath.pi),
        0.044715: lambda: mpmath.mpf(44715) / 10**6,
        0.134145: lambda: mpmath.mpf(134145) / 10**6,
        0.26829: lambda: mpmath.mpf(268290) / 10**6,
    }
    assert set(formulas) == set(IRRATIONAL)
    for double, formula in formulas.items():
        for sign in (1, -1):
            with RealBalls(200).precision(), mpmath.workdps(70):
                ball = RealBalls(200).literal(sign * double)
                assert math.isclose(float(ball.mid()), sign * double, rel_tol=3e-16)
                assert abs(ball - flint.arb(mpmath.nstr(sign * formula(), 65))) < flint.arb("1e-55")
        assert RealBalls(200).number(double).is_exact()
    assert RealBalls(64).literal(0.7071067811865477).is_exact()  # a neighbour is a plain dyadic number


def test_residues_are_those_of_the_rationals():
    for value in (0.5, Fraction(-3, 8), 12345678):
        exact = Fraction(value)
        assert int(PrimeField(101).number(value)) == exact.numerator * pow(exact.denominator, -1, 101) % 101
    with pytest.raises(UnsupportedOperation, match="no residue modulo 3"):
        PrimeField(3).number(Fraction(1, 3))


@pytest.mark.parametrize("scalars", EXACT, ids=name)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_do_not_exist_in_exact_numbers(scalars, function):
    with pytest.raises(UnsupportedOperation, match=f"{function} does not exist in {scalars.title}"):
        getattr(scalars, function)(scalars.array([1]))


@pytest.mark.parametrize("scalars", EVERY[1:], ids=name)
@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None], ids=str)
def test_what_is_no_number_raises(scalars, value):
    with pytest.raises(UnsupportedOperation):
        scalars.array([value])


def test_real_numbers_reject_complex_ones():
    for scalars in (Rational(), RealBalls(64), PrimeField(7)):
        with pytest.raises(UnsupportedOperation):
            scalars.number(1j)
        assert scalars.number(2 + 0j) == 2


@pytest.mark.parametrize("scalars", [Complex(), RealBalls(64), Rational(), ComplexBalls(64)], ids=name)
def test_order_of_real_numbers(scalars):
    x, y = scalars.array([1, 2, 2]), scalars.array([2, 2, 1])
    assert scalars.greater(x, y).tolist() == [False, False, True]
    assert scalars.equal(x, y).tolist() == [False, True, False]


def test_no_order_without_a_decision():
    with pytest.raises(UnsupportedOperation, match="overlap"):
        RealBalls(64).greater(RealBalls(64).array([Fraction(1, 3)]), RealBalls(64).array([Fraction(1, 3)]))
    with pytest.raises(UnsupportedOperation, match="overlap"):
        RealBalls(64).equal(RealBalls(64).array([Fraction(1, 3)]), RealBalls(64).array([Fraction(1, 3)]))
    for scalars in (Complex(), ComplexBalls(64)):
        with pytest.raises(UnsupportedOperation, match="no order"):
            scalars.greater(scalars.array([1j]), scalars.array([0]))
    for scalars in (PrimeField(7), Polynomials(("x",))):
        with pytest.raises(UnsupportedOperation, match="no order"):
            scalars.greater(scalars.array([1]), scalars.array([0]))


@pytest.mark.parametrize("scalars", EVERY[1:], ids=name)
def test_masks_are_swallowed_by_sums_and_vanish_under_exp(scalars):
    masked = scalars.array([-math.inf, 1.0])
    assert masked[0] is MINUS_INFINITY
    assert (masked + scalars.array([3, 3]))[0] is MINUS_INFINITY
    for misuse in (lambda: masked * 2, lambda: -masked, lambda: scalars.array([1, 1]) - masked):
        with pytest.raises(UnsupportedOperation, match="minus infinity"):
            misuse()
    if isinstance(scalars, (RealBalls, ComplexBalls)):
        assert scalars.exp(masked)[0] == 0


def test_precision_is_put_back():
    before = flint.ctx.prec
    with RealBalls(300).precision():
        assert flint.ctx.prec == 300
        with RealBalls(70).precision():
            assert flint.ctx.prec == 70
        assert flint.ctx.prec == 300
    assert flint.ctx.prec == before


def test_the_error_is_ours():
    assert issubclass(UnsupportedOperation, ConservedError)
