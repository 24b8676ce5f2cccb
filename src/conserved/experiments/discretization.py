r"""Gradient descent instead of gradient flow: how far the laws drift.

    θ_{j+1} = θ_j − τ g_j,     h(θ_k) − h(θ_0) = Σ_j τ² h(g_j)      for every quadratic law, exactly: O(τ²k)

A function that is no law drifts with the first order of τ instead. At a fixed number of steps the exponent of the drift in τ tells
the two apart; it is 2 or 1 as long as gradients change little, so for small τk.

Source: arXiv 2606.17816 for O(τ²k); the equality is new.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call

from conserved.catalog import Block, randomize
from conserved.law import LawSet, step_terms, value

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Drift:
    """What plain gradient descent did to a set of laws.

    Attributes:
        drift: ‖h(θ_k) − h(θ_0)‖ after 1, 2, … steps, over all components of all laws.
        predicted: ‖Σ τ²h(g)‖ after 1, 2, … steps.
        unexplained: ‖h(θ_k) − h(θ_0) − Σ τ²h(g)‖ at the end.
        scale: ‖θ_0‖² over the parameters of the laws: what the rounding of h is relative to.
    """

    drift: tuple[float, ...]
    predicted: tuple[float, ...]
    unexplained: float
    scale: float


def descend(block: Block, laws: LawSet, rate: float, steps: int, seed: int = 0, batch: int = 16) -> Drift:
    r"""Plain gradient descent on one fixed batch with the mean squared error to random targets.

    Args:
        block: the model; it is not changed.
        laws: what is watched; they need not be laws.
        rate: τ.
        steps: k.
        seed: of weights, inputs and targets.
        batch: examples.

    Example:
        >>> from conserved.catalog import GatedLinearUnit
        >>> glu = GatedLinearUnit(3, 5, 2)
        >>> seen = descend(glu, glu.laws(), rate=0.01, steps=3)
        >>> seen.unexplained < 1e-9 * seen.drift[-1]
        True
    """
    generator = torch.Generator().manual_seed(seed)
    model = deepcopy(block).double()
    randomize(model, generator)
    params = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    inputs = model.example(batch, generator)
    targets = torch.randn(model(*inputs).shape, generator=generator, dtype=torch.float64)
    start = _joined(value(laws, params))
    scale = sum(_norm(params[name]) ** 2 for name in laws.parameters)
    drift, predicted = torch.zeros_like(start), torch.zeros_like(start)
    drifts, predictions = [], []
    for _ in range(steps):
        loss = (cast(Tensor, functional_call(model, params, inputs)) - targets).square().mean()
        grads = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
        predicted = predicted + rate**2 * _joined({name: second for name, (_, second) in step_terms(laws, params, grads).items()})
        params = {name: (p - rate * grads[name]).detach().requires_grad_() for name, p in params.items()}
        drift = _joined(value(laws, params)) - start
        drifts.append(_norm(drift))
        predictions.append(_norm(predicted))
    return Drift(tuple(drifts), tuple(predictions), _norm(drift - predicted), scale)


def _joined(parts: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts.values()])


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.detach()))


def exact_drift(
    dims: tuple[int, int, int] = (2, 3, 2), rate: Fraction = Fraction(1, 64), steps: int = 3, seed: int = 0, sign: int = -1
) -> tuple[Fraction, Fraction]:
    r"""The largest entries of H(θ_k) − H(θ_0), and of H(θ_k) − H(θ_0) − Σ τ²H(g), in rational arithmetic.

    For the linear network x ↦ U V x with loss ½‖UVx − y‖², and H = UᵀU − VVᵀ.

    Args:
        dims: widths of input, hidden layer and output.
        rate: τ.
        steps: k.
        seed: of weights and data, small whole numbers.
        sign: of VVᵀ in H; with +1 it is no law.

    Example:
        >>> drift, gap = exact_drift()
        >>> drift > 0, gap
        (True, Fraction(0, 1))
    """
    random = Random(seed)
    width, hidden, out = dims
    u, v = _integers(random, out, hidden), _integers(random, hidden, width)
    x, y = _integers(random, width, 1), _integers(random, out, 1)
    first, predicted = _form(u, v, sign), _form(_scaled(u, Fraction(0)), _scaled(v, Fraction(0)), sign)
    for _ in range(steps):
        hidden_units = _product(v, x)
        error = _sum(_product(u, hidden_units), _scaled(y, Fraction(-1)))
        of_u, of_v = _product(error, _transposed(hidden_units)), _product(_product(_transposed(u), error), _transposed(x))
        predicted = _sum(predicted, _scaled(_form(of_u, of_v, sign), rate**2))
        u, v = _sum(u, _scaled(of_u, -rate)), _sum(v, _scaled(of_v, -rate))
    drift = _sum(_form(u, v, sign), _scaled(first, Fraction(-1)))
    return _largest(drift), _largest(_sum(drift, _scaled(predicted, Fraction(-1))))


def _largest(a: Matrix) -> Fraction:
    return max(abs(entry) for row in a for entry in row)


def _form(u: Matrix, v: Matrix, sign: int) -> Matrix:
    return _sum(_product(_transposed(u), u), _scaled(_product(v, _transposed(v)), Fraction(sign)))


def _integers(random: Random, rows: int, columns: int) -> Matrix:
    return tuple(tuple(Fraction(random.choice((-2, -1, 1, 2))) for _ in range(columns)) for _ in range(rows))


def _product(a: Matrix, b: Matrix) -> Matrix:
    return tuple(tuple(_dot(row, column) for column in zip(*b, strict=True)) for row in a)


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def _transposed(a: Matrix) -> Matrix:
    return tuple(zip(*a, strict=True))


def _sum(a: Matrix, b: Matrix) -> Matrix:
    return tuple(tuple(x + y for x, y in zip(first, second, strict=True)) for first, second in zip(a, b, strict=True))


def _scaled(a: Matrix, factor: Fraction) -> Matrix:
    return tuple(tuple(factor * x for x in row) for row in a)
