"""The interpreter against torch in float64 and complex128, and the scalars against each other."""

from functools import cache

import flint
import mpmath
import numpy as np
import pytest
import torch
from torch.func import jvp, vjp, vmap
from torch.utils import _pytree as pytree

from conserved.catalog import make_block
from conserved.certify.flows import Flow
from conserved.certify.interpret import OPERATIONS, interpret, trace
from conserved.certify.model import model_of
from conserved.certify.scalars import Complex, ComplexBalls, Polynomials, PrimeField, Rational, RealBalls, UnsupportedOperation
from conserved.certify.words import rows
from conserved.errors import ConfigurationError

FFN = {"dim": 2, "hidden": 2, "out": 1}
HEAD = {"dim": 2, "heads": 1, "head_dim": 2, "tokens": 2}
MIX = {"dim": 2, "hidden": 1, "out": 1}

CASES = {
    "linear": ("linear", {}, 1),
    "linear-bracket": ("linear", {}, 2),
    "relu": ("relu", {}, 1),
    "leaky-relu": ("leaky-relu", {}, 1),
    "nmf-bracket": ("nmf", {}, 2),
    "icnn": ("icnn", {}, 1),
    "conv": ("conv", {}, 1),
    "conv-bracket": ("conv", {}, 2),
    "resnet-block": ("resnet-block", {}, 1),
    "gelu": ("gelu", FFN, 1),
    "gelu-bracket": ("gelu", FFN, 2),
    "gelu-deep": ("gelu", FFN, 3),
    "silu": ("silu", FFN, 1),
    "silu-bias-bracket": ("silu", FFN | {"bias": True}, 2),
    "tanh": ("tanh", FFN, 1),
    "swiglu": ("swiglu", FFN, 1),
    "swiglu-bracket": ("swiglu", FFN, 2),
    "geglu": ("geglu", FFN, 1),
    "reglu": ("reglu", FFN, 1),
    "bilinear": ("bilinear", FFN, 1),
    "bilinear-bracket": ("bilinear", FFN, 2),
    "mha": ("mha", HEAD, 1),
    "mha-causal-bracket": ("mha", HEAD | {"causal": True}, 2),
    "alibi-softcap": ("mha", HEAD | {"position": "alibi", "soft_cap": 5.0}, 1),
    "learned": ("mha", HEAD | {"position": "learned"}, 1),
    "rope": ("rope", HEAD, 1),
    "rope-partial": ("rope", HEAD | {"head_dim": 4, "rotary_dim": 2, "interleaved": True}, 1),
    "gqa": ("gqa", {"dim": 2, "head_dim": 2, "tokens": 2}, 1),
    "mqa": ("mqa", {"dim": 2, "head_dim": 2, "tokens": 2}, 1),
    "qk-norm": ("qk-norm", HEAD, 1),
    "key-bias": ("key-bias", HEAD, 1),
    "moe": ("moe", MIX, 1),
    "moe-bracket": ("moe", MIX | {"experts": 2}, 2),
    "moe-losses": ("moe", MIX | {"z_loss": True, "load_balancing": True}, 1),
    "sparse-moe": ("sparse-moe", MIX, 1),
    "topk-softmax": ("sparse-moe", MIX | {"gate": "topk_softmax"}, 1),
    "sigmoid-moe": ("sigmoid-moe", MIX, 1),
    "rmsnorm": ("rmsnorm", {}, 1),
    "rmsnorm-bracket": ("rmsnorm", {}, 2),
    "layernorm": ("layernorm", {}, 1),
    "layer-scale": ("layer-scale", {}, 1),
    "batch-norm": ("batch-norm", {}, 1),
    "lora": ("lora", {}, 1),
    "classifier": ("classifier", {}, 1),
}
POLYNOMIAL = ("linear", "linear-bracket", "nmf-bracket", "bilinear", "bilinear-bracket", "lora")


@cache
def case(name):
    """The traced words of a case, its tensors, and their values by torch."""
    block, options, depth = CASES[name]
    flow, generator = Flow(model_of(make_block(block, options))), torch.Generator().manual_seed(5)
    theta = flow.model.generic_point(generator)
    letters = [flow.model.samples(2, generator) for _ in range(depth)]

    def words(theta, *letters):
        return rows(flow, theta, letters)

    tensors = pytree.tree_leaves([theta, *letters])
    return trace(words, theta, *letters), tensors, words(theta, *letters).detach().numpy()


