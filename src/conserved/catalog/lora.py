"""A low-rank adapter on a frozen map."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import NEW, Block, Statement, require_positive, weight
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class LoRA(Block):
    r"""A frozen linear map with an adapter of rank r.

        x ↦ W x + B A x ,    BᵀB − AAᵀ, a symmetric r × r matrix

    Shapes: W (out, dim) frozen, A (rank, dim), B (out, rank). The initial B = 0 is a point where half of the
    gradients vanish; the identity holds there too.

    Args:
        dim: input width.
        out: output width.
        rank: r.

    Raises:
        ConfigurationError: a size below one.

    Example:
        >>> LoRA(5, 4, rank=2).laws().independent_count
        3
    """

    def __init__(self, dim: int = 5, out: int = 4, rank: int = 2) -> None:
        super().__init__()
        require_positive("lora", {"dim": dim, "out": out, "rank": rank})
        self.dim = dim
        self.W = nn.Parameter(torch.randn(out, dim), requires_grad=False)
        self.A = weight(rank, dim, fan_in=dim)
        self.B = nn.Parameter(torch.zeros(out, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, dim) to (…, out)."""
        return x @ self.W.T + x @ self.A.T @ self.B.T

    def laws(self) -> LawSet:
        """One `general_linear` law."""
        return LawSet((Law("lora", "lora", "", Symmetry.GENERAL_LINEAR, (self.term("B", "o i"), self.term("A", "i d", -1)), index="i", source=NEW),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("BᵀB − AAᵀ is conserved", NEW, "frozen base; nothing between A and B")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
