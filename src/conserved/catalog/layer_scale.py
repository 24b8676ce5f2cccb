"""LayerScale: a gain on the output of a linear map."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import NEW, Block, Statement, require_positive, weight
from conserved.law import Law, LawSet, Term
from conserved.symmetry import Symmetry


def layer_scale_law(name: str, layer: str, gain: Term, producers: tuple[Term, ...]) -> Law:
    """γ_i² − ‖row i of the map‖² − b_i²: the gain consumes what the map and its bias produce.

    Args:
        name: of the law.
        layer: path of the block.
        gain: the gain, with index axis i and coefficient +1.
        producers: the map and its bias, with index axis i and coefficient −1.
    """
    return Law(name, "layer_scale", layer, Symmetry.RESCALE, (gain, *producers), index="i", source=NEW)


class LayerScale(Block):
    r"""A residual branch with a gain on its output.

        x ↦ x + γ ⊙ (A tanh(Bx) + a),    γ_i² − ‖A[i,:]‖² − a_i²    for every channel i

    Shapes: γ, a (dim), A (dim, hidden), B (hidden, dim).

    Args:
        dim: width.
        hidden: width of the branch.

    Raises:
        ConfigurationError: a size below one.

    Example:
        >>> LayerScale(3, 4).laws().independent_count
        3
    """

    def __init__(self, dim: int = 4, hidden: int = 3) -> None:
        super().__init__()
        require_positive("layer_scale", {"dim": dim, "hidden": hidden})
        self.dim = dim
        self.gamma = nn.Parameter(torch.full((dim,), 0.1))
        self.A = weight(dim, hidden, fan_in=hidden)
        self.a = nn.Parameter(torch.zeros(dim))
        self.B = weight(hidden, dim, fan_in=dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, dim) to the same shape."""
        return x + self.gamma * nn.functional.linear(torch.tanh(x @ self.B.T), self.A, self.a)

    def laws(self) -> LawSet:
        """One `rescale` law over the channels."""
        producers = (self.term("A", "i h", -1), self.term("a", "i", -1))
        return LawSet((layer_scale_law("layer_scale", "", self.term("gamma", "i"), producers),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("γ_i² − ‖row i‖² − b_i² is conserved", NEW, "the gain acts on the output of a linear map")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