def values(scalars, tensors):
    return [scalars.array(x) if x.is_floating_point() else x.numpy() for x in tensors]


def close(got, want, tolerance=1e-13):
    return np.abs(np.asarray(got) - want).max() <= tolerance * np.abs(want).max()


def middles(balls):
    return np.array([complex(flint.acb(ball).mid()) for ball in balls.flat]).reshape(balls.shape)


def radius(balls):
    return max(float(flint.acb(ball).rad()) for ball in balls.flat)


@pytest.mark.parametrize("name", CASES)
def test_words_agree_with_torch_in_every_analytic_scalar(name):
    graph, tensors, want = case(name)
    assert np.abs(want).max() > 0
    got = {type(s).__name__: interpret(graph, values(s, tensors), s)[0] for s in (Complex(), RealBalls(128), ComplexBalls(128))}
    assert all(part.shape == want.shape for part in got.values())
    assert close(got["Complex"], want)
    for balls in (got["RealBalls"], got["ComplexBalls"]):
        assert close(middles(balls), want)
        assert radius(balls) < 1e-25 * max(1, np.abs(want).max())
    assert all(wide.overlaps(flint.acb(ball)) for ball, wide in zip(got["RealBalls"].flat, got["ComplexBalls"].flat, strict=True))


@pytest.mark.parametrize("name", ["gelu", "swiglu", "mha", "rope", "rmsnorm"])
def test_coarse_balls_contain_fine_ones(name):
    """Enclosures: what 200 bits find lies in the balls of 60 bits."""
    graph, tensors, _ = case(name)
    coarse, fine = (interpret(graph, values(RealBalls(bits), tensors), RealBalls(bits))[0] for bits in (60, 200))
    assert radius(fine) < 1e-30 * radius(coarse)
    assert all(wide.contains(narrow) for wide, narrow in zip(coarse.flat, fine.flat, strict=True))


@pytest.mark.parametrize("name", POLYNOMIAL)
def test_polynomial_words_are_exact_in_rationals_and_residues(name):
    graph, tensors, want = case(name)
    exact = interpret(graph, values(Rational(), tensors), Rational())[0]
    assert close([[float(e.p) / float(e.q) for e in row] for row in exact], want)
    field = PrimeField(2**61 - 1)
    residues = interpret(graph, values(field, tensors), field)[0]
    assert all(residue == field.number(e) for residue, e in zip(residues.flat, exact.flat, strict=True))
    balls = interpret(graph, values(RealBalls(4000), tensors), RealBalls(4000))[0]
    with RealBalls(4000).precision():
        assert all(ball.contains(e) for ball, e in zip(balls.flat, exact.flat, strict=True))


@pytest.mark.parametrize("name", ["linear-bracket", "bilinear"])
def test_polynomials_at_a_point_are_the_rationals(name):
    graph, tensors, _ = case(name)
    theta, *letters = tensors
    ring = Polynomials(tuple(f"t{i}" for i in range(len(theta))))
    fields = interpret(graph, [ring.variables, *values(ring, letters)], ring)[0]
    assert max(field.total_degree() for field in fields.flat) == (1 if name == "linear-bracket" else 2)
    point = list(Rational().array(theta))
    exact = interpret(graph, values(Rational(), tensors), Rational())[0]
    assert all(field(*point) == e for field, e in zip(fields.flat, exact.flat, strict=True))


@pytest.mark.parametrize(
    ("name", "torch_can"), [("linear", True), ("silu", True), ("tanh", True), ("swiglu", True), ("gelu", False), ("mha", False), ("rope", False)]
)
def test_complex_inputs(name, torch_can):
    graph, tensors, _ = case(name)
    generator = torch.Generator().manual_seed(7)
    moved = [x + 1j * torch.randn(x.shape, generator=generator, dtype=torch.float64) if x.ndim > 1 else x.to(torch.complex128) for x in tensors]
    floating = interpret(graph, [x.numpy() for x in moved], Complex())[0]
    assert np.abs(floating.imag).max() > 1e-3 * np.abs(floating.real).max()
    balls = interpret(graph, [ComplexBalls(128).array(x.numpy()) for x in moved], ComplexBalls(128))[0]
    assert close(floating, middles(balls), 1e-12)
    if torch_can:
        assert close(floating, holomorphic(name, *moved), 1e-12)


