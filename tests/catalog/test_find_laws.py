"""`find_laws`: collecting from blocks, shared and frozen parameters, verification on example inputs."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import conserved
from conserved import find_laws
from conserved.catalog import (
    Attention,
    Block,
    Decoder,
    FeedForward,
    GatedLinearUnit,
    MixtureOfExperts,
    NormalizedLinear,
    SoftmaxClassifier,
    Statement,
    TransformerConfig,
    randomize,
)
from conserved.errors import ConservedError, NoLawsError, ViolationError
from conserved.law import LawSet, residual, worst
from conserved.tolerance import residual_bound


class WrongBlock(Block):
    """A gated unit that claims the law of the other gate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = GatedLinearUnit(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """That of the inner unit."""
        result: Tensor = self.inner(x)
        return result

    def laws(self) -> LawSet:
        """False: ‖A[:,i]‖² + ‖C[i,:]‖²."""
        (law,) = self.inner.laws().renamed("inner.")
        return LawSet((replace(law, terms=(law.terms[0], replace(law.terms[1], coefficient=1))),))

    @property
    def statement(self) -> Statement:
        """Wrong on purpose."""
        return Statement("wrong", "nobody", "never")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """As the inner unit."""
        return self.inner.example(batch, generator)


class Model(nn.Module):
    """Blocks and plain modules side by side, called in order."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        for part in self.parts.values():
            x = part(x)
        return x


def x_of(width: int = 3) -> tuple[Tensor]:
    """A batch of inputs."""
    return (torch.randn(16, width, generator=torch.Generator().manual_seed(2)),)


def test_a_model_that_is_one_block() -> None:
    """Its own laws, under their own names; a decoder's parts are not collected twice."""
    for block in (GatedLinearUnit(3, 4, 2), Attention(3, 2, 2), Decoder(TransformerConfig(layers=1))):
        assert find_laws(block) == block.laws()
    assert conserved.find_laws is find_laws


def test_blocks_in_a_sequence() -> None:
    """Names, layers and parameters get the path of their block; plain modules between do not matter."""
    model = nn.Sequential(OrderedDict(glu=GatedLinearUnit(3, 4, 3), act=nn.Tanh(), plain=nn.Linear(3, 3), head=SoftmaxClassifier(3, 2)))
    laws = find_laws(model, x_of())
    assert [law.name for law in laws] == ["glu.glu", "head.classifier", "head.classifier_bias"]
    assert [law.layer for law in laws] == ["glu", "head", "head"]
    assert laws.parameters == ("glu.A", "glu.C", "head.W", "head.b")
    assert laws.independent_count == 4 + 3 + 1
    assert set(laws.parameters) <= {name for name, _ in model.named_parameters()}


def test_a_law_that_no_gradient_reaches_is_not_passed() -> None:
    """Zero inputs: nothing is evaluated, and a warning names the laws; with inputs there is no warning."""
    model = nn.Sequential(OrderedDict(glu=GatedLinearUnit(3, 4, 3), head=SoftmaxClassifier(3, 2, bias=False)))
    with pytest.warns(RuntimeWarning, match=r"no gradient reaches the parameters of glu\.glu, head\.classifier on the example inputs.*not checked"):
        laws = find_laws(model, (torch.zeros(16, 3),))
    assert laws == find_laws(model, x_of())


def test_more_than_ten_blocks_keep_their_paths() -> None:
    """The path "1" is no prefix of "10"."""
    model = nn.Sequential(*[GatedLinearUnit(3, 4, 3) for _ in range(12)])
    laws = find_laws(model)
    assert [law.name for law in laws] == [f"{i}.glu" for i in range(12)]


def test_absences_of_blocks_are_collected() -> None:
    """A block without laws says so with its path."""
    laws = find_laws(nn.Sequential(FeedForward(3, 4, 3, "gelu"), MixtureOfExperts(3, 2, 2, gate="sigmoid")))
    assert [a.where for a in laws.absences] == ["0", "1.W"]
    assert laws.families == ("expert",)


def test_a_parameter_shared_by_two_blocks() -> None:
    """What one block does not know of the other: its laws are left out, and said why; the others stay."""
    first, second = GatedLinearUnit(3, 4, 3), GatedLinearUnit(3, 4, 3, gate="relu")
    second.C = first.C
    laws = find_laws(nn.Sequential(first, second))
    assert [law.name for law in laws] == ["1.glu_gate"]
    assert [a.where for a in laws.absences] == ["0.glu", "1.glu"]
    assert all("0.C is shared with another module" in a.reason for a in laws.absences)


def test_a_parameter_shared_with_a_plain_module() -> None:
    """Tied to a linear layer outside of every block, before or after it."""
    for plain_first in (False, True):
        block, plain = NormalizedLinear(3, (3,)), nn.Linear(3, 3, bias=False)
        plain.weight = block.maps[0]
        model = nn.Sequential(plain, block) if plain_first else nn.Sequential(block, plain)
        laws = find_laws(model)
        assert laws.laws == ()
        assert "is shared with another module" in laws.absences[0].reason


def test_a_parameter_shared_inside_one_block() -> None:
    """A user who ties two weights of one block leaves its theorem: the law is false, and must not be listed."""
    block = GatedLinearUnit(3, 4, 2)
    block.C = block.B
    laws = find_laws(block)
    assert laws.laws == ()
    assert "is shared" in laws.absences[0].reason


def test_one_block_in_two_places() -> None:
    """A module registered twice shares all its parameters with itself."""
    block = GatedLinearUnit(3, 4, 3)
    laws = find_laws(nn.Sequential(block, nn.Tanh(), block))
    assert laws.laws == ()
    assert len(laws.absences) == 1


def test_a_frozen_parameter() -> None:
    """A law that touches it is reported apart; laws of trainable parameters stay."""
    block = GatedLinearUnit(3, 4, 2, gate="identity")
    block.C.requires_grad_(False)
    laws = find_laws(block, x_of())
    assert [law.name for law in laws] == ["glu_gate"]
    (absence,) = laws.absences
    assert absence.where == "glu"
    assert absence.reason == "C is frozen: what holds of frozen weights is not a law of training"


def test_all_frozen() -> None:
    """No law is left to check, with or without example inputs."""
    block = GatedLinearUnit(3, 4, 2).requires_grad_(False)
    for inputs in (None, x_of()):
        laws = find_laws(block, inputs)
        assert laws.laws == ()
        assert "frozen" in laws.absences[0].reason


def test_a_model_without_blocks() -> None:
    """An error that says what to do, never an empty list."""
    with pytest.raises(
        NoLawsError, match=r"Linear holds no block of conserved\.catalog; .* build it from catalogue blocks or write Law values by hand"
    ) as caught:
        find_laws(nn.Linear(3, 2))
    assert isinstance(caught.value, ConservedError)


def test_a_model_without_parameters() -> None:
    """Nothing can be conserved."""
    for model in (nn.Tanh(), nn.Sequential(), NoParameters()):
        with pytest.raises(NoLawsError, match=f"{type(model).__name__} has no parameters, so nothing can be conserved; pass a model with weights"):
            find_laws(model)


class NoParameters(Block):
    """A block with nothing to train."""

    def forward(self, x: Tensor) -> Tensor:
        """The identity."""
        return x

    def laws(self) -> LawSet:
        """None."""
        return LawSet()

    @property
    def statement(self) -> Statement:
        """Nothing."""
        return Statement("nothing", "nobody", "always")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """A vector."""
        return (torch.zeros(batch, 1),)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_example_inputs_verify(dtype: torch.dtype) -> None:
    """Right laws pass, at a generic point, with several outputs, in both precisions."""
    for block in (
        Attention(3, 2, 4, qk_norm=True, position="rope", tokens=5),
        MixtureOfExperts(3, 4, 2, load_balancing=True, z_loss=True),
        Decoder(TransformerConfig(dim=4, layers=1, norm="layer", position="learned")),
    ):
        generator = torch.Generator().manual_seed(4)
        randomize(block, generator)
        block.to(dtype)
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in block.example(8, generator))
        assert find_laws(block, inputs) == block.laws()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_broken_block_is_caught(dtype: torch.dtype) -> None:
    """A wrong sign, found by one backward pass; without inputs it is believed."""
    model = Model(good=GatedLinearUnit(3, 4, 3), bad=WrongBlock()).to(dtype)
    with pytest.raises(
        ViolationError, match=r"law 'parts\.bad\.inner\.glu' has residual .* > 1e-.* on the example inputs; the block's laws or its backward pass are wrong"
    ):
        find_laws(model, (x_of()[0].to(dtype),))
    assert len(find_laws(model)) == 2
    with pytest.raises(AssertionError):
        find_laws(model, (x_of()[0].to(dtype),))


