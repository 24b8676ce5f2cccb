"""ReLU networks: one number for each hidden unit."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from conserved.catalog.block import DU, MARCOTTE, Block, Statement, require_finite, require_positive, weight
from conserved.errors import ConfigurationError
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class ReLUNetwork(Block):
    r"""A fully connected network with positively homogeneous activations.

        h_l[i] = ‖W_l[i,:]‖² + b_l[i]² − ‖W_{l+1}[:,i]‖²        for every hidden unit i

    Shapes: W_l is (dims[l], dims[l−1]).
    Holds for: ReLU and leaky ReLU, any depth. Breaks for: activations that are not positively
    homogeneous.

    Args:
        dims: widths from input to output, at least two.
        bias: whether every layer has a bias.
        slope: slope for negative inputs; 0 is ReLU.

    Raises:
        ConfigurationError: fewer than two widths, or a width below one.

    Example:
        >>> ReLUNetwork((3, 4, 2), bias=True).laws()[0].formula
        '‖weights.0[i,:]‖² + biases.0[i]² − ‖weights.1[:,i]‖²'
    """

    def __init__(self, dims: tuple[int, ...] = (3, 5, 4, 2), bias: bool = False, slope: float = 0.0) -> None:
        super().__init__()
        if len(dims) < 2:
            raise ConfigurationError(f"relu: dims={dims}; give at least an input and an output width")
        require_positive("relu", {f"dims[{i}]": n for i, n in enumerate(dims)})
        require_finite("relu", "slope", slope)
        self.dims, self.slope = tuple(dims), slope
        self.weights = nn.ParameterList([weight(n, m, fan_in=m) for m, n in pairwise(dims)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in dims[1:]]) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, dims[0]) to (batch, dims[−1])."""
        for number, w in enumerate(self.weights):
            x = x @ w.T
            if self.biases is not None:
                x = x + self.biases[number]
            if number < len(self.weights) - 1:
                x = nn.functional.leaky_relu(x, self.slope)
        return x

    def laws(self) -> LawSet:
        """One `rescale` law for each hidden layer."""
        return LawSet.of(self._law(layer) for layer in range(1, len(self.dims) - 1))

    def _law(self, layer: int) -> Law:
        terms = [self.term(f"weights.{layer - 1}", "i m"), self.term(f"weights.{layer}", "o i", -1)]
        if self.biases is not None:
            terms.insert(1, self.term(f"biases.{layer - 1}", "i"))
        return Law(f"hidden{layer}.relu", "relu", f"hidden{layer}", Symmetry.RESCALE, tuple(terms), index="i", source=f"{DU}; {MARCOTTE}")

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        known = "two layers: complete (Marcotte et al. 2023)"
        return Statement("‖in row i‖² + b_i² − ‖out column i‖² is conserved", f"{DU}; {MARCOTTE}", "ReLU or leaky ReLU", known)

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dims[0])."""
        return (torch.randn(batch, self.dims[0], generator=generator, dtype=torch.float64),)
