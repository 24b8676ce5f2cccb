"""Formulas in place of fused functions: the same values, derivatives as mpmath has them, and nothing fused left in a trace."""

import math

import mpmath
import pytest
import torch
import torch.nn.functional as F  # ruff: ignore[lowercase-imported-as-non-lowercase]
from cases import EQUAL
from torch import nn
from torch.func import functional_call, jvp, vjp
from torch.fx.experimental.proxy_tensor import make_fx

from conserved.certify.analytic import FORMULAS, Analytic
from conserved.certify.certificate import exact_rows
from conserved.certify.flows import Flow
from conserved.certify.model import model_of
from conserved.certify.scalars import RealBalls
from conserved.certify.words import rows

F64 = torch.float64
FUSED = ("softmax", "layer_norm", "batch_norm", "group_norm", "softplus", "mish", "logsumexp", "attention", "amax")
"""Parts of the names of operations that have derivatives of their own."""


def drawn(*shape, seed=0, spread=1.5):
    return spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def by_formula(function, *arguments):
    with Analytic():
        return function(*arguments)


def close(got, want, tolerance=EQUAL[F64]):
    got, want = got.detach(), want.detach()
    return got.shape == want.shape and (not want.numel() or float((got - want).abs().max()) <= tolerance * float(want.abs().max().clamp(min=1)))


def operations(function, *arguments):
    """Names of the operations of a function, down to those that torch differentiates."""

    def plain(*x):  # make_fx counts the arguments that are named
        return function(*x)

    return {str(node.target) for node in make_fx(plain)(*arguments).graph.nodes if node.op == "call_function"}


def fused(names):
    return {name for name in names if any(part in name for part in FUSED)}


# --- values ---

Q, K, V = drawn(2, 4, 3, 2), drawn(2, 2, 5, 2, seed=1), drawn(2, 2, 5, 3, seed=2)
MASK = torch.tensor([[True, False, True, True, False], [True] * 5, [False, True, False, False, True]])
GAIN, SHIFT = drawn(4, seed=3), drawn(4, seed=4)
MEAN, VARIANCE = drawn(4, seed=5), drawn(4, seed=6).square()

VALUES = {
    # degenerate sizes
    "softmax of one": (lambda x: x.softmax(-1), (3, 1)),
    "softmax of a number": (lambda x: x.softmax(0), ()),
    "softmax of no row": (lambda x: torch.softmax(x, 1), (0, 3)),
    "logsumexp of one": (lambda x: x.logsumexp(0), (1,)),
    "layer norm of no row": (lambda x: F.layer_norm(x, (4,), GAIN), (0, 4)),
    "softplus of nothing": (F.softplus, (0,)),
    # axes, names and options
    "torch.softmax": (lambda x: torch.softmax(x, 1), (2, 4, 3)),
    "softmax by name": (lambda x: torch.softmax(input=x, dim=-2), (2, 4, 3)),
    "functional softmax": (lambda x: F.softmax(x, dim=0), (2, 4, 3)),
    "special softmax": (lambda x: torch.special.softmax(x, -1), (2, 5)),
    "softmin": (lambda x: F.softmin(x, dim=1), (2, 4, 3)),
    "log softmax": (lambda x: x.log_softmax(-1), (2, 4, 3)),
    "torch.log_softmax": (lambda x: torch.log_softmax(x, 0), (2, 3)),
    "functional log softmax": (lambda x: F.log_softmax(x, 1), (2, 3)),
    "special log softmax": (lambda x: torch.special.log_softmax(x, 1), (2, 3)),
    "logsumexp": (lambda x: torch.logsumexp(x, (0, 2), keepdim=True), (2, 4, 3)),
    "logsumexp method": (lambda x: x.logsumexp(1), (2, 4, 3)),
    "special logsumexp": (lambda x: torch.special.logsumexp(x, 1), (2, 4)),
    "softplus": (F.softplus, (3, 5)),
    "softplus sharp": (lambda x: F.softplus(x, beta=3.0), (3, 5)),
    "softplus past its threshold": (lambda x: F.softplus(x + 30), (3, 5)),
    "mish": (F.mish, (3, 5)),
    "layer norm": (lambda x: F.layer_norm(x, (4,), GAIN, SHIFT), (3, 4)),
    "layer norm, gain only": (lambda x: torch.layer_norm(x, (4,), GAIN), (2, 3, 4)),
    "layer norm by name": (lambda x: torch.layer_norm(input=x, normalized_shape=(4,), eps=0.3), (2, 4)),
    "layer norm of two axes": (lambda x: F.layer_norm(x, (3, 4), eps=0.1), (2, 3, 4)),
    "group norm": (lambda x: F.group_norm(x, 2, GAIN, SHIFT, 0.1), (3, 4, 5)),
    "group norm of features": (lambda x: torch.group_norm(x, num_groups=2, weight=GAIN), (3, 4)),
    "group norm of planes": (lambda x: F.group_norm(x, 1, None, SHIFT), (2, 4, 3, 2)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, GAIN, SHIFT, training=True), (5, 4)),
    "batch norm of planes": (lambda x: F.batch_norm(x, None, None, GAIN, training=True, eps=0.2), (3, 4, 2, 3)),
    "batch norm, statistics given": (lambda x: F.batch_norm(x, MEAN, VARIANCE, GAIN, SHIFT), (3, 4, 2)),
    "instance norm": (lambda x: F.instance_norm(x, weight=GAIN, bias=SHIFT), (3, 4, 5)),
    "instance norm, statistics given": (lambda x: F.instance_norm(x, MEAN, VARIANCE, None, SHIFT, use_input_stats=False, eps=0.1), (3, 4, 2)),
    "attention": (lambda x: F.scaled_dot_product_attention(x[:, :2], K, V), (2, 4, 3, 2)),
    "attention by name": (lambda x: F.scaled_dot_product_attention(query=x[:, :2], key=K, value=V, scale=0.7), (2, 4, 3, 2)),
    "causal attention": (lambda x: F.scaled_dot_product_attention(x[:, :2], K, V, is_causal=True), (2, 4, 3, 2)),
    "masked attention": (lambda x: F.scaled_dot_product_attention(x[:, :2], K, V, MASK), (2, 4, 3, 2)),
    "attention with a bias": (lambda x: F.scaled_dot_product_attention(x[:, :2], K, V, drawn(3, 5, seed=7)), (2, 4, 3, 2)),
    "attention with shared heads": (lambda x: F.scaled_dot_product_attention(x, K, V, enable_gqa=True), (2, 4, 3, 2)),
}


