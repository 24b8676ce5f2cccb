"""Words in batches: brackets by plain autograd one at a time, rounding that is no bracket, words that overflow, and modules that cannot be batched."""

import pytest
import torch
from cases import EQUAL
from torch import nn
from torch.func import functional_call

from conserved.catalog import Attention, ConvolutionBlock, FeedForward, GatedLinearUnit, LinearNetwork, MixtureOfExperts, ReLUNetwork
from conserved.certify import certify, words
from conserved.certify.flows import Flow
from conserved.certify.model import Sample, model_of
from conserved.certify.words import NOISE, PATIENCE, RealWords, longer, rows, samples, without_rounding
from conserved.errors import ConfigurationError

F64 = torch.float64


def flow_of(module, examples=None, kind="gradient"):
    return Flow(model_of(module, examples), kind)


def drawn(flow, depth, number, seed=0):
    """A state, and stacked samples for each letter."""
    generator = torch.Generator().manual_seed(seed)
    state = flow.state(flow.model.generic_point(generator), generator)
    return state, tuple(flow.model.samples(number, generator) for _ in range(depth))


def real_words(flow, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    state = flow.state(flow.model.generic_point(generator), generator)
    return RealWords(flow, state, torch.arange(flow.size), generator, **options)


def close(got, want):
    return got.shape == want.shape and float((got - want).abs().max()) <= EQUAL[F64] * float(want.abs().max().clamp(min=1))


# --- brackets by plain autograd ---


class Plain:
    """Gradients and Hessians of ⟨c, f(θ, x)⟩ by torch.autograd, of one sample."""

    def __init__(self, model, theta, letter, at):
        self.parameters = {name: part.clone().requires_grad_() for name, part in model.parameters(theta).items()}
        out = functional_call(model.module, self.parameters, tuple(x[at] for x in letter.inputs))
        outputs = out if isinstance(out, tuple) else (out,)
        value = torch.cat([part.flatten() for part in outputs]) @ letter.cotangent[at]
        self.parts = torch.autograd.grad(value, list(self.parameters.values()), create_graph=True, materialize_grads=True)
        self.gradient = torch.cat([part.flatten() for part in self.parts])

    def hessian_times(self, way):
        if not self.gradient.requires_grad:
            return torch.zeros_like(way)
        found = torch.autograd.grad(self.gradient, list(self.parameters.values()), way, retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])


BLOCKS = {
    "linear-1-1": lambda: LinearNetwork((1, 1)),
    "linear-1-1-1": lambda: LinearNetwork((1, 1, 1)),
    "linear-3-1-2-bias": lambda: LinearNetwork((3, 1, 2), bias=True),
    "linear-2-3-1-2": lambda: LinearNetwork((2, 3, 1, 2)),
    "relu-3-2-1": lambda: ReLUNetwork((3, 2, 1), bias=True),
    "gelu-2-3-1": lambda: FeedForward(2, 3, 1, "gelu", bias=True),
    "silu-1-2-3": lambda: FeedForward(1, 2, 3, "silu"),
    "swiglu-3-1-2": lambda: GatedLinearUnit(3, 1, 2),
    "mha-3-2x1": lambda: Attention(3, 2, 1, tokens=3, causal=True),
    "rope-2-1x2": lambda: Attention(2, 1, 2, tokens=2, position="rope"),
    "moe-2-1-1-2": lambda: MixtureOfExperts(2, 1, 1, 2, load_balancing=True),
    "conv": ConvolutionBlock,
}


COMMUTING = ("linear-1-1", "linear-1-1-1")
"""Constant fields, and multiples of one field."""


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("number", [1, 3])
def test_gradients_are_those_of_plain_autograd(name, number):
    flow = flow_of(BLOCKS[name]())
    theta, letters = drawn(flow, 1, number)
    got = rows(flow, theta, letters)
    assert close(got, torch.stack([Plain(flow.model, theta, letters[0], at).gradient.detach() for at in range(number)]))
    assert got.abs().max() > 0.01


