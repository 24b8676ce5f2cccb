"""What every block of the catalogue is: a small module that states its own laws."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from torch import Tensor, nn

from conserved.errors import ConfigurationError
from conserved.law import LawSet, Term

SEED = "arXiv 2606.17816"
MARCOTTE = "Marcotte, Gribonval, Peyré 2023, arXiv 2307.00144"
MARCOTTE_2024 = "Marcotte, Gribonval, Peyré 2024, arXiv 2405.12888"
DU = "Du, Hu, Lee 2018, arXiv 1806.00900"
KUNIN = "Kunin et al. 2021, arXiv 2012.04728"
NEW = "conserved; checked by residual and rank"

OPEN = "not certified: that these are all laws is not claimed"


@dataclass(frozen=True)
class Statement:
    """What is claimed about a block.

    Args:
        theorem: the statement in one line.
        source: where it comes from.
        conditions: when it holds.
        completeness: whether the list is known to be complete, and by what.
    """

    theorem: str
    source: str
    conditions: str
    completeness: str = OPEN


class Block(nn.Module, ABC):
    """A module that owns conservation laws.

    Subclasses are final: they implement `laws`, `statement` and `example`.
    """

    positive: tuple[str, ...] = ()
    """Names of the parameters that training keeps positive."""

    @abstractmethod
    def laws(self) -> LawSet:
        """The laws among this block's own parameters, whatever surrounds it."""

    @property
    @abstractmethod
    def statement(self) -> Statement:
        """Theorem, source, conditions and completeness."""

    @abstractmethod
    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random inputs of the shape that `forward` takes."""

    def term(self, parameter: str, axes: str, coefficient: int = 1, offset: float = 0.0) -> Term:
        """A term on one of this block's parameters."""
        return Term(parameter, tuple(self.get_parameter(parameter).shape), axes, coefficient, offset)


def weight(*shape: int, fan_in: int) -> nn.Parameter:
    """A weight with independent normal entries of variance 1/fan_in."""
    return nn.Parameter(torch.randn(*shape) / sqrt(fan_in))


def require_positive(block: str, sizes: Mapping[str, int | None]) -> None:
    """Reject sizes that are not positive integers; None is no size and passes.

    Raises:
        ConfigurationError: a size is below one or no integer.
    """
    for name, size in sizes.items():
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool):
            raise ConfigurationError(f"{block}: {name}={size!r}; give an integer")
        if size < 1:
            raise ConfigurationError(f"{block}: {name}={size}; give a size of at least 1")


def require_finite(block: str, option: str, value: float, least: float = -inf) -> None:
    """Reject NaN, infinity, and numbers below the least one.

    Raises:
        ConfigurationError: the value is none of the numbers that the option takes.
    """
    if not isfinite(value) or value < least:
        raise ConfigurationError(f"{block}: {option}={value}; give a finite number" + (f" of at least {least:g}" if isfinite(least) else ""))


def require_choice(block: str, option: str, value: str, choices: tuple[str, ...]) -> None:
    """Reject an option value outside the list.

    Raises:
        ConfigurationError: the value is not one of the choices.
    """
    if value not in choices:
        raise ConfigurationError(f"{block}: {option}={value!r} is unknown; choose one of {', '.join(choices)}")


def randomize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw every trainable parameter anew: matrices with variance 1/(last axis), vectors around their value.

    Initial values such as gains of one or adapters of zero are special points where laws look
    different from a generic one. What a block calls `positive` stays so.
    """
    positive = {id(block.get_parameter(name)) for block in module.modules() if isinstance(block, Block) for name in block.positive}
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if id(parameter) in positive:
                noise = noise.abs()
            if parameter.ndim < 2:
                parameter.copy_(parameter.double() + 0.3 * noise)
            else:
                parameter.copy_(noise / sqrt(max(1, parameter[0].numel() if parameter.ndim != 3 else parameter.shape[-1])))
