"""Proofs: complete ones for small sizes in every arithmetic, minors that fractions give by hand, and what is not proved."""

from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

import flint
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

from conserved.catalog import (
    Attention,
    Block,
    FeedForward,
    GatedLinearUnit,
    InputConvexNetwork,
    LinearNetwork,
    LoRA,
    MatrixFactorization,
    ReLUNetwork,
    SoftmaxClassifier,
)
from conserved.certify import certification, certify, certify_block, proof, verify
from conserved.certify.certificate import PRIME
from conserved.certify.elimination import Elimination
from conserved.certify.flows import Flow
from conserved.certify.model import model_of
from conserved.certify.proof import BITS, prove
from conserved.certify.scalars import RealBalls, UnsupportedOperation
from conserved.certify.words import rows
from conserved.law import LawSet

ARITHMETICS = ("rational", "modular", "ball")
TWO = ("rational", "modular")


def proved(module, arithmetic, *, flow="gradient", seed=0, examples=None, **options):
    """The flow, the state and a proof there, with all coordinates that move."""
    flowing, generator = Flow(model_of(module, examples), flow), torch.Generator().manual_seed(seed)
    state = flowing.state(flowing.model.generic_point(generator), generator)
    moving = rows(flowing, state, (flowing.model.samples(24, generator),)).ne(0).any(0)
    if flowing.has_velocity:
        n = flowing.model.size
        moving = torch.cat((torch.ones(1, dtype=torch.bool), moving[n + 1 :], moving[n + 1 :]))
    return flowing, state, prove(flowing, state, moving.nonzero().flatten(), arithmetic, generator, **options)


# --- what is proved ---

COMPLETE = {
    # module, flow, arithmetics: dimension, ranks after depth 1, 2, …, laws
    "linear-1-1": (lambda: LinearNetwork((1, 1)), "gradient", ARITHMETICS, 1, (1,), 0),
    "linear-1-1-1": (lambda: LinearNetwork((1, 1, 1)), "gradient", ARITHMETICS, 2, (1,), 1),
    "linear-1-2-2": (lambda: LinearNetwork((1, 2, 2)), "gradient", TWO, 6, (2, 3), 3),
    "linear-3-1": (lambda: LinearNetwork((3, 1)), "gradient", ARITHMETICS, 3, (3,), 0),
    "bilinear-1-1-1": (lambda: GatedLinearUnit(1, 1, 1, gate="identity"), "gradient", ARITHMETICS, 3, (1,), 2),
    "bilinear-2-1-3": (lambda: GatedLinearUnit(2, 1, 3, gate="identity"), "gradient", ("modular",), 7, (5,), 2),
    "lora-3-2-1": (lambda: LoRA(3, 2, 1), "gradient", TWO, 5, (4,), 1),
    "nmf-2-3-mirror": (lambda: MatrixFactorization(2, 3, rank=1), "mirror", TWO, 5, (4,), 1),
    "relu-1-1-1": (lambda: ReLUNetwork((1, 1, 1)), "gradient", ("rational", "ball"), 2, (1,), 1),
    "relu-3-2-1": (lambda: ReLUNetwork((3, 2, 1)), "gradient", ("rational", "ball"), 8, (6,), 2),
    "icnn-2-1-1": (lambda: InputConvexNetwork(2, 1, 1), "gradient", ("rational",), 6, (5,), 1),
    "gelu-1-1-1": (lambda: FeedForward(1, 1, 1, "gelu"), "gradient", ("ball",), 2, (2,), 0),
    "silu-2-1-3": (lambda: FeedForward(2, 1, 3, "silu"), "gradient", ("ball",), 5, (5,), 0),
    "tanh-2-3-1-bias": (lambda: FeedForward(2, 3, 1, "tanh", bias=True), "gradient", ("ball",), 13, (13,), 0),
    "swiglu-1-1-1": (lambda: GatedLinearUnit(1, 1, 1), "gradient", ("ball",), 3, (2,), 1),
    "swiglu-2-3-2": (lambda: GatedLinearUnit(2, 3, 2), "gradient", ("ball",), 18, (15,), 3),
    "classifier-2-3": (lambda: SoftmaxClassifier(2, 3, bias=False), "gradient", ("ball",), 6, (4,), 2),
    "mha-2-1x1": (lambda: Attention(2, 1, 1, tokens=2), "gradient", ("ball",), 8, (6,), 2),
    "linear-2-1-nesterov": (lambda: LinearNetwork((2, 1)), "nesterov", ("rational",), 5, (3, 5), 0),
}
CASES = [(name, arithmetic) for name, case in COMPLETE.items() for arithmetic in case[2]]


