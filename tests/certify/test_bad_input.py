"""What cannot be certified is refused: one line that says what was got and what to do."""

import pytest
import torch
from torch import Tensor, nn

from conserved.catalog import FeedForward, LinearNetwork, MixtureOfExperts, ReLUNetwork
from conserved.certify import certify, certify_block, polynomial_laws
from conserved.errors import ConservedError


def refused(call, said):
    """The call raises an error of the package, in one line that says this."""
    with pytest.raises(ConservedError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- sizes and options of blocks ---

SIZES = {
    "hidden-0": ("swiglu", {"hidden": 0}, r"hidden=0; give a size of at least 1"),
    "dim-negative": ("gelu", {"dim": -1}, r"dim=-1; give a size of at least 1"),
    "width-0": ("linear", {"dims": (2, 0, 1)}, r"dims\[1\]=0; give a size of at least 1"),
    "one-width": ("relu", {"dims": (2,)}, r"give at least an input and an output width"),
    "heads-0": ("mha", {"heads": 0}, r"heads=0; give a size of at least 1"),
    "experts-0": ("moe", {"experts": 0}, r"experts=0; give a size of at least 1"),
    "rank-0": ("nmf", {"rank": 0}, r"rank=0; give a size of at least 1"),
    "fraction": ("swiglu", {"hidden": 2.5}, r"hidden=2.5 does not fit; give int"),
    "odd-head": ("rope", {"head_dim": 3}, r"3 rotary entries in a head of 3; give an even number"),
    "top-k": ("moe", {"experts": 2, "top_k": 3}, r"top_k=3 exceeds experts=2; give at most 2"),
    "top-k-0": ("moe", {"top_k": 0}, r"top_k=0; give a size of at least 1"),
    "kv-heads": ("mha", {"heads": 3, "kv_heads": 2}, r"kv_heads=2 does not divide heads=3; give a divisor"),
    "gate": ("moe", {"gate": "hard"}, r"gate='hard' is unknown; choose one of softmax"),
    "unknown-option": ("swiglu", {"width": 2}, r"has no option 'width'; it takes dim, hidden"),
    "unknown-block": ("swigloo", {}, r"no catalogue block is named 'swigloo'; choose one of linear"),
}


@pytest.mark.parametrize(("block", "options", "said"), SIZES.values(), ids=SIZES)
def test_sizes(block, options, said):
    refused(lambda: certify_block(block, options), said)


# --- modules ---


class Scaled(nn.Module):
    """x·w; subclasses spoil it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class Ignoring(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class TimesZero(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.w.sum()


class Detached(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).detach()


class Noisy(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.w + torch.randn_like(x)


class Undefined(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).log()


class Overflowing(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.w / 0


class Integers(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).long()


class Silent(Scaled):
    def forward(self, x: Tensor) -> None:
        return None


class Branching(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.w if (x * self.w).sum().item() > 0 else 2 * x * self.w


MODULES = {
    "ignores-parameters": (Ignoring, r"the outputs of Ignoring do not depend on its parameters"),
    "times-zero": (TimesZero, r"do not depend on its parameters"),
    "detached": (Detached, r"do not depend on its parameters"),
    "random": (Noisy, r"Noisy gives other outputs when called again; switch dropout and noise off"),
    "nan": (Undefined, r"Undefined gives NaN or infinity on random inputs; pass a module that is finite"),
    "infinite": (Overflowing, r"gives NaN or infinity"),
    "integers": (Integers, r"returns no floating-point tensor; return what its loss is computed from"),
    "nothing": (Silent, r"returns no floating-point tensor"),
    "branches-on-data": (Branching, r"Branching: its gradient field cannot be computed by torch.func"),
    "dropout": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), r"the dropout 1 is on, its outputs are random; call module.eval\(\) first"),
    "batch-norm": (lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), r"the norm 1 changes its statistics .* call module.eval\(\) first"),
    "no-parameters": (nn.ReLU, r"ReLU has no trainable parameter"),
    "frozen": (lambda: nn.Linear(3, 2).requires_grad_(False), r"Linear has no trainable parameter"),
    "complex": (lambda: nn.Linear(3, 2).to(torch.complex64), r"complex parameters; make real and imaginary parts"),
    "function": (lambda: torch.relu, r"is no module of torch; pass an instance of nn.Module"),
    "class": (lambda: nn.Linear, r"is no module of torch; pass an instance of nn.Module"),
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize(("build", "said"), MODULES.values(), ids=MODULES)
def test_modules(build, said):
    refused(lambda: certify(build(), (torch.randn(4, 3),)), said)


def test_dropout_inside_attention_is_noticed():
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    refused(lambda: certify(Attending(), (torch.randn(1, 3, 4),)), r"other outputs when called again")


@pytest.mark.parametrize("build", [Scaled, MODULES["dropout"][0], MODULES["batch-norm"][0]], ids=["plain", "dropout", "batch-norm"])
def test_the_same_modules_are_taken_when_they_are_sound(build):
    """The control. Modules are left as they were."""
    module = build().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert certify(module, (torch.randn(4, 3),), sampling="real").verdict == "numerical"
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


# --- example inputs ---

EXAMPLES = {
    "missing": (None, r"Linear is not a catalogue block; pass example_inputs, a tuple of the tensors"),
    "empty": ((), r"pass example_inputs, a tuple"),
    "tensor": (torch.zeros(4, 3), r"not a tuple of tensors; pass those that its forward takes, as in \(x,\)"),
    "dictionary": ({"x": torch.zeros(4, 3)}, r"not a tuple of tensors"),
    "numbers": ((1.0,), r"not a tuple of tensors"),
    "width": ((torch.zeros(4, 5),), r"Linear does not run on random inputs like the examples \(.*\); pass other example_inputs"),
    "dtype": ((torch.ones(4, 3, dtype=torch.int64),), r"does not run on random inputs like the examples"),
    "too-many": ((torch.zeros(4, 3), torch.zeros(4, 3)), r"takes 2 positional arguments but 3 were given\); pass other example_inputs"),
    "no-axis": ((torch.tensor(1.0),), r"of shapes \(\); their first axis is that of the examples"),
    "no-example": ((torch.zeros(0, 3),), r"of shapes \(0, 3\); .* at least 1"),
    "other-number": ((torch.zeros(4, 3), torch.zeros(2, 3)), r"of shapes \(4, 3\), \(2, 3\); .* give the same number"),
}


@pytest.mark.parametrize(("examples", "said"), EXAMPLES.values(), ids=EXAMPLES)
def test_example_inputs(examples, said):
    refused(lambda: certify(nn.Linear(3, 2), examples), said)


def test_example_inputs_of_a_block_must_fit():
    refused(lambda: certify(LinearNetwork((2, 3, 1)), (torch.zeros(4, 5),)), r"does not run on random inputs like the examples")


# --- choices ---

CHOICES = {
    "arithmetic": (lambda: certify(LinearNetwork(), arithmetic="decimal"), r"arithmetic 'decimal' is unknown; choose one of float64, ball, rational, modular"),
    "sampling": (lambda: certify(LinearNetwork(), sampling="complex"), r"sampling 'complex' is unknown; choose one of auto, real"),
    "flow": (lambda: certify(LinearNetwork(), flow="uphill"), r"flow 'uphill' is unknown; choose one of gradient"),
    "damping": (lambda: certify(LinearNetwork(), flow="momentum", damping=float("nan")), r"damping=nan; give a finite number"),
    "metric": (lambda: certify(LinearNetwork((2, 2, 1)), flow="mirror", metric=lambda theta: theta[:2]), r"metric has shape \(2,\), its parameters \(6,\)"),
    "rational-gelu": (lambda: certify(FeedForward(2, 2, 1, "gelu"), arithmetic="rational"), r"does not exist in rational numbers; use balls"),
    "rational-softmax": (lambda: certify(MixtureOfExperts(2, 1, 1, 2), arithmetic="rational"), r"exp does not exist in rational numbers; use balls"),
    "modular-silu": (lambda: certify(FeedForward(2, 2, 1, "silu"), arithmetic="modular"), r"does not exist in residues modulo .*; use balls"),
    "modular-relu": (lambda: certify(ReLUNetwork((2, 2, 1)), arithmetic="modular"), r"have no order; use real balls or rationals"),
    "polynomials-of-gelu": (lambda: polynomial_laws(FeedForward(2, 2, 1, "gelu")), r"its gradient is not a polynomial in parameters and inputs"),
    "degree": (lambda: polynomial_laws(LinearNetwork((2, 2, 1)), degree=0), r"degree=0; a law has at least degree 1"),
}


@pytest.mark.parametrize(("call", "said"), CHOICES.values(), ids=CHOICES)
def test_choices(call, said):
    refused(call, said)
