r"""Complex inputs near the singularities of the activations: the numerical form of the identity theorem.

    W(θ) = span over real x  =  real part of the span over complex x        (fields are analytic in x)

On real data the units of a wide layer look alike: activations are smooth, their derivatives along a low-dimensional input are
nearly dependent, and in double precision the rank looks too small, with laws that do not exist. Near a pole of one unit that unit
outgrows all others, and at two distances from the pole its slope and its value separate:

    sigmoid, SiLU    z = iπ(2k + 1)             tanh, GELU-tanh    z = iπ(k + 1/2)
    softmax          Σ_j exp(z_j) = 0           1/z, rsqrt, log    z = 0

The error function, and so GELU, is entire: there the inputs are R·exp(± iπ/4)·x with large R, where exp(−z²) is a wave of length
π/R, and rows of many R are far from parallel.

Holds for modules that are analytic where the samples are; ReLU and top-k have no complex extension.

Source: the proofs of completeness of arXiv 2606.17816 extend the orthogonality to complex inputs in the same way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle
from math import pi
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conserved.certify.flows import Flow
from conserved.certify.interpret import interpret, trace
from conserved.certify.model import Sample
from conserved.certify.scalars import Array, Complex, UnsupportedOperation
from conserved.certify.words import longer, rows, without_rounding

POLES = {"sigmoid": (1j * pi, 2j * pi), "tanh": (0.5j * pi, 1j * pi), "div": (0, 0), "rsqrt": (0, 0), "log": (0, 0), "sqrt": (0, 0)}
"""First singularity of an activation in the upper half plane, and the period to the next."""

SUMS = ("softmax", "logsumexp")
"""Activations with poles where the sum of exponentials over their last axis is zero."""

SINGULAR = frozenset((*POLES, *SUMS))

ENTIRE = ("erf", "erfc", "exp")
"""Activations without poles."""

NEAR = (0.03, 0.6)
"""Distances to a singularity, drawn with uniform logarithm."""

FAR = (1.0, 9.0)
"""Moduli of the pre-activations of entire activations, of a typical sample."""

TRIES = 40
"""Units tried for one sample."""

STEPS = 12
"""Of the secant method."""


@dataclass(frozen=True, eq=False)
class MeromorphicWords:
    """Random words on complex data near singularities; called like `RealWords`, with complex rows.

    Args:
        flow: the flow.
        state: the point, (size,).
        moving: indices of the coordinates that are kept.
        generator: the source of randomness.
    """

    flow: Flow
    state: Tensor
    moving: Tensor
    generator: torch.Generator

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """Activations that the inputs reach and that the samples aim at.

        Raises:
            UnsupportedOperation: the module has no complex extension.
        """
        flat, other = (_complexified(self._draw()) for _ in range(2))
        other = [y if x.dtype.kind == "c" else x for x, y in zip(flat, other, strict=True)]  # a shift of all would not be seen through layer norm
        met = zip(self._activations(flat), self._activations(other), strict=True)
        found = [name for (name, first), (_, second) in met if first.shape == second.shape and not np.allclose(_finite(first), _finite(second))]
        return tuple(found)

    def __call__(self, depth: int, number: int) -> Tensor:
        """Values of at least `number` words of that depth, less those that overflow, (words, moving coordinates), complex.

        Raises:
            UnsupportedOperation: most of them overflow.
        """
        whole = 1 << (number - 1).bit_length()  # few sizes, few graphs
        letters = tuple(self.flow.model.samples(whole, self.generator) for _ in range(depth))
        if (depth, whole) not in self._graphs:
            self._graphs[depth, whole] = trace(lambda point, *samples: rows(self.flow, point, samples), self.state, *letters)
        graph = self._graphs[depth, whole]
        letters = tuple(Sample(self._many_near(whole), letter.cotangent, letter.drift) for letter in letters)
        values = self._interpreted(graph, letters)
        if depth > 1:
            values = without_rounding(values, self._interpreted(graph, longer(letters)), depth)
        finite = values.isfinite().all(1)
        if 2 * int(finite.sum()) < len(finite):
            raise UnsupportedOperation("most values near the singularities are not finite")
        return values[finite]

    def _interpreted(self, graph: Any, letters: tuple[Sample, ...]) -> Tensor:
        arguments: list[Any] = [self.state.numpy().astype(complex)]
        for letter in letters:
            inputs = tuple(x.numpy() for x in letter.inputs)
            arguments.append((inputs, letter.cotangent.numpy().astype(complex), letter.drift.numpy().astype(complex)))
        return torch.from_numpy(np.asarray(interpret(graph, arguments, Complex())[0], dtype=complex))[:, self.moving]

    def _many_near(self, number: int) -> tuple[Tensor, ...]:
        inputs = [self._near() for _ in range(number)]
        return tuple(torch.from_numpy(np.stack(parts)) for parts in zip(*inputs, strict=True))

    @cached_property
    def _graphs(self) -> dict[tuple[int, int], Any]:
        """The words traced so far, by depth and number."""
        return {}

    def _draw(self) -> Sample:
        one = self.flow.model.samples(1, self.generator)
        return Sample(tuple(x[0] for x in one.inputs), one.cotangent[0], one.drift[0])

    @cached_property
    def _outputs(self) -> Any:
        sample = self._draw()
        return trace(lambda theta, *inputs: self.flow.model.outputs(theta, inputs), self.flow.theta(self.state), *sample.inputs)

    def _activations(self, inputs: list[Array]) -> list[tuple[str, Array]]:
        record: dict[str, list[tuple[str, Array]]] = {}
        interpret(self._outputs, [self.flow.theta(self.state).numpy().astype(complex), *inputs], Complex(), record)
        return [(name, np.asarray(z)) for name, z in record.get("activations", []) if name in SINGULAR or name in ENTIRE]

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng(int(torch.randint(2**31, (1,), generator=self.generator)))

    @cached_property
    def _targets(self) -> Iterator[tuple[int, int]]:
        """Units to aim at, each in turn, without end: place of the activation in order of execution, and entry of its argument."""
        met = self._activations(_complexified(self._draw()))
        kind = SINGULAR if any(name in SINGULAR for name, _ in met) else ENTIRE
        pairs = [(place, entry) for place, (name, z) in enumerate(met) if name in kind for entry in range(z.size // (z.shape[-1] if name in SUMS else 1))]
        return cycle([pairs[i] for i in self._random.permutation(len(pairs))])

    def _near(self) -> list[Array]:
        """Inputs of one sample near a singularity of the next unit, or far out on a diagonal."""
        for _ in range(TRIES):
            place, entry = next(self._targets)
            if (found := self._aimed(place, entry)) is not None:
                return found
        return _complexified(self._draw())

    def _aimed(self, place: int, entry: int) -> list[Array] | None:
        """Solve for the complex t at which x + t·u brings one unit to its target; None if that fails."""
        base, way = _complexified(self._draw()), _complexified(self._draw())
        name, z = self._activations(base)[place]
        if name in ENTIRE:
            radius = np.exp(self._random.uniform(*np.log(FAR))) / max(abs(z.ravel()[entry]), 1e-3)
            return _moved(base, lambda x, _: x * radius * np.exp(1j * pi / 4 * self._random.choice((-1, 1))), way)
        distance = np.exp(self._random.uniform(*np.log(NEAR)) + 2j * pi * self._random.random())
        first, period = POLES.get(name, (0, 0))
        goal = first + period * int(self._random.integers(-2, 2)) + distance

        def miss(t: Any) -> Any:
            z = self._activations(_moved(base, partial(_along, t), way))[place][1]
            if name not in SUMS:
                return z.ravel()[entry] - goal
            logits = z.reshape(-1, z.shape[-1])[entry]
            logits = logits[np.isfinite(logits)]
            return np.exp(logits - logits.mean()).sum() - goal

        with np.errstate(all="ignore"):
            before, t = np.complex128(0), np.complex128(complex(self._random.normal(), self._random.normal()))
            value_before, value = miss(before), miss(t)
            for _ in range(STEPS):
                if np.abs(value) < 0.05 * abs(distance):
                    return _moved(base, partial(_along, t), way)
                step = value * (t - before) / (value - value_before)
                if not np.isfinite(step):
                    return None
                before, value_before, t = t, value, t - step
                value = miss(t)
        return None


def _along(t: complex, x: Array, u: Array) -> Array:
    return x + t * u


def _moved(base: list[Array], move: Callable[[Array, Array], Array], way: list[Array]) -> list[Array]:
    """The inputs, each number of them moved; integers stay."""
    return [move(x, u) if x.dtype.kind == "c" else x for x, u in zip(base, way, strict=True)]


def _complexified(sample: Sample) -> list[Array]:
    return [x.numpy().astype(complex) if x.is_floating_point() else x.numpy() for x in sample.inputs]


def _finite(z: Array) -> Array:
    return np.where(np.isfinite(z), z, 0)


def meromorphic(flow: Flow, state: Tensor, moving: Tensor, generator: torch.Generator) -> MeromorphicWords | str:
    """Complex sampling for a flow at a point, or in words why there is none."""
    words = MeromorphicWords(flow, state, moving, generator)
    if flow.model.piecewise:
        return "the module is analytic only in pieces and has no complex extension"
    try:
        if not words.choices:
            return "no activation has a singularity that the inputs reach"
        words(1, 2)
    except UnsupportedOperation as error:
        return f"complex evaluation is impossible ({str(error).split(';')[0]})"
    return words
