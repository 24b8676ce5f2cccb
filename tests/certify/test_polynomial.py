"""Polynomial laws: on fields written by hand first, then on blocks; every list against an independent count."""

from fractions import Fraction
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
import sympy
import torch
from torch import nn

from conserved.catalog import (
    Attention,
    BatchNormBlock,
    FeedForward,
    GatedLinearUnit,
    InputConvexNetwork,
    LinearNetwork,
    MatrixFactorization,
    NormalizedLinear,
    ReLUNetwork,
    SoftmaxClassifier,
    randomize,
)
from conserved.certify import certify
from conserved.certify.gram import components, gram_laws, spans
from conserved.certify.model import model_of
from conserved.certify.monomials import PRIMES, Fields, generators, independent, times, total_degree
from conserved.certify.polynomial import PolynomialLaw, polynomial_laws
from conserved.certify.polynomial_fields import entry_names
from conserved.errors import ConfigurationError
from conserved.law import Law, LawSet, Term, value
from conserved.symmetry import Symmetry


def field(size, components):
    """A field from {coordinate: {exponents: coefficient}}."""
    return tuple({m: Fraction(c) for m, c in components.get(i, {}).items()} for i in range(size))


def unit(size, *places):
    return tuple(places.count(i) for i in range(size))


HAND = {
    # fields, degree: number of first integrals of degree 1 … k, and one of them
    "no field moves anything": (1, [field(1, {})], 1, 1, {(1,): 1}),
    "translation": (1, [field(1, {0: {(0,): 1}})], 4, 0, None),
    "growth": (1, [field(1, {0: {(1,): 1}})], 4, 0, None),
    "rotation": (2, [field(2, {0: {(0, 1): -1}, 1: {(1, 0): 1}})], 5, 2, {(2, 0): 1, (0, 2): 1}),
    "hyperbola": (2, [field(2, {0: {(1, 0): 1}, 1: {(0, 1): -1}})], 2, 1, {(1, 1): 1}),
    "ellipse with fractions": (2, [field(2, {0: {(0, 1): Fraction(-2, 3)}, 1: {(1, 0): Fraction(5, 7)}})], 2, 1, {(2, 0): 15, (0, 2): 14}),
    "large coefficients": (2, [field(2, {0: {(0, 1): -123456789}, 1: {(1, 0): 987654323}})], 2, 1, {(2, 0): 987654323, (0, 2): 123456789}),
    "the first prime divides": (2, [field(2, {0: {(0, 1): -PRIMES[0]}, 1: {(1, 0): 1}})], 2, 1, {(2, 0): 1, (0, 2): PRIMES[0]}),
    "not homogeneous": (2, [field(2, {0: {(0, 0): 1}, 1: {(1, 0): 1, (0, 0): 3}})], 2, 1, {(2, 0): 1, (1, 0): 6, (0, 1): -2}),
    "rotations of space": (3, [field(3, {a: {unit(3, b): -1}, b: {unit(3, a): 1}}) for a, b in combinations(range(3), 2)], 4, 2, None),
    "one rotation of space": (3, [field(3, {0: {(0, 1, 0): -1}, 1: {(1, 0, 0): 1}})], 2, 3, {(0, 0, 1): 1}),
}


@pytest.mark.parametrize(("size", "fields", "degree", "count", "law"), HAND.values(), ids=HAND)
def test_hand_written_fields(size, fields, degree, count, law):
    family = Fields.spanned(size, fields)
    laws = family.first_integrals(degree)
    assert len(laws) == count
    assert all(map(family.annihilate, laws))
    if law is not None:
        assert {m: Fraction(c) for m, c in law.items()} in [dict(found) for found in laws]


def _symbolic_count(size, fields, degree):
    """The oracle: all coefficients of ⟨∇h, F⟩ as equations, solved by sympy over the rationals."""
    z = sympy.symbols(f"z:{size}")
    monomials = [sympy.prod(c) for k in range(1, degree + 1) for c in combinations_with_replacement(z, k)]
    columns = []
    for monomial in monomials:
        equations = {}
        for k, f in enumerate(fields):
            parts = [sympy.Poly.from_dict({m: sympy.Rational(c) for m, c in part.items()}, *z).as_expr() if part else 0 for part in f]
            moved = sum(sympy.diff(monomial, v) * part for v, part in zip(z, parts, strict=True))
            for m, c in sympy.Poly(moved, *z).terms():
                equations[k, m] = c
        columns.append(equations)
    keys = sorted({key for column in columns for key in column})
    matrix = sympy.Matrix([[column.get(key, 0) for column in columns] for key in keys])
    return len(monomials) - matrix.rank()


