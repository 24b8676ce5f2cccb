"""Linear algebra over the rationals, directly and by way of a prime: null spaces, echelon forms, and the way back from residues."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations
from math import gcd, isqrt, lcm
from typing import Any, Generic, TypeVar

import numpy as np
from flint import nmod_mat
from numpy.typing import NDArray

Integers = NDArray[np.int64]


Key = TypeVar("Key", bound=Any)
Row = Mapping[Key, Fraction]
"""A sparse vector; no entry is zero."""


class Echelon(Generic[Key]):
    """Rows over the rationals in reduced echelon form, one after another; columns are any keys that can be ordered.

    Attributes:
        rows: by pivot, which is the smallest key of its row, has entry 1, and occurs in no other row.

    Example:
        >>> both = Echelon([{"a": Fraction(2), "b": Fraction(4)}, {"a": Fraction(1), "c": Fraction(1)}])
        >>> [[f"{entry} {key}" for key, entry in sorted(row.items())] for row in both.rows.values()]
        [['1 a', '1 c'], ['1 b', '-1/2 c']]
    """

    def __init__(self, rows: Iterable[Row[Key]] = ()) -> None:
        self.rows: dict[Key, dict[Key, Fraction]] = {}
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        """The rank."""
        return len(self.rows)

    def rest(self, row: Row[Key]) -> dict[Key, Fraction]:
        """What the rows leave of a vector; empty if it is in their span."""
        left = dict(row)
        for key in [key for key in row if key in self.rows]:
            _subtract(left, self.rows[key], left[key])
        return left

    def add(self, row: Row[Key]) -> bool:
        """Take in one more row; whether the rank grows."""
        left = self.rest(row)
        if not left:
            return False
        pivot = min(left)
        scale = left[pivot]
        new = {key: entry / scale for key, entry in left.items()}
        for other in self.rows.values():
            if pivot in other:
                _subtract(other, new, other[pivot])
        self.rows[pivot] = new
        return True


def _subtract(row: dict[Key, Fraction], other: Row[Key], factor: Fraction) -> None:
    for key, entry in other.items():
        value = row.get(key, 0) - factor * entry
        if value:
            row[key] = value
        else:
            row.pop(key, None)


def null_space(matrix: Integers, prime: int) -> tuple[tuple[int, ...], list[list[int]]]:
    """The free columns and the basis of the null space that is the identity on them."""
    reduced, rank = nmod_mat(matrix.shape[0], matrix.shape[1], matrix.flatten().tolist(), prime).rref()
    size = matrix.shape[1]
    if rank == size:
        return (), []
    pivots: list[int] = []
    for column in range(size):
        if len(pivots) < rank and int(reduced[len(pivots), column]):
            pivots.append(column)
    free = tuple(sorted(set(range(size)) - set(pivots)))
    basis = []
    for column in free:
        row = [0] * size
        row[column] = 1
        for i, pivot in enumerate(pivots):
            row[pivot] = int(-reduced[i, column])
        basis.append(row)
    return free, basis


def null_space_over_q(rows: Iterable[Row[int]], size: int) -> list[list[Fraction]]:
    """A basis of the vectors of that size that all rows annihilate.

    Example:
        >>> null_space_over_q([{0: Fraction(2), 1: Fraction(-3)}], 2)
        [[Fraction(3, 2), Fraction(1, 1)]]
    """
    reduced = Echelon(rows)
    basis = []
    for column in range(size):
        if column in reduced.rows:
            continue
        vector = [Fraction(int(j == column)) for j in range(size)]
        for pivot, row in reduced.rows.items():
            vector[pivot] = -row.get(column, Fraction(0))
        basis.append(vector)
    return basis


def residue(number: Fraction, prime: int) -> int:
    """The fraction modulo a prime that does not divide its denominator."""
    return number.numerator * pow(number.denominator, -1, prime) % prime


def chinese(a: int, modulus: int, b: int, prime: int) -> int:
    """The residue modulo the product that is a and b modulo the factors."""
    return a + modulus * ((b - a) * pow(modulus, -1, prime) % prime)


def rational(number: int, modulus: int) -> Fraction | None:
    """The fraction with numerator and denominator below √(modulus/2) and this residue, if there is one.

    Example:
        >>> rational(residue(Fraction(-2, 7), 10007), 10007)
        Fraction(-2, 7)
    """
    bound = isqrt(modulus // 2)
    (r, s), (u, v) = (modulus, number % modulus), (0, 1)
    while s > bound:
        quotient = r // s
        r, s, u, v = s, r - quotient * s, v, u - quotient * v
    return Fraction(s, v) if v and abs(v) <= bound and gcd(s, v) == 1 else None


def integral(row: Sequence[Fraction]) -> list[int]:
    """The multiple with coprime integers, the first of them positive."""
    scale = lcm(*(c.denominator for c in row))
    whole = [int(c * scale) for c in row]
    content = gcd(*whole) or 1
    sign = -1 if next((c for c in whole if c), 1) < 0 else 1
    return [sign * c // content for c in whole]


def sparser(rows: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """A basis of the same span with fewer non-zeros, as entries by column.

    Multiples of one row are subtracted from another while that shortens it.

    Example:
        >>> sparser([[1, 1, 1, 1], [0, 2, 2, 2]])
        [{0: 1}, {1: 1, 2: 1, 3: 1}]
    """
    sparse = [_primitive({j: c for j, c in enumerate(row) if c}) for row in rows]
    shorter = True
    while shorter:
        shorter = False
        for i, j in permutations(range(len(sparse)), 2):
            row, other = sparse[i], sparse[j]
            ratios = Counter(Fraction(row[k], other[k]) for k in row.keys() & other.keys())
            if not ratios:
                continue
            ratio, cancelled = max(ratios.items(), key=lambda item: (item[1], item[0]))
            if cancelled > len(other.keys() - row.keys()):
                combined = {k: ratio.denominator * row.get(k, 0) - ratio.numerator * other.get(k, 0) for k in row.keys() | other.keys()}
                sparse[i], shorter = _primitive({k: c for k, c in sorted(combined.items()) if c}), True
    return sparse


def _primitive(row: dict[int, int]) -> dict[int, int]:
    """The multiple with coprime entries, the first of them positive."""
    return dict(zip(row, integral([Fraction(c) for c in row.values()]), strict=True))
