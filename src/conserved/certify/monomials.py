r"""Polynomials that every vector field of a finite family annihilates: exact null spaces over the rationals.

    ⟨∇h, F⟩ = Σ_i ∂_i h · F_i ≡ 0        for every field F of the family, h a polynomial of degree 1 … k

This is linear in the coefficients of h, so the solutions are a vector space over Q. It is found in three steps.

1. *Grading.* The products ⟨∇z^m, F⟩ of one field have monomials in m + s + Λ only, with one s for the field and the lattice Λ spanned
   by the differences of its own exponents. So monomials of different classes of Z^n/Λ never meet, and every solution splits into
   solutions of one class each: for networks, of one degree (or one parity) in each hidden unit.
2. *Null space modulo a prime*, of rows ⟨∇(monomial), F⟩ at random points for random combinations F of the fields. A basis of the
   integer solutions stays independent modulo p and is in this null space whatever the points: it is never too small.
3. *Lifting*, by rational reconstruction, and the exact product ⟨∇h, F⟩ of polynomials for every vector of the basis and every field.
   If all products are zero the null space is not too large either: the list is complete, and neither the prime nor the points
   have to be trusted. Otherwise another prime joins in by the Chinese remainder theorem.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations_with_replacement, product
from math import comb
from typing import Any

import numpy as np
from flint import fmpq, fmpq_mpoly, fmpq_mpoly_ctx, fmpz_mat, nmod_mat

from conserved.certify.nullspace import Echelon, Integers, chinese, integral, null_space, rational, residue, sparser
from conserved.errors import ConfigurationError

Exponents = tuple[int, ...]
Polynomial = Mapping[Exponents, Fraction]
"""Coefficients by exponents; a coefficient is never zero."""

Field = tuple[Polynomial, ...]
"""A vector field: one polynomial for each coordinate."""

PRIMES = (2147483647, 2147483629, 2147483587, 2147483579, 2147483563, 2147483549)
"""Below 2³¹: the product of two residues fits an int64."""

SPARE = 8
"""Rows beyond the number of columns."""

LARGEST = 6000
"""Monomials of one class, at most: the side of a matrix."""

MOST = 200_000
"""Monomials altogether, at most."""


@dataclass(frozen=True, eq=False)
class Fields:
    """A basis of a space of polynomial vector fields on Q^n.

    Args:
        size: n, the number of coordinates.
        basis: the fields.

    Example:
        A rotation of the plane keeps x² + y²:

        >>> rotation = ({(0, 1): Fraction(-1)}, {(1, 0): Fraction(1)})
        >>> family = Fields.spanned(2, [rotation])
        >>> [dict(law) for law in family.first_integrals(2)]
        [{(2, 0): Fraction(1, 1), (0, 2): Fraction(1, 1)}]
        >>> family.annihilate({(2, 0): Fraction(1), (0, 2): Fraction(2)})
        False
    """

    size: int
    basis: tuple[Field, ...]

    @staticmethod
    def spanned(size: int, fields: Iterable[Field]) -> "Fields":
        """The span over Q of any fields, in reduced echelon form; sparse fields leave more classes."""
        return Fields.of(size, Echelon(flat(field) for field in fields))

    @staticmethod
    def of(size: int, rows: Echelon[tuple[int, Exponents]]) -> "Fields":
        """The fields whose `flat` forms are multiples of these rows, with coprime integers: residues exist modulo every prime."""
        basis = []
        for pivot in sorted(rows.rows):
            parts: list[dict[Exponents, Fraction]] = [{} for _ in range(size)]
            row = rows.rows[pivot]
            for (i, m), c in zip(row, integral([*row.values()]), strict=True):
                parts[i][m] = Fraction(c)
            basis.append(tuple(parts))
        return Fields(size, tuple(basis))

    @cached_property
    def _ring(self) -> Any:
        return fmpq_mpoly_ctx.get([f"z{i}" for i in range(self.size)])

    @cached_property
    def _images(self) -> tuple[tuple[fmpq_mpoly, ...], ...]:
        return tuple(tuple(self._lift(part) for part in field) for field in self.basis)

    def _lift(self, polynomial: Polynomial) -> fmpq_mpoly:
        lifted: fmpq_mpoly = self._ring.from_dict({m: fmpq(c.numerator, c.denominator) for m, c in polynomial.items()})
        return lifted

    def annihilate(self, polynomial: Polynomial) -> bool:
        """Whether ⟨∇h, F⟩ is the zero polynomial for every field F: exact, and a proof."""
        h = self._lift(polynomial)
        gradient = [(i, h.derivative(i)) for i in range(self.size) if any(m[i] for m in polynomial)]
        return all(sum((part * field[i] for i, part in gradient), self._ring.constant(0)).is_zero() for field in self._images)

    @cached_property
    def lattice(self) -> Integers:
        """The differences of m − e_i over all monomials m of components i of one field, (rank, n): a Hermite normal form."""
        differences = set()
        for field in self.basis:
            shifts = [tuple(e - (i == j) for j, e in enumerate(m)) for i, part in enumerate(field) for m in part]
            differences |= {tuple(a - b for a, b in zip(shift, shifts[0], strict=True)) for shift in shifts[1:]}
        if not differences:
            return np.zeros((0, self.size), dtype=np.int64)
        form = fmpz_mat([list(row) for row in sorted(differences)]).hnf()
        return np.array([row for row in form.tolist() if any(row)], dtype=object).astype(np.int64).reshape(-1, self.size)

    def degrees(self, exponents: Integers) -> Integers:
        """Representatives of exponents modulo the lattice, equal exactly for exponents of one class: (number, n) both."""
        out = exponents.copy()
        for row in self.lattice:
            pivot = int(np.flatnonzero(row)[0])
            out -= (out[:, pivot] // row[pivot])[:, None] * row
        return out

    def first_integrals(self, degree: int, seed: int = 0) -> tuple[Polynomial, ...]:
        """A basis of the polynomials of degree 1 … `degree` that all fields annihilate, sparse and with coprime integer coefficients.

        Raises:
            ConfigurationError: too many monomials, or coefficients beyond the product of all primes.
        """
        if (number := comb(self.size + degree, degree) - 1) > MOST:
            raise ConfigurationError(f"{self.size} coordinates have {number} monomials up to degree {degree}; lower the degree or the sizes")
        factors, exponents = _monomials(self.size, degree)
        _, labels = np.unique(self.degrees(exponents), axis=0, return_inverse=True)
        labels = labels.ravel()
        classes = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
        if (most := max(map(len, classes))) > LARGEST:
            raise ConfigurationError(f"{most} monomials of one class up to degree {degree}; lower the degree or the sizes")

        @cache
        def rows(prime: int) -> tuple[Integers, Integers]:
            return self._points(most + SPARE, prime, np.random.default_rng((seed, prime)))

        found = [law for chosen in classes for law in self._integrals_among(factors[chosen], exponents[chosen], rows)]
        return tuple(sorted(found, key=lambda law: (total_degree(law), len(law), [tuple(-e for e in m) for m in law])))

    def _integrals_among(self, factors: Integers, exponents: Integers, rows: Callable[[int], tuple[Integers, Integers]]) -> list[Polynomial]:
        """The laws with monomials of one class."""
        lifts: dict[tuple[int, ...], tuple[int, list[list[int]]]] = {}
        for prime in PRIMES:
            points, rates = (block[: len(factors) + SPARE] for block in rows(prime))
            free, residues = null_space(_products(factors, points, rates, prime), prime)
            if not free:
                return []
            modulus = 1
            if free in lifts:
                modulus, before = lifts[free]
                residues = [[chinese(a, modulus, b, prime) for a, b in zip(x, y, strict=True)] for x, y in zip(before, residues, strict=True)]
            modulus *= prime
            lifts[free] = modulus, residues
            lifted = [[c for entry in row if (c := rational(entry, modulus)) is not None] for row in residues]
            if any(len(row) < len(exponents) for row in lifted):
                continue
            laws: list[Polynomial] = [_polynomial(exponents, row) for row in sparser([integral(row) for row in lifted])]
            if all(map(self.annihilate, laws)):
                return laws
        raise ConfigurationError(f"coefficients of the laws did not settle modulo {len(PRIMES)} primes; lower the degree")

    def _points(self, number: int, prime: int, random: np.random.Generator) -> tuple[Integers, Integers]:
        """Random points z without zero coordinates, and F_i/z_i for a random combination F of the fields at each, modulo p.

        Both are (number, n + 1): the last coordinate is 1, and does not move.
        """
        points = random.integers(1, prime, (number, self.size + 1))
        points[:, -1] = 1
        weights = random.integers(1, prime, (number, len(self.basis)))
        rates = np.zeros_like(points)
        for f, field in enumerate(self.basis):
            for i, part in enumerate(field):
                for m, c in part.items():
                    term = _monomial(m, points, weights[:, f] * residue(c, prime) % prime, prime)
                    rates[:, i] = (rates[:, i] + term) % prime
        inverse = np.array([pow(z, -1, prime) for z in points.ravel().tolist()], dtype=np.int64).reshape(points.shape)
        return points, rates * inverse % prime


def flat(field: Field) -> dict[tuple[int, Exponents], Fraction]:
    """Coefficients by coordinate and exponents."""
    return {(i, m): c for i, part in enumerate(field) for m, c in part.items()}


def independent(laws: Sequence[Polynomial], size: int, seed: int = 0) -> int:
    """Rank of the gradients of polynomials at a random point modulo a prime.

    Never more than the generic rank, and less only if the point is a zero modulo p of some minor: probability < 10⁻⁶ for what
    fits here.
    """
    prime = PRIMES[0]
    point = np.random.default_rng(seed).integers(1, prime, (1, size))
    rows = np.zeros((len(laws), size), dtype=np.int64)
    for k, law in enumerate(laws):
        for m, c in law.items():
            for i in np.flatnonzero(m):
                lowered = tuple(e - (j == i) for j, e in enumerate(m))
                start = np.array([residue(c * m[i], prime)])
                rows[k, i] = (rows[k, i] + _monomial(lowered, point, start, prime)[0]) % prime
    return nmod_mat(len(rows), size, rows.flatten().tolist(), prime).rank() if rows.size else 0


def generators(polynomials: Sequence[Polynomial], degree: int) -> tuple[Polynomial, ...]:
    """Polynomials, the first of them by degree, of which all others are sums of products of degree ≤ k.

    Example:
        >>> x, y = {(1, 0): Fraction(1)}, {(0, 1): Fraction(1)}
        >>> mixed = {(1, 1): Fraction(2), (1, 0): Fraction(-1)}
        >>> generators([x, y, mixed], degree=2) == (x, y)
        True
    """
    algebra: Echelon[Exponents] = Echelon()
    products: list[Polynomial] = []
    found: list[Polynomial] = []
    for polynomial in sorted(polynomials, key=total_degree):
        if not algebra.rest(polynomial):
            continue
        found.append(polynomial)
        powers: list[Polynomial] = [polynomial]
        while total_degree(powers[-1]) + total_degree(polynomial) <= degree:
            powers.append(times(powers[-1], polynomial))
        mixed = [times(a, b) for a in powers for b in products if total_degree(a) + total_degree(b) <= degree]
        products += [*powers, *mixed]
        for element in (*powers, *mixed):
            algebra.add(element)
    return tuple(found)


def times(first: Polynomial, second: Polynomial) -> Polynomial:
    """The product of two polynomials."""
    out: dict[Exponents, Fraction] = defaultdict(Fraction)
    for (a, c), (b, d) in product(first.items(), second.items()):
        out[tuple(map(sum, zip(a, b, strict=True)))] += c * d
    return {m: c for m, c in out.items() if c}


def total_degree(polynomial: Polynomial) -> int:
    """Largest sum of exponents."""
    return max(map(sum, polynomial), default=0)


def _monomials(size: int, degree: int) -> tuple[Integers, Integers]:
    """All monomials of degree 1 … k: k factors each, `size` standing for 1, and the exponents."""
    chosen = np.array([*combinations_with_replacement(range(size + 1), degree)][:-1], dtype=np.int64)
    exponents = np.zeros((len(chosen), size + 1), dtype=np.int64)
    for column in chosen.T:
        exponents[np.arange(len(chosen)), column] += 1
    return chosen, exponents[:, :-1]


def _products(factors: Integers, points: Integers, rates: Integers, prime: int) -> Integers:
    """⟨∇z^m, F⟩ = z^m · Σ_i m_i F_i/z_i for every point and monomial, modulo p."""
    monomials = np.ones((len(points), len(factors)), dtype=np.int64)
    for column in factors.T:
        monomials = monomials * points[:, column] % prime
    return monomials * (sum(rates[:, column] for column in factors.T) % prime) % prime


def _monomial(exponents: Sequence[int], points: Integers, start: Integers, prime: int) -> Integers:
    """The product of `start` and z^m at every point, modulo p."""
    for i, exponent in enumerate(exponents):
        for _ in range(exponent):
            start = start * points[:, i] % prime
    return start


def _polynomial(exponents: Integers, row: Mapping[int, int]) -> dict[Exponents, Fraction]:
    """Coefficients by exponents, leading monomial first and positive."""
    terms = sorted(((tuple(exponents[k].tolist()), c) for k, c in row.items()), reverse=True)
    sign = -1 if terms[0][1] < 0 else 1
    return {m: Fraction(sign * c) for m, c in terms}
