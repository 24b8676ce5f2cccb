"""Counts under momentum and in other metrics, beside exact polynomial laws and along integrated trajectories."""

import math
from dataclasses import dataclass

import pytest
import torch
from cases import FLOW_CONSTANT, FLOW_DRIFT
from torch.func import functional_call

from conserved.catalog import Attention, GatedLinearUnit, InputConvexNetwork, LinearNetwork, LoRA, MatrixFactorization, ReLUNetwork, SoftmaxClassifier
from conserved.certify import certify, polynomial_laws
from conserved.errors import ConfigurationError, ConservedError

GAP = 1e6
FIRST_DEGREE = {"gradient": 2, "mirror": 2, "momentum": 3, "nesterov": 5}
"""Of the lowest laws of two layers: with momentum e^{γt} ⟨Aθ, θ̇⟩, t³ ⟨Aθ, θ̇⟩."""


def decided(found):
    """The count, if a clear gap says so."""
    assert found.verdict == "numerical", str(found)
    assert found.gap >= GAP
    return found.independent_laws


# --- counts ---

WITHOUT = {
    "relu-2-3-2": lambda: ReLUNetwork((2, 3, 2)),
    "relu-2-3-3-1": lambda: ReLUNetwork((2, 3, 3, 1)),
    "relu-3-2-2-bias": lambda: ReLUNetwork((3, 2, 2), bias=True),
    "icnn": lambda: InputConvexNetwork(2, 3, 1, bias=False),
    "icnn-bias": lambda: InputConvexNetwork(3, 2, 2),
    "swiglu": lambda: GatedLinearUnit(2, 2, 1),
    "nmf-rank-1": lambda: MatrixFactorization(3, 2, rank=1),
    "linear-3-2": lambda: LinearNetwork((3, 2)),
    "linear-2-1-2": lambda: LinearNetwork((2, 1, 2)),
}


@pytest.mark.parametrize("build", WITHOUT.values(), ids=WITHOUT)
def test_nothing_survives_momentum_without_a_rotation(build):
    module = build()
    found = certify(module, flow="momentum")
    assert (decided(found), found.known_laws, found.complete) == (0, 0, True)
    assert found.size == 2 * found.parameters + 1 == found.rank_lie
    assert certify(build()).independent_laws == module.laws().independent_count  # which the gradient flow has


ROTATIONS = {
    "linear-2-2-2": (lambda: LinearNetwork((2, 2, 2)), 1),
    "linear-2-2-1": (lambda: LinearNetwork((2, 2, 1)), 1),
    "linear-2-3-2": (lambda: LinearNetwork((2, 3, 2)), 3),
    "linear-2-2-2-2": (lambda: LinearNetwork((2, 2, 2, 2)), 2),
    "linear-bias": (lambda: LinearNetwork((2, 2, 2), bias=True), 1),
    "nmf-rank-2": (lambda: MatrixFactorization(3, 2, rank=2), 1),
    "lora-rank-2": (lambda: LoRA(3, 2, 2), 1),
}


@pytest.mark.parametrize(("build", "laws"), ROTATIONS.values(), ids=ROTATIONS)
def test_rotations_survive_momentum(build, laws):
    found = certify(build(), flow="momentum")
    assert (decided(found), found.known_laws, found.complete) == (laws, laws, True)
    assert found.depth >= 3  # rank 5 of 16 at first: deep brackets are needed
    exact = polynomial_laws(build(), flow="momentum", degree=3)
    assert exact.independent == laws
    assert all(law.degree == 3 for law in exact.laws)


def test_nesterov_keeps_the_rotation():
    found = certify(LinearNetwork((2, 2, 2)), flow="nesterov")
    assert (decided(found), found.known_laws, found.complete, found.rank_span) == (1, 1, True, 5)
    assert polynomial_laws(LinearNetwork((2, 2, 1)), flow="nesterov", degree=5).independent == decided(certify(LinearNetwork((2, 2, 1)), flow="nesterov")) == 1


def test_scalar_networks_have_one_rotation_more():
    """u·v is also ¼|u+v|² − ¼|u−v|²: both parts turn by themselves. The catalogue knows of one, so its list is short."""
    found = certify(LinearNetwork((1, 2, 1)), flow="momentum")
    assert (decided(found), found.known_laws, found.complete) == (2, 1, False)
    assert polynomial_laws(LinearNetwork((1, 2, 1)), flow="momentum", degree=3).independent == 2


@pytest.mark.parametrize("damping", [0.0, 0.5, -0.25])
def test_the_number_of_rotations_does_not_depend_on_damping(damping):
    assert decided(certify(LinearNetwork((2, 2, 2)), flow="momentum", damping=damping)) == 1