@pytest.mark.parametrize("name", BLOCKS)
def test_brackets_are_those_of_plain_autograd(name):
    """[g_i, g_j] = H_j g_i − H_i g_j."""
    flow, number = flow_of(BLOCKS[name]()), 3
    theta, letters = drawn(flow, 2, number)
    got, want, unsigned = rows(flow, theta, letters), [], []
    for at in range(number):
        first, second = (Plain(flow.model, theta, letter, at) for letter in letters)
        forth, back = second.hessian_times(first.gradient.detach()), first.hessian_times(second.gradient.detach())
        want.append(forth - back)
        unsigned.append(forth + back)
    assert close(got, torch.stack(want))
    if name not in COMMUTING:
        assert not close(got, torch.stack(unsigned))
        assert got.abs().max() > 0.01


def test_constant_fields_have_no_brackets():
    flow = flow_of(LinearNetwork((3, 2)))
    theta, letters = drawn(flow, 2, 4)
    assert not rows(flow, theta, letters).any()


def test_words_of_a_batch_are_those_of_its_members():
    flow = flow_of(GatedLinearUnit(2, 3, 1))
    theta, letters = drawn(flow, 3, 5)
    whole = rows(flow, theta, letters)
    for at in range(5):
        one = tuple(Sample(tuple(x[at : at + 1] for x in letter.inputs), letter.cotangent[at : at + 1], letter.drift[at : at + 1]) for letter in letters)
        assert close(rows(flow, theta, one)[0], whole[at])
        assert not close(rows(flow, theta, one)[0], whole[at - 1])


# --- rounding that is no bracket ---


