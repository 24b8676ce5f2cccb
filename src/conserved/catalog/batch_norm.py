"""A convolution before BatchNorm: its scale is free, its bias is silent."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import KUNIN, NEW, Block, Statement, require_finite, require_positive, weight
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class BatchNormBlock(Block):
    r"""Convolution, BatchNorm on batch statistics, ReLU, convolution.

        x ↦ W_2 * relu( γ ⊙ (z − mean z)/√(var z + eps) + β ),    z = W_1 * x + b

    Laws for every hidden channel i: ‖W_1[i]‖² (exact for eps = 0, else approximate), b_i (its gradient is
    zero), γ_i² + β_i² − ‖W_2[:,i]‖².

    Shapes: W_1 (hidden, channels, kernel, kernel), W_2 (channels, hidden, kernel, kernel); b, γ, β (hidden).
    Breaks: the first two with stored instead of batch statistics.

    Args:
        channels: channels of input and output.
        hidden: channels that are normalised.
        kernel: side of the square kernel.
        eps: added to the variance.

    Raises:
        ConfigurationError: a size below one, or a negative eps.

    Example:
        >>> [law.exact for law in BatchNormBlock(2, 3).laws()]
        [False, True, True]
    """

    def __init__(self, channels: int = 2, hidden: int = 3, kernel: int = 3, eps: float = 1e-5) -> None:
        super().__init__()
        require_positive("batch_norm", {"channels": channels, "hidden": hidden, "kernel": kernel})
        require_finite("batch_norm", "eps", eps, least=0)
        self.channels, self.eps, self.padding = channels, eps, kernel // 2
        self.W1 = weight(hidden, channels, kernel, kernel, fan_in=channels * kernel**2)
        self.b = nn.Parameter(torch.zeros(hidden))
        self.gamma = nn.Parameter(torch.ones(hidden))
        self.beta = nn.Parameter(torch.zeros(hidden))
        self.W2 = weight(channels, hidden, kernel, kernel, fan_in=hidden * kernel**2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same shape."""
        z = nn.functional.conv2d(x, self.W1, self.b, padding=self.padding)
        z = z - z.mean((0, 2, 3), keepdim=True)
        z = z * torch.rsqrt(z.square().mean((0, 2, 3), keepdim=True) + self.eps)  # by hand: the library's refuses eps = 0
        z = self.gamma[:, None, None] * z + self.beta[:, None, None]
        return nn.functional.conv2d(torch.relu(z), self.W2, padding=self.padding)

    def laws(self) -> LawSet:
        """Scale of the kernels, silent bias, gain against the next kernels."""
        exact = self.eps == 0
        reason = "" if exact else f"eps = {self.eps:g} in the BatchNorm; exact for eps = 0"
        kernel = self.term("W1", "i m y x")
        gain = (self.term("gamma", "i"), self.term("beta", "i"), self.term("W2", "o i y x", -1))
        return LawSet((
            Law("batch_norm", "batch_norm", "", Symmetry.SCALE, (kernel,), ("i",), None, (), exact, reason, KUNIN),
            Law("batch_norm_bias", "silent_bias", "", Symmetry.TRANSLATION, (self.term("b", "i"),), ("i",), None, (kernel,), source=KUNIN),
            Law("batch_norm_gain", "norm_gain", "", Symmetry.RESCALE, gain, (), "i", source=NEW),
        ))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("‖w‖² per channel is conserved (approximately for eps > 0)", KUNIN, "batch statistics")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, channels, 5, 4)."""
        return (torch.randn(batch, self.channels, 5, 4, generator=generator, dtype=torch.float64),)
