r"""The vector fields of a flow as polynomials over Q, read off a module's traced gradient.

    g(θ; x, c) = Σ_m g_m(θ) · (monomial m of x and c)

A function is annihilated by g for all x and c exactly if the fields g_m annihilate it; there are finitely many.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar

import flint
import torch
from torch import Tensor
from torch.fx import GraphModule

from conserved.certify.flows import Flow
from conserved.certify.interpret import interpret, trace
from conserved.certify.model import Model, Sample
from conserved.certify.monomials import Exponents, Field, Fields, Polynomial, flat
from conserved.certify.nullspace import Echelon
from conserved.certify.scalars import MINUS_INFINITY, Polynomials, Rational, UnsupportedOperation
from conserved.errors import ConfigurationError

PATIENCE = 24
"""A module in pieces is taken at random points until this many in a row bring no new field."""


@dataclass(frozen=True)
class Pieces(Polynomials):
    """Polynomials that are compared by their values at a rational point: so on the whole piece around it.

    Args:
        names: of the variables.
        point: their values.
        decisions: is filled with the outcomes of all comparisons.

    Example:
        >>> here = Pieces(("x", "y"), (flint.fmpq(1, 2), flint.fmpq(-3)))
        >>> here.greater(here.variables, here.scalar(0)).tolist(), here.decisions
        ([True, False], [True, False])
    """

    ordered: ClassVar[bool] = True
    point: tuple[flint.fmpq, ...] = ()
    decisions: list[bool] = field(default_factory=list, compare=False)

    def _exceeds(self, a: Any, b: Any) -> bool:
        if MINUS_INFINITY in (a, b):
            return b is MINUS_INFINITY and a is not b
        difference = (a - b)(*self.point)
        if difference == 0 and a != b:
            raise UnsupportedOperation("the point lies on the border of two pieces; try another seed")
        self.decisions.append(difference > 0)
        return self.decisions[-1]


def force_fields(model: Model, seed: int) -> tuple[Fields, int | None]:
    """A basis of the fields g_m, and on how many pieces they were taken; None if g is one polynomial.

    Raises:
        ConfigurationError: the gradient is not a polynomial in parameters and inputs, even in pieces.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = model.samples(1, generator)
    inputs = tuple(x[0] for x in sample.inputs)

    def gradient(theta: Tensor, cotangent: Tensor, *inputs: Tensor) -> Tensor:
        return model.gradient(theta, Sample(inputs, cotangent, cotangent[:1]))

    graph = trace(gradient, model.generic_point(generator), sample.cotangent[0], *inputs)
    rows: Echelon[tuple[int, Exponents]] = Echelon()
    seen, quiet = set(), 0
    while quiet < PATIENCE:
        piece, everywhere = _on_one_piece(model, graph, generator)
        seen.add(frozenset(piece.items()))
        new = [rows.add(flat(found)) for found in _by_data(piece, model.size)]
        quiet = 0 if any(new) else quiet + 1
        if everywhere:
            return Fields.of(model.size, rows), None
    return Fields.of(model.size, rows), len(seen)


def _on_one_piece(model: Model, graph: GraphModule, generator: torch.Generator) -> tuple[dict[tuple[int, Exponents], Fraction], bool]:
    """Coefficients of g by coordinate and exponents of (θ, c, x) around a random rational point, and whether they hold everywhere."""
    sample = model.samples(3, generator)  # of three scales
    chosen = int(torch.randint(3, (1,), generator=generator))
    tensors = (_point(model, generator), sample.cotangent[chosen], *(x[chosen] for x in sample.inputs))
    point = Rational().array(torch.cat([x.flatten() for x in tensors if x.is_floating_point()]))
    scalars = Pieces(tuple(f"z{i}" for i in range(len(point))), tuple(point))
    arguments, start = [], 0
    for x in tensors:
        if x.is_floating_point():
            arguments.append(scalars.variables[start : start + x.numel()].reshape(tuple(x.shape)))
            start += x.numel()
        else:
            arguments.append(x.numpy())
    try:
        (result,) = interpret(graph, arguments, scalars)
    except UnsupportedOperation as error:
        raise ConfigurationError(f"{type(model.module).__name__}: its gradient is not a polynomial in parameters and inputs ({error})") from error
    terms = {(i, tuple(map(int, m))): Fraction(int(c.p), int(c.q)) for i, entry in enumerate(result) for m, c in entry.to_dict().items()}
    return terms, not scalars.decisions and all(x.is_floating_point() for x in tensors)


