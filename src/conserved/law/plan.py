"""How a set of laws is evaluated: which products of which tensors, reduced over which axes.

A plan depends on the laws alone. It shares work twice: every parameter is read once for all the
laws it takes part in, and parameters of equal shape and role (the layers of a model) form one
`Leg` that can be stacked. Laws of equal form are one `Batch`, whose values are one tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from torch import Tensor

from conserved.law.axes import View, fit
from conserved.law.law import Law, Term
from conserved.law.lawset import LawSet


@dataclass(frozen=True)
class Reduction:
    """One way to reduce a leg: a view, the kept axes, and the kind of form.

    Attributes:
        view: how the parameter is seen.
        kept: names of the kept axes, in the order of the law's value.
        matrix: whether the last kept axis appears twice (a Gram matrix).
        degree: 1 for a sum of the tensor, 2 for a sum of products.
    """

    view: View
    kept: tuple[str, ...]
    matrix: bool
    degree: int

    @cached_property
    def summed(self) -> tuple[int, ...]:
        """Positions of the contracted axes, counted with one stacking axis in front."""
        return tuple(1 + i for i, name in enumerate(self.view.names) if name not in self.kept)

    def total(self, seen: Tensor) -> Tensor:
        """The sum of a stacked view over the contracted axes."""
        return seen.sum(self.summed) if self.summed else seen

    @cached_property
    def whole(self) -> bool:
        """Whether the view leaves no entry out."""
        return all(cut is None for _, cut, _ in self.view.steps)

    @cached_property
    def sums_rows(self) -> bool:
        """Whether the parameter's first axis is contracted as it is, so that blocks of its rows can be summed one by one."""
        return self.view.names[0] not in self.kept and all(axis != 0 for axis, _, _ in self.view.steps)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Permutation of (stack, *remaining axes) into (stack, *kept)."""
        left = [name for name in self.view.names if name in self.kept]
        return (0, *(1 + left.index(name) for name in self.kept))

    @cached_property
    def in_order(self) -> bool:
        """Whether the remaining axes are in the order of `kept` already."""
        return self.order == tuple(range(len(self.order)))

    @cached_property
    def as_matrices(self) -> tuple[tuple[int, ...], int, int]:
        """For a Gram matrix: permutation to (stack, *batch, index, *contracted), size of batch, of index."""
        kept = tuple(1 + self.view.names.index(name) for name in self.kept)
        return (0, *kept, *self.summed), self.view.size(self.kept[:-1]), self.view.size(self.kept[-1:])


@dataclass(frozen=True)
class Use:
    """Where the result of a reduction goes: row of a batch of laws, with its coefficient.

    A reference leg has coefficient 0 in h and weight 1 in the magnitude.
    """

    batch: int
    rows: tuple[int, ...]
    coefficient: float
    weight: float


@dataclass(frozen=True)
class Leg:
    """Parameters of one shape and offset that are reduced in the same ways."""

    parameters: tuple[str, ...]
    shape: tuple[int, ...]
    offset: float
    uses: tuple[tuple[Reduction, tuple[Use, ...]], ...]


@dataclass(frozen=True)
class Batch:
    """Laws of equal form: their values are the rows of one tensor."""

    laws: tuple[int, ...]
    value_shape: tuple[int, ...]
    matrix: bool
    degree: int


@dataclass(frozen=True)
class Plan:
    """Legs to read and batches to fill, for a tuple of laws."""

    laws: LawSet
    legs: tuple[Leg, ...]
    batches: tuple[Batch, ...]


_Key = tuple[str, tuple[int, ...], float]  # parameter, shape, offset


def _reduction(law: Law, term: Term) -> Reduction:
    return Reduction(fit(term.axes, term.shape), law.kept, law.symmetry.is_matrix, law.symmetry.degree)


_Uses = dict[Reduction, list[tuple[int, int, float, float]]]  # batch, row, coefficient, weight


@lru_cache(maxsize=128)
def make_plan(laws: LawSet) -> Plan:
    """The plan of a set of laws; equal sets give the same plan."""
    batches = _batches(laws)
    return Plan(laws, tuple(_legs(_wanted(laws, batches))), batches)


def _batches(laws: LawSet) -> tuple[Batch, ...]:
    """Laws that are equal but for the names of their parameters, together."""
    forms: dict[tuple[object, ...], list[int]] = {}
    for number, law in enumerate(laws):
        terms, reference = (tuple(replace(term, parameter="") for term in part) for part in (law.terms, law.reference))
        forms.setdefault((law.symmetry, law.kept, terms, reference), []).append(number)
    first = [laws[rows[0]] for rows in forms.values()]
    return tuple(Batch(tuple(rows), law.value_shape, law.symmetry.is_matrix, law.symmetry.degree) for rows, law in zip(forms.values(), first, strict=True))


def _wanted(laws: LawSet, batches: tuple[Batch, ...]) -> dict[_Key, _Uses]:
    """For every parameter, its reductions and where their results go."""
    place = {number: (b, row) for b, batch in enumerate(batches) for row, number in enumerate(batch.laws)}
    wanted: dict[_Key, _Uses] = {}
    for number, law in enumerate(laws):
        for term, counts in [(t, 1.0) for t in law.terms] + [(t, 0.0) for t in law.reference]:
            marks = wanted.setdefault((term.parameter, term.shape, term.offset), {}).setdefault(_reduction(law, term), [])
            coefficient = float(term.coefficient)
            marks.append((*place[number], counts * coefficient, abs(coefficient)))
    return wanted


def _legs(wanted: dict[_Key, _Uses]) -> Iterator[Leg]:
    """Parameters that play the same part become one leg."""
    roles: dict[tuple[object, ...], list[_Key]] = {}
    for key, reductions in wanted.items():
        part = tuple((reduction, tuple((batch, c, w) for batch, _, c, w in marks)) for reduction, marks in reductions.items())
        roles.setdefault((*key[1:], part), []).append(key)
    for keys in roles.values():
        _, shape, offset = keys[0]
        uses_of = []
        for reduction, marks in wanted[keys[0]].items():
            rows = [[row for _, row, _, _ in wanted[key][reduction]] for key in keys]
            uses = tuple(Use(batch, tuple(r[i] for r in rows), c, w) for i, (batch, _, c, w) in enumerate(marks))
            uses_of.append((reduction, uses))
        yield Leg(tuple(name for name, _, _ in keys), shape, offset, tuple(uses_of))
