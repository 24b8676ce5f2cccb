"""An input-convex network: one number for each hidden unit."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import DU, MARCOTTE_2024, Block, Statement, require_positive, weight
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class InputConvexNetwork(Block):
    r"""A network whose outputs are convex functions of its input, as long as V has no negative entry.

        x ↦ V relu(U x + b) + S x ,    h[i] = ‖U[i,:]‖² + b[i]² − ‖V[:,i]‖²   for every hidden unit i

    Shapes: U (hidden, dim), b (hidden,), V (out, hidden), S (out, dim).
    Holds for: the Euclidean gradient flow, whatever the signs of the entries; the skip S takes no part.
    Breaks for: a mirror flow of V, and updates that clip V at zero. Nothing here keeps V positive: it starts so, and
    whoever trains it sees to it.

    Args:
        dim: input width.
        hidden: number of hidden units.
        out: output width.
        bias: whether the hidden layer has a bias.

    Raises:
        ConfigurationError: a size below one.

    Source: Du, Hu, Lee 2018 (arXiv 1806.00900) for the hidden units; input-convex networks: Marcotte, Gribonval,
    Peyré 2024 (arXiv 2405.12888).

    Example:
        >>> InputConvexNetwork(3, 4).laws()[0].formula
        '‖U[i,:]‖² + b[i]² − ‖V[:,i]‖²'
    """

    positive = ("V",)

    def __init__(self, dim: int = 3, hidden: int = 4, out: int = 1, bias: bool = True) -> None:
        super().__init__()
        require_positive("icnn", {"dim": dim, "hidden": hidden, "out": out})
        self.dim = dim
        self.U = weight(hidden, dim, fan_in=dim)
        self.b = nn.Parameter(torch.zeros(hidden)) if bias else None
        self.V = nn.Parameter(weight(out, hidden, fan_in=hidden).detach().abs())
        self.S = weight(out, dim, fan_in=dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, dim) to (batch, out)."""
        return torch.relu(nn.functional.linear(x, self.U, self.b)) @ self.V.T + x @ self.S.T

    def laws(self) -> LawSet:
        """One `rescale` law."""
        terms = [self.term("U", "i d"), self.term("V", "o i", -1)]
        if self.b is not None:
            terms.insert(1, self.term("b", "i"))
        return LawSet((Law("icnn", "icnn", "", Symmetry.RESCALE, tuple(terms), index="i", source=f"{DU}; {MARCOTTE_2024}"),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        conditions = "Euclidean gradient flow, V not clipped; the skip changes nothing"
        return Statement("‖U[i,:]‖² + b_i² − ‖V[:,i]‖² is conserved", f"{DU}; {MARCOTTE_2024}", conditions)

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
