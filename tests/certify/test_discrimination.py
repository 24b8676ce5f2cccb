"""What certification tells apart: symmetries that were not listed, symmetries that are broken, false laws, wrong derivatives."""

import pytest
import torch
from torch import Tensor, nn

from conserved.catalog import Attention, GatedLinearUnit, MixtureOfExperts
from conserved.certify import certify
from conserved.law import LawSet

GAP = 1e6


def numerical(found):
    """Count, known laws and completeness, if a clear gap says so."""
    assert found.verdict == "numerical", str(found)
    assert found.gap >= GAP
    return found.independent_laws, found.known_laws, found.complete


# --- symmetries that the list lacks ---


class ListedAsSwiGLU(GatedLinearUnit):
    """A gated unit that lists the laws of SwiGLU, whatever its gate."""

    def laws(self) -> LawSet:
        return LawSet((self._law("glu", "C", "c", "test"),))


@pytest.mark.parametrize(("gate", "laws"), [("silu", 4), ("gelu", 4), ("identity", 8)])
def test_a_gate_with_one_symmetry_more(gate, laws):
    assert numerical(certify(ListedAsSwiGLU(3, 4, 2, gate=gate), sampling="real")) == (laws, 4, laws == 4)
    assert numerical(certify(GatedLinearUnit(3, 4, 2, gate=gate))) == (laws, laws, True)


class Head(nn.Module):
    """One head of attention, with softmax or without."""

    def __init__(self, dim: int, width: int, softmax: bool) -> None:
        super().__init__()
        self.softmax = softmax
        self.Q, self.K, self.V, self.O = (nn.Parameter(torch.randn(dim, width)) for _ in "QKVO")

    def forward(self, x: Tensor) -> Tensor:
        pattern = (x @ self.Q) @ (x @ self.K).mT
        return (pattern.softmax(-1) if self.softmax else pattern) @ (x @ self.V) @ self.O.mT


@pytest.mark.parametrize(("dim", "width", "laws"), [(2, 1, 2), (3, 2, 6)])
def test_attention_without_softmax_has_one_law_more(dim, width, laws):
    """‖Q‖² − ‖V‖², beside the matrices QᵀQ − KᵀK and VᵀV − OᵀO: scale passes from one pair to the other."""
    example = (torch.randn(1, 4, dim),)
    assert numerical(certify(Head(dim, width, softmax=True), example, sampling="real")) == (laws, 0, False)
    assert numerical(certify(Head(dim, width, softmax=False), example, sampling="real")) == (laws + 1, 0, False)


# --- symmetries that are broken ---


@pytest.mark.parametrize("position", ["none", "rope"])
def test_qk_norm_breaks_the_law_between_queries_and_keys(position):
    """Without rotation 10 + 10 laws of a head of width 4, with it 2 + 10; the norm leaves 10, and one for each gain (a pair, with rope)."""
    sizes = {"dim": 3, "heads": 1, "head_dim": 4, "position": position}
    free = certify(Attention(**sizes))
    normed = certify(Attention(**sizes, qk_norm=True, eps=0.1))
    gains = {"none": 4, "rope": 2}[position]
    assert numerical(free) == ((20, 20, True) if position == "none" else (12, 12, True))
    assert numerical(normed) == (10 + gains, 10 + gains, True)
    assert normed.parameters == free.parameters + 8


def test_an_exact_norm_keeps_scales_that_eps_breaks():
    sizes = {"dim": 3, "heads": 1, "head_dim": 2, "qk_norm": True}
    assert numerical(certify(Attention(**sizes, eps=0.0))) == (7, 7, True)
    assert numerical(certify(Attention(**sizes, eps=0.1))) == (5, 5, True)


@pytest.mark.parametrize(("loss", "laws"), [({}, 6), ({"load_balancing": True}, 6), ({"z_loss": True}, 4)], ids=["none", "load-balancing", "z-loss"])
def test_the_z_loss_breaks_the_router_law(loss, laws):
    assert numerical(certify(MixtureOfExperts(2, 2, 2, 2, **loss))) == (laws, laws, True)


# --- laws that are false ---


class ListsTooMuch(GatedLinearUnit):
    """Lists a law that only homogeneous gates have."""

    def laws(self) -> LawSet:
        return LawSet((self._law("glu", "C", "c", "test"), self._law("glu_gate", "B", "b", "test")))


class ForgetsRotation(Attention):
    """Lists the matrix of laws that attention has without rotary positions."""

    def laws(self) -> LawSet:
        return Attention(self.dim, self.heads, self.head_dim).laws()