def test_a_broken_backward_pass_is_caught() -> None:
    """A right law on a wrong gradient: a hook that scales one weight's gradient."""
    block = GatedLinearUnit(3, 4, 2)
    handle = block.A.register_hook(lambda grad: 1.1 * grad)
    with pytest.raises(ViolationError, match="law 'glu' has residual"):
        find_laws(block, x_of())
    handle.remove()
    assert len(find_laws(block, x_of())) == 1


def test_verification_leaves_the_model_alone() -> None:
    """No gradient is stored, no parameter moves."""
    block = GatedLinearUnit(3, 4, 2)
    before = [p.detach().clone() for p in block.parameters()]
    find_laws(block, x_of())
    assert all(p.grad is None and torch.equal(p, b) for p, b in zip(block.parameters(), before, strict=True))


def test_found_laws_hold_on_any_loss_of_the_whole_model() -> None:
    """The names fit `named_parameters`, and the laws survive what surrounds the block."""
    torch.manual_seed(0)
    model = Model(norm=NormalizedLinear(3, (4, 2)), glu=GatedLinearUnit(6, 4, 3), act=nn.GELU(), head=SoftmaxClassifier(3, 5)).double()
    laws = find_laws(model)
    params = dict(model.named_parameters())
    loss = nn.functional.nll_loss(model(torch.randn(16, 3, dtype=torch.float64)), torch.arange(16) % 5)
    grads = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    for name, seen in residual(laws, params, grads).items():
        largest = worst(seen)
        assert largest is not None, name
        assert largest <= residual_bound(torch.float64), name