@pytest.mark.parametrize("seed", range(6))
def test_as_many_as_sympy_finds(seed):
    """Random sparse fields with a planted first integral q: F = rotation of ∇q in random planes, times polynomials."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 4))
    signs = [int(s) for s in random.choice([-2, -1, 1, 3], size)]
    fields = []
    for a, b in combinations(range(size), 2):
        factor = [unit(size), unit(size, int(random.integers(size)))][: int(random.integers(1, 3))]
        plus = {tuple(np.add(m, unit(size, b)).tolist()): -signs[b] for m in factor}
        minus = {tuple(np.add(m, unit(size, a)).tolist()): signs[a] for m in factor}
        fields.append(field(size, {a: plus, b: minus}))
    laws = Fields.spanned(size, fields).first_integrals(4)
    assert len(laws) == _symbolic_count(size, fields, 4) >= 2


def test_one_altered_coefficient_is_rejected():
    family = Fields.spanned(3, HAND["rotations of space"][1])
    (square, fourth) = family.first_integrals(4)
    for law in (square, fourth):
        assert family.annihilate(law)
        for m, c in law.items():
            assert not family.annihilate({**law, m: c + 1})
            assert not family.annihilate({**law, m: c + Fraction(1, 2147483647)})


def test_dependent_laws_count_once():
    family = Fields.spanned(3, HAND["rotations of space"][1])
    laws = family.first_integrals(4)
    assert [total_degree(law) for law in laws] == [2, 4]
    assert independent(laws, 3) == 1
    assert independent((), 3) == 0


def _classes(family, exponents):
    return len({tuple(row) for row in family.degrees(np.array(exponents)).tolist()})


def test_classes_are_the_finest():
    monomials = [m for m in np.ndindex(4, 4) if any(m)]
    assert _classes(Fields.spanned(2, HAND["hyperbola"][1]), monomials) == 15  # every monomial alone
    assert _classes(Fields.spanned(2, HAND["rotation"][1]), monomials) == len({(a + b, a % 2) for a, b in monomials}) == 11
    assert _classes(Fields.spanned(2, HAND["not homogeneous"][1]), monomials) == 1


def test_coefficients_beyond_all_primes_are_refused():
    with pytest.raises(ConfigurationError, match="did not settle"):
        Fields.spanned(2, [field(2, {0: {(0, 1): -(10**40) - 1}, 1: {(1, 0): 10**40}})]).first_integrals(2)


def test_too_many_monomials_are_refused():
    with pytest.raises(ConfigurationError, match="monomials"):
        Fields.spanned(100, [field(100, {0: {unit(100): 1}})]).first_integrals(4)


# --- blocks ---


class Factors(nn.Module):
    """Non-negative factors, x ↦ x V Uᵀ."""

    positive = ("U", "V")

    def __init__(self, rows, columns, rank):
        super().__init__()
        self.U, self.V = nn.Parameter(torch.rand(rows, rank) + 0.1), nn.Parameter(torch.rand(columns, rank) + 0.1)

    def forward(self, x):
        return x @ self.V @ self.U.T


class Convex(nn.Module):
    """A convex network of one hidden layer, x ↦ Σ_j v_j relu(⟨u_j, x⟩ + b_j) + ⟨w, x⟩ with v > 0."""

    positive = ("v",)

    def __init__(self, dim, hidden):
        super().__init__()
        self.u, self.b, self.w = (nn.Parameter(torch.randn(*shape)) for shape in ((hidden, dim), (hidden,), (dim,)))
        self.v = nn.Parameter(torch.rand(hidden) + 0.1)

    def forward(self, x):
        return torch.relu(x @ self.u.T + self.b) @ self.v + x @ self.w


class Sum(nn.Module):
    """x ↦ x ⊙ (P + Q): the difference moves with no force; r moves nothing."""

    def __init__(self, dim):
        super().__init__()
        self.P, self.Q, self.r = (nn.Parameter(torch.randn(dim)) for _ in range(3))

    def forward(self, x):
        return x * (self.P + self.Q) + 0 * self.r


class Embedding(nn.Module):
    """Tokens through a table and a linear map: integers come in."""

    def __init__(self, tokens, dim, out):
        super().__init__()
        self.table, self.W = nn.Parameter(torch.randn(tokens, dim)), nn.Parameter(torch.randn(out, dim))

    def forward(self, tokens):
        return self.table[tokens] @ self.W.T


class LinearAttention(nn.Module):
    """One head without softmax, x ↦ (xQ)(xK)ᵀ(xV)Oᵀ: its outputs are of degree one in every matrix."""

    def __init__(self, dim, head):
        super().__init__()
        self.Q, self.K, self.V, self.O = (nn.Parameter(torch.randn(dim, head)) for _ in range(4))

    def forward(self, x):
        return (x @ self.Q) @ (x @ self.K).transpose(-1, -2) @ (x @ self.V) @ self.O.T


def row(size):
    return (torch.ones(1, size),)


GRADIENT = {
    # build, examples: laws of degree 2, pieces
    "linear 1-1": (lambda: LinearNetwork((1, 1)), None, 0, None),
    "linear 1-1-1": (lambda: LinearNetwork((1, 1, 1)), None, 1, None),
    "linear 2-2-2": (lambda: LinearNetwork((2, 2, 2)), None, 3, None),
    "linear 3-2-3": (lambda: LinearNetwork((3, 2, 3)), None, 3, None),
    "linear 2-4-3": (lambda: LinearNetwork((2, 4, 3)), None, 10, None),
    "linear 2-3-1-2 with bias": (lambda: LinearNetwork((2, 3, 1, 2), bias=True), None, 7, None),
    "bilinear 2-2-2": (lambda: GatedLinearUnit(2, 2, 2, gate="identity"), None, 4, None),
    "nmf 3-2 of rank 2": (lambda: MatrixFactorization(3, 2, rank=2), None, 3, None),
    "icnn 2-3-1 with bias": (lambda: InputConvexNetwork(2, 3, 1), None, 3, 7),
    "relu 2-3-2": (lambda: ReLUNetwork((2, 3, 2)), None, 3, 7),
    "leaky relu 1-2-1 with bias": (lambda: ReLUNetwork((1, 2, 1), bias=True, slope=0.25), None, 2, 4),
    "relu 2-3-2-1": (lambda: ReLUNetwork((2, 3, 2, 1)), None, 5, 10),
    "reglu 2-2-1": (lambda: GatedLinearUnit(2, 2, 1, gate="relu"), None, 4, 4),
}


@pytest.mark.parametrize(("build", "examples", "count", "pieces"), GRADIENT.values(), ids=GRADIENT)
def test_blocks_have_the_laws_of_the_catalogue(build, examples, count, pieces):
    found = polynomial_laws(build(), examples)
    assert (len(found), found.independent) == (count, count)
    assert {law.degree for law in found.laws} <= {2}
    assert found.matches == build().laws()
    assert sum(law.count for law in found.quadratic) == count
    if pieces is None:
        assert (found.pieces, found.proof) == (None, "identity")
    else:
        assert found.pieces >= pieces
        assert found.proof == f"identity on {found.pieces} pieces"


def test_entries_of_a_singular_matrix_depend_on_each_other():
    """Three rows and columns in all, so UᵀU − VᵀV of rank 4 has rank 3: its determinant is zero, which no linear relation says."""
    found = polynomial_laws(MatrixFactorization(1, 2, rank=4))
    assert (len(found), found.independent) == (10, 9)
    assert found.matches is not None


@pytest.mark.parametrize("name", ["linear 1-1-1", "linear 2-4-3", "bilinear 2-2-2", "relu 2-3-2"])
def test_as_many_as_the_lie_algebra_leaves(name):
    build = GRADIENT[name][0]
    assert polynomial_laws(build()).independent == certify(build()).independent_laws


OTHERS = {
    # build, examples, options: dimension of the space, generators, independent, a formula
    "factors": (lambda: Factors(3, 2, 2), 2, {}, 3, 3, 3, "U[0,0]² + U[1,0]² + U[2,0]² − V[0,0]² − V[1,0]²"),
    "factors mirror": (lambda: Factors(3, 2, 2), 2, {"flow": "mirror"}, 5, 2, 2, "U[0,0] + U[1,0] + U[2,0] − V[0,0] − V[1,0]"),
    "factors momentum": (lambda: Factors(2, 1, 1), 1, {"flow": "momentum", "degree": 4}, 0, 0, 0, None),
    "convex": (lambda: Convex(2, 3), 2, {}, 3, 3, 3, "u[0,0]² + u[0,1]² + b[0]² − v[0]²"),
    "convex mirror": (lambda: Convex(2, 2), 2, {"flow": "mirror"}, 2, 2, 2, "u[0,0]² + u[0,1]² + b[0]² − 2 v[0]"),
    "convex momentum": (lambda: Convex(1, 2), 1, {"flow": "momentum", "degree": 3}, 0, 0, 0, None),
    "convex nesterov": (lambda: Convex(1, 1), 1, {"flow": "nesterov", "degree": 5}, 0, 0, 0, None),
    "sum": (lambda: Sum(2), 2, {"degree": 1}, 2, 2, 2, "P[1] − Q[1]"),
    "sum squared": (lambda: Sum(2), 2, {"degree": 2}, 5, 2, 2, "P[1] − Q[1]"),
    "sum momentum": (lambda: Sum(1), 1, {"flow": "momentum", "damping": Fraction(2, 3)}, 3, 2, 2, "2 P[0] − 2 Q[0] + 3 P′[0] − 3 Q′[0]"),
    "sum nesterov": (lambda: Sum(1), 1, {"flow": "nesterov"}, 1, 1, 1, "t·P′[0] − t·Q′[0] + 2 P[0] − 2 Q[0]"),
    "sum without damping": (lambda: Sum(1), 1, {"flow": "momentum", "damping": 0}, 3, 2, 2, "P′[0] − Q′[0]"),
}


@pytest.mark.parametrize(("build", "size", "options", "count", "generating", "independent", "formula"), OTHERS.values(), ids=OTHERS)
def test_flows(build, size, options, count, generating, independent, formula):
    found = polynomial_laws(build(), row(size), **options)
    assert (len(found), len(found.generators), found.independent) == (count, generating, independent)
    assert found.matches is None
    if formula:
        assert formula in [law.formula for law in found.generators]
        assert formula in str(found).splitlines()


MOMENTUM = {
    "linear 2-2-2": (lambda: LinearNetwork((2, 2, 2)), {"degree": 3}, 1),
    "linear 2-1-2": (lambda: LinearNetwork((2, 1, 2)), {"degree": 4}, 0),
    "linear 2-2-1": (lambda: LinearNetwork((2, 2, 1)), {"degree": 3}, 1),
    "linear 1-3-2": (lambda: LinearNetwork((1, 3, 2)), {"degree": 3}, 3),
    "linear 1-2-1, rotations of u+v and of u-v": (lambda: LinearNetwork((1, 2, 1)), {"degree": 3}, 2),
    "linear 2-2-1 nesterov": (lambda: LinearNetwork((2, 2, 1)), {"degree": 5, "flow": "nesterov"}, 1),
    "linear 2-2-1 nesterov, degree too low": (lambda: LinearNetwork((2, 2, 1)), {"degree": 4, "flow": "nesterov"}, 0),
    "relu 1-2-1": (lambda: ReLUNetwork((1, 2, 1)), {"degree": 4}, 0),
}


@pytest.mark.parametrize(("build", "options", "count"), MOMENTUM.values(), ids=MOMENTUM)
def test_rotations_of_the_hidden_space_survive_momentum(build, options, count):
    found = polynomial_laws(build(), **{"flow": "momentum", **options})
    assert len(found) == found.independent == count


def test_the_momentum_law_is_the_charge_of_the_rotation():
    (law,) = polynomial_laws(LinearNetwork((2, 2, 1)), flow="momentum", degree=3).laws
    first = "exp(γt)·weights.0[0,0]·weights.0′[1,0] + exp(γt)·weights.0[0,1]·weights.0′[1,1] − exp(γt)·weights.0[1,0]·weights.0′[0,0]"
    second = " − exp(γt)·weights.0[1,1]·weights.0′[0,1] + exp(γt)·weights.1[0,0]·weights.1′[0,1] − exp(γt)·weights.1[0,1]·weights.1′[0,0]"
    assert law.formula == first + second


def test_products_of_laws_are_in_the_list_but_generate_nothing():
    found = polynomial_laws(LinearNetwork((2, 2, 2)), degree=4)
    assert (len(found), len(found.generators), found.independent) == (9, 3, 3)
    assert found.matches is not None


@pytest.mark.parametrize("name", ["linear 2-3-1-2 with bias", "relu 2-3-2-1"])
def test_the_list_does_not_depend_on_the_seed(name):
    build = GRADIENT[name][0]
    first, second = (polynomial_laws(build(), seed=seed) for seed in (1, 2))
    assert [law.formula for law in first.laws] == [law.formula for law in second.laws]


def _rate(law, model, seed):
    """|⟨∇h, g⟩| over the sum of its terms' sizes, for an ordinary backward pass in float64."""
    generator = torch.Generator().manual_seed(seed)
    theta = model.generic_point(generator).requires_grad_()
    names = dict(zip(entry_names(model), theta, strict=True))
    terms = [(c, [names[v] ** e for v, e in zip(law.variables, m, strict=True) if e]) for m, c in law.coefficients.items()]
    h = sum(float(c) * torch.stack(powers).prod() for c, powers in terms)
    (gradient,) = torch.autograd.grad(h, theta)
    inputs = tuple(x.double() for x in model.draw(64, generator))
    out = model.outputs(theta, inputs)
    (moved,) = torch.autograd.grad((out * torch.randn(out.shape, generator=generator, dtype=torch.float64)).sum(), theta)
    return float((gradient * moved).sum().abs() / (gradient * moved).abs().sum())


