"""The softmax classifier: its rows have a constant sum."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import KUNIN, Block, Statement, require_positive, weight
from conserved.law import Law, LawSet
from conserved.symmetry import Symmetry


class SoftmaxClassifier(Block):
    r"""Log-probabilities of a linear classifier.

        x ↦ log softmax(Wx + b),    Σ_c W[c,:] (a vector) and Σ_c b[c] are conserved, exactly linear

    Shapes: W (classes, features), b (classes).
    Breaks: under soft-capped logits and under a z-loss, which read the logits' absolute value.

    Args:
        features: input width.
        classes: number of classes.
        bias: whether there is a bias.

    Raises:
        ConfigurationError: a size below one.

    Example:
        >>> SoftmaxClassifier(4, 3).laws().independent_count
        5
    """

    def __init__(self, features: int = 4, classes: int = 3, bias: bool = True) -> None:
        super().__init__()
        require_positive("classifier", {"features": features, "classes": classes})
        self.features = features
        self.W = weight(classes, features, fan_in=features)
        self.b = nn.Parameter(torch.zeros(classes)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, features) to log-probabilities (…, classes)."""
        return nn.functional.linear(x, self.W, self.b).log_softmax(-1)

    def laws(self) -> LawSet:
        """One or two `translation` laws."""
        laws = [Law("classifier", "classifier", "", Symmetry.TRANSLATION, (self.term("W", "c d"),), ("d",), source=KUNIN)]
        if self.b is not None:
            laws.append(Law("classifier_bias", "classifier", "", Symmetry.TRANSLATION, (self.term("b", "c"),), source=KUNIN))
        return LawSet(tuple(laws))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("Σ over classes of W, and of b, is conserved", KUNIN, "any loss of the probabilities")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, features)."""
        return (torch.randn(batch, self.features, generator=generator, dtype=torch.float64),)