@pytest.mark.parametrize(("flow", "damping", "laws"), [("momentum", 1.0, 6), ("nesterov", 1.0, 6), ("momentum", 0.0, 6)])
def test_a_translation_gives_two_laws_with_momentum(flow, damping, laws):
    """Velocity, and place beside velocity: (2 + 1)·2 of three classes on two features with bias. Without damping, place − t·velocity."""
    found = certify(SoftmaxClassifier(2, 3), flow=flow, damping=damping)
    assert decided(found) == laws
    assert decided(certify(SoftmaxClassifier(2, 3))) == laws / 2
    assert found.complete is (damping != 0)  # that last one is not among the closed forms


def test_one_head_keeps_two_rotations():
    found = certify(Attention(dim=2, heads=1, head_dim=2), flow="momentum")
    assert (decided(found), found.complete) == (2, True)


# --- metrics ---

METRIC = {
    "nmf-rank-1": (lambda: MatrixFactorization(3, 2, rank=1), 1, 1),
    "nmf-rank-2": (lambda: MatrixFactorization(3, 2, rank=2), 3, 2),
    "nmf-rank-3": (lambda: MatrixFactorization(2, 4, rank=3), 6, 3),
    "icnn": (lambda: InputConvexNetwork(2, 3, 1, bias=False), 3, 3),
    "icnn-bias": (lambda: InputConvexNetwork(2, 3, 2), 3, 3),
}


@pytest.mark.parametrize(("build", "euclidean", "mirror"), METRIC.values(), ids=METRIC)
def test_factorizations_and_convex_networks_in_both_metrics(build, euclidean, mirror):
    for flow, laws in (("gradient", euclidean), ("mirror", mirror)):
        found = certify(build(), flow=flow)
        assert (decided(found), found.known_laws, found.complete) == (laws, laws, True)
        assert polynomial_laws(build(), flow=flow, degree=2).independent == laws


@pytest.mark.parametrize("build", [lambda: MatrixFactorization(3, 2, rank=2), lambda: InputConvexNetwork(2, 3, 1)], ids=["nmf", "icnn"])
def test_accelerated_mirror_descent_keeps_nothing(build):
    found = certify(build(), flow="mirror-momentum")
    assert (decided(found), found.complete) == (0, True)
    assert found.rank_lie == found.size == 2 * found.parameters + 1


def test_the_euclidean_metric_is_the_gradient_flow():
    found = certify(MatrixFactorization(3, 2, rank=2), flow="mirror", metric=torch.ones_like)
    assert (decided(found), found.rank_span, found.rank_lie) == (3, 6, 7)
    momentum = certify(LinearNetwork((2, 2, 1)), flow="mirror-momentum", metric=torch.ones_like)
    assert decided(momentum) == decided(certify(LinearNetwork((2, 2, 1)), flow="momentum")) == 1


@pytest.mark.parametrize(("power", "laws"), [(0, 3), (1, 2), (2, 2)])
def test_a_metric_of_the_user(power, laws):
    """UᵀU − VᵀV, Σ U − Σ V, Σ log U − Σ log V; laws of a given metric are not in the catalogue."""
    found = certify(MatrixFactorization(3, 2, rank=2), flow="mirror", metric=lambda theta: theta**power)
    assert (decided(found), found.known_laws, found.complete) == (laws, 0, False)
    assert found.certificate is None


@pytest.mark.parametrize("widths", [(2, 2, 1), (2, 3, 1), (2, 1, 2)], ids=str)
def test_the_logarithmic_metric_keeps_rescalings_even_with_momentum(widths):
    """For M(z) = z²: e^{γt} (Σ θ/z of one unit's rows − its columns, less their number) at z = θ + θ̇/γ, one for each unit; see the trajectory below."""
    found = certify(LinearNetwork(widths), flow="mirror-momentum", metric=torch.square)
    assert decided(found) == widths[1]


def test_no_two_seeds_disagree():
    """Fields of high degree, whose brackets cancel by orders of magnitude: a point may be undecided, but never wrong. For the square see above."""
    found = [certify(LinearNetwork((2, 1, 2)), flow="mirror-momentum", metric=lambda theta: theta**3, seed=seed) for seed in range(8)]
    counts = [one.independent_laws for one in found if one.verdict == "numerical"]
    assert len(counts) > 4
    assert set(counts) == {0}
    for one in found:
        assert one.gap >= GAP if one.verdict == "numerical" else (one.verdict, one.independent_laws, one.complete) == ("undecided", None, None)


