"""Counts of independent scalars: closed forms against ranks of gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conserved.law import Law, LawSet, Term, gradient_rank, independent_count
from conserved.symmetry import Symmetry


def _random(laws: LawSet, seed: int = 0) -> dict[str, torch.Tensor]:
    shapes = {term.parameter: term.shape for law in laws for term in law.terms}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def _sum(name: str, batch: tuple[str, ...], *terms: Term) -> Law:
    return Law(name, "t", "", Symmetry.TRANSLATION, terms, batch)


E = Term("E", (4, 3), "v d")
P = Term("P", (5, 3), "p d", -1)

OVERLAPS = [
    ("rows and columns of one table", (_sum("rows", ("v",), E), _sum("columns", ("d",), E)), 4 + 3 - 1),
    ("the total is implied", (_sum("rows", ("v",), E), _sum("total", (), E)), 4),
    ("twice the same", (_sum("a", ("v",), E), _sum("b", ("v",), E)), 4),
    ("entries imply all", (_sum("entries", ("v", "d"), E), _sum("rows", ("v",), E), _sum("columns", ("d",), E)), 12),
    ("an order of axes does not matter", (_sum("a", ("v", "d"), E), _sum("b", ("d", "v"), E)), 12),
    ("exchange alone", (_sum("exchange", ("d",), E, P),), 3),
    ("exchange with rows of both", (_sum("exchange", ("d",), E, P), _sum("rows", ("v",), E), _sum("places", ("p",), P)), 3 + 4 + 5 - 1),
    ("exchange and its opposite", (_sum("a", ("d",), E, P), _sum("b", ("d",), E, Term("P", (5, 3), "p d", 1))), 6),
    ("disjoint slices", (_sum("a", ("d",), Term("E", (4, 3), "v[0:2] d")), _sum("b", ("d",), Term("E", (4, 3), "v[2:4] d"))), 6),
    ("no laws", (), 0),
]


@pytest.mark.parametrize(("laws", "count"), [case[1:] for case in OVERLAPS], ids=[case[0] for case in OVERLAPS])
def test_overlaps_of_linear_laws(laws: tuple[Law, ...], count: int) -> None:
    """The closed form and the rank of the gradients agree with what was counted by hand."""
    chosen = LawSet(laws)
    assert independent_count(chosen) == count
    assert gradient_rank(chosen, _random(chosen)) == count
    assert chosen.independent_count == count


@settings(max_examples=60, deadline=None)
@given(st.lists(st.frozensets(st.sampled_from("abc")), min_size=1, max_size=4, unique=True), st.permutations((2, 3, 4)), st.integers(0, 1))
def test_random_sums_of_one_table(kept: list[frozenset[str]], sizes: list[int], ones: int) -> None:
    """Any family of marginal sums of a 3-axis table, axes of length one included."""
    shape = (1, *sizes[1:]) if ones else tuple(sizes)
    laws = LawSet.of(_sum(f"law{i}", tuple(sorted(names)), Term("T", shape, "a b c")) for i, names in enumerate(kept))
    assert independent_count(laws) == gradient_rank(laws, _random(laws))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from(Symmetry))
def test_the_count_of_one_law(n: int, columns: int, rows: int, heads: int, symmetry: Symmetry) -> None:
    """Rank-deficient stacks included: k·n − k(k−1)/2 of each copy."""
    index = "i" if symmetry.has_index else None
    terms = (Term("U", (heads, n, columns), "h i m"), Term("V", (rows, heads, n), "o h i", -1))
    law = Law("law", "f", "", symmetry, terms, ("h",), index)
    laws = LawSet((law,))
    assert law.count == independent_count(laws) == gradient_rank(laws, _random(laws))