@pytest.mark.parametrize("name", ["linear 2-4-3", "linear 2-3-1-2 with bias", "bilinear 2-2-2", "relu 2-3-2-1"])
def test_laws_are_orthogonal_to_ordinary_gradients(name):
    model = model_of(GRADIENT[name][0]())
    for k, law in enumerate(polynomial_laws(GRADIENT[name][0]()).laws):
        assert _rate(law, model, k) < 1e-13
        m, c = next(iter(law.coefficients.items()))
        assert _rate(PolynomialLaw({**law.coefficients, m: c + 1}, law.variables), model, k) > 1e-6


def test_what_nothing_moves_is_no_law():
    found = polynomial_laws(Sum(2), row(2), degree=3)
    assert found.unmoved == ("r[0]", "r[1]")
    assert not any("r[" in law.formula for law in found.laws)


def test_integer_inputs():
    found = polynomial_laws(Embedding(4, 2, 3), (torch.tensor([3]),))
    assert len(found) == found.independent == 3
    assert found.generators[0].formula.startswith("table[0,0]² + table[1,0]² + table[2,0]² + table[3,0]² − W[0,0]²")
    assert [law.formula for law in found.quadratic] == ["table[:,i]·table[:,j] − W[:,i]·W[:,j]"]


def test_attention_without_softmax_has_one_more_law():
    """Besides QᵀQ − KᵀK and VᵀV − OᵀO: Q and V can be rescaled against each other."""
    examples = (torch.randn(1, 2, 2),)
    found = polynomial_laws(LinearAttention(2, 2), examples)
    assert len(found) == found.independent == 7 == certify(LinearAttention(2, 2), examples).independent_laws
    assert {law.formula for law in found.quadratic} == {"Q[:,i]·Q[:,j] − K[:,i]·K[:,j]", "V[:,i]·V[:,j] − O[:,i]·O[:,j]", "‖Q‖² − ‖V‖²"}


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed):
    """Linear and ReLU networks of random depth and widths: the list of the catalogue, and no more."""
    random = np.random.default_rng(seed)
    widths = tuple(random.integers(2, 5, int(random.integers(3, 5))).tolist())
    torch.manual_seed(seed)
    for block in (LinearNetwork(widths), ReLUNetwork(widths, bias=bool(seed % 2))):
        found = polynomial_laws(block, seed=seed)
        assert found.matches == block.laws()
        assert len(found) == found.independent == block.laws().independent_count


