"""`LawSet`: a sequence of laws with unique names, its selections, its table, and the stated absences."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import laws

from conserved.errors import LawError, UnknownNameError
from conserved.law import Absence, Law, LawSet, Term
from conserved.symmetry import Symmetry


def _law(name: str, family: str = "glu", layer: str = "", exact: bool = True) -> Law:
    term = Term(f"{name}.W", (3, 2), "i d")
    return Law(name, family, layer, Symmetry.RESCALE, (term,), index="i", exact=exact, reason="" if exact else "eps")


ABSENCE = Absence("layers.0.mlp", "gelu is not homogeneous", "Theorem 4.1")
LAWS = LawSet(
    (
        _law("layers.0.rope", "rope", "layers.0.attention"),
        _law("layers.0.glu", "glu", "layers.0.mlp"),
        _law("layers.1.rope", "rope", "layers.1.attention"),
        _law("layers.1.qk_norm_Q", "qk_norm", "layers.1.attention", exact=False),
        _law("head.classifier", "classifier", "head"),
    ),
    (ABSENCE,),
)


def names(chosen: LawSet) -> list[str]:
    """Names of the laws, in order."""
    return [law.name for law in chosen]


def test_an_empty_set() -> None:
    """No laws is a value like any other."""
    empty = LawSet()
    assert (len(empty), list(empty), empty.families, empty.parameters, empty.independent_count) == (0, [], (), (), 0)
    assert str(empty).split() == ["law", "symmetry", "count", "formula"]
    assert LawSet.from_json(empty.to_json()) == empty
    with pytest.raises(UnknownNameError, match="no law is named 'x'; names here: none"):
        empty.named("x")


def test_it_is_a_sequence() -> None:
    """Length, iteration, positions, slices, membership and concatenation."""
    assert len(LAWS) == 5
    assert LAWS[0].name == "layers.0.rope"
    assert LAWS[-1].name == "head.classifier"
    assert names(LAWS[1:3]) == ["layers.0.glu", "layers.1.rope"]
    assert names(LAWS[::-1]) == names(LAWS)[::-1]
    assert LAWS[1:3].absences == (ABSENCE,)
    assert LAWS[2] in LAWS
    assert LAWS.index(LAWS[2]) == 2
    with pytest.raises(IndexError):
        LAWS[5]
    other = LawSet((_law("other"),), (Absence("other", "none"),))
    both = LAWS + other
    assert names(both) == [*names(LAWS), "other"]
    assert both.absences == (ABSENCE, Absence("other", "none"))
    assert hash(LawSet(LAWS.laws, LAWS.absences)) == hash(LAWS)


def test_names_are_unique() -> None:
    """A second law of one name is refused, by the constructor and by concatenation."""
    with pytest.raises(LawError, match=r"two laws are named 'layers\.0\.rope'; names in a LawSet are unique"):
        LAWS + LAWS[:1]
    with pytest.raises(LawError, match="two laws are named 'x'"):
        LawSet.of([_law("x"), _law("x", "rope")])


def test_a_law_by_name() -> None:
    """`named` finds it, or lists what there is."""
    assert LAWS.named("layers.1.rope") is LAWS[2]
    with pytest.raises(UnknownNameError, match=r"no law is named 'rope'; names here: layers\.0\.rope, layers\.0\.glu"):
        LAWS.named("rope")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"family": "rope"}, [0, 2]),
        ({"family": "qk_*"}, [3]),
        ({"layer": "layers.0.*"}, [0, 1]),
        ({"layer": "layers.[01].attention", "family": "r*"}, [0, 2]),
        ({"name": "*.glu"}, [1]),
        ({"exact": True}, [0, 1, 2, 4]),
        ({"exact": False}, [3]),
        ({"family": "ROPE"}, []),
    ],
)
def test_select(patterns: dict[str, object], expected: list[int]) -> None:
    """Shell-style patterns on family, layer and name; absences stay."""
    chosen = LAWS.select(**patterns)  # type: ignore[arg-type]
    assert names(chosen) == [names(LAWS)[i] for i in expected]
    assert chosen.absences == (ABSENCE,)


def test_families_and_parameters_in_order() -> None:
    """Each once, in the order of the laws."""
    assert LAWS.families == ("rope", "glu", "qk_norm", "classifier")
    assert LAWS.parameters == tuple(f"{name}.W" for name in names(LAWS))


def test_renamed_moves_laws_and_absences() -> None:
    """Everything gets the prefix; an absence of the whole block gets the block's path."""
    moved = LawSet((_law("glu"),), (Absence("", "none"), Absence("W", "unused"))).renamed("mlp.")
    assert names(moved) == ["mlp.glu"]
    assert [a.where for a in moved.absences] == ["mlp", "mlp.W"]


def test_the_table() -> None:
    """One aligned line a law, approximate ones marked, absences below."""
    chosen = LawSet((_law("a"), _law("long.name", exact=False)), (ABSENCE, Absence("", "nothing else")))
    assert str(chosen).splitlines() == [
        "law        symmetry  count  formula",
        "a          rescale       3  ‖a.W[i,:]‖²",
        "long.name  rescale       3  ‖long.name.W[i,:]‖²  ≈ eps",
        "no law: layers.0.mlp: gelu is not homogeneous (Theorem 4.1)",
        "no law: model: nothing else",
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(laws(), max_size=4), st.booleans())
def test_json_reads_back(drawn: list[Law], absent: bool) -> None:
    """From plain data and from text; the total is in it."""
    chosen = LawSet.of((replace(law, name=f"law{i}") for i, law in enumerate(drawn)), (ABSENCE,) if absent else ())
    data = chosen.to_json()
    assert LawSet.from_json(data) == chosen
    assert LawSet.from_json(json.dumps(data)) == chosen
    assert data["total"] == chosen.independent_count
