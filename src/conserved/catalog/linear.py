"""Linear networks x ↦ W_L … W_2 W_1 x: one matrix of laws for each hidden layer."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from conserved.catalog.block import MARCOTTE, Block, Statement, require_positive, weight
from conserved.errors import ConfigurationError
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class LinearNetwork(Block):
    r"""A linear network of any depth, with or without biases.

        x ↦ W_L(… (W_1 x + b_1) …) + b_L ,    H_l = W_l W_lᵀ + b_l b_lᵀ − W_{l+1}ᵀ W_{l+1}

    Shapes: W_l is (dims[l], dims[l−1]). H_l is symmetric n × n, with n = dims[l], and counts
    k·n − k(k−1)/2 with k = min(n, columns of W_l (and b_l) + rows of W_{l+1}).

    Args:
        dims: widths from input to output, at least two.
        bias: whether every layer has a bias.

    Raises:
        ConfigurationError: fewer than two widths, or a width below one.

    Example:
        >>> LinearNetwork((3, 2, 3)).laws().independent_count
        3
    """

    def __init__(self, dims: tuple[int, ...] = (4, 3, 5), bias: bool = False) -> None:
        super().__init__()
        if len(dims) < 2:
            raise ConfigurationError(f"linear: dims={dims}; give at least an input and an output width")
        require_positive("linear", {f"dims[{i}]": n for i, n in enumerate(dims)})
        self.dims = tuple(dims)
        self.weights = nn.ParameterList([weight(n, m, fan_in=m) for m, n in pairwise(dims)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in dims[1:]]) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, dims[0]) to (batch, dims[−1])."""
        for number, w in enumerate(self.weights):
            x = x @ w.T
            if self.biases is not None:
                x = x + self.biases[number]
        return x

    def laws(self) -> LawSet:
        """One `general_linear` law for each hidden layer."""
        return LawSet.of(self._law(layer) for layer in range(1, len(self.dims) - 1))

    def _law(self, layer: int) -> Law:
        terms = [self.term(f"weights.{layer - 1}", "i m"), self.term(f"weights.{layer}", "o i", -1)]
        if self.biases is not None:
            terms.insert(1, self.term(f"biases.{layer - 1}", "i"))
        return Law(f"hidden{layer}.linear", "linear", f"hidden{layer}", Symmetry.GENERAL_LINEAR, tuple(terms), index="i", source=MARCOTTE)

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("W_l W_lᵀ − W_{l+1}ᵀ W_{l+1} is conserved", MARCOTTE, "any depth and widths", "two layers: complete (Marcotte et al. 2023)")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dims[0])."""
        return (torch.randn(batch, self.dims[0], generator=generator, dtype=torch.float64),)