# --- trajectories ---


@dataclass(frozen=True, eq=False)
class Problem:
    """A module with squared loss on random data."""

    module: torch.nn.Module
    x: torch.Tensor
    y: torch.Tensor

    @staticmethod
    def of(module, generator, batch=7):
        module = module.double()
        (x,) = module.example(batch, generator)
        return Problem(module, x, torch.randn(module(x).shape, generator=generator, dtype=torch.float64))

    @property
    def shapes(self):
        return {name: p.shape for name, p in self.module.named_parameters()}

    def named(self, theta):
        parts = theta.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def gradient(self, theta):
        theta = theta.detach().requires_grad_()
        loss = (functional_call(self.module, self.named(theta), (self.x,)) - self.y).square().mean()
        return torch.autograd.grad(loss, theta)[0]


def integrated(velocity, state, start, seconds=1.0, steps=400):
    """Classical Runge–Kutta: the states at both ends."""
    t, h, at = start, seconds / steps, state
    for _ in range(steps):
        a = velocity(t, at)
        b = velocity(t + h / 2, at + h / 2 * a)
        c = velocity(t + h / 2, at + h / 2 * b)
        d = velocity(t + h, at + h * c)
        t, at = t + h, at + h / 6 * (a + 2 * b + 2 * c + d)
    return (start, state), (t, at)


def accelerated(problem, damping):
    """θ̈ = −γ(t) θ̇ − ∇L(θ) on the state (θ, θ̇)."""

    def velocity(t, state):
        theta, speed = state.chunk(2)
        return torch.cat((speed, -damping(t) * speed - problem.gradient(theta)))

    return velocity


def start(problem, generator, positive=False):
    drawn = torch.randn(sum(shape.numel() for shape in problem.shapes.values()), generator=generator, dtype=torch.float64)
    return drawn.abs() + 0.5 if positive else drawn


def value(law, point):
    """A polynomial at a point, and the sum of its monomials' sizes."""
    terms = torch.stack([float(c) * torch.prod(point ** torch.tensor(exponents, dtype=torch.float64)) for exponents, c in law.coefficients.items()])
    return float(terms.sum()), float(terms.abs().sum())


def drift(law, before, after):
    (first, size), (last, _) = value(law, before), value(law, after)
    return abs(last - first) / size


MOVING = {
    "linear-2-3-1": (lambda: LinearNetwork((2, 3, 1)), "momentum", 3, 3),
    "linear-2-2-2-2": (lambda: LinearNetwork((2, 2, 2, 2)), "momentum", 3, 2),
    "linear-1-2-1": (lambda: LinearNetwork((1, 2, 1)), "momentum", 3, 2),
    "nmf-rank-2": (lambda: MatrixFactorization(3, 2, rank=2), "momentum", 3, 1),
    "linear-2-2-1-nesterov": (lambda: LinearNetwork((2, 2, 1)), "nesterov", 5, 1),
}


@pytest.mark.parametrize(("build", "flow", "degree", "laws"), MOVING.values(), ids=MOVING)
def test_charges_stay_along_trajectories(build, flow, degree, laws, generator):
    """The exact polynomials, evaluated on θ̈ + γθ̇ = −∇L by a solver that knows nothing of them. Each monomial alone drifts."""
    found = polynomial_laws(build(), flow=flow, degree=degree, damping=2)
    assert found.independent == laws
    problem = Problem.of(build(), generator)
    theta = start(problem, generator)
    state = torch.cat((theta, torch.randn(theta.shape, generator=generator, dtype=torch.float64)))
    nesterov = flow == "nesterov"
    ends = integrated(accelerated(problem, (lambda t: 3 / t) if nesterov else (lambda _: 2.0)), state, 1.0 if nesterov else 0.0)
    before, after = (torch.cat((torch.tensor([t if nesterov else math.exp(2 * t)], dtype=torch.float64), at)) for t, at in ends)
    for law in found.generators:
        assert drift(law, before, after) <= FLOW_CONSTANT
        broken = type(law)({m: c * (3 if not i else 1) for i, (m, c) in enumerate(law.coefficients.items())}, law.variables)
        assert drift(broken, before, after) >= FLOW_DRIFT


