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

NOISE = 1e-6
"""Relative rounding above which a word's value is no value: all of its terms cancel."""

PATIENCE = 4
"""Times as many words are drawn as are wanted, until enough are finite."""


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
        times = ("computed", "differentiated", "differentiated twice")
        how = times[len(letters) - 1] if len(letters) <= len(times) else f"differentiated {len(letters) - 1} times"
        what = f"{type(flow.model.module).__name__}: its gradient field cannot be {how} by torch.func in batches"
        why = str(error).splitlines()[0].split(". ")[0]
        raise ConfigurationError(f"{what} ({why}); write its forward without branches on data and without fused kernels") from error


def longer(letters: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The letters with what they are linear in three times as long."""
    return tuple(Sample(letter.inputs, 3 * letter.cotangent, 3 * letter.drift) for letter in letters)


def without_rounding(values: Tensor, of_longer: Tensor, depth: int) -> Tensor:
    """Values of words, zero for those that are nothing but rounding.

    The terms of brackets of commuting fields cancel, and what is left would be a random direction once it is brought to length one.
    Words are linear in each letter, so with letters three times as long a value is 3^k times what it was, and rounding, which is
    another one then, is not.
    """
    error = torch.linalg.vector_norm(of_longer / 3.0**depth - values, dim=1, keepdim=True)
    noise = error > NOISE * torch.linalg.vector_norm(values, dim=1, keepdim=True)
    return torch.where(noise, 0, values)


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
        """Values of `number` words of that depth, (number, moving coordinates); words that overflow are drawn again.

        Raises:
            ConfigurationError: most of them overflow.
        """
        block = max(1, BYTES // (8 * self.flow.size * 4**depth))
        out, found, drawn = [], 0, 0
        while found < number:
            if drawn >= PATIENCE * number:
                fields = "gradients" if depth == 1 else f"brackets of {depth} gradient fields"
                what = f"{type(self.flow.model.module).__name__}: of {drawn} {fields} on random inputs {drawn - found} are not finite"
                raise ConfigurationError(f"{what}; pass a module whose derivatives are finite on normal numbers")
            size = min(block, number - found)
            letters = tuple(samples(self.flow, self.state, size, self.generator, self.scale) for _ in range(depth))
            values = rows(self.flow, self.state, letters)[:, self.moving]
            if depth > 1:
                values = without_rounding(values, rows(self.flow, self.state, longer(letters))[:, self.moving], depth)
            finite = values.isfinite().all(1)
            out.append(values if bool(finite.all()) else values[finite])
            found, drawn = found + len(out[-1]), drawn + size
        return torch.cat(out) if len(out) > 1 else out[0]
