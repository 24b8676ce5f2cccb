"""Brackets and their closure: identities of Lie algebras, dense Hessians, and algebras that are known by hand."""

from functools import reduce

import pytest
import torch
from cases import EQUAL
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

from conserved.catalog import Attention, FeedForward, GatedLinearUnit, LinearNetwork, MatrixFactorization
from conserved.certify.flows import Flow, bracket, bracket_error, word
from conserved.certify.lie import closure
from conserved.certify.model import Sample, model_of
from conserved.certify.rank import CLEAR_GAP

F64 = torch.float64
NONE = torch.zeros(0, 0, dtype=F64)
DIFFERENCES = 1e-6
"""Relative error that central differences of brackets may have."""


def close(first, second):
    first, second = first.detach(), second.detach()
    return float((first - second).abs().max()) <= EQUAL[F64] * float(second.abs().max().clamp(min=1))


# --- fields by hand: coordinates to velocity ---


def column(*entries):
    return torch.stack([torch.as_tensor(e, dtype=F64).expand(()) for e in entries])


def rotation(size, a, b):
    """x_a ∂_b − x_b ∂_a."""
    turn = torch.zeros(size, size, dtype=F64)
    turn[b, a], turn[a, b] = 1, -1
    return lambda x: turn @ x


def shift(size, a):
    return lambda x: torch.eye(size, dtype=F64)[a] + 0 * x


def chain(size):
    """Σ x_i ∂_{i+1}: with ∂_0 it brings one new direction at every depth."""
    return lambda x: torch.cat((0 * x[:1], x[:-1]))


def words_of(fields, at, seed=0):
    """Random left-normed words, of combinations of the fields with small whole weights: brackets that vanish then cancel exactly."""
    generator = torch.Generator().manual_seed(seed)

    def letter():
        weights = torch.randint(-9, 10, (len(fields),), generator=generator).to(F64)
        return lambda x: sum(w * f(x) for w, f in zip(weights, fields, strict=True))

    def words(depth, number):
        letters = [[letter() for _ in range(depth)] for _ in range(number)]
        return torch.stack([reduce(lambda inner, outer: bracket(outer, inner), reversed(one[:-1]), one[-1])(at) for one in letters])

    return words


def closed(fields, at, laws=None, **options):
    at = torch.tensor(at, dtype=F64)
    gradients = torch.zeros(0, len(at), dtype=F64) if laws is None else torch.tensor(laws, dtype=F64)
    return closure(words_of(fields, at), len(at), gradients, **options)