FALSE = {
    "gate": (lambda: ListsTooMuch(3, 4, 2), 4, 8),
    "rotary": (lambda: ForgetsRotation(3, 1, 2, position="rope"), 4, 6),
}


@pytest.mark.parametrize(("build", "laws", "listed"), FALSE.values(), ids=FALSE)
def test_a_false_law_is_refuted_and_the_count_is_right_nevertheless(build, laws, listed):
    found = certify(build(), sampling="real")
    assert (found.verdict, found.complete, found.independent_laws, found.known_laws) == ("refuted", False, laws, listed)
    assert "not conserved" in found.reason


def test_no_proof_is_made_of_a_false_law():
    found = certify(ListsTooMuch(2, 1, 1), arithmetic="ball", sampling="real")
    assert (found.verdict, found.complete, found.certificate, found.independent_laws) == ("refuted", False, None, 1)


def test_the_same_list_holds_where_it_belongs():
    """The control: with a homogeneous gate and without rotation neither list is refuted."""
    assert numerical(certify(ListsTooMuch(3, 4, 2, gate="identity"))) == (8, 8, True)
    assert numerical(certify(ForgetsRotation(3, 1, 2))) == (6, 6, True)


# --- modules of torch, of which no laws are known ---


class SelfAttention(nn.Module):
    """Torch's multi-head attention of a sequence with itself."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, bias=bias, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


LINEAR = {"bias": False}
TORCH = {
    "linear-linear": (lambda: nn.Sequential(nn.Linear(2, 3, **LINEAR), nn.Linear(3, 2, **LINEAR)), (2,), 12, 6),
    "gelu": (lambda: nn.Sequential(nn.Linear(2, 3, **LINEAR), nn.GELU(), nn.Linear(3, 1, **LINEAR)), (2,), 9, 0),
    "relu": (lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), (2,), 17, 3),
    # the six numbers before the norm may shift together, with weights and bias: 4; each gain against its column after: 6
    "layer-norm": (lambda: nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 1)), (3,), 43, 10),
    "multihead-attention": (lambda: SelfAttention(bias=False), (3, 4), 64, 12),
}


@pytest.mark.parametrize(("build", "shape", "parameters", "laws"), TORCH.values(), ids=TORCH)
def test_modules_of_torch(build, shape, parameters, laws):
    found = certify(build(), (torch.randn(1, *shape),), sampling="real")
    assert numerical(found) == (laws, 0, laws == 0)
    assert (found.parameters, found.rank_lie) == (parameters, parameters - laws)


def test_query_key_and_value_may_be_given_apart():
    attention = nn.MultiheadAttention(4, 2, bias=False, batch_first=True)
    assert numerical(certify(attention, tuple(torch.randn(1, n, 4) for n in (2, 3, 3)), sampling="real")) == (12, 0, False)


def test_a_key_bias_under_softmax_is_no_law():
    """No output depends on it: it rests, and is named apart from laws."""
    found = certify(SelfAttention(bias=True), (torch.randn(1, 3, 4),), sampling="real")
    assert found.unmoved == ("attention.in_proj_bias (4 of 12 entries)",)
    assert (found.parameters, found.independent_laws) == (76, 12)


def test_the_same_network_as_block_and_as_module():
    block = GatedLinearUnit(3, 4, 2)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = block

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    assert numerical(certify(Wrapped(), (torch.randn(5, 3),), sampling="real")) == (4, 0, False)
    assert numerical(certify(block)) == (4, 4, True)


# --- derivatives that are wrong ---


class Cube(torch.autograd.Function):
    """x³, with the right gradient and a forward derivative that is wrong."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x.square() * gradient

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 5 * x.square() * tangent


class Cubic(nn.Module):
    """CB·(Ax)³: 3 hidden units that may be rescaled, and 2 units after them that are linear, three laws more."""

    def __init__(self, cube) -> None:
        super().__init__()
        self.cube = cube
        self.A, self.B, self.C = (nn.Parameter(torch.randn(shape)) for shape in ((3, 2), (2, 3), (2, 2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.cube(x @ self.A.mT) @ self.B.mT @ self.C.mT


def test_wrong_derivatives_are_noticed_and_give_no_count():
    example = (torch.randn(1, 2),)
    found = certify(Cubic(Cube.apply), example)
    assert (found.verdict, found.independent_laws, found.complete) == ("undecided", None, None)
    assert "derivatives of Cubic's gradients are wrong" in found.reason
    assert "central differences" in found.reason
    assert numerical(certify(Cubic(lambda x: x**3), example)) == (6, 0, False)
