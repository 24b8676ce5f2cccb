"""Matrix factorization: one matrix of laws over the rank index."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import MARCOTTE, MARCOTTE_2024, Block, Statement, require_positive, weight
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class MatrixFactorization(Block):
    r"""A matrix U Vᵀ that is learned as a product of two factors, both positive: non-negative matrix factorization.

        x ↦ x V Uᵀ ,    UᵀU − VᵀV, a symmetric rank × rank matrix

    Shapes: U (rows, rank), V (columns, rank).
    Holds for: the Euclidean gradient flow, whatever the signs of the entries. Breaks for: flows that keep the entries
    positive by another metric. The mirror flow θ̇ = −diag(θ) ∇L of the entropy keeps Σ_i U_ij − Σ_i V_ij instead, one
    number for each j; that law belongs to the metric and is not among `laws`. Nothing here keeps the factors positive:
    they start so, and whoever trains them sees to it.

    Args:
        rows: of the matrix, the width of the output.
        columns: of the matrix, the width of the input.
        rank: width of the factors.

    Raises:
        ConfigurationError: a size below one.

    Source: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144); the mirror flow: 2024 (arXiv 2405.12888).

    Example:
        >>> MatrixFactorization(4, 3, rank=2).laws()[0].formula
        'U[:,i]·U[:,j] − V[:,i]·V[:,j]'
    """

    positive = ("U", "V")

    def __init__(self, rows: int = 4, columns: int = 3, rank: int = 2) -> None:
        super().__init__()
        require_positive("nmf", {"rows": rows, "columns": columns, "rank": rank})
        self.columns = columns
        self.U = nn.Parameter(weight(rows, rank, fan_in=rank).detach().abs())
        self.V = nn.Parameter(weight(columns, rank, fan_in=columns).detach().abs())

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, columns) to (batch, rows)."""
        return x @ self.V @ self.U.T

    def laws(self) -> LawSet:
        """One `general_linear` law."""
        terms = (self.term("U", "o i"), self.term("V", "d i", -1))
        return LawSet((Law("nmf", "nmf", "", Symmetry.GENERAL_LINEAR, terms, index="i", source=MARCOTTE),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        conditions = "Euclidean gradient flow; a mirror flow has other laws"
        return Statement("UᵀU − VᵀV is conserved", f"{MARCOTTE}; {MARCOTTE_2024}", conditions, "complete (Marcotte et al. 2023)")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, columns)."""
        return (torch.randn(batch, self.columns, generator=generator, dtype=torch.float64),)