@pytest.mark.parametrize(("function", "shape"), VALUES.values(), ids=VALUES)
def test_values_are_those_of_torch(function, shape):
    x = drawn(*shape, seed=8)
    assert close(by_formula(function, x), function(x))
    assert not fused(operations(lambda x: by_formula(function, x), x))
    assert fused(operations(function, x))  # the control
    if x.numel() > 1 and shape[-1] > 1:
        assert not close(by_formula(function, x + 0.01 * drawn(*shape, seed=9)), function(x))


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("module", [nn.Softmax, nn.Softmin, nn.LogSoftmax], ids=lambda m: m.__name__)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 2)], ids=str)
def test_the_axis_that_torch_takes_where_none_is_named(module, shape):
    x = drawn(*shape)
    assert close(by_formula(module(), x), module()(x))


def test_every_formula_is_in_the_table_of_values():
    met = set()

    class Watching(Analytic):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            met.add(func)
            return super().__torch_function__(func, types, args, kwargs)

    for function, shape in VALUES.values():
        with Watching():
            function(drawn(*shape))
    assert met >= set(FORMULAS)


# --- what is left alone ---


def test_integers_and_other_functions_are_left_alone():
    whole = torch.tensor([1, 2, 3])
    assert torch.equal(by_formula(lambda x: torch.softmax(x, 0, dtype=F64), whole), torch.softmax(whole, 0, dtype=F64))
    assert any("softmax" in name for name in operations(lambda x: by_formula(lambda x: torch.softmax(x, 0, dtype=F64), x), whole))
    x = drawn(3, 4)
    for function in (torch.tanh, F.gelu, F.silu, torch.sin, lambda x: x @ x.T):
        assert torch.equal(by_formula(function, x), function(x))


def test_dropout_stays_in_attention():
    def dropped(x):
        torch.manual_seed(3)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    x = drawn(1, 2, 6, 3)
    assert torch.equal(by_formula(dropped, x), dropped(x))
    assert not close(dropped(x), F.scaled_dot_product_attention(x, x, x))


def test_the_mode_ends_with_its_block():
    x = drawn(2, 3)
    with Analytic():
        with Analytic():
            pass
        inside = operations(lambda x: x.softmax(-1), x)
    outside = operations(lambda x: x.softmax(-1), x)
    assert (fused(inside), bool(fused(outside))) == (set(), True)
    with pytest.raises(IndexError), Analytic():
        x.softmax(7)
    assert fused(operations(lambda x: x.softmax(-1), x))


