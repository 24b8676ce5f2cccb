"""Convolutions with ReLU between them: one number for each channel, with or without a skip."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import Block, Statement, require_positive, weight
from conserved.errors import ConfigurationError
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry

SOURCE = "Marcotte et al. 2025 (convolutions and residual blocks)"


class ConvolutionBlock(Block):
    r"""Two convolutions with ReLU between them, optionally inside a skip connection.

        x ↦ [x +] W_2 * relu(W_1 * x + b_1) ,   h[i] = ‖W_1[i]‖² + b_1[i]² − ‖W_2[:,i]‖²

    Shapes: W_1 is (hidden, channels, kernel, kernel), W_2 is (channels, hidden, kernel, kernel).
    The skip connection changes nothing: it does not touch the hidden channels.

    Args:
        channels: channels of input and output.
        hidden: channels between the convolutions.
        kernel: side of the square kernel, odd so that sizes are kept.
        bias: whether the first convolution has a bias.
        skip: whether the input is added to the output (a ResNet block).

    Raises:
        ConfigurationError: a size below one or an even kernel.

    Example:
        >>> ConvolutionBlock(channels=2, hidden=3, skip=True).laws().independent_count
        3
    """

    def __init__(self, channels: int = 2, hidden: int = 3, kernel: int = 3, bias: bool = True, skip: bool = False) -> None:
        super().__init__()
        require_positive("conv", {"channels": channels, "hidden": hidden, "kernel": kernel})
        if kernel % 2 == 0:
            raise ConfigurationError(f"conv: kernel={kernel}; give an odd side, which keeps the image's size")
        self.channels, self.skip, self.padding = channels, skip, kernel // 2
        self.W1 = weight(hidden, channels, kernel, kernel, fan_in=channels * kernel**2)
        self.b1 = nn.Parameter(torch.zeros(hidden)) if bias else None
        self.W2 = weight(channels, hidden, kernel, kernel, fan_in=hidden * kernel**2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same shape."""
        hidden = torch.relu(nn.functional.conv2d(x, self.W1, self.b1, padding=self.padding))
        y = nn.functional.conv2d(hidden, self.W2, padding=self.padding)
        return x + y if self.skip else y

    def laws(self) -> LawSet:
        """One `rescale` law over the hidden channels."""
        terms = [self.term("W1", "i m y x"), self.term("W2", "o i y x", -1)]
        if self.b1 is not None:
            terms.insert(1, self.term("b1", "i"))
        return LawSet((Law("conv", "conv", "", Symmetry.RESCALE, tuple(terms), index="i", source=SOURCE),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        theorem = "‖kernel into channel i‖² + b_i² − ‖kernel out of channel i‖² is conserved"
        return Statement(theorem, SOURCE, "ReLU between the convolutions; a skip changes nothing")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, channels, 5, 4)."""
        return (torch.randn(batch, self.channels, 5, 4, generator=generator, dtype=torch.float64),)
