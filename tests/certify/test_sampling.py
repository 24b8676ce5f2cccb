"""Complex data near the singularities of activations: what is aimed at, what is hit, and what happens where that is impossible."""

import numpy as np
import pytest
import torch
from torch import nn

from conserved.catalog import FeedForward, GatedLinearUnit, make_block
from conserved.certify import certify
from conserved.certify.charges import known_gradients
from conserved.certify.flows import Flow
from conserved.certify.model import model_of
from conserved.certify.sampling import FAR, NEAR, MeromorphicWords, meromorphic
from conserved.certify.scalars import UnsupportedOperation
from conserved.certify.words import RealWords
from conserved.law import LawSet

GAP = 1e6
MISS = 1.06
"""Relative error of an aim: the search ends at a twentieth of the distance."""


def words_of(module, *, examples=None, seed=0, flow="gradient", kind=MeromorphicWords):
    """Words at a generic point, of all coordinates."""
    flowing, generator = Flow(model_of(module, examples), flow), torch.Generator().manual_seed(seed)
    state = flowing.state(flowing.model.generic_point(generator), generator)
    return kind(flowing, state, torch.arange(flowing.size), generator)


class Applied(nn.Module):
    """C·f(B x + b)."""

    def __init__(self, function, dim=2, hidden=2) -> None:
        super().__init__()
        self.inner, self.function, self.outer = nn.Linear(dim, hidden), function, nn.Linear(hidden, 1)

    def forward(self, x):
        return self.outer(self.function(self.inner(x)))


class OfParameters(nn.Module):
    """tanh(w)·x: no input reaches the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2))

    def forward(self, x):
        return self.w.tanh() * x


class OfWords(nn.Module):
    """tanh of an embedding: integers cannot be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.outer = nn.Embedding(3, 2), nn.Linear(2, 1)

    def forward(self, words):
        return self.outer(self.table(words).tanh())


# --- what is aimed at ---

X = (torch.zeros(1, 2),)
CHOICES = {
    # module, example inputs: activations that the inputs reach
    "silu-1-1-1": (lambda: FeedForward(1, 1, 1, "silu"), None, {"sigmoid"}),
    "gelu-1-1-1": (lambda: FeedForward(1, 1, 1, "gelu"), None, {"erf"}),
    "tanh-2-3-1": (lambda: FeedForward(2, 3, 1, "tanh"), None, {"tanh"}),
    "swiglu": (lambda: make_block("swiglu"), None, {"sigmoid"}),
    "geglu": (lambda: make_block("geglu"), None, {"erf"}),
    "mha": (lambda: make_block("mha", {"dim": 2, "heads": 1, "head_dim": 1, "tokens": 2}), None, {"softmax"}),
    "qk-norm": (lambda: make_block("qk-norm", {"dim": 2, "heads": 1, "head_dim": 2, "tokens": 2}), None, {"rsqrt", "softmax"}),
    "rmsnorm": (lambda: make_block("rmsnorm"), None, {"rsqrt"}),
    "layernorm": (lambda: make_block("layernorm"), None, {"rsqrt"}),
    "gelu-tanh": (lambda: Applied(nn.GELU("tanh")), X, {"tanh"}),
    "softmax": (lambda: Applied(nn.Softmax(-1)), X, {"softmax"}),
    "softplus": (lambda: Applied(nn.Softplus()), X, {"exp", "log"}),
    "sine": (lambda: Applied(torch.sin), X, set()),
    "reciprocal": (lambda: Applied(lambda z: 1 / (2 + z)), X, {"div"}),
    "root": (lambda: Applied(lambda z: (1 + z * z).sqrt()), X, {"sqrt"}),
    "linear": (lambda: make_block("linear", {"dims": (3, 1, 2)}), None, set()),
    "bilinear": (lambda: make_block("bilinear"), None, set()),
    "of-parameters": (OfParameters, X, set()),
    "of-words": (OfWords, (torch.tensor([[0, 2]]),), set()),
}


@pytest.mark.parametrize(("build", "examples", "choices"), CHOICES.values(), ids=CHOICES)
def test_activations_that_the_inputs_reach(build, examples, choices):
    words = words_of(build(), examples=examples)
    assert set(words.choices) == choices
    found = meromorphic(words.flow, words.state, words.moving, words.generator)
    assert isinstance(found, MeromorphicWords) if choices else found == "no activation has a singularity that the inputs reach"


# --- what is hit ---


def pre_activations(words, x):
    """B x of a feed-forward block, by numpy; (samples, units)."""
    inner = words.flow.model.parameters(words.state)["B"].numpy()
    return x.reshape(len(x), inner.shape[1]) @ inner.T


def distance(z, first):
    """To the nearest of the poles i·first·(2k + 1)."""
    k = np.round((z.imag / first - 1) / 2)
    return np.abs(z - 1j * first * (2 * k + 1))


POLES = {"silu": np.pi, "tanh": np.pi / 2}


