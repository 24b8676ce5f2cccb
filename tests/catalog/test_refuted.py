"""The claim of Theorem 4.7 that is false: Σ_e W_e under a normalised sigmoid gate, in exact rational arithmetic."""

from fractions import Fraction

import pytest
import torch

from conserved.catalog import MixtureOfExperts
from conserved.catalog.moe import REFUTED
from conserved.experiments.counterexample import router_velocity, sigmoid_gate, softmax_gate
from conserved.law import Law, Term, rate, residual, worst
from conserved.symmetry import Symmetry
from conserved.tolerance import CONTROL_RESIDUAL, residual_bound


def test_the_exact_counterexample() -> None:
    """d/dt (W₁₁ + W₂₁) = 9/250, where a softmax gate gives 0."""
    assert sigmoid_gate()[0] == (Fraction(2, 5), Fraction(3, 5))
    assert sum(router_velocity(sigmoid_gate()), Fraction(0)) == Fraction(9, 250)
    assert router_velocity(softmax_gate()) != [0, 0]
    assert sum(router_velocity(softmax_gate()), Fraction(0)) == 0


def router_sum(experts: int, dim: int) -> Law:
    """The claim as a law."""
    return Law("claim", "router", "", Symmetry.TRANSLATION, (Term("W", (experts, dim), "e d"),), ("d",))


@pytest.mark.parametrize(("gate", "expected"), [("sigmoid", 9 / 250), ("softmax", 0.0)])
def test_the_block_at_the_counterexample(gate: str, expected: float) -> None:
    """The model itself, at these parameters, has this derivative."""
    block = MixtureOfExperts(dim=2, hidden=1, out=2, experts=2, gate=gate).double()
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    silu_of_one = torch.nn.functional.silu(torch.tensor(1.0, dtype=torch.float64))
    with torch.no_grad():
        block.W.copy_(torch.tensor([[0.0, 0.0], [3.0, 0.0]], dtype=torch.float64))
        block.W[1, 0].log_()
        block.B.fill_(1.0)
        block.C.copy_(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]))
        block.A.zero_()
        block.A[1, 0, 0] = 1 / silu_of_one
    params = dict(block.named_parameters())
    loss = block(x).square().sum() / 2
    grads = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    along_flow = -rate(router_sum(2, 2), params, grads)
    assert float(along_flow[0]) == pytest.approx(expected, abs=residual_bound(torch.float64))


@pytest.mark.parametrize("top_k", [2, 3])
def test_the_claim_is_rejected_for_every_sigmoid_mixture(top_k: int) -> None:
    """Dense and sparse: the residual of the claim is large, the block does not list it."""
    torch.manual_seed(0)
    block = MixtureOfExperts(3, 4, 2, experts=3, top_k=top_k, gate="sigmoid").double()
    params = dict(block.named_parameters())
    y = block(torch.randn(16, 3, dtype=torch.float64))
    assert isinstance(y, torch.Tensor)
    grads = dict(zip(params, torch.autograd.grad((y * torch.randn_like(y)).sum(), list(params.values())), strict=True))
    seen = worst(residual(router_sum(3, 3), params, grads))
    assert seen is not None
    assert seen >= CONTROL_RESIDUAL
    assert block.laws().families == ("expert",)


def test_the_block_says_that_the_theorem_is_false() -> None:
    """Absence and statement name the theorem, the counter-example and what does hold."""
    block = MixtureOfExperts(3, 4, 2, gate="sigmoid")
    (absence,) = block.laws().absences
    assert (absence.where, absence.reason) == ("W", REFUTED)
    assert "Theorem 4.7" in absence.reason
    assert "9/250" in absence.reason
    assert "not conserved" in absence.reason
    assert "false" in block.statement.source
    assert "Σ_e W_e is not" in block.statement.theorem


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gate": "sigmoid"}, "normalised sigmoid gate"),
        ({"gate": "sigmoid", "top_k": 2}, "normalised sigmoid gate"),
        ({"gate": "sigmoid", "top_k": 1}, "router gets no gradient from the output; it is unused, not conserved"),
        ({"gate": "topk_softmax", "top_k": 1}, "router gets no gradient from the output"),
        ({"renormalize": True, "top_k": 1}, "router gets no gradient from the output"),
        ({"z_loss": True}, "the z-loss reads the logits themselves"),
        ({"gate": "topk_softmax", "top_k": 2, "z_loss": True, "load_balancing": True}, "the z-loss reads the logits themselves"),
        ({"gate": "sigmoid", "top_k": 1, "z_loss": True}, "the z-loss reads the logits themselves"),
    ],
)
def test_why_the_router_has_no_law(options: dict[str, object], reason: str) -> None:
    """Each reason of its own."""
    laws = MixtureOfExperts(3, 4, 2, experts=3, **options).laws()  # type: ignore[arg-type]
    assert laws.families == ("expert",)
    assert reason in laws.absences[0].reason


@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": 2, "renormalize": True}, {"gate": "topk_softmax", "top_k": 2}, {"load_balancing": True}])
def test_when_the_router_has_a_law(options: dict[str, object]) -> None:
    """No absence then."""
    laws = MixtureOfExperts(3, 4, 2, experts=3, **options).laws()  # type: ignore[arg-type]
    assert laws.families == ("expert", "router")
    assert laws.absences == ()