@cache
def case(name, arithmetic):
    """The proof of a case; must only be read."""
    return proved(COMPLETE[name][0](), arithmetic, flow=COMPLETE[name][1])


@pytest.mark.parametrize(("name", "arithmetic"), CASES, ids=map("-".join, CASES))
def test_small_sizes_are_proved(name, arithmetic):
    size, ranks, laws = COMPLETE[name][3:]
    _, _, found = case(name, arithmetic)
    assert (found.size, found.ranks, found.laws, found.complete) == (size, ranks, laws, True)
    assert found.parameter == {"ball": BITS[0], "rational": 0, "modular": PRIME}[arithmetic]
    assert found.certain
    assert not found.stopped
    assert len(set(found.columns)) == sum(len(letters[0].cotangent) for letters in found.letters) == ranks[-1]


def test_certify_reports_what_is_proved():
    found = certify(LinearNetwork((2, 1, 1)), arithmetic="modular")
    assert (found.verdict, found.complete, found.rank_span, found.rank_lie, found.independent_laws) == ("proved", True, 2, 2, 1)
    assert (found.arithmetic, found.depth) == ("modular", 1)
    assert found.reason == "a minor of order 2 is not zero, 1 closed forms are independent, together all 3 dimensions"


def test_pieces_are_named():
    assert certify(ReLUNetwork((2, 1, 1)), arithmetic="rational").reason.endswith("near the point, whose pieces these are")


def test_what_rests_is_left_out():
    class Idle(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 1)
            self.idle = nn.Parameter(torch.zeros(4))

    found = certify(Idle(), (torch.zeros(1, 2),), arithmetic="rational")
    assert (found.verdict, found.size, found.unmoved) == ("proved", 3, ("idle",))


def test_only_blocks_by_name_have_certificates():
    """`verify` builds the block from its name; a module has none."""
    assert certify(LinearNetwork((2, 1, 1)), arithmetic="rational").certificate is None
    assert verify(certify_block("linear", {"dims": (2, 1, 1)}, arithmetic="rational").certificate).valid


def test_laws_of_momentum_are_exact_for_every_damping():
    """γ times a law is rounded in double precision; translations of one class against the other."""
    found = certify_block("classifier", {"features": 1, "classes": 2, "bias": False}, flow="momentum", damping=-1 / 3, arithmetic="ball")
    assert (found.verdict, found.independent_laws) == ("proved", 2)
    assert verify(found.certificate).valid


# --- minors by hand ---


def matmul(a, b):
    return [[sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)] for row in a]


def transposed(a):
    return [list(row) for row in zip(*a, strict=True)]


def fractions(x):
    return [[Fraction(v) for v in row] for row in x.tolist()]


