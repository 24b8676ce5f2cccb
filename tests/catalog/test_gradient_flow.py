"""The laws along integrated gradient flows θ̇ = −∇L(θ), beside wrong laws that drift."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases import FLOW_CONSTANT, FLOW_DRIFT, Case, build_at_generic_point, draw_inputs
from perturb import wrong_laws
from torch import Tensor

from conserved.catalog import (
    Attention,
    BatchNormBlock,
    Block,
    Decoder,
    GatedLinearUnit,
    LayerScale,
    LinearNetwork,
    MatrixFactorization,
    MixtureOfExperts,
    NormalizedLinear,
    SoftmaxClassifier,
    TransformerConfig,
)
from conserved.law import Law, LawSet, Term, value
from conserved.symmetry import Symmetry

F64 = torch.float64
STEPS, STEP = 100, 1e-2
STIFF = {"decoder": 1.5e-3}
"""Smaller steps where a normalisation of a short vector makes the flow fast."""

FLOWS: dict[str, Callable[[], Block]] = {
    "linear": partial(LinearNetwork, (3, 2, 4), bias=True),
    "nmf": partial(MatrixFactorization, 4, 3, rank=2),
    "glu": partial(GatedLinearUnit, 3, 4, 2, bias=True),
    "mha": partial(Attention, 3, 2, 2, bias=True, causal=True),
    "rope": partial(Attention, 3, 2, 4, position="rope"),
    "qk norm": partial(Attention, 3, 2, 4, qk_norm=True, eps=0.0),
    "moe": partial(MixtureOfExperts, 3, 2, 2, experts=3),
    "layer norm": partial(NormalizedLinear, 4, (3, 2), "layer"),
    "layer scale": partial(LayerScale, 3, 4),
    "classifier": SoftmaxClassifier,
    "decoder": lambda: Decoder(TransformerConfig(dim=4, hidden=3, vocab=4, tokens=4, layers=1, norm="layer", position="learned", bias=True, eps=0.0)),
}


def flow(block: Block, generator: torch.Generator, steps: int = STEPS, step: float = STEP) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters before and after the flow of a fixed squared loss, by the classical Runge–Kutta method."""
    inputs = draw_inputs(block, 6, generator, F64)
    trained = {name: p for name, p in block.named_parameters() if p.requires_grad}
    with torch.no_grad():
        targets = torch.randn(block(*inputs).shape, generator=generator, dtype=F64)

    def velocity(params: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: t.detach().requires_grad_() for name, t in params.items()}
        loss = (torch.func.functional_call(block, leaves, inputs) - targets).square().mean()
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return {name: -g for name, g in zip(leaves, grads, strict=True)}

    start = {name: p.detach().clone() for name, p in trained.items()}
    now = dict(start)
    for _ in range(steps):
        k1 = velocity(now)
        k2 = velocity({n: now[n] + step / 2 * k1[n] for n in now})
        k3 = velocity({n: now[n] + step / 2 * k2[n] for n in now})
        k4 = velocity({n: now[n] + step * k3[n] for n in now})
        now = {n: now[n] + step / 6 * (k1[n] + 2 * k2[n] + 2 * k3[n] + k4[n]) for n in now}
    return start, now


def drift(law: Law, start: dict[str, Tensor], end: dict[str, Tensor]) -> float:
    """Largest change of a component, relative to the size of the law's terms."""
    before, after = value(law, start), value(law, end)
    return float((after - before).abs().max() / (1 + before.abs().max()))


@pytest.mark.parametrize("name", FLOWS)
def test_laws_are_constant_and_wrong_ones_drift(name: str) -> None:
    """Every law of the block stays where a perturbation of it moves."""
    block, generator = build_at_generic_point(Case(name, FLOWS[name]))
    start, end = flow(block, generator, step=STIFF.get(name, STEP))
    assert max(float((end[n] - start[n]).abs().max()) for n in start) > FLOW_DRIFT, "the flow does not move"
    for law in block.laws():
        assert drift(law, start, end) <= FLOW_CONSTANT, law.name
        wrong = dict(wrong_laws(law))
        largest = max(drift(other, start, end) for other in wrong.values())
        assert largest >= FLOW_DRIFT, f"{law.name}: no perturbation drifts, largest {largest:.1e}"


def test_the_sum_of_routers_drifts_under_a_sigmoid_gate() -> None:
    """Theorem 4.7's second claim fails along the flow; the experts' laws hold."""
    block, generator = build_at_generic_point(Case("sigmoid", partial(MixtureOfExperts, 3, 2, 2, experts=3, gate="sigmoid")))
    start, end = flow(block, generator)
    claim = Law("claim", "router", "", Symmetry.TRANSLATION, (Term("W", (3, 3), "e d"),), ("d",))
    assert drift(claim, start, end) >= FLOW_DRIFT
    assert drift(block.laws().named("expert"), start, end) <= FLOW_CONSTANT


def test_an_approximate_law_drifts_by_eps() -> None:
    """A BatchNorm with a large eps lets ‖w‖² go; with a small one it almost stays; the gain's law does not care."""
    moved = []
    for eps in (1e-1, 1e-4):
        block, generator = build_at_generic_point(Case("batch_norm", partial(BatchNormBlock, 1, 2, eps=eps)))
        start, end = flow(block, generator)
        laws = block.laws()
        moved.append(drift(laws.named("batch_norm"), start, end))
        assert drift(laws.named("batch_norm_bias"), start, end) <= FLOW_CONSTANT
        assert laws.select(exact=False) == LawSet((laws.named("batch_norm"),), laws.absences)
    assert moved[0] > 100 * moved[1] > 0


def test_discrete_steps_drift_where_the_flow_does_not() -> None:
    """Euler steps of the same size are no flow: the drift is of first order in the step, and seen."""
    block, generator = build_at_generic_point(Case("glu", FLOWS["glu"]))
    law = block.laws()[0]
    start, end = flow(block, generator)
    assert drift(law, start, end) <= FLOW_CONSTANT
    inputs = draw_inputs(block, 6, generator, F64)
    params = dict(block.named_parameters())
    for _ in range(STEPS):
        grads = torch.autograd.grad(block(*inputs).square().mean(), list(params.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for p, g in zip(params.values(), grads, strict=True):
                p.sub_(STEP * g)
    assert drift(law, start, {n: p.detach() for n, p in params.items()}) > 100 * FLOW_CONSTANT