ALGEBRAS = {
    # fields, point: ranks after depth 1, 2, …
    "nothing moves": ([lambda x: 0 * x], [1.0, 2.0], (0, 0, 0)),
    "one field": ([rotation(3, 0, 1)], [1.0, 2.0, 3.0], (1, 1, 1)),
    "shifts commute": ([shift(4, 0), shift(4, 2)], [1.0, 2.0, 3.0, 4.0], (2, 2, 2)),
    "rotations of two planes commute": ([rotation(4, 0, 1), rotation(4, 2, 3)], [1.0, 2.0, 3.0, 4.0], (2, 2, 2)),
    "so(3) on spheres": ([rotation(3, 0, 1), rotation(3, 1, 2)], [1.0, 2.0, 3.0], (2, 2, 2)),
    "so(3) where two axes turn alike": ([rotation(3, 0, 1), rotation(3, 0, 2)], [0.0, 1.0, 0.0], (1, 2, 2, 2)),
    "so(4) from a chain of planes": ([rotation(4, 0, 1), rotation(4, 1, 2), rotation(4, 2, 3)], [1.0, 2.0, 3.0, 4.0], (3, 3, 3)),
    "so(5) from two fields": (
        [lambda x: rotation(5, 0, 1)(x) + rotation(5, 2, 3)(x), lambda x: rotation(5, 1, 2)(x) + rotation(5, 3, 4)(x)],
        [1.0, 2.0, -1.0, 0.5, 3.0],
        (2, 3, 4, 4, 4),
    ),
    "Heisenberg": ([shift(3, 0), lambda x: column(0, 1, x[0])], [1.0, 2.0, 3.0], (2, 3)),
    "a car": ([lambda x: column(x[2].cos(), x[2].sin(), 0), shift(3, 2)], [1.0, 2.0, 0.3], (2, 3)),
    "Grushin plane on its line": ([shift(2, 0), lambda x: column(0, x[0])], [0.0, 5.0], (1, 2)),
    "Grushin plane elsewhere": ([shift(2, 0), lambda x: column(0, x[0])], [1.0, 5.0], (2,)),
    "one idle depth": ([shift(3, 0), lambda x: column(0, 1, x[0] ** 2)], [0.0, 1.0, 1.0], (2, 2, 3)),
    "chain of five": ([shift(5, 0), chain(5)], [1.0, -2.0, 0.5, 3.0, 1.0], (2, 3, 4, 5)),
    "two chains of four": (
        [
            lambda x: torch.cat((shift(4, 0)(x[:4]), 0 * x[4:])),
            lambda x: torch.cat((0 * x[:4], shift(4, 0)(x[4:]))),
            lambda x: torch.cat((chain(4)(x[:4]), chain(4)(x[4:]))),
        ],
        [1.0, 2.0, 3.0, 4.0, -1.0, 0.5, 2.0, 1.0],
        (3, 5, 7, 8),
    ),
}


@pytest.mark.parametrize(("fields", "at", "ranks"), ALGEBRAS.values(), ids=ALGEBRAS)
@pytest.mark.parametrize("exhaustive", [False, True], ids=["few-words", "exhaustive"])
def test_algebras_known_by_hand(fields, at, ranks, exhaustive):
    found = closed(fields, at, exhaustive=exhaustive)
    assert found.ranks == ranks
    assert (found.rank, found.size, found.settled, found.clear) == (ranks[-1], len(at), True, True)
    assert found.filled is (found.rank == len(at))
    assert found.span.shape == (found.rank, len(at))


def test_what_is_idle_for_two_depths_is_taken_to_be_closed():
    """The price of an end: at this special point x³ comes in at depth four only. At a generic one it comes in at depth two."""
    fields = [shift(3, 0), lambda x: column(0, 1, x[0] ** 3)]
    assert closed(fields, [0.0, 1.0, 1.0]).ranks == (2, 2, 2)
    assert closed(fields, [0.1, 1.0, 1.0]).ranks == (2, 3)


def test_words_longer_than_allowed_leave_it_unsettled():
    at = torch.randn(8, generator=torch.Generator().manual_seed(3), dtype=F64).tolist()
    found = closed([shift(8, 0), chain(8)], at, max_depth=4)
    assert found.ranks == (2, 3, 4, 5)
    assert (found.settled, found.clear, found.filled) == (False, False, False)
    assert found.gap >= CLEAR_GAP  # it is not the ranks that are in doubt
    short = closed([shift(5, 0), chain(5)], at[:5], max_depth=2)
    assert (short.ranks, short.settled) == ((2, 3), False)


def test_known_laws_end_it_early():
    fields, at = ALGEBRAS["so(3) on spheres"][:2]
    radial = [[c / 14**0.5 for c in at]]
    found = closed(fields, at, radial)
    assert (found.ranks, found.filled, found.settled) == ((2,), True, True)
    assert found.gap >= CLEAR_GAP
    heisenberg = closed([shift(3, 0), shift(3, 1)], at, [[0.0, 0.0, 1.0]])
    assert (heisenberg.ranks, heisenberg.filled) == ((2,), True)