@pytest.mark.parametrize(("dim", "hidden"), [(1, 1), (1, 5), (3, 2)], ids=str)
@pytest.mark.parametrize("activation", POLES)
def test_each_unit_comes_near_a_pole_in_its_turn(activation, dim, hidden):
    words = words_of(FeedForward(dim, hidden, 1, activation))
    number = 16 * hidden
    (x,) = words._many_near(number)
    assert x.shape == (number, 1, dim)
    apart = distance(pre_activations(words, x.numpy()), POLES[activation])
    nearest = apart.min(1)
    assert (nearest <= NEAR[1] * MISS).all()
    assert (apart.min(0) <= NEAR[1] * MISS).all()  # every unit
    assert np.quantile(nearest, 0.1) < 0.15
    assert nearest.max() > 0.15  # at more than one distance
    if hidden == 1:
        assert (nearest >= NEAR[0] / MISS).all()
    real = words.flow.model.samples(number, words.generator).inputs[0].numpy()
    assert (distance(pre_activations(words, real) + 0j, POLES[activation]) >= POLES[activation]).all()  # the control


def test_inputs_of_the_error_function_are_far_out_on_diagonals():
    words = words_of(FeedForward(3, 2, 1, "gelu"))
    (x,) = words._many_near(64)
    x = x.numpy().reshape(64, 3)
    turned = x * np.exp(-1j * np.pi / 4) * np.where((x[:, :1] ** 2).imag > 0, 1, 1j)
    assert np.abs(turned.imag).max() < 1e-12 * np.abs(x).max()
    assert {1, -1} == set(np.sign((x[:, 0] ** 2).imag))
    size = np.abs(pre_activations(words, x)) / np.sqrt(2)
    aimed = ((size >= FAR[0] * 0.999) & (size <= FAR[1] * 1.001)).any(1)
    assert aimed.all()
    assert size.max() > 0.7 * FAR[1]
    assert np.median(size.max(1)) > 2.5
    real = words.flow.model.samples(64, words.generator).inputs[0].numpy()
    assert np.median(np.abs(pre_activations(words, real)).max(1)) < 1.5  # the control


def test_the_denominator_of_a_softmax_comes_near_zero():
    module = Applied(nn.Softmax(-1), dim=3, hidden=4)
    words = words_of(module, examples=(torch.zeros(1, 3),))
    (x,) = words._many_near(16)
    parts = words.flow.model.parameters(words.state)
    z = x.numpy().reshape(16, 3) @ parts["inner.weight"].numpy().T + parts["inner.bias"].numpy()
    total = np.abs(np.exp(z - z.mean(1, keepdims=True)).sum(1))
    assert (total <= NEAR[1] * MISS).all()
    real = words.flow.model.samples(16, words.generator).inputs[0].numpy().reshape(16, 3) @ parts["inner.weight"].numpy().T
    assert (np.exp(real - real.mean(1, keepdims=True)).sum(1) >= 4).all()  # the control: the mean of exponentials is at least 1


def test_the_argument_of_a_root_comes_near_zero():
    module = Applied(nn.LayerNorm(3, eps=0.1), dim=2, hidden=3)
    words = words_of(module, examples=X)
    (x,) = words._many_near(12)
    parts = words.flow.model.parameters(words.state)
    z = x.numpy().reshape(12, 2) @ parts["inner.weight"].numpy().T + parts["inner.bias"].numpy()
    variance = ((z - z.mean(1, keepdims=True)) ** 2).mean(1)
    assert (np.abs(variance + 0.1) <= NEAR[1] * MISS).all()


# --- what the words are ---


class Recording(MeromorphicWords):
    """Keeps the inputs that it drew."""

    def _many_near(self, number):
        object.__setattr__(self, "drawn", super()._many_near(number))
        return self.drawn


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


ANALYTIC = {
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "silu": (lambda z: z * sigmoid(z), lambda z: sigmoid(z) * (1 + z * (1 - sigmoid(z)))),
}


@pytest.mark.parametrize("name", ANALYTIC)
def test_words_are_the_gradients_at_complex_inputs(name):
    """c·(f(z), A f'(z) x) for A f(B x), up to the factor c."""
    value, slope = ANALYTIC[name]
    words = words_of(FeedForward(2, 3, 1, name), kind=Recording)
    got = words(1, 4).numpy()
    x = words.drawn[0].numpy().reshape(4, 2)
    z = pre_activations(words, x)
    parts = words.flow.model.parameters(words.state)
    by_name = {"A": value(z), "B": ((parts["A"].numpy() * slope(z))[:, :, None] * x[:, None]).reshape(4, -1)}
    want = np.concatenate([by_name[key] for key in words.flow.model.shapes], 1)
    factor = (got * want.conj()).sum(1) / (np.abs(want) ** 2).sum(1)
    assert np.abs(got - factor[:, None] * want).max() < 1e-12 * np.abs(got).max()
    assert np.abs(factor.imag).max() < 1e-12 * np.abs(factor).max()
    assert np.abs(got.imag).max() > 0.1 * np.abs(got.real).max()
    assert np.abs(got - factor[:, None] * want.conj()).max() > 1e-3 * np.abs(got).max()  # the control