class OneFunction(nn.Module):
    """x·ψ(w): all gradient fields are multiples of ∇ψ, so they commute, but in double precision the terms of a bracket do not cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3, 1.1, -0.7]))

    def forward(self, x):
        w = self.w
        return x * (w[0].sin() * w[1].exp() + w[2].cos() * w[0] * w[1] / 3 + w.square().sum().sqrt())


@pytest.mark.parametrize(("module", "examples"), [(OneFunction, (torch.zeros(1, 1),)), (BLOCKS["linear-1-1-1"], None)], ids=["one-function", "linear-1-1-1"])
@pytest.mark.parametrize("depth", [2, 3])
def test_brackets_of_commuting_fields_are_exactly_zero(module, examples, depth):
    flow = flow_of(module(), examples)
    theta, letters = drawn(flow, depth, 64)
    raw = rows(flow, theta, letters)
    assert raw.any()
    noisy = raw[raw.any(1)]
    assert torch.linalg.matrix_rank(noisy / noisy.norm(dim=1, keepdim=True)) > 1  # directions that no field has
    assert not without_rounding(raw, rows(flow, theta, longer(letters)), depth).any()
    assert not real_words(flow)(depth, 64).any()


def test_commuting_fields_have_no_spurious_rank():
    """The laws are the level sets of ψ within three dimensions: two."""
    for seed in range(4):
        found = certify(OneFunction(), (torch.zeros(1, 1),), seed=seed)
        assert (found.verdict, found.rank_span, found.rank_lie, found.independent_laws) == ("numerical", 1, 1, 2)


@pytest.mark.parametrize("name", ["linear-2-3-1-2", "linear-3-1-2-bias", "gelu-2-3-1", "swiglu-3-1-2", "mha-3-2x1"])
@pytest.mark.parametrize("depth", [2, 3])
def test_brackets_that_are_some_are_left_bit_for_bit(name, depth):
    flow = flow_of(BLOCKS[name]())
    theta, letters = drawn(flow, depth, 16)
    raw = rows(flow, theta, letters)
    assert torch.equal(without_rounding(raw, rows(flow, theta, longer(letters)), depth), raw)
    assert raw.any(1).all()


def test_only_the_words_that_are_rounding_are_zeroed(generator):
    values = torch.randn(6, 4, generator=generator, dtype=F64)
    lengths = values.norm(dim=1, keepdim=True)
    errors = torch.randn(6, 4, generator=generator, dtype=F64)
    sizes = torch.tensor([0, 1e-16, 0.9 * NOISE, 1.1 * NOISE, 1e-3, 10.0], dtype=F64)[:, None]
    values[1] *= 1e-100  # small is not noisy
    lengths[1] *= 1e-100
    shifted = values + errors / errors.norm(dim=1, keepdim=True) * lengths * sizes
    for depth in (1, 2, 4):
        kept = without_rounding(values, 3.0**depth * shifted, depth)
        assert torch.equal(kept[:3], values[:3])
        assert not kept[3:].any()
    assert not without_rounding(values, values, 2).any()  # nothing grew
    complex_values = torch.complex(values, -values)
    assert torch.equal(without_rounding(complex_values, 9 * complex_values, 2), complex_values)
    assert not without_rounding(complex_values, 9 * complex_values.conj(), 2).any()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)], ids=str)
def test_no_words_and_zero_words(shape):
    zero = torch.zeros(shape, dtype=F64)
    assert torch.equal(without_rounding(zero, zero, 2), zero)


def test_letters_are_lengthened_in_what_they_are_linear_in():
    flow = flow_of(GatedLinearUnit(2, 1, 1), kind="momentum")
    state, letters = drawn(flow, 2, 4)
    for one, long in zip(letters, longer(letters), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.inputs, long.inputs, strict=True))
        assert torch.equal(3 * one.cotangent, long.cotangent)
        assert torch.equal(3 * one.drift, long.drift)
    assert close(rows(flow, state, longer(letters)), 9 * rows(flow, state, letters))


# --- words that overflow ---


class Steep(nn.Module):
    """w·exp(a x²): past |x| = √(709/a) it overflows."""

    def __init__(self, steepness) -> None:
        super().__init__()
        self.steepness, self.w = steepness, nn.Parameter(torch.randn(2))

    def forward(self, x):
        return self.w.square() * (self.steepness * x * x).exp()


@pytest.mark.parametrize("depth", [1, 2])
def test_words_that_overflow_are_drawn_again(depth):
    flow = flow_of(Steep(60.0), (torch.zeros(1, 2),))
    state, letters = drawn(flow, depth, 60)
    assert 0 < int((~rows(flow, state, letters).isfinite().all(1)).sum()) < 60
    found = real_words(flow)(depth, 60)
    assert found.shape == (60, 2)
    assert found.isfinite().all()


def test_what_does_not_overflow_is_drawn_once():
    flow = flow_of(Steep(0.1), (torch.zeros(1, 2),))
    state, _ = drawn(flow, 0, 0)
    generator = torch.Generator().manual_seed(5)
    got = RealWords(flow, state, torch.tensor([1]), generator)(1, 7)
    again = rows(flow, state, (samples(flow, state, 7, torch.Generator().manual_seed(5)),))
    assert torch.equal(got, again[:, 1:])


@pytest.mark.parametrize(("depth", "what"), [(1, "gradients"), (2, "brackets of 2 gradient fields")])
def test_where_most_overflow_there_is_an_error(depth, what):
    flow = flow_of(Steep(60.0), (torch.zeros(1, 2),))
    words = real_words(flow, scale=20.0)
    with pytest.raises(ConfigurationError, match=rf"^Steep: of \d+ {what} on random inputs \d+ are not finite; pass a module whose") as caught:
        words(depth, 8)
    of, bad = (int(word) for word in str(caught.value).split() if word.isdigit() and word != "2")
    assert PATIENCE * 8 <= of < (PATIENCE + 1) * 8
    assert of - bad < 8
    assert "\n" not in str(caught.value)


def test_large_numbers_of_words_come_in_blocks(monkeypatch):
    flow = flow_of(FeedForward(1, 2, 1, "tanh"))
    sizes = []

    def counted(flow, state, letters):
        sizes.append(len(letters[0].cotangent))
        return rows(flow, state, letters)

    monkeypatch.setattr(words, "rows", counted)
    monkeypatch.setattr(words, "BYTES", 8 * flow.size * 4 * 5)  # five words of depth 1, one of depth 2
    assert real_words(flow)(1, 12).shape == (12, flow.size)
    assert sizes == [5, 5, 2]
    sizes.clear()
    assert real_words(flow)(2, 3).shape == (3, flow.size)
    assert sizes == [1] * 6  # and each again with longer letters
    assert real_words(flow)(1, 12).any(1).all()


# --- samples ---


def test_samples_alternate_between_three_scales():
    flow = flow_of(FeedForward(2, 3, 1, "gelu"))
    state, _ = drawn(flow, 0, 0)
    found, twice = (samples(flow, state, 6, torch.Generator().manual_seed(1), scale) for scale in (1.0, 2.0))
    assert torch.equal(2 * found.inputs[0], twice.inputs[0])
    assert torch.equal(found.cotangent, twice.cotangent)
    generator = torch.Generator().manual_seed(1)
    (plain,) = flow.model.draw(6, generator)
    assert close(found.inputs[0][:, 0] / plain, torch.tensor([1 / 3, 1, 3] * 2, dtype=F64)[:, None].expand(6, 2))


@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 2, 1)], ids=str)
def test_every_other_pair_of_samples_has_a_hinge_between_it(widths):
    """Two inputs so close that they differ by one unit that switches, or few."""
    flow = flow_of(ReLUNetwork(widths, bias=True))
    state, _ = drawn(flow, 0, 0, seed=3)
    x = samples(flow, state, 16, torch.Generator().manual_seed(1)).inputs[0][:, 0]
    parts = flow.model.parameters(state)
    weight, bias = next(p for p in parts.values() if p.ndim == 2), next(p for p in parts.values() if p.ndim == 1)
    sides = x @ weight.T + bias > 0
    for at in range(0, 16, 4):
        assert (sides[at + 2] != sides[at + 3]).any()
        near, far = (float((x[i] - x[i + 1]).norm()) for i in (at + 2, at))
        assert near < 0.02
        assert far > 0.02


# --- modules that cannot be batched ---


class NoForwardDerivative(torch.autograd.Function):
    """x³ without a derivative in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


