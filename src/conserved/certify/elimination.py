r"""Gaussian elimination in any scalars, with pivots that are certainly not zero.

    number of pivots ≤ rank,   equal in exact arithmetic

A pivot counts only if the scalar proves it: a ball that excludes zero, a rational or a residue that is not zero. So r pivots
prove a minor of order r, in the rows and columns of the pivots, to be non-zero.
"""

from dataclasses import dataclass, field
from typing import Any

import flint
import numpy as np

from conserved.certify.scalars import Array


@dataclass(frozen=True, eq=False)
class Elimination:
    """The state of an elimination to which rows are added.

    Attributes:
        columns: of the pivots, in order.
        reduced: the pivot rows, each zero in the columns of earlier pivots.
    """

    columns: tuple[int, ...] = ()
    reduced: tuple[Array, ...] = field(default=(), repr=False)

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return len(self.columns)

    def extended(self, rows: Array, most: int) -> tuple["Elimination", list[int]]:
        """The elimination with more rows, and which of them became pivot rows.

        Args:
            rows: (number, size) of scalars.
            most: stop at this rank.
        """
        rows = rows.copy()
        columns, reduced, used = list(self.columns), list(self.reduced), list[int]()
        for column, pivot in zip(columns, reduced, strict=True):
            _clear(rows, column, pivot)
        rest = list(range(len(rows)))
        while rest and len(columns) < most:
            sizes = np.array([[_size(entry) for entry in rows[i]] for i in rest])
            sizes[:, columns] = 0  # exactly zero by construction
            at, column = divmod(int(sizes.argmax()), sizes.shape[1])
            if not sizes[at, column]:
                break
            row = rest.pop(at)
            columns.append(column)
            reduced.append(rows[row].copy())
            used.append(row)
            rows[rest] = _cleared(rows[rest], column, reduced[-1])
        return Elimination(tuple(columns), tuple(reduced)), used


def determinant(rows: Array) -> Any:
    """Determinant of a square array of flint scalars, by flint."""
    entries = rows.tolist()
    one = entries[0][0]
    if isinstance(one, flint.arb):
        return flint.arb_mat(entries).det()
    if isinstance(one, flint.fmpq):
        return flint.fmpq_mat(len(entries), len(entries), [x for row in entries for x in row]).det()
    prime = one.modulus()
    return flint.nmod_mat(len(entries), len(entries), [int(x) for row in entries for x in row], prime).det()


def is_nonzero(x: Any) -> bool:
    """Whether a scalar is certainly not zero."""
    return not x.contains(0) if isinstance(x, flint.arb) else bool(x != 0)


def may_be_zero(x: Any) -> bool:
    """Whether zero is a possible value of a scalar."""
    return not is_nonzero(x)


def _size(x: Any) -> float:
    """How good a pivot is: 0 if it may be zero; of balls the binary exponent of the smallest value, shifted to be positive."""
    if not is_nonzero(x):
        return 0.0
    if not isinstance(x, flint.arb):
        return 1.0
    _, exponent = x.abs_lower().mid().man_exp()
    mantissa, _ = x.abs_lower().mid().man_exp()
    return float(2**20 + int(exponent) + int(mantissa).bit_length())


def _clear(rows: Array, column: int, pivot: Array) -> None:
    if len(rows):
        rows[:] = _cleared(rows, column, pivot)


def _cleared(rows: Array, column: int, pivot: Array) -> Array:
    """The rows minus multiples of the pivot row that make the column zero."""
    if not len(rows):
        return rows
    factors = rows[:, column] / pivot[column]
    out: Array = rows - factors[:, None] * pivot[None, :]
    return out
