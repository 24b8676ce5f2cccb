"""Polynomial laws: on fields written by hand first, then on blocks; every list against an independent count."""

from fractions import Fraction
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
import sympy

from conserved.certify.monomials import Fields, independent, total_degree
from conserved.errors import ConfigurationError


def field(size, components):
    """A field from {coordinate: {exponents: coefficient}}."""
    return tuple({m: Fraction(c) for m, c in components.get(i, {}).items()} for i in range(size))


def unit(size, *places):
    return tuple(places.count(i) for i in range(size))


HAND = {
    # fields, degree: number of first integrals of degree 1 … k, and one of them
    "no field moves anything": (1, [field(1, {})], 1, 1, {(1,): 1}),
    "translation": (1, [field(1, {0: {(0,): 1}})], 4, 0, None),
    "growth": (1, [field(1, {0: {(1,): 1}})], 4, 0, None),
    "rotation": (2, [field(2, {0: {(0, 1): -1}, 1: {(1, 0): 1}})], 5, 2, {(2, 0): 1, (0, 2): 1}),
    "hyperbola": (2, [field(2, {0: {(1, 0): 1}, 1: {(0, 1): -1}})], 2, 1, {(1, 1): 1}),
    "ellipse with fractions": (2, [field(2, {0: {(0, 1): Fraction(-2, 3)}, 1: {(1, 0): Fraction(5, 7)}})], 2, 1, {(2, 0): 15, (0, 2): 14}),
    "large coefficients": (2, [field(2, {0: {(0, 1): -123456789}, 1: {(1, 0): 987654323}})], 2, 1, {(2, 0): 987654323, (0, 2): 123456789}),
    "not homogeneous": (2, [field(2, {0: {(0, 0): 1}, 1: {(1, 0): 1, (0, 0): 3}})], 2, 1, {(2, 0): 1, (1, 0): 6, (0, 1): -2}),
    "rotations of space": (3, [field(3, {a: {unit(3, b): -1}, b: {unit(3, a): 1}}) for a, b in combinations(range(3), 2)], 4, 2, None),
    "one rotation of space": (3, [field(3, {0: {(0, 1, 0): -1}, 1: {(1, 0, 0): 1}})], 2, 3, {(0, 0, 1): 1}),
}


@pytest.mark.parametrize(("size", "fields", "degree", "count", "law"), HAND.values(), ids=HAND)
def test_hand_written_fields(size, fields, degree, count, law):
    family = Fields.spanned(size, fields)
    laws = family.first_integrals(degree)
    assert len(laws) == count
    assert all(map(family.annihilate, laws))
    if law is not None:
        assert {m: Fraction(c) for m, c in law.items()} in [dict(found) for found in laws]


def _symbolic_count(size, fields, degree):
    """The oracle: all coefficients of ⟨∇h, F⟩ as equations, solved by sympy over the rationals."""
    z = sympy.symbols(f"z:{size}")
    monomials = [sympy.prod(c) for k in range(1, degree + 1) for c in combinations_with_replacement(z, k)]
    columns = []
    for monomial in monomials:
        equations = {}
        for k, f in enumerate(fields):
            parts = [sympy.Poly.from_dict({m: sympy.Rational(c) for m, c in part.items()}, *z).as_expr() if part else 0 for part in f]
            moved = sum(sympy.diff(monomial, v) * part for v, part in zip(z, parts, strict=True))
            for m, c in sympy.Poly(moved, *z).terms():
                equations[k, m] = c
        columns.append(equations)
    keys = sorted({key for column in columns for key in column})
    matrix = sympy.Matrix([[column.get(key, 0) for column in columns] for key in keys])
    return len(monomials) - matrix.rank()


@pytest.mark.parametrize("seed", range(6))
def test_as_many_as_sympy_finds(seed):
    """Random sparse fields with a planted first integral q: F = rotation of ∇q in random planes, times polynomials."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 4))
    signs = [int(s) for s in random.choice([-2, -1, 1, 3], size)]
    fields = []
    for a, b in combinations(range(size), 2):
        factor = [unit(size), unit(size, int(random.integers(size)))][: int(random.integers(1, 3))]
        plus = {tuple(np.add(m, unit(size, b)).tolist()): -signs[b] for m in factor}
        minus = {tuple(np.add(m, unit(size, a)).tolist()): signs[a] for m in factor}
        fields.append(field(size, {a: plus, b: minus}))
    laws = Fields.spanned(size, fields).first_integrals(4)
    assert len(laws) == _symbolic_count(size, fields, 4) >= 2


def test_one_altered_coefficient_is_rejected():
    family = Fields.spanned(3, HAND["rotations of space"][1])
    (square, fourth) = family.first_integrals(4)
    for law in (square, fourth):
        assert family.annihilate(law)
        for m, c in law.items():
            assert not family.annihilate({**law, m: c + 1})
            assert not family.annihilate({**law, m: c + Fraction(1, 2147483647)})


def test_dependent_laws_count_once():
    family = Fields.spanned(3, HAND["rotations of space"][1])
    laws = family.first_integrals(4)
    assert [total_degree(law) for law in laws] == [2, 4]
    assert independent(laws, 3) == 1
    assert independent((), 3) == 0


def test_gradings_are_the_finest():
    family = Fields.spanned(2, HAND["hyperbola"][1])
    assert len(family.gradings) == 2
    assert len(Fields.spanned(2, HAND["rotation"][1]).gradings) == 1
    assert len(Fields.spanned(1, HAND["translation"][1]).gradings) == 1
    assert len(Fields.spanned(2, HAND["not homogeneous"][1]).gradings) == 0


def test_too_many_monomials_are_refused():
    with pytest.raises(ConfigurationError, match="monomials"):
        Fields.spanned(100, [field(100, {0: {unit(100): 1}})]).first_integrals(4)