def holomorphic(name, theta, x, cotangent, _):
    """Gradients of a net without complex conjugates, by torch in complex128: d/dθ of Σ c·f is the conjugate of what autograd returns."""
    block, options, _ = CASES[name]
    module = make_block(block, options)
    silu = lambda z: z / (1 + (-z).exp())  # ruff: ignore[lambda-assignment]  # torch has no complex silu
    formulas = {
        "silu": lambda w, x: silu(x @ w["B"].T) @ w["A"].T,
        "tanh": lambda w, x: (x @ w["B"].T).tanh() @ w["A"].T,
        "swiglu": lambda w, x: (silu(x @ w["B"].T) * (x @ w["C"].T)) @ w["A"].T,
        "linear": lambda w, x: torch.func.functional_call(module, w, (x,)),
    }
    out = []
    for one, c in zip(x, cotangent, strict=True):
        point = theta.clone().requires_grad_()
        sizes = [p.numel() for p in module.parameters()]
        parts = {key: part.view(p.shape) for (key, p), part in zip(module.named_parameters(), point.split(sizes), strict=True)}
        total = (formulas[name](parts, one).flatten() * c).sum()
        out.append(torch.autograd.grad(total, point, torch.ones_like(total))[0].conj())
    return torch.stack(out).numpy()


# ----------------------------------------------------------------------------------------- derivatives, and their constants

EXACT = {
    "gelu": (torch.nn.functional.gelu, lambda t: t * mpmath.ncdf(t)),
    "gelu tanh": (
        lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        lambda t: t * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf(44715) / 10**6 * t**3))) / 2,
    ),
    "erf": (torch.erf, mpmath.erf),
    "silu": (torch.nn.functional.silu, lambda t: t / (1 + mpmath.exp(-t))),
    "tanh": (torch.tanh, mpmath.tanh),
    "rsqrt": (torch.rsqrt, lambda t: 1 / mpmath.sqrt(t)),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("order", [1, 3])
def test_derivatives_are_exact_to_many_digits(name, order):
    """A double that stands for an irrational number anywhere in a derivative formula would show at the 17th digit."""
    function, exact = EXACT[name]

    def derivative(t):
        field = lambda t: vjp(function, t)[1](torch.ones_like(t))[0]  # ruff: ignore[lambda-assignment]
        for _ in range(order - 1):
            field = along(field, torch.ones_like(t))
        return field(t)

    graph, scalars = trace(derivative, torch.ones(1, dtype=torch.float64)), RealBalls(300)
    (got,) = interpret(graph, [scalars.array([0.625])], scalars)
    with mpmath.workdps(70), scalars.precision():
        want = flint.arb(mpmath.nstr(mpmath.diff(exact, mpmath.mpf(0.625), order), 50))
        assert abs(got[0] - want) < flint.arb("1e-40")


# ------------------------------------------------------------------------------------------------- derivatives of softmax

z, a, b, c, d = (torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in range(5))
KIN = {
    "softmax": (lambda z: torch.softmax(z, 0), lambda z: z.exp() / z.exp().sum(0, keepdim=True)),
    "log_softmax": (lambda z: z.log_softmax(-1), lambda z: z - z.exp().sum().log()),
    "logsumexp": (lambda z: torch.logsumexp(z, 0, keepdim=True).expand(4), lambda z: z.exp().sum().log().expand(4)),
}


def along(function, direction):
    return lambda z: jvp(function, (z,), (direction,))[1]


@pytest.mark.parametrize("name", KIN)
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_deep_derivatives_of_softmax(name, depth):
    """Forward derivatives of the pullback, nested: where shortcuts through stored outputs go wrong unnoticed."""

    def derivative(function):
        field = lambda z: vjp(function, z)[1](c)[0]  # ruff: ignore[lambda-assignment]
        for direction in (a, b, d)[:depth]:
            field = along(field, direction)
        return field

    function, plain = KIN[name]
    graph = trace(vmap(derivative(function)), z[None])
    assert not any("amax" in str(node.target) for node in graph.graph.nodes)
    want = derivative(plain)(z).numpy()
    for scalars in (Complex(), RealBalls(128), ComplexBalls(128)):
        got = interpret(graph, [scalars.array(z[None])], scalars)[0]
        assert close(got.real if scalars == Complex() else middles(got), want, 1e-12)


