"""Deliberately wrong laws, made from right ones: what the tests of laws must reject."""

from collections.abc import Iterator
from dataclasses import replace

from conserved.law import Law, Term
from conserved.symmetry import Symmetry


def wrong_laws(law: Law) -> Iterator[tuple[str, Law]]:
    """All perturbations of a law, by name.

    | name | what is wrong |
    | --- | --- |
    | `flip t` | the sign of term t |
    | `drop t` | term t is left out |
    | `matrix` | a diagonal law is claimed for the whole matrix |
    | `pairs` | rotary pairs are neighbours instead of halves, or the reverse |
    | `keep a` | the axis a is not summed over, so every part is claimed to be conserved alone |
    | `sum over k` | a sum runs over the kept axis k instead of the contracted ones |
    | `reference` | the leg that only sets the scale is claimed to be conserved |
    """
    for number, term in enumerate(law.terms):
        if len(law.terms) > 1:
            yield f"flip {number} {term.parameter}", _with_term(law, number, replace(term, coefficient=-term.coefficient))
            yield f"drop {number} {term.parameter}", replace(law, terms=law.terms[:number] + law.terms[number + 1 :])
    if law.symmetry is Symmetry.RESCALE and law.kept_sizes[-1] > 1:
        yield "matrix", replace(law, symmetry=Symmetry.GENERAL_LINEAR)
    if law.symmetry is Symmetry.ROTARY and law.kept_sizes[-1] > 1:
        yield "pairs", replace(law, terms=tuple(replace(term, axes=_other_pairs(term.axes)) for term in law.terms))
    for axis in _shared_contracted(law):
        yield f"keep {axis}", replace(law, batch=(*law.batch, axis))
    if law.symmetry is Symmetry.TRANSLATION:
        for axis in law.kept:
            contracted = law.contracted(law.terms[0])
            if len(law.terms) == 1 and contracted and law.terms[0].view.size((axis,)) > 1:
                yield f"sum over {axis}", replace(law, batch=(*(a for a in law.batch if a != axis), *contracted))
        if law.reference:
            yield "reference", replace(law, terms=law.reference, reference=())


def _with_term(law: Law, number: int, term: Term) -> Law:
    return replace(law, terms=(*law.terms[:number], term, *law.terms[number + 1 :]))


def _other_pairs(axes: str) -> str:
    """The pattern with halves and neighbours exchanged.

    Raises:
        ValueError: the pattern has no rotary pairs.
    """
    for old, new in (("(c=2 j)", "(j c=2)"), ("(j c=2)", "(c=2 j)")):
        if old in axes:
            return axes.replace(old, new)
    raise ValueError(f"no rotary pairs in {axes!r}")


def _shared_contracted(law: Law) -> list[str]:
    """Axes longer than one that every term contracts, under one name and in one size."""
    first, *others = law.terms
    return [
        axis
        for axis in law.contracted(first)
        if (size := first.view.size((axis,))) > 1
        and all(axis in law.contracted(term) and term.view.size((axis,)) == size for term in (*others, *law.reference))
    ]