def test_a_short_list_does_not_match(monkeypatch):
    monkeypatch.setattr(GatedLinearUnit, "laws", lambda self: LawSet((self._law("glu", "C", "c", ""),)))
    assert polynomial_laws(GatedLinearUnit(2, 2, 1, gate="identity")).matches is None


BAD = {
    "silu gate": (lambda: GatedLinearUnit(2, 2, 1), {}, "GatedLinearUnit"),
    "gelu": (lambda: FeedForward(2, 2, 1, activation="gelu"), {}, "FeedForward"),
    "softmax": (lambda: SoftmaxClassifier(2, 2), {}, "SoftmaxClassifier"),
    "degree 0": (lambda: LinearNetwork((2, 2, 2)), {"degree": 0}, "degree"),
    "mirror without metric": (lambda: LinearNetwork((2, 2, 2)), {"flow": "mirror"}, "metric"),
    "unknown flow": (lambda: LinearNetwork((2, 2, 2)), {"flow": "adam"}, "adam"),
    "too high a degree": (lambda: LinearNetwork((4, 4, 4)), {"degree": 7}, "monomials"),
}


@pytest.mark.parametrize(("build", "options", "word"), BAD.values(), ids=BAD)
def test_refusals_are_one_line(build, options, word):
    with pytest.raises(ConfigurationError, match=word) as caught:
        polynomial_laws(build(), **options)
    assert "\n" not in str(caught.value)