# --- derivatives ---


def softmax(z):
    e = [mpmath.exp(x) for x in z]
    return [x / mpmath.fsum(e) for x in e]


def normalized(z, eps):
    mean = mpmath.fsum(z) / len(z)
    variance = mpmath.fsum((x - mean) ** 2 for x in z) / len(z)
    return [(x - mean) / mpmath.sqrt(variance + eps) for x in z]


def softplus(x, beta=1):
    return mpmath.log(1 + mpmath.exp(beta * x)) / beta


def attention(z):
    """Two places of one feature: each attends by its product with both."""
    return [mpmath.fsum(p * x for p, x in zip(softmax([q * x for x in z]), z, strict=True)) for q in z]


EPS = 0.125
EXACT = {
    "softmax": (lambda x: x.softmax(0), softmax),
    "softmin": (lambda x: F.softmin(x, 0), lambda z: softmax([-x for x in z])),
    "log softmax": (lambda x: x.log_softmax(0), lambda z: [mpmath.log(p) for p in softmax(z)]),
    "logsumexp": (lambda x: x.logsumexp(0)[None].expand(4), lambda z: [mpmath.log(mpmath.fsum(map(mpmath.exp, z)))] * 4),
    "softplus": (lambda x: F.softplus(x, beta=2), lambda z: [softplus(x, 2) for x in z]),
    "mish": (F.mish, lambda z: [x * mpmath.tanh(softplus(x)) for x in z]),
    "layer norm": (lambda x: F.layer_norm(x, (4,), eps=EPS), lambda z: normalized(z, EPS)),
    "group norm": (lambda x: F.group_norm(x[None], 2, eps=EPS)[0], lambda z: normalized(z[:2], EPS) + normalized(z[2:], EPS)),
    "batch norm": (lambda x: F.batch_norm(x[:, None], None, None, training=True, eps=EPS)[:, 0], lambda z: normalized(z, EPS)),
    "instance norm": (lambda x: F.instance_norm(x.view(1, 2, 2), eps=EPS).flatten(), lambda z: normalized(z[:2], EPS) + normalized(z[2:], EPS)),
    "attention": (lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 4, 1)] * 3).flatten(), attention),
}


@pytest.mark.parametrize("name", EXACT)
def test_third_derivatives_are_those_of_mpmath(name):
    """Forward twice over reverse: where those of fused kernels go wrong."""
    function, exact = EXACT[name]
    x, u, c = drawn(4, seed=1), drawn(4, seed=2), drawn(4, seed=3)

    def slope(x):
        with Analytic():
            return vjp(function, x)[1](c)[0] @ u

    def along(field):
        return lambda x: jvp(field, (x,), (u,))[1]

    def on_the_line(t):
        values = exact([a + t * b for a, b in zip(x.tolist(), u.tolist(), strict=True)])
        return mpmath.fsum(w * f for w, f in zip(c.tolist(), values, strict=True))

    with mpmath.workdps(60):
        wants = [float(mpmath.diff(on_the_line, 0, order)) for order in (1, 2, 3)]
    gots = [float(field(x)) for field in (slope, along(slope), along(along(slope)))]
    for got, want in zip(gots, wants, strict=True):
        assert math.isclose(got, want, rel_tol=EQUAL[F64], abs_tol=EQUAL[F64])
    assert not math.isclose(gots[2], wants[2] * 1.0001, rel_tol=EQUAL[F64])
    assert abs(wants[2]) > 1e-3


NORMS = {
    "layer": (lambda: nn.LayerNorm(4), (1, 3)),
    "group": (lambda: nn.GroupNorm(2, 4), (1, 3)),
    "batch": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (4, 3)),
}