class TwoLayers:
    """Gradients of ⟨c, B A x⟩ and their brackets, in fractions."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def field(self, x, c):
        """(Bᵀ c xᵀ, c (A x)ᵀ)."""
        return matmul(matmul(transposed(self.b), c), transposed(x)), matmul(c, transposed(matmul(self.a, x)))

    def derivative(self, x, c, way):
        """Of the field along a way (dA, dB): (dBᵀ c xᵀ, c (dA x)ᵀ)."""
        return TwoLayers(*way).field(x, c)

    def bracket(self, first, second):
        """Dv·u − Du·v."""
        return [
            [[p - q for p, q in zip(r, s, strict=True)] for r, s in zip(u, v, strict=True)]
            for u, v in zip(self.derivative(*second, self.field(*first)), self.derivative(*first, self.field(*second)), strict=True)
        ]


def flat(parts):
    return [x for part in parts for row in part for x in row]


def determinant(matrix):
    """By Gaussian elimination in fractions."""
    rest, total = [row[:] for row in matrix], Fraction(1)
    while rest:
        at = next((i for i, row in enumerate(rest) if row[0]), None)
        if at is None:
            return Fraction(0)
        pivot = rest.pop(at)
        total *= pivot[0] * (-1) ** at
        rest = [[x - row[0] / pivot[0] * y for x, y in zip(row[1:], pivot[1:], strict=True)] for row in rest]
    return total


def by_hand(dims, found, state):
    """The minor of a proof about a linear network of two layers."""
    n, h, m = dims
    entries = [Fraction(v) for v in state.tolist()]
    net = TwoLayers([entries[i * n : (i + 1) * n] for i in range(h)], [entries[h * n + i * h : h * n + (i + 1) * h] for i in range(m)])
    words = []
    for letters in found.letters:
        samples = [[(transposed(fractions(x)), transposed([c])) for x, c in zip(one.inputs[0], fractions(one.cotangent), strict=True)] for one in letters]
        words += [flat(net.field(*one[0]) if len(one) == 1 else net.bracket(*one)) for one in zip(*samples, strict=True)]
    return determinant([[word[i] for i in found.columns] for word in words])


def states(found, value, arithmetic):
    """Whether a fraction is the determinant of a proof."""
    if arithmetic == "rational":
        return found.determinant == str(flint.fmpq(value.numerator, value.denominator))
    if arithmetic == "modular":
        return int(found.determinant) == value.numerator * pow(value.denominator, -1, PRIME) % PRIME
    with RealBalls(1024).precision():
        return (flint.arb(found.determinant) * value.denominator - value.numerator).contains(0)


TWO_LAYERS = {"linear-1-1-1": (1, 1, 1), "linear-1-2-2": (1, 2, 2)}
BY_HAND = [(name, arithmetic) for name, arithmetic in CASES if name in TWO_LAYERS]


@pytest.mark.parametrize(("name", "arithmetic"), BY_HAND, ids=map("-".join, BY_HAND))
def test_minors_of_linear_networks_by_hand(name, arithmetic):
    _, state, found = case(name, arithmetic)
    value = by_hand(TWO_LAYERS[name], found, state)
    assert value
    assert states(found, value, arithmetic)
    assert not states(found, by_hand(TWO_LAYERS[name], found, state + 2**-12), arithmetic)


@pytest.mark.parametrize("name", ["gelu-1-1-1", "silu-2-1-3", "swiglu-2-3-2"])
def test_minors_of_analytic_blocks_by_autograd(name):
    flow, theta, found = case(name, "ball")
    (letters,) = found.letters
    words = []
    for x, c in zip(letters[0].inputs[0], letters[0].cotangent, strict=True):
        words.append(jacobian(lambda t, x=x, c=c: functional_call(flow.model.module, flow.model.parameters(t), (x,)).flatten() @ c, theta))
    want = np.linalg.det(torch.stack(words)[:, list(found.columns)].numpy())
    assert float(flint.arb(found.determinant)) == pytest.approx(want, rel=1e-9)


def test_the_proof_depends_on_the_generator_alone():
    first, again, other = (proved(LinearNetwork((2, 1, 1)), "modular", seed=seed)[2].determinant for seed in (0, 0, 1))
    assert first == again != other


# --- what is not proved ---


class ListsOneLaw(GatedLinearUnit):
    """Lists the laws of a gate that lets no scale through, whatever its gate."""

    def laws(self) -> LawSet:
        return LawSet((self._law("glu", "C", "c", "test"),))


class ListsNothing(LinearNetwork):
    def laws(self) -> LawSet:
        return LawSet()


HIDDEN = {
    # module: dimension, laws that there are, laws that are listed
    "linear-1-1-1": (lambda: ListsNothing((1, 1, 1)), ("ball",), 2, 1, 0),
    "linear-2-2-1": (lambda: ListsNothing((2, 2, 1)), ("rational",), 6, 3, 0),
    "bilinear-1-1-1": (lambda: ListsOneLaw(1, 1, 1, gate="identity"), ("modular",), 3, 2, 1),
}
HIDDEN_CASES = [(name, arithmetic) for name, case in HIDDEN.items() for arithmetic in case[1]]


@pytest.mark.parametrize(("name", "arithmetic"), HIDDEN_CASES, ids=map("-".join, HIDDEN_CASES))
def test_a_hidden_symmetry_is_not_proved_away(name, arithmetic):
    build, _, size, laws, listed = HIDDEN[name]
    _, _, found = proved(build(), arithmetic, depth=2)
    assert (found.size, found.laws, found.ranks[-1], found.complete) == (size, listed, size - laws, False)


def test_certify_says_what_is_left_open():
    found = certify(ListsOneLaw(1, 1, 1, gate="identity"), arithmetic="rational")
    assert (found.verdict, found.complete, found.independent_laws, found.known_laws, found.certificate) == ("numerical", False, 2, 1, None)
    assert "rational arithmetic proves rank ≥ 1, which with 1 known laws leaves 1 dimensions open" in found.reason
    assert certify(GatedLinearUnit(1, 1, 1, gate="identity"), arithmetic="rational").verdict == "proved"


def test_a_module_of_its_own_has_a_bound_or_no_laws():
    linear = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False))
    found = certify(linear, (torch.zeros(1, 2),), arithmetic="modular")
    assert (found.verdict, found.independent_laws, found.known_laws, found.certificate) == ("numerical", 1, 0, None)
    assert "modular arithmetic proves rank ≥ 3, which with 0 known laws leaves 1 dimensions open" in found.reason
    gelu = nn.Sequential(nn.Linear(2, 1, bias=False), nn.GELU(), nn.Linear(1, 2, bias=False))
    found = certify(gelu, (torch.zeros(1, 2),), arithmetic="ball")
    assert (found.verdict, found.independent_laws, found.complete, found.certificate) == ("proved", 0, True, None)


@pytest.mark.parametrize("depth", [1, 2])
def test_without_brackets_less_is_proved(depth):
    _, _, found = proved(LinearNetwork((1, 2, 2)), "modular", depth=depth) if depth == 1 else case("linear-1-2-2", "modular")
    assert (found.ranks, found.complete) == ((2, 3)[:depth], depth == 2)


# --- precision ---


def with_bits(monkeypatch, *bits):
    monkeypatch.setattr(proof, "PARAMETERS", proof.PARAMETERS | {"ball": bits})


def test_too_few_bits_prove_less_and_more_bits_more(monkeypatch):
    """Eight units on one input: fields so alike that 53 bits see ten of sixteen."""
    ranks = []
    for bits in (8, 53, 128):
        with_bits(monkeypatch, bits)
        _, _, found = proved(FeedForward(1, 8, 1, "silu"), "ball", depth=1)
        assert found.parameter == bits
        ranks.append(found.ranks[-1])
    assert ranks == sorted(ranks)
    assert ranks[0] < 8
    assert ranks[1] < 16 == ranks[2]


def test_bits_are_raised_until_the_space_is_full(monkeypatch):
    with_bits(monkeypatch, 24, 128, 4096)
    _, _, found = proved(FeedForward(1, 8, 1, "silu"), "ball")
    assert (found.parameter, found.ranks, found.complete) == (128, (16,), True)


def test_brackets_take_the_bits_that_were_best(monkeypatch):
    """More bits do not help where brackets are missing, so the fewest stay."""
    with_bits(monkeypatch, 128, 192)
    _, _, found = proved(LinearNetwork((1, 2, 2)), "ball")
    assert (found.parameter, found.ranks, found.complete) == (128, (2, 3), True)


def test_a_minor_that_may_be_zero_is_no_proof(monkeypatch):
    """Every pivot excludes zero, but the ball of their determinant may not: more bits are needed."""

    def wide_at_few_bits(rows):
        return flint.arb(0, 1) if flint.ctx.prec < 100 else determinant_of_balls(rows)

    determinant_of_balls = proof.determinant
    monkeypatch.setattr(proof, "determinant", wide_at_few_bits)
    with_bits(monkeypatch, 64)
    _, _, found = proved(GatedLinearUnit(2, 1, 1), "ball", depth=1)
    assert (found.ranks, found.laws, found.size) == ((4,), 1, 5)
    assert (found.certain, found.complete) == (False, False)
    with_bits(monkeypatch, 64, 128)
    _, _, found = proved(GatedLinearUnit(2, 1, 1), "ball", depth=1)
    assert (found.parameter, found.certain, found.complete) == (128, True, True)


def test_without_a_single_pivot_nothing_is_proved(monkeypatch):
    monkeypatch.setattr(Elimination, "extended", lambda self, rows, most: (self, []))
    _, _, found = proved(FeedForward(1, 1, 1, "tanh"), "ball", depth=1)
    assert (found.ranks, found.complete, found.columns, found.letters) == ((0,), False, (), ())


# --- operations that an arithmetic lacks ---


class Applied(nn.Module):
    """C·f(B x)."""

    def __init__(self, function) -> None:
        super().__init__()
        self.inner, self.function, self.outer = nn.Linear(2, 1), function, nn.Linear(1, 1)

    def forward(self, x):
        return self.outer(self.function(self.inner(x)))


class ReachedError(Exception):
    """The search began."""


@pytest.fixture
def without_search(monkeypatch):
    def search(*_, **__):
        raise ReachedError

    monkeypatch.setattr(certification, "_at_point", search)
    monkeypatch.setattr(certification, "_at_best_point", search)


UNSUPPORTED = {
    "unknown": (lambda: Applied(torch.atan), "ball", r"^aten\.atan\.default is not known to the interpreter; certify this module with arithmetic='float64'$"),
    "unknown-two": (lambda: Applied(nn.functional.elu), "ball", r"^aten\.elu\.default, aten\.elu_backward\.default are not known to the interpreter"),
    "rational-silu": (lambda: FeedForward(2, 1, 1, "silu"), "rational", r"^aten\.silu\.default: sigmoid does not exist in rational numbers; use balls"),
    "rational-attention": (lambda: Attention(2, 1, 1, tokens=2), "rational", r"exp does not exist in rational numbers; use balls"),
    "modular-relu": (lambda: ReLUNetwork((2, 1, 1)), "modular", r"^aten\.leaky_relu\.default: residues modulo .* have no order; use real balls or rationals$"),
}


@pytest.mark.usefixtures("without_search")
@pytest.mark.parametrize(("build", "arithmetic", "said"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_an_arithmetic_lacks_is_said_before_the_search(build, arithmetic, said):
    module = build()
    examples = None if isinstance(module, Block) else (torch.zeros(1, 2),)
    with pytest.raises(UnsupportedOperation, match=said) as caught:
        certify(module, examples, arithmetic=arithmetic)
    assert "\n" not in str(caught.value)
    with pytest.raises(ReachedError):  # the controls: counted in float64, and another function in balls
        certify(module, examples)
    with pytest.raises(ReachedError):
        certify(Applied(torch.sin), (torch.zeros(1, 2),), arithmetic="ball")


class LateAtan(torch.autograd.Function):
    """x², whose derivative is differentiated by way of atan."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * x * tangent + 0 * torch.atan(x)


