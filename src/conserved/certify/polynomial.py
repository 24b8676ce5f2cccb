r"""All polynomial conservation laws up to a degree, for modules whose fields are polynomials in the parameters: exact, over Q.

    ⟨∇h(θ), g(θ; x, c)⟩ ≡ 0        for all θ, inputs x and cotangents c, with g = ∂_θ f(θ, x)ᵀ c

g is computed as a polynomial in (θ, x, c), once, by running the traced gradient on polynomials. Its coefficients at the monomials of
(x, c) are finitely many vector fields on θ with the same annihilated functions, and the laws are their polynomial first integrals: a null
space, multiplied back to zero as polynomials before it is returned (`conserved.certify.monomials` says why the list is complete).

The state space and its fields, by flow:

    gradient    θ                      (g)
    mirror      θ                      (M g), M diagonal: θ on the parameters that the module keeps positive, 1 elsewhere
    momentum    (E, θ, θ′), E = e^{γt} (γE, θ′, −γθ′) and the forces (0, 0, g); without damping (t, θ, θ′), (1, θ′, 0)
    nesterov    (t, θ, θ′)             (t, tθ′, −3θ′), t times the drift, and the forces

Modules that are polynomial in pieces (ReLU) have one family of fields on every piece. A law must be annihilated by all of them; pieces
are met at random points until they bring no new fields. The list then still holds every law; that a listed one is a law is proved on
the pieces met, and stated so.

Source: the equations: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144), 2024 (arXiv 2405.12888).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from torch import Tensor, nn

from conserved.catalog import Block
from conserved.certify.flows import Flow
from conserved.certify.gram import components, gram_laws, spans
from conserved.certify.model import Model, exact_laws, model_of
from conserved.certify.monomials import Exponents, Polynomial, generators, independent, total_degree
from conserved.certify.polynomial_fields import entry_names, flow_fields, force_fields
from conserved.errors import ConfigurationError
from conserved.law import LawSet

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class PolynomialLaw:
    """A conserved polynomial.

    Attributes:
        coefficients: by exponents of the variables; coprime integers, the leading one positive.
        variables: names such as "U[0,1]"; "U′[0,1]" is its velocity, "exp(γt)" a coordinate too.

    Example:
        >>> PolynomialLaw({(2, 0): Fraction(1), (1, 1): Fraction(-3)}, ("u", "v")).formula
        'u² − 3 u·v'
    """

    coefficients: Polynomial
    variables: tuple[str, ...]

    @property
    def degree(self) -> int:
        """Total degree."""
        return total_degree(self.coefficients)

    @property
    def formula(self) -> str:
        """The polynomial as one line of text."""
        out = ""
        for exponents, coefficient in self.coefficients.items():
            sign = "−" if coefficient < 0 else "+"
            size = "" if abs(coefficient) == 1 else f"{abs(coefficient)} "
            lead = sign.replace("+", "") if not out else f" {sign} "
            out += lead + size + self._monomial(exponents)
        return out

    def _monomial(self, exponents: Exponents) -> str:
        powers = [(name, e) for name, e in zip(self.variables, exponents, strict=True) if e]
        return "·".join(name + (str(e).translate(_SUPERSCRIPTS) if e > 1 else "") for name, e in powers)

    def __str__(self) -> str:
        """The formula."""
        return self.formula


@dataclass(frozen=True, eq=False)
class PolynomialLaws:
    """All polynomial laws of a flow up to a degree.

    Attributes:
        block: name of the module's class.
        flow: the flow.
        degree: k, the largest degree that was looked for.
        laws: a basis over Q of the conserved polynomials without constant term, products of laws included.
        generators: those of the basis of which all others are sums of products, up to the degree.
        independent: functionally independent ones among them.
        variables: coordinates of the state space.
        pieces: on how many pieces the fields were taken; None if the module is one polynomial.
        matches: the catalogue's laws, if their components span the same space as all laws of degree ≤ 2; otherwise None.
        quadratic: laws of degree 2 as Gram matrices, where they have that form; for the gradient flow.
        unmoved: coordinates that no field moves and no field depends on; every function of them is constant, and none is listed.
    """

    block: str
    flow: str
    degree: int
    laws: tuple[PolynomialLaw, ...] = field(repr=False)
    generators: tuple[PolynomialLaw, ...]
    independent: int
    variables: tuple[str, ...] = field(repr=False)
    pieces: int | None
    matches: LawSet | None = field(default=None, repr=False)
    quadratic: LawSet = field(default_factory=LawSet, repr=False)
    unmoved: tuple[str, ...] = ()

    @property
    def proof(self) -> str:
        """What every law rests on: a polynomial identity in all θ, x and c, or one on each of the pieces met."""
        return "identity" if self.pieces is None else f"identity on {self.pieces} piece{'s' * (self.pieces > 1)}"

    def __len__(self) -> int:
        """Dimension of the space of conserved polynomials."""
        return len(self.laws)

    def __str__(self) -> str:
        """A headline, then one line for each generator."""
        head = (
            f"{self.block}: {len(self)} conserved polynomials of degree ≤ {self.degree} of the {self.flow} flow, {self.independent} independent ({self.proof})"
        )
        return "\n".join([head, *(law.formula for law in self.generators)])


def polynomial_laws(
    module: nn.Module,
    example_inputs: tuple[Tensor, ...] | None = None,
    *,
    degree: int = 2,
    flow: str = "gradient",
    damping: Fraction | int = 1,
    seed: int = 0,
) -> PolynomialLaws:
    r"""All polynomials of degree ≤ k that a flow conserves on every data set and loss, exactly.

        h(θ) = Σ_m h_m θ^m ,   ⟨∇h, F⟩ ≡ 0 for every field F of the flow

    Holds for: modules whose outputs are polynomials in their parameters and inputs, or polynomials in pieces. Laws that are not
    polynomials, or of higher degree, are not found. Momentum: polynomials in e^{γt}, θ and θ̇, none in e^{−γt} or t.

    Args:
        module: a catalogue block, or any module with `example_inputs`. It is not changed.
        example_inputs: tensors that `forward` takes; only their shapes count, and the range of integers.
        degree: k, at least 1.
        flow: "gradient", "mirror", "momentum" or "nesterov".
        damping: γ of the momentum flow, rational.
        seed: of points and primes' rows; the result does not depend on it.

    Raises:
        ConfigurationError: the fields are not polynomials, nothing flows, too many monomials, an unknown flow.

    Example:
        >>> from conserved.catalog import LinearNetwork
        >>> found = polynomial_laws(LinearNetwork((2, 2, 1)))
        >>> print(found)
        LinearNetwork: 3 conserved polynomials of degree ≤ 2 of the gradient flow, 3 independent (identity)
        weights.0[0,0]² + weights.0[0,1]² − weights.1[0,0]²
        weights.0[0,0]·weights.0[1,0] + weights.0[0,1]·weights.0[1,1] − weights.1[0,0]·weights.1[0,1]
        weights.0[1,0]² + weights.0[1,1]² − weights.1[0,1]²
        >>> found.quadratic[0].formula, found.matches[0].formula
        ('weights.0[i,:]·weights.0[j,:] − weights.1[:,i]·weights.1[:,j]', 'weights.0[i,:]·weights.0[j,:] − weights.1[:,i]·weights.1[:,j]')
    """
    name = type(module).__name__
    if degree < 1:
        raise ConfigurationError(f"degree={degree}; a law has at least degree 1")
    model = model_of(module, example_inputs)
    flowing = Flow(model, flow, float(damping))
    forces, pieces = force_fields(model, seed)
    fields, moving, variables = flow_fields(flowing, forces, Fraction(damping))
    found = fields.first_integrals(degree, seed)
    unmoved = tuple(entry for i, entry in enumerate(entry_names(model)) if i not in moving)
    matches, quadratic = _as_laws(model, moving, found) if flow == "gradient" else (None, LawSet())
    laws, generating = (tuple(PolynomialLaw(law, variables) for law in chosen) for chosen in (found, generators(found, degree)))
    count = independent(found, fields.size, seed)
    return PolynomialLaws(name, flow, degree, laws, generating, count, variables, pieces, matches, quadratic, unmoved)


def _as_laws(model: Model, moving: Sequence[int], found: Sequence[Polynomial]) -> tuple[LawSet | None, LawSet]:
    """The catalogue's laws if they span all of degree ≤ 2, and the quadratic ones as Gram matrices."""
    conserved = [_embedded(law, moving, model.size) for law in found if total_degree(law) <= 2]
    quadratic = gram_laws([law for law in conserved if {*map(sum, law)} == {2}], model.shapes)
    if not isinstance(model.module, Block):
        return None, quadratic
    laws = exact_laws(model.module)
    listed = [{m: c for m, c in part.items() if any(m[i] for i in moving)} for law in laws for part in components(law, model.shapes)]
    return (laws if spans([part for part in listed if part], conserved) else None), quadratic


def _embedded(law: Polynomial, moving: Sequence[int], size: int) -> Polynomial:
    """A polynomial in the moving entries as one in all entries."""
    out = {}
    for m, c in law.items():
        exponents = [0] * size
        for i, e in zip(moving, m, strict=True):
            exponents[i] = e
        out[tuple(exponents)] = c
    return out
