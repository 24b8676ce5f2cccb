"""Laws as text and LaTeX, pinned for a handful of each kind."""

from fractions import Fraction

import pytest

from conserved.law import Law, Term
from conserved.symmetry import Symmetry

Q, K = Term("Q", (2, 3, 4), "h d i"), Term("K", (2, 3, 4), "h d i", -1)


def _law(symmetry: Symmetry, *terms: Term, batch: tuple[str, ...] = (), index: str | None = None) -> Law:
    return Law("law", "family", "", symmetry, terms, batch, index)


PINNED = [
    (
        "matrix",
        _law(Symmetry.GENERAL_LINEAR, Q, K, batch=("h",), index="i"),
        "Q[h,:,i]·Q[h,:,j] − K[h,:,i]·K[h,:,j]",
        r"\langle \mathtt{Q}_{h,:,i}, \mathtt{Q}_{h,:,j}\rangle - \langle \mathtt{K}_{h,:,i}, \mathtt{K}_{h,:,j}\rangle",
    ),
    (
        "matrix with index j",
        _law(Symmetry.GENERAL_LINEAR, Term("B", (4, 2), "o j"), index="j"),
        "B[:,j]·B[:,k]",
        r"\langle \mathtt{B}_{:,j}, \mathtt{B}_{:,k}\rangle",
    ),
    (
        "diagonal with a bias",
        _law(Symmetry.RESCALE, Term("W_1", (3, 2), "i m"), Term("b_1", (3,), "i"), Term("W_2", (4, 3), "o i", -1), index="i"),
        "‖W_1[i,:]‖² + b_1[i]² − ‖W_2[:,i]‖²",
        r"\lVert \mathtt{W\_1}_{i,:}\rVert^2 + \mathtt{b\_1}_{i}^2 - \lVert \mathtt{W\_2}_{:,i}\rVert^2",
    ),
    (
        "gain with an offset",
        _law(Symmetry.RESCALE, Term("gamma", (3,), "i", 1, 1.0), Term("W", (4, 3), "o i", -1), index="i"),
        "(gamma+1)[i]² − ‖W[:,i]‖²",
        r"(\mathtt{gamma}+1)_{i}^2 - \lVert \mathtt{W}_{:,i}\rVert^2",
    ),
    (
        "rotary with a cut",
        _law(Symmetry.ROTARY, Term("Q", (2, 3, 6), "h d (c=2 j)[0:4]"), batch=("h",), index="j"),
        "‖Q⟨0:4⟩[h,:,:,j]‖²",
        r"\lVert \mathtt{Q}\langle 0:4\rangle_{h,:,:,j}\rVert^2",
    ),
    (
        "scale of everything",
        _law(Symmetry.SCALE, Term("E", (5, 3), "v d"), Term("g", (3,), "i", -1)),
        "‖E‖² − ‖g‖²",
        r"\lVert \mathtt{E}\rVert^2 - \lVert \mathtt{g}\rVert^2",
    ),
    (
        "scale for each head",
        _law(Symmetry.SCALE, Q, batch=("h",)),
        "‖Q[h,:,:]‖²",
        r"\lVert \mathtt{Q}_{h,:,:}\rVert^2",
    ),
    (
        "sum",
        _law(Symmetry.TRANSLATION, Term("E", (5, 3), "v d"), Term("P", (4, 3), "p d", -1), batch=("d",)),
        "Σ_{v} E[v,d] − Σ_{p} P[p,d]",
        r"\sum_{v} \mathtt{E}_{v,d} - \sum_{p} \mathtt{P}_{p,d}",
    ),
    (
        "entry alone, first sign negative",
        _law(Symmetry.TRANSLATION, Term("b", (3,), "i", -1), batch=("i",)),
        "−b[i]",
        r"-\mathtt{b}_{i}",
    ),
    (
        "fraction and integer factors",
        _law(Symmetry.RESCALE, Term("A", (3, 2), "i d", Fraction(1, 2)), Term("B", (3, 2), "i d", -2), index="i"),
        "1/2 ‖A[i,:]‖² − 2 ‖B[i,:]‖²",
        r"\tfrac{1}{2} \lVert \mathtt{A}_{i,:}\rVert^2 - 2 \lVert \mathtt{B}_{i,:}\rVert^2",
    ),
]


@pytest.mark.parametrize(("law", "text", "latex"), [case[1:] for case in PINNED], ids=[case[0] for case in PINNED])
def test_formula(law: Law, text: str, latex: str) -> None:
    """Both forms, word for word."""
    assert law.formula == text
    assert law.latex == latex


def test_two_cuts_are_told_apart() -> None:
    """Slices of one fused parameter never share a formula."""
    first, second = (_law(Symmetry.SCALE, Term("W", (8, 2), f"i[{a}:{a + 4}] d")) for a in (0, 4))
    assert first.formula != second.formula
    assert first.latex != second.latex
