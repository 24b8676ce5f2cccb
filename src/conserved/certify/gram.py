r"""Polynomials as laws: which Gram matrices of the parameters lie in a space of conserved polynomials.

A *leg* is an axis of a parameter; its Gram matrix G contracts all other axes. Over all legs of one size, the coefficients c with

    Σ_legs c_leg · G_leg[a, b]  ∈  conserved polynomials        for all a ≤ b  (`general_linear`), or all a = b  (`rescale`)

are a null space over Q, and so are those of the squared norms of whole parameters (`scale`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import torch
from torch import Tensor

from conserved.certify.monomials import Exponents, Polynomial
from conserved.certify.nullspace import Echelon, null_space_over_q
from conserved.law import Law, LawSet, Term
from conserved.symmetry import Symmetry

FAMILY = "polynomial"
SOURCE = "conserved; null space over the rationals"

Shapes = Mapping[str, tuple[int, ...]]


def components(law: Law, shapes: Shapes) -> list[Polynomial]:
    """All scalar components of a law as polynomials in the flat parameters, without constant terms; the upper triangle of a matrix.

    Args:
        law: the law.
        shapes: of all parameters, in order.
    """
    places = _places(shapes)
    size = sum(place.numel() for place in places.values())
    legs = [(Fraction(term.coefficient), Fraction(term.offset), _leg(law, term, places[term.parameter])) for term in law.terms]
    out: list[Polynomial] = []
    for position in product(*map(range, law.kept_sizes)):
        partners = range(position[-1], law.kept_sizes[-1]) if law.symmetry.is_matrix else position[-1:] or (0,)
        for other in partners:
            total: dict[Exponents, Fraction] = {}
            for coefficient, offset, leg in legs:
                first = leg[position].tolist()
                second = leg[*position[:-1], other].tolist() if law.kept else first
                for p, q in zip(first, second, strict=True):
                    if law.symmetry.degree == 1:
                        _add(total, _exponents(size, p), coefficient)
                        continue
                    _add(total, _exponents(size, p, q), coefficient)
                    _add(total, _exponents(size, p), coefficient * offset)
                    _add(total, _exponents(size, q), coefficient * offset)
            out.append(total)
    return out


def spans(first: Sequence[Polynomial], second: Sequence[Polynomial]) -> bool:
    """Whether two lists of polynomials have one and the same span over Q."""
    one, other = Echelon(first), Echelon(second)
    return len(one) == len(other) and not any(map(one.rest, second))


def gram_laws(conserved: Sequence[Polynomial], shapes: Shapes) -> LawSet:
    """The quadratic laws whose components all lie in the span of conserved polynomials; each brings components that none before it has."""
    have: Echelon[Exponents] = Echelon()

    def brings_some(law: Law) -> bool:
        before = len(have)
        for part in components(law, shapes):
            have.add(part)
        return len(have) > before

    return LawSet.of(law for law in _candidates(Echelon(conserved), shapes) if brings_some(law))


def _candidates(conserved: Echelon[Exponents], shapes: Shapes) -> Iterator[Law]:
    legs = [(name, axis, n) for name, shape in shapes.items() for axis, n in enumerate(shape)]
    for symmetry in (Symmetry.GENERAL_LINEAR, Symmetry.RESCALE):
        for size in sorted({n for _, _, n in legs}):
            alike = [_term(name, shapes[name], axis) for name, axis, n in legs if n == size]
            yield from _combinations(symmetry, "i", alike, conserved, shapes)
    yield from _combinations(Symmetry.SCALE, None, [_term(name, shape, None) for name, shape in shapes.items() if shape], conserved, shapes)


def _combinations(symmetry: Symmetry, index: str | None, legs: Sequence[Term], conserved: Echelon[Exponents], shapes: Shapes) -> Iterator[Law]:
    """Laws whose terms are these legs, with all coefficients that make every component a combination of conserved polynomials."""
    rows: dict[tuple[int, Exponents], dict[int, Fraction]] = defaultdict(dict)
    for k, leg in enumerate(legs):
        for number, part in enumerate(components(Law("leg", FAMILY, "", symmetry, (leg,), index=index), shapes)):
            for m, c in conserved.rest(part).items():
                rows[number, m][k] = c
    size = f"{legs[0].view.size((index,))}." if index and legs else ""
    for number, weights in enumerate(null_space_over_q(rows.values(), len(legs))):
        lead = next(c for c in weights if c)
        terms = tuple(_scaled(leg, c / lead) for leg, c in zip(legs, weights, strict=True) if c)
        yield Law(f"{symmetry.value}.{size}{number}", FAMILY, "", symmetry, terms, index=index, source=SOURCE)


def _term(name: str, shape: tuple[int, ...], axis: int | None) -> Term:
    letters = [chr(ord("m") + j) for j in range(len(shape))]
    return Term(name, shape, " ".join("i" if j == axis else letter for j, letter in enumerate(letters)))


def _scaled(term: Term, factor: Fraction) -> Term:
    return Term(term.parameter, term.shape, term.axes, int(factor) if factor.denominator == 1 else factor)


def _places(shapes: Shapes) -> dict[str, Tensor]:
    """The position of every entry in the flat parameters, in the parameter's shape."""
    out, start = {}, 0
    for name, shape in shapes.items():
        number = torch.Size(shape).numel()
        out[name] = torch.arange(start, start + number).reshape(shape)
        start += number
    return out


def _leg(law: Law, term: Term, places: Tensor) -> Tensor:
    """Positions seen through the term: kept axes first, all others flattened into one."""
    names = term.view.names
    kept = [names.index(axis) for axis in law.kept]
    seen = term.view(places).permute(*kept, *(j for j in range(len(names)) if j not in kept))
    return seen.reshape(*seen.shape[: len(kept)], -1)


def _exponents(size: int, *places: int) -> Exponents:
    return tuple(places.count(i) for i in range(size))


def _add(total: dict[Any, Fraction], key: Any, value: Fraction) -> None:
    value += total.pop(key, Fraction(0))
    if value:
        total[key] = value