@pytest.mark.parametrize(("depth", "number", "rows"), [(1, 1, 1), (1, 3, 4), (1, 8, 8), (2, 5, 8)])
def test_there_are_as_many_words_as_asked_for_or_some_more(depth, number, rows):
    words = words_of(FeedForward(1, 2, 1, "tanh"))
    kept = MeromorphicWords(words.flow, words.state, torch.tensor([0, 3]), words.generator)
    assert (words(depth, number).shape, words(depth, number).dtype) == ((rows, 4), torch.complex128)
    assert kept(depth, number).shape == (rows, 2)


def test_words_depend_on_the_generator_alone():
    first, again, other = (words_of(FeedForward(2, 1, 1, "silu"), seed=seed)(1, 4) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_complex_words_keep_what_real_ones_keep():
    """⟨∇h, w⟩ = 0 without conjugation: the identity theorem. A sum of squares in place of a difference is no law."""
    words = words_of(GatedLinearUnit(2, 3, 1))
    model = words.flow.model
    gradients = known_gradients(words.flow, model.module.laws(), words.state).to(torch.complex128)
    assert len(gradients) == 3
    rows = words(1, 16)

    def moved(gradients):
        return float((rows @ gradients.T).abs().max() / rows.abs().max())

    assert moved(gradients) < 1e-12
    assert moved(gradients * (1 - 2 * (gradients.real * words.state < 0))) > 1e-2


def test_time_and_drift_stay_real_with_momentum():
    words = words_of(FeedForward(2, 1, 1, "tanh"), flow="momentum")
    rows, n = words(1, 8), words.flow.model.size
    assert rows.shape == (8, 2 * n + 1)
    assert not rows[:, : n + 1].imag.any()
    assert float(rows[:, n + 1 :].imag.abs().max()) > 0.1


# --- what real data alone get wrong ---


WIDE = [("silu", 32), ("tanh", 24), ("gelu", 20)]


@pytest.mark.parametrize(("activation", "hidden"), WIDE, ids=[name for name, _ in WIDE])
@pytest.mark.parametrize("seed", [0, 1])
def test_wide_layers_on_one_input_have_no_laws(activation, hidden, seed):
    """A rank at numpy's tolerance sees a dozen laws and more on real data; a gap says that there is no rank."""
    module = FeedForward(1, hidden, 1, activation)
    naive = np.linalg.matrix_rank(words_of(module, seed=seed, kind=RealWords)(1, 128).numpy())
    assert 2 * hidden - naive >= 12
    real = certify(module, sampling="real", seed=seed)
    assert (real.verdict, real.independent_laws, real.complete, real.sampling) == ("undecided", None, None, "real")
    assert real.gap < 1e3
    found = certify(module, seed=seed)
    assert (found.verdict, found.independent_laws, found.complete, found.sampling) == ("numerical", 0, True, "meromorphic")
    assert found.rank_span == found.parameters == 2 * hidden
    assert found.gap >= GAP


def test_complex_data_are_not_taken_where_real_ones_suffice():
    found = certify(GatedLinearUnit(3, 4, 2))
    assert (found.verdict, found.sampling, found.independent_laws) == ("numerical", "real", 4)
    assert "complex" not in found.reason


class Unlisted(GatedLinearUnit):
    def laws(self) -> LawSet:
        return LawSet()


def test_complex_data_do_not_take_laws_away():
    found = certify(Unlisted(2, 2, 1))
    assert (found.verdict, found.sampling, found.independent_laws, found.known_laws) == ("numerical", "real", 2, 0)
    assert found.reason.endswith("; complex data add nothing")


# --- where complex evaluation is impossible ---


IMPOSSIBLE = {
    "relu": (lambda: Applied(torch.relu), "the module is analytic only in pieces and has no complex extension"),
    "linear": (lambda: Applied(lambda z: z), "no activation has a singularity that the inputs reach"),
    "unknown-operation": (
        lambda: Applied(lambda z: z.tanh() + torch.atan(z)),
        "complex evaluation is impossible (aten.atan.default is not known to the interpreter)",
    ),
    "overflow": (
        lambda: Applied(lambda z: z.tanh() + (-400 * z * z).exp()),
        "complex evaluation is impossible (most values near the singularities are not finite)",
    ),
}


@pytest.mark.parametrize(("build", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_why_there_are_no_complex_words(build, why):
    module = build()
    words = words_of(module, examples=X)
    assert meromorphic(words.flow, words.state, words.moving, words.generator) == why
    if "impossible" in why:
        with pytest.raises(UnsupportedOperation):
            words(1, 2)
    plain = words_of(Applied(torch.tanh), examples=X)  # the control
    assert isinstance(meromorphic(plain.flow, plain.state, plain.moving, plain.generator), MeromorphicWords)


@pytest.mark.parametrize("name", ["linear", "unknown-operation"])
def test_certify_falls_back_to_real_data_and_says_so(name):
    build, why = IMPOSSIBLE[name]
    module = build()
    real, found = certify(module, X, sampling="real"), certify(module, X)
    assert found.sampling == "real"
    assert (found.rank_span, found.rank_lie, found.independent_laws) == (real.rank_span, real.rank_lie, real.independent_laws)
    assert found.reason.endswith(f"; real data only: {why}") or found.reason == real.reason
