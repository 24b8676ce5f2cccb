r"""The PDE system of a block at a point: which gradients a law may have there.

    ⟨∇h(θ), g⟩ = 0   for all g ∈ W(θ) = span{ ∂_θ f(θ, x)ᵀ c }

The admissible gradients are the orthogonal complement of W(θ). A parameter with rank 0 in it can take part in no law: for
SwiGLU, ∇_B h = 0. After the Lie closure the same account tells which parameters do take part, since the complement is then
spanned by gradients of laws.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from conserved.certify.rank import numerical_rank


@dataclass(frozen=True)
class Share:
    """What one parameter may contribute to the gradients of laws.

    Attributes:
        parameter: its name.
        entries: number of its entries.
        rank: rank of the admissible gradients restricted to it; 0 means ∇h = 0 there for every law.
    """

    parameter: str
    entries: int
    rank: int

    def __str__(self) -> str:
        """One line."""
        return f"∇h = 0 on {self.parameter}" if not self.rank else f"{self.parameter}: rank {self.rank} of {self.entries}"


def complement(basis: Tensor) -> Tensor:
    """Orthonormal basis of the orthogonal complement of the rows of an orthonormal basis, (size − rank, size)."""
    rank, size = basis.shape
    if not rank:
        return torch.eye(size, dtype=basis.dtype)
    q: Tensor = torch.linalg.qr(basis.mT, mode="complete").Q
    return q[:, rank:].mT


def shares(admissible: Tensor, places: dict[str, Tensor]) -> tuple[Share, ...]:
    """The account of a space of admissible gradients.

    Args:
        admissible: orthonormal rows, (k, coordinates).
        places: coordinates of every parameter.
    """
    out = []
    for name, at in places.items():
        part = admissible[:, at]
        # lengths matter here: rounding dust on a parameter is no direction, so rows are not brought to length one
        rank = numerical_rank(part, unit=False).rank if part.numel() and float(part.abs().max()) > 1e-9 else 0
        out.append(Share(name, len(at), rank))
    return tuple(out)
