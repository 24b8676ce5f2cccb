"""Gated linear units x ↦ A(σ(Bx) ⊙ Cx): SwiGLU, GeGLU, ReGLU, bilinear (Theorem 4.2)."""

import torch
from torch import Tensor, nn

from conserved.catalog.activation import POSITIVELY_HOMOGENEOUS, resolve
from conserved.catalog.block import NEW, SEED, Block, Statement, require_positive, weight
from conserved.law import Law, LawSet, Term
from conserved.symmetry import Symmetry


class GatedLinearUnit(Block):
    r"""A gated feed-forward net.

        x ↦ A( σ(Bx) ⊙ Cx ) + a
        any gate σ:                    ‖A[:,i]‖² − ‖C[i,:]‖²     one for each hidden unit
        σ positively homogeneous too:  ‖A[:,i]‖² − ‖B[i,:]‖²     a second one (ReGLU, bilinear)

    Shapes: A is (out, hidden), B and C are (hidden, dim). With biases, those of B and C are one
    more column of their matrix.

    Args:
        dim: input width.
        hidden: hidden units.
        out: output width.
        gate: activation σ: "silu" is SwiGLU, "gelu" GeGLU, "relu" ReGLU, "identity" bilinear.
        bias: whether all three maps have a bias.

    Raises:
        ConfigurationError: a size below one or an unknown gate.

    Example:
        >>> GatedLinearUnit(3, 4, 2).laws().independent_count
        4
        >>> GatedLinearUnit(3, 4, 2, gate="identity").laws().independent_count
        8
    """

    def __init__(self, dim: int = 3, hidden: int = 4, out: int = 2, gate: str = "silu", bias: bool = False) -> None:
        super().__init__()
        require_positive("glu", {"dim": dim, "hidden": hidden, "out": out})
        self.dim, self.gate, self.sigma = dim, gate, resolve("glu", gate)
        self.A = weight(out, hidden, fan_in=hidden)
        self.B = weight(hidden, dim, fan_in=dim)
        self.C = weight(hidden, dim, fan_in=dim)
        self.a = nn.Parameter(torch.zeros(out)) if bias else None
        self.b = nn.Parameter(torch.zeros(hidden)) if bias else None
        self.c = nn.Parameter(torch.zeros(hidden)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, dim) to (…, out)."""
        linear = nn.functional.linear
        return linear(self.sigma(linear(x, self.B, self.b)) * linear(x, self.C, self.c), self.A, self.a)

    def laws(self) -> LawSet:
        """One `rescale` law, two if the gate is positively homogeneous."""
        up = self._law("glu", "C", "c", f"{SEED}, Theorem 4.2")
        if self.gate not in POSITIVELY_HOMOGENEOUS:
            return LawSet((up,))
        return LawSet((up, self._law("glu_gate", "B", "b", NEW)))

    def _law(self, family: str, matrix: str, bias: str, source: str) -> Law:
        terms: tuple[Term, ...] = (self.term("A", "o i"), self.term(matrix, "i d", -1))
        if self.b is not None:
            terms += (self.term(bias, "i", -1),)
        return Law(family, family, "", Symmetry.RESCALE, terms, index="i", source=source)

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        complete = "complete (Theorem 4.2)" if self.gate == "silu" and self.b is None else Statement.completeness
        if self.gate in POSITIVELY_HOMOGENEOUS:
            theorem = "‖A[:,i]‖² − ‖C[i,:]‖² and ‖A[:,i]‖² − ‖B[i,:]‖² are conserved"
            return Statement(theorem, f"{SEED}, Theorem 4.2; the second: {NEW}", "positively homogeneous gate")
        return Statement("‖A[:,i]‖² − ‖C[i,:]‖² is conserved", f"{SEED}, Theorem 4.2", "any gate activation; a positively homogeneous one adds a law", complete)

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
