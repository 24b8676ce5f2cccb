"""The feed-forward net x ↦ A σ(Bx): laws only if σ is positively homogeneous (Theorem 4.1)."""

import torch
from torch import Tensor, nn

from conserved.catalog.activation import POSITIVELY_HOMOGENEOUS, resolve
from conserved.catalog.block import DU, NEW, OPEN, SEED, Block, Statement, require_positive, weight
from conserved.law import Absence, Law, LawSet
from conserved.symmetry import Symmetry

_BY_THEOREM = ("gelu", "silu")


class FeedForward(Block):
    r"""A two-layer net with an entrywise activation.

        x ↦ A σ(Bx + b) + a
        σ = GELU, SiLU (Theorem 4.1), tanh:    no conservation law but constants
        σ = ReLU, leaky ReLU:                  ‖B[i,:]‖² + b[i]² − ‖A[:,i]‖²
        σ = identity:                          BBᵀ + bbᵀ − AᵀA, a matrix

    Shapes: A is (out, hidden), B is (hidden, dim).

    Args:
        dim: input width.
        hidden: hidden units.
        out: output width.
        activation: "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu", "leaky_relu", "identity".
        bias: whether both layers have a bias.

    Raises:
        ConfigurationError: a size below one or an unknown activation.

    Example:
        >>> print(FeedForward(3, 4, 2, "gelu").laws().absences[0].reason)
        gelu is not homogeneous: no rescaling of a hidden unit passes through it, only constants are conserved
    """

    def __init__(self, dim: int = 3, hidden: int = 4, out: int = 2, activation: str = "gelu", bias: bool = False) -> None:
        super().__init__()
        require_positive("feedforward", {"dim": dim, "hidden": hidden, "out": out})
        self.dim, self.activation, self.sigma = dim, activation, resolve("feedforward", activation)
        self.A = weight(out, hidden, fan_in=hidden)
        self.B = weight(hidden, dim, fan_in=dim)
        self.a = nn.Parameter(torch.zeros(out)) if bias else None
        self.b = nn.Parameter(torch.zeros(hidden)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, dim) to (…, out)."""
        hidden = nn.functional.linear(x, self.B, self.b)
        return nn.functional.linear(self.sigma(hidden), self.A, self.a)

    def laws(self) -> LawSet:
        """Empty with a reason, or one law over the hidden units."""
        if self.activation not in POSITIVELY_HOMOGENEOUS:
            reason = f"{self.activation} is not homogeneous: no rescaling of a hidden unit passes through it, only constants are conserved"
            return LawSet((), (Absence("", reason, self.statement.source),))
        terms = [self.term("B", "i d"), self.term("A", "o i", -1)]
        if self.b is not None:
            terms.insert(1, self.term("b", "i"))
        symmetry = Symmetry.GENERAL_LINEAR if self.activation == "identity" else Symmetry.RESCALE
        family = "linear" if self.activation == "identity" else "relu"
        return LawSet((Law(family, family, "", symmetry, tuple(terms), index="i", source=DU),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        if self.activation in POSITIVELY_HOMOGENEOUS:
            return Statement("‖in row i‖² + b_i² − ‖out column i‖² is conserved", DU, f"{self.activation} activation")
        if self.activation in _BY_THEOREM:
            return Statement("no conservation law but constants", f"{SEED}, Theorem 4.1", f"{self.activation} activation", "complete: empty (Theorem 4.1)")
        return Statement("no conservation law is known", NEW, f"{self.activation} activation", OPEN)

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
