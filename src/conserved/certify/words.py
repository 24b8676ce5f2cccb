"""Values of random words of a flow's Lie algebra at a point, many at once, by automatic differentiation in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from conserved.certify.flows import Flow, word
from conserved.certify.model import Sample
from conserved.errors import ConfigurationError

BYTES = 2**28
"""Rows are computed in blocks of about this size."""


def rows(flow: Flow, state: Tensor, letters: tuple[Sample, ...]) -> Tensor:
    """Values at a state of the words whose letters are stacked samples: (number, size).

    Args:
        flow: whose fields the letters pick.
        state: where.
        letters: one stack of samples for each place of the word, all of one length.

    Raises:
        ConfigurationError: the module has an operation that cannot be differentiated often enough, or not in batches.
    """
    try:
        return vmap(lambda *samples: word(flow, samples)(state))(*letters)
    except (RuntimeError, NotImplementedError) as error:
        what = f"{type(flow.model.module).__name__}: its gradient field cannot be differentiated {len(letters) - 1} times in batches"
        raise ConfigurationError(f"{what} ({str(error).splitlines()[0]})") from error


def samples(flow: Flow, state: Tensor, number: int, generator: torch.Generator, scale: float = 1.0) -> Sample:
    """Random samples for words at a state; every other one next to a hinge, where the module has some."""
    drawn = flow.model.samples(number, generator, scale)
    close = flow.model.across_hinges(flow.theta(state), number, generator)
    if close is None:
        return drawn
    mixed = (torch.where((torch.arange(number) % 4 < 2).view(-1, *[1] * (x.ndim - 1)), x, y) for x, y in zip(drawn.inputs, close, strict=True))
    return Sample(tuple(mixed), drawn.cotangent, drawn.drift)


@dataclass(frozen=True, eq=False)
class RealWords:
    """Random words on real data.

    Args:
        flow: the flow.
        state: the point, (size,).
        moving: indices of the coordinates that are kept.
        generator: the source of randomness.
        scale: of the inputs.
    """

    flow: Flow
    state: Tensor
    moving: Tensor
    generator: torch.Generator
    scale: float = 1.0

    def __call__(self, depth: int, number: int) -> Tensor:
        """Values of `number` words of that depth, (number, moving coordinates)."""
        block = max(1, BYTES // (8 * self.flow.size * 4**depth))
        out = []
        for start in range(0, number, block):
            size = min(block, number - start)
            letters = tuple(samples(self.flow, self.state, size, self.generator, self.scale) for _ in range(depth))
            out.append(rows(self.flow, self.state, letters)[:, self.moving])
        return torch.cat(out) if len(out) > 1 else out[0]