# --- laws as polynomials ---


LISTED = {
    "matrix, diagonal": lambda: LinearNetwork((2, 3, 1), bias=True),
    "heads, rotary, key bias": lambda: Attention(dim=2, heads=2, head_dim=4, kv_heads=1, position="rope", rotary_dim=2, bias=True),
    "offset": lambda: NormalizedLinear(3, (2, 1), offset=1.0),
    "scale": BatchNormBlock,
    "linear": lambda: SoftmaxClassifier(3, 2),
}


@pytest.mark.parametrize("build", LISTED.values(), ids=LISTED)
def test_components_are_the_laws_values(build, generator):
    block = build().double()
    randomize(block, generator)
    params = {name: p.detach() for name, p in block.named_parameters()}
    theta = torch.cat([p.flatten() for p in params.values()])
    shapes = {name: tuple(p.shape) for name, p in params.items()}
    assert len(block.laws())
    for law in block.laws():
        seen = [value(law, p) for p in (params, {name: torch.zeros_like(p) for name, p in params.items()})]
        if law.symmetry.is_matrix:
            upper = torch.ones(seen[0].shape[-2:], dtype=torch.bool).triu()
            seen = [v[..., upper] for v in seen]
        parts = components(law, shapes)
        values = torch.tensor([sum(float(c) * float((theta ** torch.tensor(m)).prod()) for m, c in part.items()) for part in parts], dtype=torch.float64)
        torch.testing.assert_close(values, (seen[0] - seen[1]).flatten(), rtol=1e-12, atol=1e-12)


def test_gram_laws_of_a_planted_space():
    shapes = {"A": (2, 3), "B": (3, 4), "c": (3,)}
    law = Law("x", "planted", "", Symmetry.RESCALE, (Term("A", (2, 3), "o i"), Term("B", (3, 4), "i d", Fraction(-2, 3)), Term("c", (3,), "i", 5)), index="i")
    parts = components(law, shapes)
    found = gram_laws(parts, shapes)
    assert len(found) == 1
    assert spans(components(found[0], shapes), parts)
    assert len(gram_laws(parts[:2], shapes)) == 0
    (total,) = gram_laws([{m: c for part in parts for m, c in part.items()}], shapes)
    assert total.symmetry is Symmetry.SCALE


def test_generators():
    x, y = {(1, 0): Fraction(1)}, {(0, 1): Fraction(1)}
    square = times(x, x)
    assert square == {(2, 0): 1}
    assert generators([square, x, y], 2) == (x, y)
    assert generators([square, y], 4) == (y, square)
    assert times({(1, 0): Fraction(1), (0, 1): Fraction(1)}, {(1, 0): Fraction(1), (0, 1): Fraction(-1)}) == {(2, 0): 1, (0, 2): -1}
    assert generators([], 3) == ()