@pytest.mark.parametrize("scalars", [Complex(), RealBalls(64), ComplexBalls(64)], ids=lambda s: type(s).__name__)
def test_masked_entries_of_a_softmax_are_exactly_zero(scalars):
    mask = torch.tensor([[False, True], [False, False]])
    graph = trace(lambda z: z.masked_fill(mask, -torch.inf).softmax(-1), torch.zeros(2, 2, dtype=torch.float64))
    (p,) = interpret(graph, [scalars.array([[1.0, 2.0], [0.0, 0.0]])], scalars)
    assert p[0, 1] == 0
    assert close(p if scalars == Complex() else middles(p), np.array([[1, 0], [0.5, 0.5]]))


def test_softmax_of_large_logits_does_not_overflow():
    graph = trace(lambda z: z.softmax(-1), torch.zeros(2, dtype=torch.float64))
    assert interpret(graph, [Complex().array([2000.0, 0.0])], Complex())[0].tolist() == [1, 0]


# ------------------------------------------------------------------------------------------------------- single operations


def _in_place(x):
    y = x.clone()
    y.view(-1)[1:3].mul_(2)
    y.t()[0].add_(y[:, 1])
    y[1].copy_(y[0] * 3)
    return y


def _indexed(x):
    index = torch.tensor([[0, 1], [1, 0]])
    return x.gather(1, index) + torch.zeros_like(x).scatter_add(0, index, x) + x[index[0]] + x.new_zeros(2, 2).index_put((index[0],), x, accumulate=True)


OPERATION_CASES = {
    "in-place writes through views": _in_place,
    "indexing": _indexed,
    "padding": lambda x: torch.nn.functional.pad(x, (1, 0, -1, 2)),
    "strided": lambda x: torch.flip(x.repeat(3, 2)[::2, 1::2], (0, 1)),
    "triangles": lambda x: x.triu() - x.tril(-1),
    "statistics": lambda x: (x - x.mean(0)) / (x.var(0, unbiased=False, keepdim=True) + 1e-5).sqrt(),
    "powers": lambda x: x**3 + (x * x + 1) ** -0.5 + (x * x + 1) ** 0.5 + 1 / (x * x + 1) + (x * x + 1) ** 0.3 + 2.0**x,
    "order": lambda x: torch.where(x > 0.1, x, -x) + x.abs() + x.amax(1, keepdim=True) + x.topk(1).values,
    "scalar": lambda x: x.sum() * x[0, 0],
    "empty contraction": lambda x: x[:, :0] @ x[:0] + x,
    "gelu tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "erf": torch.erf,
    "integers": lambda x: x * torch.arange(2) + torch.arange(3)[1:] // 2 + torch.eye(2, dtype=torch.bool),
    "strided convolution": lambda x: torch.nn.functional.conv2d(
        x[None, :, :, None].expand(1, 2, 2, 3), x[:, :, None, None].expand(2, 2, 1, 2)[:, :1], None, (1, 2), (1, 0), 1, 2
    ),
    "dilated convolution": lambda x: torch.nn.functional.conv1d(x.repeat(1, 3)[None], x[:, :, None].expand(2, 2, 2), x[0], padding=1, dilation=2),
}


@pytest.mark.parametrize("name", OPERATION_CASES)
def test_single_operations(name):
    function = OPERATION_CASES[name]
    x = torch.tensor([[0.75, -1.25], [0.5, 2.0]], dtype=torch.float64)
    graph, want = trace(function, x), function(x).numpy()
    for scalars in (Complex(), RealBalls(100)):
        (got,) = interpret(graph, [scalars.array(x)], scalars)
        assert got.shape == want.shape
        assert close(got if scalars == Complex() else middles(got), want)


