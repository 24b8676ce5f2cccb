"""`Term` and `Law` are frozen values: equal, hashable, written and read back, and checked at construction."""

import json
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from naive import laws

from conserved.errors import ConservedError, LawError, NotationError
from conserved.law import Absence, Law, LawSet, Term, value
from conserved.law.axes import View
from conserved.symmetry import Symmetry

# names that `repr` uses
NAMES = {"Law": Law, "LawSet": LawSet, "Term": Term, "Absence": Absence, "Symmetry": Symmetry, "Fraction": Fraction, "View": View}

OUT = Term("A", (2, 5), "o i")
IN = Term("C", (5, 3), "i d", -1)
LAW = Law("mlp.glu", "glu", "mlp", Symmetry.RESCALE, (OUT, IN), index="i", source="Theorem 4.2")


def _law(*terms: Term, symmetry: Symmetry = Symmetry.RESCALE, batch: tuple[str, ...] = (), index: str | None = "i", reference: tuple[Term, ...] = ()) -> Law:
    return Law("law", "family", "", symmetry, terms, batch, index, reference)


def test_values_are_frozen_and_hashable() -> None:
    """No field can be set; equal values have equal hashes, different ones differ."""
    for thing, field in ((LAW, "name"), (OUT, "parameter"), (LawSet((LAW,)), "laws"), (Absence("x", "y"), "reason")):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, field, "other")
    again = Law("mlp.glu", "glu", "mlp", Symmetry.RESCALE, (Term("A", (2, 5), "o i"), Term("C", (5, 3), "i d", -1)), index="i", source="Theorem 4.2")
    assert again == LAW
    assert hash(again) == hash(LAW)
    assert len({LAW, again, replace(LAW, name="other"), replace(LAW, terms=(OUT,))}) == 3
    assert LAW.count == 5  # a cached property does not make a value unequal
    assert again == LAW


@settings(max_examples=100, deadline=None)
@given(laws())
def test_repr_reads_back(law: Law) -> None:
    """eval(repr(law)) == law, fractions and offsets included."""
    assert eval(repr(law), dict(NAMES)) == law
    assert hash(eval(repr(law), dict(NAMES))) == hash(law)


@settings(max_examples=100, deadline=None)
@given(laws())
def test_json_reads_back(law: Law) -> None:
    """The JSON text of a law is plain, and reads back as the same law of the same types."""
    text = json.dumps(law.to_json())
    back = Law.from_json(json.loads(text))
    assert back == law
    assert [type(t.coefficient) for t in back.terms] == [type(t.coefficient) for t in law.terms]
    assert json.dumps(back.to_json()) == text
    assert (back.count, back.formula, back.latex) == (law.count, law.formula, law.latex)


def test_json_holds_the_derived_fields() -> None:
    """What a reader without this library needs is in the data."""
    data = LAW.to_json()
    assert data["count"] == 5
    assert data["formula"] == "‖A[:,i]‖² − ‖C[i,:]‖²"
    assert data["symmetry"] == "rescale"
    assert data["terms"][1] == {"parameter": "C", "shape": [5, 3], "axes": "i d", "coefficient": "-1", "offset": 0.0}


def test_a_fraction_survives() -> None:
    """A rational coefficient and an offset are exact in JSON and in the value."""
    term = Term("g", (2,), "i", Fraction(-1, 3), 1.0)
    law = _law(term)
    assert Term.from_json(json.loads(json.dumps(term.to_json()))) == term
    assert value(law, {"g": torch.tensor([2.0, -1.0], dtype=torch.float64)}).tolist() == pytest.approx([-3.0, 0.0])