class Scaled(nn.Module):
    """f(w x)."""

    def __init__(self, function) -> None:
        super().__init__()
        self.w, self.function = nn.Parameter(torch.randn(2)), function

    def forward(self, x):
        return self.function(self.w * x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 1, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


UNBATCHED = {
    # module, shape of an input, depth: how
    "branch": (lambda: Scaled(lambda z: z if z.sum().item() > 0 else 2 * z), (2,), 1, "computed"),
    "lstm": (Recurrent, (3, 2), 1, "computed"),
    "no-forward-derivative": (lambda: Scaled(NoForwardDerivative.apply), (2,), 2, "differentiated"),
    "no-forward-derivative-twice": (lambda: Scaled(NoForwardDerivative.apply), (2,), 3, "differentiated twice"),
    "no-forward-derivative-thrice": (lambda: Scaled(NoForwardDerivative.apply), (2,), 4, "differentiated 3 times"),
}


@pytest.mark.parametrize(("build", "shape", "depth", "how"), UNBATCHED.values(), ids=UNBATCHED)
def test_modules_that_cannot_be_batched_are_named(build, shape, depth, how):
    module = build()
    flow = flow_of(module, (torch.zeros(1, *shape),))
    state, letters = drawn(flow, depth, 2)
    said = rf"^{type(module).__name__}: its gradient field cannot be {how} by torch.func in batches \(.+\); write its forward without branches"
    with pytest.raises(ConfigurationError, match=said) as caught:
        rows(flow, state, letters)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    if depth > 1:
        assert rows(flow, state, letters[:1]).shape == (2, flow.size)  # the field itself can be computed
    plain = flow_of(Scaled(torch.tanh), (torch.zeros(1, 2),))  # the control
    state, letters = drawn(plain, depth, 2)
    assert rows(plain, state, letters).shape == (2, 2)
