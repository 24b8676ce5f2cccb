"""Numerical rank with the gap that justifies it, of rows that arrive in batches."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

CLEAR_GAP = 1e6
"""A rank is decided if the singular values on its two sides differ at least by this factor, and the lower one is less than it above rounding."""


@dataclass(frozen=True)
class Rank:
    """A numerical rank.

    Attributes:
        rank: number of singular values above the gap.
        gap: σ_r over the larger of σ_{r+1} and the rounding floor; 1 if σ_{r+1} is clear of rounding, 0 if rows are not finite.
    """

    rank: int
    gap: float

    @property
    def clear(self) -> bool:
        """Whether the gap decides the rank."""
        return self.gap >= CLEAR_GAP


@dataclass(frozen=True, eq=False)
class Span:
    """An orthonormal basis (rank, size) of what was added so far, with the smallest gap seen on the way."""

    basis: Tensor
    gap: float = float("inf")

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return len(self.basis)

    @staticmethod
    def empty(size: int) -> "Span":
        """The zero space."""
        return Span(torch.zeros(0, size, dtype=torch.float64))

    def extended(self, rows: Tensor) -> "Span":
        r"""The span with more rows.

        Rows are brought to length one and the basis is projected out of them, twice; of what is left, σ_1 ≥ σ_2 ≥ … are the
        singular values, and

            new directions r = argmax_i σ_i / max(σ_{i+1}, floor),   σ_0 = 1,   floor = max(m, n) · ε

        so that rows within the span (σ_1 at rounding level) add none. Singular values that decay without a gap leave the
        rank undecided: they are never cut at a fixed tolerance. Neither are those that a gap separates from rounding, too.

        Args:
            rows: (m, size), real or complex, float64, finite.
        """
        rows = unit_rows(rows)
        basis = self.basis.to(rows.dtype) if rows.is_complex() else self.basis
        rows = rows.to(basis.dtype)
        for _ in range(2):
            rows = rows - (rows @ basis.mH) @ basis
        if not rows.numel():
            return self
        _, values, directions = torch.linalg.svd(rows, full_matrices=False)
        found = gap_in(values, max(rows.shape), reference=1.0)
        return Span(torch.cat((basis, directions[: found.rank])), min(self.gap, found.gap))


def numerical_rank(rows: Tensor, unit: bool = True) -> Rank:
    """The rank of a matrix at the largest gap between its singular values; of its finite rows, and then with gap 0, if some are not.

    Args:
        rows: the matrix.
        unit: whether rows are brought to length one first.

    Example:
        >>> numerical_rank(torch.tensor([[1., 2.], [2., 4.], [0., 0.]], dtype=torch.float64)).rank
        1
    """
    finite = rows.isfinite().all(1)
    if not bool(finite.all()):
        return Rank(numerical_rank(rows[finite], unit).rank, 0.0)
    rows = unit_rows(rows) if unit else rows
    if not rows.numel():
        return Rank(0, float("inf"))
    return gap_in(torch.linalg.svdvals(rows), max(rows.shape), reference=1.0)


def gap_in(values: Tensor, size: int, reference: float) -> Rank:
    """Where descending singular values break off; `reference` is what the first one is compared with.

    What is called zero must be rounding: a value that stands clear of it is small and not zero, as near a point where the rank drops.
    """
    floor = size * torch.finfo(torch.float64).eps * max(reference, float(values[0]))
    levels = torch.cat((values.new_tensor([max(reference, float(values[0]))]), values, values.new_zeros(1)))
    ratios = levels[:-1] / levels[1:].clamp(min=floor)
    ratios[levels[:-1] <= floor] = 0
    best = int(ratios.argmax())
    rounding = float(levels[best + 1]) < CLEAR_GAP * floor
    return Rank(best, float(ratios[best]) if rounding else 1.0)


def unit_rows(rows: Tensor) -> Tensor:
    """The rows that are not zero, at length one."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    kept = (lengths > 0).flatten()
    return cast(Tensor, rows[kept] / lengths[kept])


def complement_gap(rows: Tensor, complement: Tensor) -> float:
    r"""How surely rows of W and k vectors orthogonal to W fill the space together: σ_min / (size · ε · σ_max), or 0.

    Orthonormalised law gradients are orthogonal to W, so the stacked matrix has full rank exactly if rank W = size − k. One
    QR factorisation and a few triangular solves (inverse iteration) instead of a singular value decomposition: five times
    fewer operations, all of them matrix products.

    Args:
        rows: (m, size) with m ≥ size − k.
        complement: (k, size).
    """
    stacked = torch.cat((unit_rows(rows), torch.linalg.qr(complement.mT).Q.mT.to(rows.dtype))) if len(complement) else unit_rows(rows)
    size = stacked.shape[1]
    if len(stacked) < size:
        return 0.0
    triangle = torch.linalg.qr(stacked, mode="r").R
    if not bool((triangle.diagonal().abs() > 0).all()):
        return 0.0
    generator = torch.Generator().manual_seed(0)
    small = large = torch.randn(size, 1, generator=generator, dtype=torch.float64).to(stacked.dtype)
    least = most = 1.0
    for _ in range(30):
        small = torch.linalg.solve_triangular(triangle, torch.linalg.solve_triangular(triangle.mH, small, upper=False), upper=True)
        large = triangle.mH @ (triangle @ large)
        least, most = (float(torch.linalg.vector_norm(v)) for v in (small, large))
        if not (0 < least < float("inf")):
            return 0.0
        small, large = small / least, large / most
    return float(least**-0.5 / (len(stacked) * torch.finfo(torch.float64).eps * most**0.5))
