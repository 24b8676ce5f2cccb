r"""How many functionally independent scalars a set of laws holds.

Each law alone has the closed form of its symmetry (`Symmetry.independent`). Laws of different symmetries
or index spaces are independent at a generic point, because each has a parameter entry, or a
direction, that no other has. Only linear laws can overlap: the row sums and the column sums of one
table have the same total. Their overlap is exact arithmetic, and does not depend on θ:

A linear law with kept axes K weighs a parameter with a tensor over K. Tensors over K split into
the parts that have mean zero along exactly the axes T, for T ⊆ K, and are constant along the others
(analysis of variance). Parts with different T never meet; for one T, every law contributes a
row with its coefficients over (parameter, axes T of that parameter), and all these rows have
the same multiplicity Π_{a∈T}(n_a − 1). So the rank of all linear laws is Σ_T rank_T · Π(n_a − 1).
"""

from collections import defaultdict
from fractions import Fraction
from itertools import combinations
from math import prod

import torch

from conserved.law.evaluate import Tensors
from conserved.law.law import Law
from conserved.law.lawset import LawSet
from conserved.law.quantities import jacobian

# a part of a parameter's entries: parameter, pattern, positions of the axes T
_Part = tuple[str, tuple[object, ...], tuple[int, ...]]


def independent_count(laws: LawSet) -> int:
    """Number of functionally independent scalars in a set of laws, in closed form.

    Exact for linear laws that see a parameter through one and the same splitting of its axes
    (if they cut it into different overlapping slices, overlaps are not seen) and keep its axes in one
    order up to a common permutation. Laws that are scalar
    combinations of others in the set are not sought among the quadratic ones.

    Example:
        >>> from conserved import Law, LawSet, Symmetry, Term
        >>> rows = Law("rows", "t", "", Symmetry.TRANSLATION, (Term("E", (4, 3), "v d"),), ("v",))
        >>> columns = Law("cols", "t", "", Symmetry.TRANSLATION, (Term("E", (4, 3), "v d"),), ("d",))
        >>> independent_count(LawSet((rows, columns)))     # 4 + 3 − 1
        6
    """
    linear = [law for law in laws if law.symmetry.degree == 1]
    return sum(law.count for law in laws if law.symmetry.degree == 2) + _linear_rank(linear)


def _linear_rank(laws: list[Law]) -> int:
    rows: dict[tuple[int, ...], list[dict[_Part, Fraction]]] = defaultdict(list)
    for law in laws:
        first = min(law.terms, key=lambda term: term.parameter)
        sizes = {axis: first.view.size((axis,)) for axis in sorted(law.kept, key=first.view.names.index)}
        for number in range(len(sizes) + 1):
            for chosen in combinations(sizes, number):
                row: dict[_Part, Fraction] = defaultdict(Fraction)
                for term in law.terms:
                    view = term.view
                    positions = tuple(view.names.index(axis) for axis in chosen)
                    row[term.parameter, (view.sizes, view.steps), positions] += Fraction(term.coefficient)
                rows[tuple(sizes[axis] for axis in chosen)].append(row)
    return sum(_rank(group) * prod(size - 1 for size in sizes) for sizes, group in rows.items())


def _rank(rows: list[dict[_Part, Fraction]]) -> int:
    """Rank of sparse rows over the rationals, by elimination."""
    pivots: dict[_Part, dict[_Part, Fraction]] = {}
    for row in rows:
        left = {key: value for key, value in row.items() if value}
        while left:
            key = min(left, key=repr)
            if key not in pivots:
                pivots[key] = left
                break
            factor = left[key] / pivots[key][key]
            for other, entry in pivots[key].items():
                left[other] = left.get(other, Fraction(0)) - factor * entry
                if not left[other]:
                    del left[other]
    return len(pivots)


def gradient_rank(laws: LawSet, params: Tensors) -> int:
    """Rank of the gradients of all components at one point: the count seen numerically.

    Singular values above (largest × size × machine epsilon) are counted, in float64. Dense, for small
    models only; at a random point it equals `independent_count`.
    """
    if not len(laws):
        return 0
    return int(torch.linalg.matrix_rank(jacobian(laws, params)))
