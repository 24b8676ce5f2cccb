r"""The one shape of all conservation laws: `Term` and `Law`.

    quadratic:   h = Σ_t c_t · Gram(W_t + o_t)       Gram contracts every axis that is not kept
    linear:      h = Σ_t c_t · Σ(W_t + o_t)          sums every axis that is not kept

Both are values without tensors: frozen, hashable, `eval(repr(law)) == law`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

from conserved.errors import LawError
from conserved.law.axes import View, fit
from conserved.symmetry import Symmetry


@dataclass(frozen=True)
class Term:
    """One leg of a law: a parameter, seen through an axes pattern, with its coefficient.

    Args:
        parameter: name of the parameter in the model.
        shape: shape of that parameter.
        axes: how its axes are named, split and cut (`conserved.law.axes`). Axes that carry a
            law's batch or index name are kept, all others are contracted: so the heads of one
            key–value group are summed by naming them differently from the law's batch axis.
        coefficient: +1 where the leg produces the index, −1 where it consumes it. Rational
            values occur in discovered laws.
        offset: added to the parameter before anything else: 1 for a gain stored as γ − 1.

    Raises:
        NotationError: the pattern does not fit the shape.
        LawError: the coefficient is zero.

    Example:
        >>> Term("q", (12, 3), "(h=2 i) d").view.sizes
        (2, 6, 3)
    """

    parameter: str
    shape: tuple[int, ...]
    axes: str
    coefficient: Fraction | int = 1
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Check the invariants."""
        if self.coefficient == 0:
            raise LawError(f"term on {self.parameter!r}: coefficient 0; leave the term out")
        fit(self.axes, self.shape)

    @property
    def view(self) -> View:
        """The pattern fitted to the shape."""
        return fit(self.axes, self.shape)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it back."""
        return {
            "parameter": self.parameter,
            "shape": list(self.shape),
            "axes": self.axes,
            "coefficient": str(self.coefficient),
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Term":
        """Read what `to_json` wrote."""
        coefficient = Fraction(data["coefficient"])
        number = int(coefficient) if coefficient.denominator == 1 else coefficient
        return cls(data["parameter"], tuple(data["shape"]), data["axes"], number, data["offset"])


@dataclass(frozen=True)
class Law:
    r"""A conservation law h(θ), as a sum of terms over one index space.

    Its value is a tensor with the batch axes first and then the index: for `general_linear` a
    symmetric matrix, for `rescale` and `rotary` a diagonal, for `scale` and `translation` no
    index at all.

    Args:
        name: unique name, by convention `path.family`.
        family: the kind of law, equal for all layers ("rope", "value_output", "swiglu", …).
        layer: path of the block that it lives in.
        symmetry: the symmetry that conserves it.
        terms: the legs.
        batch: names of the axes of independent copies (head, expert, row).
        index: name of the axis that the symmetry acts on; None where it has none.
        reference: legs whose gradient sets the scale of the residual although they are not part
            of h. Needed where the law says that a gradient vanishes (a key bias): such a law
            has nothing of its own to be compared with.
        exact: whether h is constant for exact arithmetic.
        reason: why it is not exact, or under which condition it is; empty if unconditional.
        source: paper and theorem.

    Holds for: plain gradient flow, every data set and loss; the identity ⟨∇h, g⟩ = 0 also for
    every mini-batch gradient g.
    Breaks under: discrete steps (order τ²k for the quadratic ones; linear ones do not drift),
    weight decay, momentum, adaptive or unequal learning rates: see `conserved.monitor`.

    Raises:
        LawError: no term, a term that lacks a kept axis or disagrees on its size, an index where
            the symmetry has none, or an approximate law without a reason.

    Example:
        >>> law = Law("mlp.swiglu", "swiglu", "mlp", Symmetry.RESCALE,
        ...     (Term("A", (2, 5), "o i"), Term("C", (5, 3), "i d", -1)), index="i")
        >>> law.count, law.formula
        (5, '‖A[:,i]‖² − ‖C[i,:]‖²')
        >>> Law.from_json(law.to_json()) == law
        True
    """

    name: str
    family: str
    layer: str
    symmetry: Symmetry
    terms: tuple[Term, ...]
    batch: tuple[str, ...] = ()
    index: str | None = None
    reference: tuple[Term, ...] = ()
    exact: bool = True
    reason: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Check the invariants."""
        if not self.terms:
            raise LawError(f"law {self.name!r}: no terms; a law needs at least one")
        if self.symmetry.has_index != (self.index is not None):
            need = "needs an index axis" if self.symmetry.has_index else "has no index axis"
            raise LawError(f"law {self.name!r}: the symmetry {self.symmetry.value} {need}, got index={self.index!r}")
        if not self.exact and not self.reason:
            raise LawError(f"law {self.name!r}: approximate without a reason; say what breaks it")
        if repeated := [axis for axis in self.kept if self.kept.count(axis) > 1]:
            raise LawError(f"law {self.name!r}: keeps the axis {repeated[0]!r} twice; name each batch or index axis once")
        for term in (*self.terms, *self.reference):
            for axis, size in zip(self.kept, self.kept_sizes, strict=True):
                if axis not in term.view.names:
                    raise LawError(f"law {self.name!r}: term {term.parameter!r} ({term.axes}) lacks the axis {axis!r}")
                if term.view.size((axis,)) != size:
                    raise LawError(f"law {self.name!r}: axis {axis!r} is {term.view.size((axis,))} long in {term.parameter!r}, {size} elsewhere")

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the axes of the value: batch, then index."""
        return self.batch if self.index is None else (*self.batch, self.index)

    @property
    def kept_sizes(self) -> tuple[int, ...]:
        """Sizes of the kept axes."""
        view = self.terms[0].view
        if missing := [axis for axis in self.kept if axis not in view.names]:
            raise LawError(f"law {self.name!r}: term {self.terms[0].parameter!r} ({self.terms[0].axes}) lacks the axis {missing[0]!r}")
        return tuple(view.size((axis,)) for axis in self.kept)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the value: the kept sizes, the index twice for a matrix law."""
        sizes = self.kept_sizes
        return (*sizes, sizes[-1]) if self.symmetry.is_matrix else sizes

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters in h, each once."""
        return tuple(dict.fromkeys(term.parameter for term in self.terms))

    @cached_property
    def count(self) -> int:
        """Number of functionally independent scalars in the law: closed form of the symmetry.

        Checked in the tests against the rank of the law's gradients at a random point.
        """
        batch = prod(self.kept_sizes[: len(self.batch)])
        if self.index is None:
            return batch * self.symmetry.independent(1, 1)
        size = self.kept_sizes[-1]
        columns = sum(prod(term.view.sizes) // prod(self.kept_sizes) for term in self.terms)
        return batch * self.symmetry.independent(size, min(size, columns))

    def contracted(self, term: Term) -> tuple[str, ...]:
        """Names of the axes that are summed in a term."""
        return tuple(name for name in term.view.names if name not in self.kept)

    def renamed(self, prefix: str, names: dict[str, str] | None = None) -> "Law":
        """The same law inside a larger model: paths get a prefix, tied parameters their one name."""
        names = names or {}

        def move(terms: Iterable[Term]) -> tuple[Term, ...]:
            return tuple(replace(t, parameter=names.get(prefix + t.parameter, prefix + t.parameter)) for t in terms)

        layer = (prefix + self.layer).rstrip(".")
        return replace(self, name=prefix + self.name, layer=layer, terms=move(self.terms), reference=move(self.reference))

    @property
    def formula(self) -> str:
        """The law as one line of text, generated from its terms."""
        from conserved.law.formula import text

        return text(self)

    @property
    def latex(self) -> str:
        """The law as LaTeX, generated from its terms."""
        from conserved.law.formula import latex

        return latex(self)

    def __str__(self) -> str:
        """One line: name, symmetry, formula, count."""
        mark = "" if self.exact else f"  (approximate: {self.reason})"
        return f"{self.name} [{self.symmetry.value}, {self.count}]: {self.formula}{mark}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, the count and formula included; `from_json` reads it back."""
        return {
            "name": self.name,
            "family": self.family,
            "layer": self.layer,
            "symmetry": self.symmetry.value,
            "count": self.count,
            "batch": list(self.batch),
            "index": self.index,
            "terms": [term.to_json() for term in self.terms],
            "reference": [term.to_json() for term in self.reference],
            "formula": self.formula,
            "latex": self.latex,
            "exact": self.exact,
            "reason": self.reason,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Law":
        """Read what `to_json` wrote; derived fields (count, formula) are computed anew."""
        return cls(
            data["name"],
            data["family"],
            data["layer"],
            Symmetry(data["symmetry"]),
            tuple(Term.from_json(term) for term in data["terms"]),
            tuple(data["batch"]),
            data["index"],
            tuple(Term.from_json(term) for term in data["reference"]),
            data["exact"],
            data["reason"],
            data["source"],
        )
