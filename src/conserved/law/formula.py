"""Laws as text and LaTeX, generated from their terms so that they cannot drift from them."""

from collections.abc import Callable
from fractions import Fraction

from conserved.law.law import Law, Term


def text(law: Law) -> str:
    """The law as one line of Unicode text.

    Example:
        >>> from conserved.symmetry import Symmetry
        >>> q, k = Term("Q", (2, 3, 4), "h d i"), Term("K", (2, 3, 4), "h d i", -1)
        >>> text(Law("qk", "query_key", "", Symmetry.GENERAL_LINEAR, (q, k), ("h",), "i"))
        'Q[h,:,i]·Q[h,:,j] − K[h,:,i]·K[h,:,j]'
    """
    return _join([(term.coefficient, _term(law, term)) for term in law.terms], minus="−", ratio=str)


def latex(law: Law) -> str:
    r"""The law as LaTeX, without surrounding dollars.

    Example:
        >>> from conserved.symmetry import Symmetry
        >>> terms = (Term("A", (2, 5), "o i"), Term("C", (5, 3), "i d", -1))
        >>> latex(Law("u", "swiglu", "", Symmetry.RESCALE, terms, index="i"))
        '\\lVert \\mathtt{A}_{:,i}\\rVert^2 - \\lVert \\mathtt{C}_{i,:}\\rVert^2'
    """
    return _join([(term.coefficient, _latex_term(law, term)) for term in law.terms], minus="-", ratio=_frac)


def _join(parts: list[tuple[Fraction | int, str]], minus: str, ratio: Callable[[Fraction | int], str]) -> str:
    out = ""
    for number, (coefficient, part) in enumerate(parts):
        sign = minus if coefficient < 0 else "+"
        size = abs(Fraction(coefficient))
        factor = "" if size == 1 else ratio(size) + " "
        lead = (minus if coefficient < 0 else "") if number == 0 else f" {sign} "
        out += f"{lead}{factor}{part}"
    return out


def _frac(value: Fraction | int) -> str:
    fraction = Fraction(value)
    return str(fraction) if fraction.denominator == 1 else rf"\tfrac{{{fraction.numerator}}}{{{fraction.denominator}}}"


def _subscripts(law: Law, term: Term, other: bool = False) -> list[str]:
    """Name of every kept axis, ':' for the contracted ones, with cuts of the pattern shown."""
    names = [("j" if other and name == law.index else name) if name in law.kept else ":" for name in term.view.names]
    if law.index == "j" and other:
        names = ["k" if name == "j" else name for name in names]
    return names


def _base(term: Term) -> str:
    shown = f"({term.parameter}+{term.offset:g})" if term.offset else term.parameter
    cuts = [cut for _, cut, _ in term.view.steps if cut is not None]
    return shown + "".join(f"⟨{a}:{b}⟩" for a, b in cuts)


def _term(law: Law, term: Term) -> str:
    base = _base(term)
    first = f"{base}[{','.join(_subscripts(law, term))}]"
    summed = bool(law.contracted(term))
    if law.symmetry.degree == 1:
        return (f"Σ_{{{','.join(law.contracted(term))}}} " if summed else "") + f"{base}[{','.join(term.view.names)}]"
    if law.symmetry.is_matrix:
        return f"{first}·{base}[{','.join(_subscripts(law, term, other=True))}]"
    if not law.kept:
        return f"‖{base}‖²"
    return f"‖{first}‖²" if summed else f"{first}²"


def _latex_term(law: Law, term: Term) -> str:
    base = r"\mathtt{" + term.parameter.replace("_", r"\_") + "}"
    if term.offset:
        base = rf"({base}+{term.offset:g})"
    cuts = [cut for _, cut, _ in term.view.steps if cut is not None]
    cut_text = "".join(rf"\langle {a}:{b}\rangle" for a, b in cuts)
    sub = ",".join(_subscripts(law, term))
    first = f"{base}{cut_text}_{{{sub}}}"
    summed = bool(law.contracted(term))
    if law.symmetry.degree == 1:
        total = rf"\sum_{{{','.join(law.contracted(term))}}} " if summed else ""
        return f"{total}{base}{cut_text}_{{{','.join(term.view.names)}}}"
    if law.symmetry.is_matrix:
        return rf"\langle {first}, {base}{cut_text}_{{{','.join(_subscripts(law, term, other=True))}}}\rangle"
    if not law.kept:
        return rf"\lVert {base}{cut_text}\rVert^2"
    return rf"\lVert {first}\rVert^2" if summed else f"{first}^2"