def test_false_laws_do_not_pass_as_filling_the_space():
    """∂_z is no law of the Heisenberg fields: at depth 1 the span meets it already. And a law within the span fills nothing clearly."""
    at = [1.0, 2.0, 3.0]
    one_too_many = closed([shift(3, 0), shift(3, 1)], at, [[0.0, 0.6, 0.8], [1.0, 0.0, 0.0]])
    assert one_too_many.rank + 2 > 3
    assert not one_too_many.filled
    within = closed([shift(3, 0), shift(3, 1)], at, [[1.0, 0.0, 0.0]])
    assert not within.clear


def test_ranks_in_doubt_are_not_clear():
    """Fields that differ by powers of 1/1000: singular values without a break."""
    fields = [lambda x, k=k: torch.eye(9, dtype=F64)[0] + 1e-3**k * torch.eye(9, dtype=F64)[k] + 0 * x for k in range(1, 8)]
    found = closed(fields, [0.0] * 9)
    assert found.gap < CLEAR_GAP
    assert not found.settled
    assert not found.clear


@pytest.mark.parametrize(("missing", "filled"), [(0, True), (1, False)])
def test_large_spaces_are_filled_at_once(missing, filled, generator):
    size, laws = 600, 5
    turned = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=F64)).Q
    space = turned[laws + missing :]

    def words(_, number):
        return torch.randn(number, len(space), generator=generator, dtype=F64) @ space

    found = closure(words, size, turned[:laws])
    assert found.filled is filled
    assert (found.rank, found.clear, found.span is None) == (size - laws - missing, True, filled)


# --- identities ---

BUILT = {
    "linear": lambda: LinearNetwork((2, 3, 2), bias=True),
    "silu": lambda: FeedForward(2, 3, 1, "silu"),
    "swiglu": lambda: GatedLinearUnit(2, 2, 1),
    "mha": lambda: Attention(2, 1, 2, tokens=3),
}
FLOWS = {
    "gradient": ("linear", "gradient"),
    "gradient-swiglu": ("swiglu", "gradient"),
    "momentum-silu": ("silu", "momentum"),
    "nesterov-linear": ("linear", "nesterov"),
}


def drawn(flow, number, seed=0):
    """A state and samples of single fields."""
    generator = torch.Generator().manual_seed(seed)
    state = flow.state(flow.model.generic_point(generator), generator)
    stacked = flow.model.samples(number, generator)
    return state, [Sample(tuple(x[i] for x in stacked.inputs), stacked.cotangent[i], stacked.drift[i]) for i in range(number)]


@pytest.mark.parametrize(("block", "kind"), FLOWS.values(), ids=FLOWS)
@pytest.mark.parametrize("seed", range(3))
def test_brackets_are_antisymmetric_and_satisfy_jacobi(block, kind, seed):
    flow = Flow(model_of(BUILT[block]()), kind)
    state, samples = drawn(flow, 3, seed)
    u, v, w = map(flow.generator, samples)
    assert float(bracket(u, v)(state).abs().max()) > EQUAL[F64]
    assert close(bracket(u, v)(state), -bracket(v, u)(state))
    assert not bracket(u, u)(state).any()
    cyclic = [bracket(a, bracket(b, c))(state) for a, b, c in ((u, v, w), (v, w, u), (w, u, v))]
    assert close(sum(cyclic), torch.zeros(flow.size, dtype=F64))
    assert not close(cyclic[0] + cyclic[1], torch.zeros(flow.size, dtype=F64))


@pytest.mark.parametrize("factor", [2.0, -0.5])
def test_brackets_are_bilinear(factor):
    flow = Flow(model_of(BUILT["swiglu"]()))
    state, samples = drawn(flow, 3)
    u, v, w = map(flow.generator, samples)
    assert close(bracket(lambda x: factor * u(x) + w(x), v)(state), factor * bracket(u, v)(state) + bracket(w, v)(state))


def potential(flow, sample):
    """⟨c, f(θ, x)⟩ by the module itself, with autograd's own Hessian."""
    module = flow.model.module
    sizes = [p.numel() for p in module.parameters()]

    def value(theta):
        parts = zip(module.named_parameters(), theta.split(sizes), strict=True)
        return functional_call(module, {name: part.view(p.shape) for (name, p), part in parts}, sample.inputs).flatten() @ sample.cotangent

    return value