def test_what_a_gradient_flow_keeps_drifts_with_momentum(generator):
    problem = Problem.of(LinearNetwork((3, 2, 2)), generator)
    theta = start(problem, generator)
    speed = torch.randn(theta.shape, generator=generator, dtype=torch.float64)
    gradient = integrated(lambda _, at: -problem.gradient(at), theta, 0.0)
    momentum = integrated(accelerated(problem, lambda _: 1.0), torch.cat((theta, speed)), 0.0)

    def balance(theta):
        first, second = problem.named(theta).values()
        return first @ first.T - second.T @ second

    def turning(t, state):
        """e^{γt} times the angular momentum of the two hidden units."""
        (a, b), (a_speed, b_speed) = (tuple(problem.named(part).values()) for part in state.chunk(2))
        return math.exp(t) * (a[0] @ a_speed[1] - a[1] @ a_speed[0] + b[:, 0] @ b_speed[:, 1] - b[:, 1] @ b_speed[:, 0])

    def changed(values):
        before, after = values
        return float((after - before).abs().max() / before.abs().max())

    assert changed(balance(theta) for _, theta in gradient) <= FLOW_CONSTANT
    assert changed(balance(state.chunk(2)[0]) for _, state in momentum) >= FLOW_DRIFT
    assert changed(turning(t, state) for t, state in momentum) <= FLOW_CONSTANT
    assert changed(turning(0, state) for _, state in momentum) >= FLOW_DRIFT  # it decays without the factor


def test_a_mirror_flow_keeps_sums_and_not_squares(generator):
    problem = Problem.of(MatrixFactorization(3, 2, rank=2), generator)
    ends = integrated(lambda _, at: -at * problem.gradient(at), start(problem, generator, positive=True), 0.0)
    (u, v), (u_after, v_after) = (tuple(problem.named(theta).values()) for _, theta in ends)
    sums = u.sum(0) - v.sum(0)
    squares = u.square().sum(0) - v.square().sum(0)
    assert float((u_after.sum(0) - v_after.sum(0) - sums).abs().max()) <= FLOW_CONSTANT * float(u.sum())
    assert float((u_after.square().sum(0) - v_after.square().sum(0) - squares).abs().max()) >= FLOW_DRIFT * float(u.square().sum())


def test_the_logarithmic_metric_along_a_trajectory(generator):
    """θ̈ + γθ̇ = −M(z)∇L(θ) with z = θ + θ̇/γ and M = z²: e^{γt} (Σ ± (θ/z − 1)) of each hidden unit."""
    gamma = 2.0
    problem = Problem.of(LinearNetwork((2, 3, 1)), generator)
    theta = start(problem, generator, positive=True)
    speed = 0.3 * torch.randn(theta.shape, generator=generator, dtype=torch.float64)

    def velocity(_, state):
        theta, speed = state.chunk(2)
        return torch.cat((speed, -gamma * speed - (theta + speed / gamma) ** 2 * problem.gradient(theta)))

    def charge(t, state, exponent):
        theta, speed = state.chunk(2)
        first, second = problem.named((theta / (theta + speed / gamma)) ** exponent - 1).values()
        return math.exp(gamma * t) * (first.sum(1) - second.sum(0))

    ends = integrated(velocity, torch.cat((theta, speed)), 0.0, seconds=0.5, steps=1200)
    for exponent, holds in ((1, True), (2, False)):
        before, after = (charge(t, state, exponent) for t, state in ends)
        change = float((after - before).abs().max() / before.abs().max())
        assert change <= FLOW_CONSTANT if holds else change >= FLOW_DRIFT


# --- bad choices ---

BAD = {
    "unknown": (LinearNetwork, {"flow": "euclid"}, "flow 'euclid' is unknown; choose one of gradient, momentum, nesterov, mirror, mirror-momentum"),
    "mirror-without-metric": (LinearNetwork, {"flow": "mirror"}, "no metric of its own; pass metric="),
    "mirror-momentum-without-metric": (LinearNetwork, {"flow": "mirror-momentum"}, "no metric of its own; pass metric="),
    "mirror-momentum-without-damping": (MatrixFactorization, {"flow": "mirror-momentum", "damping": 0.0}, "give a damping that is not 0"),
    "metric-without-mirror": (MatrixFactorization, {"metric": torch.ones_like}, "has no metric; choose mirror or mirror-momentum"),
}


@pytest.mark.parametrize(("build", "options", "said"), BAD.values(), ids=BAD)
def test_bad_choices(build, options, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        certify(build(), **options)
    assert isinstance(caught.value, ConservedError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"flow": "euclid"}, {"flow": "mirror"}, {"flow": "mirror-momentum"}, {"degree": 0}], ids=str)
def test_polynomials_refuse_the_same(options):
    with pytest.raises(ConfigurationError, match=r"unknown; choose|no metric of its own|at least degree 1") as caught:
        polynomial_laws(LinearNetwork((2, 2, 1)), **options)
    assert "\n" not in str(caught.value)