def test_derivatives_of_gelu_tanh_and_convolution():
    def field(x):
        net = lambda t: torch.nn.functional.gelu(torch.nn.functional.conv1d(t[None], t[:, :, None].expand(2, 2, 2), stride=2, padding=1), approximate="tanh")  # ruff: ignore[lambda-assignment]
        out, pull_back = vjp(net, x)
        return pull_back(torch.ones_like(out))[0]

    x = torch.tensor([[0.75, -1.25], [0.5, 2.0]], dtype=torch.float64)
    bracket = lambda x: jvp(field, (x,), (x * x,))[1]  # ruff: ignore[lambda-assignment]
    for function in (field, bracket):
        for scalars in (Complex(), RealBalls(100)):
            (got,) = interpret(trace(function, x), [scalars.array(x)], scalars)
            assert close(got if scalars == Complex() else middles(got), function(x).numpy())


def test_repeated_computations_are_done_once():
    graph = trace(lambda x: torch.sin(x) * torch.sin(x), torch.ones(1, dtype=torch.float64))
    assert sum(node.target == torch.ops.aten.sin.default for node in graph.graph.nodes) == 1


def test_the_record_holds_the_arguments_of_activations():
    record = {}
    graph, tensors, _ = case("silu")
    interpret(graph, values(Complex(), tensors), Complex(), record)
    names = [function for function, _ in record["activations"]]
    assert "sigmoid" in names
    theta, x = tensors[0].numpy(), tensors[1].numpy()
    hidden = x @ theta[2:].reshape(2, 2).T
    assert close(dict(record["activations"])["sigmoid"].reshape(hidden.shape), hidden)
    record = {}
    interpret(case("mha")[0], values(RealBalls(64), case("mha")[1]), RealBalls(64), record)
    logits = dict(record["activations"])["softmax"]
    assert logits.shape[-1] == HEAD["tokens"]
    assert logits.dtype == object


# --------------------------------------------------------------------------------------------------------------- refusals


def test_unknown_operation_is_named():
    graph = trace(torch.lgamma, torch.ones(1, dtype=torch.float64))
    with pytest.raises(UnsupportedOperation, match=r"aten\.lgamma\.default is not known"):
        interpret(graph, [Complex().array([1.0])], Complex())


@pytest.mark.parametrize("scalars", [Rational(), PrimeField(101), Polynomials(("x",))], ids=lambda s: type(s).__name__)
def test_activations_in_exact_numbers_are_refused(scalars):
    for name in ("exp", "sigmoid", "tanh", "silu", "gelu", "softmax"):
        function = {"gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "softmax": lambda x: x.softmax(0)}.get(name) or getattr(torch, name)
        with pytest.raises(UnsupportedOperation, match=r"aten\..*does not exist in"):
            interpret(trace(function, torch.ones(2, dtype=torch.float64)), [scalars.array([1, 2])], scalars)


@pytest.mark.parametrize("function", [torch.relu, lambda x: x > 0, lambda x: x.amax(0), lambda x: x.topk(1).values], ids=["relu", "comparison", "amax", "topk"])
def test_overlapping_balls_are_never_compared(function):
    graph = trace(function, torch.ones(2, dtype=torch.float64))
    zero = RealBalls(64).array([0.0, 1.0])
    interpret(graph, [zero], RealBalls(64))  # a point can be compared
    with RealBalls(64).precision():
        zero[0] = zero[0] + flint.arb(0, 2)
    with pytest.raises(UnsupportedOperation, match=r"aten\..*overlap"):
        interpret(graph, [zero], RealBalls(64))


def test_a_zero_divisor_is_refused():
    graph = trace(lambda x: 1 / x, torch.ones(1, dtype=torch.float64))
    for scalars in (Rational(), PrimeField(7)):
        with pytest.raises(UnsupportedOperation, match=r"aten\.reciprocal"):
            interpret(graph, [scalars.array([0])], scalars)


def test_arguments_are_counted():
    with pytest.raises(ConfigurationError, match="takes 1 tensors, 2 were given"):
        interpret(trace(torch.sin, torch.ones(1)), [Complex().array([1]), Complex().array([1])], Complex())


def test_precision_is_put_back_after_an_error():
    before = flint.ctx.prec
    with pytest.raises(UnsupportedOperation):
        interpret(trace(torch.lgamma, torch.ones(1)), [RealBalls(500).array([1])], RealBalls(500))
    assert flint.ctx.prec == before


def test_no_operation_writes_into_its_arguments():
    assert not any(getattr(operation, "_schema", None) and operation._schema.is_mutable for operation in OPERATIONS)