class Squared(nn.Module):
    """B·(A x)²; its laws are not listed, so that a proof takes brackets."""

    def __init__(self, square) -> None:
        super().__init__()
        self.square, self.A, self.B = square, nn.Parameter(torch.randn(1, 1)), nn.Parameter(torch.randn(2, 1))

    def forward(self, x):
        return self.square(x @ self.A.mT) @ self.B.mT


def test_what_only_brackets_lack_leaves_the_proof_of_fields():
    example = (torch.zeros(1, 1),)
    _, _, found = proved(Squared(LateAtan.apply), "ball", examples=example)
    assert (found.ranks, found.stopped) == ((2,), "aten.atan.default is not known to the interpreter")
    _, _, found = proved(Squared(lambda x: x * x), "ball", examples=example, depth=2)
    assert (found.ranks, found.stopped) == ((2, 2), "")


def test_certify_says_which_brackets_are_missing(monkeypatch):
    stopped = partial(replace, stopped="aten.atan.default is not known to the interpreter")
    monkeypatch.setattr(certification, "prove", lambda *arguments: stopped(prove(*arguments)))
    found = certify(Squared(lambda x: x * x), (torch.zeros(1, 1),), arithmetic="modular")
    assert found.reason.endswith("leaves 1 dimensions open, without brackets of 2 fields (aten.atan.default is not known to the interpreter)")
