"""The search for a certificate: random words at a point, in exact arithmetic or in balls, until their rank and the laws fill the space."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conserved.certify.certificate import PRIME, agrees, exact_rows, law_gradients, scalars_of, state_determinant
from conserved.certify.elimination import Elimination, determinant, is_nonzero
from conserved.certify.flows import Flow
from conserved.certify.model import Sample, exact
from conserved.certify.scalars import Array, Scalars, UnsupportedOperation
from conserved.certify.words import samples

BITS = (256, 1024, 4096)
"""Precisions of the balls, tried in order."""

PARAMETERS = {"ball": BITS, "rational": (0,), "modular": (PRIME,)}
"""Of the scalars of each arithmetic, in the order of the tries."""

DEPTH = 4
"""Length of the longest words."""

DRAWS = 8
"""Further draws of fields before brackets, for modules that are analytic only in pieces."""


@dataclass(frozen=True, eq=False)
class Proof:
    """What the search proved at a point.

    Attributes:
        ranks: proved ranks after depth 1, 2, ….
        laws: rank of the closed forms.
        size: dimension of the space.
        parameter: bits or prime.
        letters: the words of the minor, for every depth.
        columns: of the minor.
        determinant: of the minor.
        certain: whether the determinant, as it is stated, is not zero; the ball of one can be wider than the pivots are.
        stopped: why no longer words were taken, if the arithmetic lacks an operation of theirs.
    """

    ranks: tuple[int, ...]
    laws: int
    size: int
    parameter: int
    letters: tuple[tuple[Sample, ...], ...]
    columns: tuple[int, ...]
    determinant: str
    certain: bool = True
    stopped: str = ""

    @property
    def complete(self) -> bool:
        """Whether rank and laws fill the space, and the minor shows it."""
        return self.certain and self.ranks[-1] + self.laws == self.size


def require_supported(flow: Flow, arithmetic: str, generator: torch.Generator) -> None:
    """Evaluate one field in an arithmetic: what it cannot do shows at once, and not after a search in float64.

    Args:
        flow: whose fields.
        arithmetic: "ball", "rational" or "modular".
        generator: the source of randomness.

    Raises:
        UnsupportedOperation: the arithmetic lacks an operation of the fields.
    """
    state = flow.state(flow.model.generic_point(generator), generator)
    exact_rows(flow, state, (_rounded(flow.model.samples(1, generator)),), scalars_of(arithmetic, PARAMETERS[arithmetic][0]))


def prove(flow: Flow, state: Tensor, moving: Tensor, arithmetic: str, generator: torch.Generator, depth: int = DEPTH) -> Proof:
    """The best proof found at a point; complete or not.

    Args:
        flow: whose fields.
        state: the point, exact in binary with few digits.
        moving: indices of the coordinates that count.
        arithmetic: "ball", "rational" or "modular".
        generator: the source of randomness.
        depth: of the longest words.

    Raises:
        UnsupportedOperation: the arithmetic lacks an operation of the fields; of their brackets, the proof is that of shorter words.
    """
    coordinates = tuple(moving.tolist())
    laws = int(law_gradients(flow, state, coordinates).rank())
    most = len(coordinates) - laws
    parameters = PARAMETERS[arithmetic]
    tries = [_Try(flow, state, coordinates, scalars_of(arithmetic, p), most) for p in parameters]
    seed = int(torch.randint(2**31, (1,), generator=generator))
    first = [tries[0].with_words(1, torch.Generator().manual_seed(seed))]
    for more in tries[1:]:  # brackets help only if more bits do not
        if first[-1].rank < most or not first[-1].certain:
            first.append(more.with_words(1, torch.Generator().manual_seed(seed)))
    best = max(first, key=lambda one: (one.rank, one.certain))
    for _ in range(DRAWS if flow.model.piecewise else 0):  # a piece that few samples meet is cheaper than a bracket
        if best.rank < most:
            best = best.with_words(1, generator)
    ranks, stopped = [best.rank], ""
    while ranks[-1] < most and len(ranks) < depth and not stopped:
        try:
            best = best.with_words(len(ranks) + 1, generator)
            ranks.append(best.rank)
        except UnsupportedOperation as error:  # derivatives may bring operations that the fields themselves do not have
            stopped = str(error).split(";")[0]
    parameter = parameters[tries.index(best.origin)] if best.origin in tries else parameters[0]
    return Proof(tuple(ranks), laws, len(coordinates), parameter, best.letters, best.elimination.columns, best.minor, best.certain, stopped)


@dataclass(frozen=True, eq=False)
class _Try:
    """An elimination with the words that it used."""

    flow: Flow
    state: Tensor
    moving: tuple[int, ...]
    scalars: Scalars
    most: int
    elimination: Elimination = field(default_factory=Elimination)
    letters: tuple[tuple[Sample, ...], ...] = ()
    rows: tuple[Array, ...] = ()
    start: "_Try | None" = None

    @property
    def rank(self) -> int:
        return self.elimination.rank

    @property
    def origin(self) -> "_Try":
        """The try without words."""
        return self.start or self

    def with_words(self, depth: int, generator: torch.Generator) -> "_Try":
        number = (self.most - self.rank + 3) * (4 if self.flow.model.piecewise else 1)  # a piece is met by few samples
        letters = tuple(_rounded(samples(self.flow, self.state, number, generator)) for _ in range(depth))
        rows = exact_rows(self.flow, self.state, letters, self.scalars)[:, list(self.moving)]
        with self.scalars.precision():
            elimination, used = self.elimination.extended(rows, self.most)
        if not used:
            return self
        kept = tuple(Sample(tuple(x[used] for x in s.inputs), s.cotangent[used], s.drift[used]) for s in letters)
        return _Try(self.flow, self.state, self.moving, self.scalars, self.most, elimination, (*self.letters, kept), (*self.rows, rows[used]), self.origin)

    @cached_property
    def _determinant(self) -> Any:
        """Of the minor; 1 of none."""
        if not self.rows:
            return self.scalars.number(1)
        return determinant(np.concatenate(self.rows)[:, list(self.elimination.columns)])

    @property
    def certain(self) -> bool:
        with self.scalars.precision():
            return is_nonzero(self._determinant) and agrees(self._determinant, state_determinant(self._determinant))

    @property
    def minor(self) -> str:
        with self.scalars.precision():
            return state_determinant(self._determinant)


def _rounded(sample: Sample) -> Sample:
    """The samples with numbers that are short in every arithmetic."""

    def short(x: Tensor) -> Tensor:
        return exact(x) if x.is_floating_point() else x

    return Sample(tuple(short(x) for x in sample.inputs), short(sample.cotangent), short(sample.drift))