REJECTED = [
    (lambda: Term("A", (2, 5), "o i", 0), LawError, "term on 'A': coefficient 0; leave the term out"),
    (lambda: Term("A", (2, 5), "o i", Fraction(0)), LawError, "coefficient 0"),
    (lambda: Term("A", (2, 5), "o"), NotationError, "name 1 axes"),
    (_law, LawError, "law 'law': no terms; a law needs at least one"),
    (lambda: _law(OUT, index=None), LawError, "the symmetry rescale needs an index axis, got index=None"),
    (lambda: _law(OUT, index=None, symmetry=Symmetry.ROTARY), LawError, "rotary needs an index axis"),
    (lambda: _law(OUT, symmetry=Symmetry.SCALE), LawError, "the symmetry scale has no index axis, got index='i'"),
    (lambda: _law(OUT, symmetry=Symmetry.TRANSLATION), LawError, "translation has no index axis"),
    (lambda: Law("law", "f", "", Symmetry.RESCALE, (OUT,), index="i", exact=False), LawError, "approximate without a reason; say what breaks it"),
    (lambda: _law(Term("C", (5, 3), "a d")), LawError, r"term 'C' \(a d\) lacks the axis 'i'"),
    (lambda: _law(OUT, Term("C", (5, 3), "a d")), LawError, r"term 'C' \(a d\) lacks the axis 'i'"),
    (lambda: _law(OUT, batch=("h",)), LawError, r"term 'A' \(o i\) lacks the axis 'h'"),
    (lambda: _law(OUT, Term("C", (4, 3), "i d")), LawError, "axis 'i' is 4 long in 'C', 5 elsewhere"),
    (lambda: _law(OUT, reference=(Term("R", (4,), "i"),)), LawError, "axis 'i' is 4 long in 'R', 5 elsewhere"),
    (lambda: _law(OUT, reference=(Term("R", (4,), "x"),)), LawError, "lacks the axis 'i'"),
    (lambda: _law(Term("A", (2, 2), "i j"), batch=("i",)), LawError, "keeps the axis .i. twice"),
]


@pytest.mark.parametrize(("make", "error", "message"), REJECTED)
def test_a_malformed_value_is_refused(make: object, error: type[ConservedError], message: str) -> None:
    """Invariants are checked at construction, with the law's or parameter's name in the message."""
    assert callable(make)
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("symmetry", list(Symmetry))
@pytest.mark.parametrize("batch", [(), ("h",), ("h", "g"), ("g", "h")])
def test_value_shape(symmetry: Symmetry, batch: tuple[str, ...]) -> None:
    """Batch axes in the law's order, then the index, twice for a matrix."""
    sizes = {"h": 2, "g": 3, "i": 4, "m": 5}
    term = Term("W", (5, 4, 3, 2), "m i g h")
    law = _law(term, symmetry=symmetry, batch=batch, index="i" if symmetry.has_index else None)
    expected = tuple(sizes[a] for a in batch) + ((4,) if symmetry.has_index else ()) + ((4,) if symmetry.is_matrix else ())
    assert law.value_shape == expected
    assert value(law, {"W": torch.ones(term.shape)}).shape == expected
    assert set(law.contracted(term)) == {"m", "i", "g", "h"} - set(law.kept)


def test_renamed_moves_paths_and_ties_names() -> None:
    """Names, layer and parameters get the prefix; a tied parameter its one name; the law stays the same law."""
    law = _law(Term("U", (3, 2), "v i"), reference=(Term("E", (3, 2), "v i"),))
    moved = replace(law, layer="head").renamed("model.", {"model.U": "model.E"})
    assert (moved.name, moved.layer, moved.family) == ("model.law", "model.head", "family")
    assert [t.parameter for t in (*moved.terms, *moved.reference)] == ["model.E", "model.E"]
    assert law.renamed("model.").layer == "model"
    assert law.renamed("") == law
    assert moved.parameters == ("model.E",)


def test_str_is_one_line() -> None:
    """Name, symmetry, count, formula, and the reason if the law is approximate."""
    assert str(LAW) == "mlp.glu [rescale, 5]: ‖A[:,i]‖² − ‖C[i,:]‖²"
    rough = replace(LAW, exact=False, reason="eps = 1e-06 in the norm")
    assert str(rough) == "mlp.glu [rescale, 5]: ‖A[:,i]‖² − ‖C[i,:]‖²  (approximate: eps = 1e-06 in the norm)"