def _point(model: Model, generator: torch.Generator) -> Tensor:
    """Random θ, every entry independent of what the module was set to; positive where the module says so."""
    theta = torch.randn(model.size, generator=generator, dtype=torch.float64)
    return torch.where(_positive(model), theta.abs() + 0.125, theta)


def _positive(model: Model) -> Tensor:
    """Which entries the module keeps positive."""
    return model.entropy_metric(torch.full((model.size,), 2.0)) > 1


def _by_data(coefficients: dict[tuple[int, Exponents], Fraction], size: int) -> list[Field]:
    """One field on θ for each monomial of cotangent and inputs."""
    fields: dict[Exponents, tuple[dict[Exponents, Fraction], ...]] = defaultdict(lambda: tuple({} for _ in range(size)))
    for (i, m), c in coefficients.items():
        fields[m[size:]][i][m[:size]] = c
    return list(fields.values())


def flow_fields(flow: Flow, forces: Fields, damping: Fraction) -> tuple[Fields, tuple[int, ...], tuple[str, ...]]:
    """The fields of a flow on the coordinates that move.

    Returns:
        The fields, the flat parameters that move, and names of the coordinates of the state space.
    """
    entries = entry_names(flow.model)
    moving = tuple(i for i in range(forces.size) if any(field[i] for field in forces.basis))
    fields: list[Field] = [tuple({tuple(m[j] for j in moving): c for m, c in field[i].items()} for i in moving) for field in forces.basis]
    names = tuple(entries[i] for i in moving)
    if flow.kind == "mirror":
        weighted = _positive(flow.model)
        fields = [tuple(_times(part, k) if weighted[i] else part for k, (i, part) in enumerate(zip(moving, field, strict=True))) for field in fields]
    if not flow.has_velocity:
        return Fields.spanned(len(moving), fields), moving, names
    size = len(moving)
    still: Field = tuple({} for _ in range(size + 1))
    pushes = [(*still, *({(0, *m, *[0] * size): c for m, c in part.items()} for part in field)) for field in fields]
    fields = [_drift(size, flow.kind, damping), *pushes]
    time = "exp(γt)" if flow.kind == "momentum" and damping else "t"
    return Fields.spanned(2 * size + 1, fields), moving, (time, *names, *(_velocity(name) for name in names))


def entry_names(model: Model) -> list[str]:
    """A name for every entry of the flat parameters: U[0,1]."""
    return [name + (f"[{','.join(map(str, at))}]" if at else "") for name, shape in model.shapes.items() for at in product(*map(range, shape))]


def _velocity(name: str) -> str:
    parameter, bracket, place = name.partition("[")
    return f"{parameter}′{bracket}{place}"


def _drift(size: int, kind: str, damping: Fraction) -> Field:
    """(γE, θ′, −γθ′); without damping (1, θ′, 0); for Nesterov t times (1, θ′, −3θ′/t)."""
    time, nothing = _unit(2 * size + 1, 0), _unit(2 * size + 1)
    speeds = [_unit(2 * size + 1, 1 + size + i) for i in range(size)]
    if kind == "nesterov":
        moved = [{tuple(a + b for a, b in zip(time, v, strict=True)): Fraction(1)} for v in speeds]
        return ({time: Fraction(1)}, *moved, *({v: Fraction(-3)} for v in speeds))
    slowed = [{v: -damping} if damping else {} for v in speeds]
    return ({time: damping} if damping else {nothing: Fraction(1)}, *({v: Fraction(1)} for v in speeds), *slowed)


def _unit(size: int, *places: int) -> Exponents:
    return tuple(places.count(i) for i in range(size))


def _times(polynomial: Polynomial, place: int) -> Polynomial:
    """The polynomial times one coordinate."""
    return {tuple(e + (j == place) for j, e in enumerate(m)): c for m, c in polynomial.items()}