@pytest.mark.parametrize("block", BUILT)
def test_brackets_of_gradients_are_those_of_dense_hessians(block):
    """[g_i, g_j] = H_j g_i − H_i g_j."""
    flow = Flow(model_of(BUILT[block]()))
    theta, samples = drawn(flow, 2)
    first, second = (potential(flow, sample) for sample in samples)
    g, h = (jacobian(value, theta) for value in (first, second))
    assert close(flow.generator(samples[0])(theta), g)
    assert close(word(flow, tuple(samples))(theta), hessian(second, theta) @ g - hessian(first, theta) @ h)


@pytest.mark.parametrize(("kind", "build"), [("momentum", BUILT["silu"]), ("nesterov", BUILT["silu"]), ("mirror", lambda: MatrixFactorization(2, 3, rank=1))])
def test_brackets_of_other_flows_are_those_of_dense_jacobians(kind, build):
    flow = Flow(model_of(build()), kind, damping=0.5)
    state, samples = drawn(flow, 3)
    n = flow.model.size

    def velocity(sample):
        """The field written out."""
        value = potential(flow, sample)
        gradient = lambda theta: jacobian(value, theta, create_graph=True)  # ruff: ignore[lambda-assignment]
        if kind == "mirror":
            return lambda theta: theta * gradient(theta)

        def field(z):
            gamma = 3 / z[0] if kind == "nesterov" else 0.5
            drift = torch.cat((torch.ones(1, dtype=F64), z[n + 1 :], -gamma * z[n + 1 :]))
            return sample.drift * drift + torch.cat((torch.zeros(n + 1, dtype=F64), gradient(z[1 : n + 1])))

        return field

    def dense(u, v):
        return lambda z: jacobian(v, z, create_graph=True) @ u(z) - jacobian(u, z, create_graph=True) @ v(z)

    u, v, w = map(velocity, samples)
    assert close(flow.generator(samples[0])(state), u(state))
    assert close(word(flow, tuple(samples[:2]))(state), dense(u, v)(state))
    assert close(word(flow, tuple(samples))(state), dense(u, dense(v, w))(state))


# --- central differences ---


class _WrongSquare(torch.autograd.Function):
    """x² with the right gradient 2x, whose own derivative is said to be 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * _WrongIdentity.apply(x) * grad

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * _WrongIdentity.apply(x) * tangent


class _WrongIdentity(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad / 2

    @staticmethod
    def jvp(ctx, tangent):
        return tangent / 2


class Squares(torch.nn.Module):
    """x ↦ A (W x)², whose brackets torch gets right or wrong."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.W, self.A = torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        hidden = x @ self.W.T
        return (_WrongSquare.apply(hidden) if self.wrong else hidden * hidden) @ self.A.T


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_central_differences_tell_wrong_derivatives(wrong, depth):
    flow = Flow(model_of(Squares(wrong), (torch.randn(1, 2),)))
    state, samples = drawn(flow, depth)
    error = bracket_error(flow, state, tuple(samples))
    assert error > 1e4 * DIFFERENCES if wrong else error < DIFFERENCES


def test_terms_that_cancel_are_no_wrong_derivatives():
    """All fields of x ↦ b·a·x are multiples of one: their brackets are rounding, and differences of differences are more of it."""
    flow = Flow(model_of(LinearNetwork((1, 1, 1))))
    for seed in range(4):
        state, samples = drawn(flow, 3, seed)
        for depth in (2, 3):
            assert bracket_error(flow, state, tuple(samples[:depth])) < DIFFERENCES


@pytest.mark.parametrize("block", BUILT)
def test_central_differences_agree(block):
    flow = Flow(model_of(BUILT[block]()))
    state, samples = drawn(flow, 3)
    assert bracket_error(flow, state, tuple(samples)) < DIFFERENCES