@pytest.mark.parametrize(("norm", "shape"), NORMS.values(), ids=NORMS)
def test_brackets_of_three_fields_keep_the_laws_of_the_gain(norm, shape):
    """γᵢ² + βᵢ² − Σⱼ Cⱼᵢ² of a norm before a linear map C."""
    flow = Flow(model_of(nn.Sequential(nn.Linear(3, 4), norm(), nn.Linear(4, 2)), (torch.randn(shape),)))
    generator = torch.Generator().manual_seed(2)
    theta = flow.model.generic_point(generator)
    letters = tuple(flow.model.samples(3, generator) for _ in range(3))
    words = rows(flow, theta, letters)

    def laws(theta, gain=1.0):
        parts = flow.model.parameters(theta)
        return gain * parts["1.weight"] ** 2 + parts["1.bias"] ** 2 - parts["2.weight"].square().sum(0)

    def moved(gain):
        gradients = torch.autograd.functional.jacobian(lambda t: laws(t, gain), theta)
        return float(((words @ gradients.T).abs().amax(1) / words.norm(dim=1)).max())

    assert moved(1.0) < 1e-10
    assert moved(1.01) > 1e-5


# --- attention as torch's modules have it ---

ATTENTION = {
    "one head": ({"embed_dim": 2, "num_heads": 1}, {}),
    "plain": ({"embed_dim": 4, "num_heads": 2}, {}),
    "no bias": ({"embed_dim": 4, "num_heads": 2, "bias": False}, {"need_weights": False}),
    "sequence first": ({"embed_dim": 4, "num_heads": 2, "batch_first": False}, {"need_weights": False}),
    "weights per head": ({"embed_dim": 4, "num_heads": 2}, {"average_attn_weights": False}),
    "bias of keys and values": ({"embed_dim": 4, "num_heads": 2, "add_bias_kv": True, "add_zero_attn": True}, {"need_weights": False}),
    "mask": ({"embed_dim": 4, "num_heads": 2}, {"attn_mask": torch.ones(3, 3).triu(1).bool(), "need_weights": False}),
    "padding": ({"embed_dim": 4, "num_heads": 2}, {"key_padding_mask": torch.tensor([[False, False, True], [False, True, False]])}),
}


@pytest.mark.parametrize(("options", "named"), ATTENTION.values(), ids=ATTENTION)
def test_multi_head_attention(options, named):
    module = nn.MultiheadAttention(**{"batch_first": True} | options).double()
    x = drawn(2, 3, options["embed_dim"])
    if not options.get("batch_first", True):
        x = x.transpose(0, 1)
    got, weights = by_formula(lambda x: module(x, x, x, **named), x)
    want, weights_by_torch = module(x, x, x, **named)
    assert close(got, want)
    assert (weights is None) is (weights_by_torch is None) is (not named.get("need_weights", True))
    assert weights is None or close(weights, weights_by_torch)
    assert not fused(operations(lambda x: by_formula(lambda x: module(x, x, x, **named)[0], x), x))
    assert fused(operations(lambda x: module(x, x, x, **named)[0], x))


def test_query_key_and_value_of_their_own_widths():
    module = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True).double()
    given = drawn(1, 2, 4), drawn(1, 6, 3, seed=1), drawn(1, 6, 5, seed=2)
    for got, want in zip(by_formula(module, *given), module(*given), strict=True):
        assert close(got, want)


LAYERS = {
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 3, dropout=0.0, activation="gelu", batch_first=True), 1),
    "encoder, norm first": (lambda: nn.TransformerEncoderLayer(4, 1, 3, dropout=0.0, norm_first=True, batch_first=True).eval(), 1),
    "decoder": (lambda: nn.TransformerDecoderLayer(4, 2, 3, dropout=0.0, batch_first=True), 2),
}


@pytest.mark.parametrize(("build", "inputs"), LAYERS.values(), ids=LAYERS)
def test_layers_of_transformers(build, inputs):
    module = build().double()
    given = [drawn(2, 3, 4, seed=seed) for seed in range(inputs)]
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    assert close(by_formula(module, *given), module(*given))
    assert not fused(operations(lambda *x: by_formula(lambda *x: functional_call(module, parameters, x), *x), *given))


class SelfAttention(nn.Module):
    """Torch's multi-head attention of a sequence with itself."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, bias=False, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_brackets_of_multi_head_attention_in_balls(depth):
    flow = Flow(model_of(SelfAttention(), (torch.randn(1, 2, 2),)))
    generator = torch.Generator().manual_seed(0)
    theta = flow.model.generic_point(generator)
    letters = tuple(flow.model.samples(2, generator) for _ in range(depth))
    balls = exact_rows(flow, theta, letters, RealBalls(128))
    want = rows(flow, theta, letters).detach()
    assert close(torch.tensor([[float(x.mid()) for x in row] for row in balls], dtype=F64), want)
    assert max(float(x.rad()) for x in balls.flat) < 1e-25 * float(want.abs().max())
