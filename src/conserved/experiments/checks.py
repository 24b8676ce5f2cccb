r"""The checks of an audit: a number that a theorem gives, a number that is computed without it, and the comparison of the two.

    counts        conserved.certify counts the laws; the theorem's number is a formula of the sizes
    flows         conserved.experiments.reach follows gradient flows instead of taking brackets
    router        rational arithmetic, for the claim that is false
    descent       exponents and the exact identity of the drift under gradient descent

A verdict comes from the comparison alone; closed forms of the catalogue enter only as the other half of a proof.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import log
from typing import Any

import torch

from conserved.catalog import Block, make_block
from conserved.certify import Certification, certify_block
from conserved.experiments.claims import Check
from conserved.experiments.counterexample import ODDS, OUTPUTS, router_velocity, sigmoid_gate, softmax_gate
from conserved.experiments.discretization import descend, exact_drift
from conserved.experiments.reach import reach
from conserved.experiments.scaling import exponent
from conserved.law import Law, LawSet, Term, rate
from conserved.symmetry import Symmetry
from conserved.tolerance import residual_bound

EXPONENT_TOLERANCE = 0.05
"""Of an exponent that was fitted: a twentieth of the distance between the two that are told apart."""

RATES = (2e-5, 4e-5, 8e-5)
STEPS = (5, 10, 20)
"""Learning rates and numbers of steps between which exponents are fitted: gradients change little over them."""

Options = Mapping[str, Any]
Formula = Callable[[Options], int]
"""From the options of a block to the number of laws that a theorem gives it."""


@dataclass(frozen=True)
class Size:
    """A block with its sizes, and the arithmetic that it is certified in."""

    block: str
    options: Options
    arithmetic: str = "float64"


def judge_count(expected: int, found: int | None, certification: Certification) -> str:
    """The verdict on a number that a certification found.

    Args:
        expected: by the theorem.
        found: the number of laws, or of what follows from it.
        certification: where it is from.

    Returns:
        "undecided" if the certification is, "refuted" if the numbers differ or a closed form turned out to be no law, and else the
        strength of the certification: "proved" or "numerical".
    """
    if certification.verdict in ("undecided", "refuted"):
        return certification.verdict
    return certification.verdict if found == expected else "refuted"


def judge_number(expected: float, found: float | None, tolerance: float) -> str:
    """The verdict on a measured number: "undecided" if there is none."""
    if found is None:
        return "undecided"
    return "numerical" if abs(found - expected) <= tolerance else "refuted"


def judge_exact(expected: Fraction, found: Fraction) -> str:
    """The verdict on a number found in exact arithmetic: "proved" or "refuted"."""
    return "proved" if found == expected else "refuted"


@dataclass(frozen=True, eq=False)
class Bench:
    """Where certifications are done, each one once."""

    seed: int
    done: dict[str, Certification] = field(default_factory=dict)

    def certify(self, size: Size) -> tuple[Certification, float]:
        """The certification, and the seconds that it took now."""
        began, key = time.perf_counter(), repr(size)
        if key not in self.done:
            self.done[key] = certify_block(size.block, size.options, arithmetic=size.arithmetic, seed=self.seed)
        return self.done[key], time.perf_counter() - began


def count(size: Size, formula: Formula, role: str, bench: Bench) -> Check:
    """How many independent laws."""
    found, seconds = bench.certify(size)
    return _of_certification(size, "independent laws", formula(size.options), found.independent_laws, role, found, seconds)


def algebra(size: Size, formula: Formula, role: str, bench: Bench) -> Check:
    """The dimension of the Lie algebra: D − number of laws."""
    found, seconds = bench.certify(size)
    return _of_certification(size, "rank of the Lie algebra", found.parameters - formula(size.options), found.rank_lie, role, found, seconds)


def silent_router(size: Size, role: str, bench: Bench) -> Check:
    """How many entries of the router get a gradient: none, where the gate is constant."""
    found, seconds = bench.certify(size)
    total = sum(p.numel() for p in make_block(size.block, size.options).parameters())
    others = total - int(size.options["experts"] * size.options["dim"])
    return _of_certification(size, "router entries that get a gradient", 0, found.parameters - others, role, found, seconds)


def _of_certification(size: Size, quantity: str, expected: int, found: int | None, role: str, one: Certification, seconds: float) -> Check:
    verdict = judge_count(expected, found, one)
    agreement = "" if verdict != "refuted" or one.verdict == "refuted" else f"; {expected} expected, {found} found"
    method = f"{one.arithmetic}, {one.sampling} data" if one.verdict != "proved" else f"proof in {one.arithmetic} arithmetic"
    return Check(
        size.block, size.options, quantity, method, expected, found, verdict, one.reason + agreement, role,
        one.parameters, one.rank_lie, one.complete, seconds, certificate=one.certificate,
    )  # fmt: skip


def reached(size: Size, formula: Formula, role: str, bench: Bench) -> Check:
    """The dimension that composed gradient flows reach: D − number of laws."""
    began = time.perf_counter()
    found = reach(make_block(size.block, size.options), bench.seed)
    expected = found.parameters - formula(size.options)
    verdict = "undecided" if not found.clear else "numerical" if found.dimension == expected else "refuted"
    evidence = f"{found.parameters} gradient flows of one example each, one after the other, reach {found.dimension} of {found.parameters} dimensions"
    return Check(
        size.block, size.options, "dimensions reached", "float64, flows followed", expected, found.dimension, verdict,
        f"{evidence}; singular values apart by {found.gap:.0e}", role, found.parameters, found.dimension, seconds=time.perf_counter() - began,
    )  # fmt: skip


def exact_router(gate: str, role: str, _: Bench) -> Check:
    """d/dt Σ_e W_e1 of the two experts of `conserved.experiments.counterexample`."""
    began = time.perf_counter()
    velocity = router_velocity(sigmoid_gate() if gate == "sigmoid" else softmax_gate())
    total = sum(velocity, Fraction(0))
    outputs, odds = (", ".join(map(str, values)) for values in (OUTPUTS, ODDS))
    evidence = (
        f"two experts whose outputs have the first coordinates {outputs}, x = e₁, target 0, loss ½‖·‖², logits ln of {odds}: "
        f"d/dt W₁₁ = {velocity[0]}, d/dt W₂₁ = {velocity[1]}, their sum {total}"
    )
    return Check(
        "router", {"gate": gate, "experts": len(OUTPUTS)}, "d/dt (W₁₁ + W₂₁)", "rational arithmetic", Fraction(0), total,
        judge_exact(Fraction(0), total), evidence, role, seconds=time.perf_counter() - began,
    )  # fmt: skip


def router_of_the_block(role: str, _: Bench) -> Check:
    """The same derivative by automatic differentiation of the catalogue's block."""
    began = time.perf_counter()
    options = {"dim": 2, "hidden": 1, "out": 2, "experts": 2, "gate": "sigmoid"}
    block = make_block("moe", options).double()
    claimed = Law("claim", "router", "", Symmetry.TRANSLATION, (Term("W", (2, 2), "e d"),), ("d",))
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        params = dict(block.named_parameters())
        params["W"].copy_(torch.tensor([[log(odd), 0.0] for odd in ODDS], dtype=torch.float64))
        params["B"].fill_(1.0)
        params["C"].copy_(torch.tensor([[[1.0, 0.0]]] * 2, dtype=torch.float64))
        params["A"].zero_()
        for expert, output in enumerate(OUTPUTS):  # SiLU(Bx)·Cx = SiLU(1) at x = e₁
            params["A"][expert, 0, 0] = float(output) / torch.nn.functional.silu(torch.ones((), dtype=torch.float64))
    grads = dict(zip(params, torch.autograd.grad(block(x).square().sum() / 2, list(params.values())), strict=True))
    found = -float(rate(claimed, params, grads)[0])
    expected = sum(router_velocity(sigmoid_gate()), Fraction(0))
    return Check(
        "moe", options, "d/dt (W₁₁ + W₂₁)", "float64, automatic differentiation", expected, found,
        judge_number(float(expected), found, residual_bound(torch.float64)), f"the block itself at these weights; {expected} = {float(expected)}",
        role, parameters=sum(p.numel() for p in params.values()), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _watched(size: Size, false: bool) -> tuple[Block, LawSet]:
    """A block with its laws, or with the law of a gated unit that is written for the gate matrix B instead of C: it is none."""
    block = make_block(size.block, size.options)
    if not false:
        return block, block.laws()
    terms = (block.term("A", "o i"), block.term("B", "i d", -1))
    return block, LawSet((Law("control", "control", "", Symmetry.RESCALE, terms, index="i", exact=False, reason="written for the gate matrix"),))


def drift_exponent(size: Size, variable: str, expected: float, role: str, bench: Bench, false: bool = False) -> Check:
    """The exponent of the drift in the learning rate τ at a fixed number of steps, or in the number of steps k at a fixed rate."""
    began = time.perf_counter()
    block, laws = _watched(size, false)
    if variable == "τ":
        runs = [descend(block, laws, rate, STEPS[-1], bench.seed) for rate in RATES]
        points, drifts = list(RATES), [run.drift[-1] for run in runs]
        over = f"τ = {', '.join(f'{rate:g}' for rate in RATES)} at k = {STEPS[-1]}"
    else:
        run = descend(block, laws, RATES[0], STEPS[-1], bench.seed)
        points, drifts = [float(step) for step in STEPS], [run.drift[step - 1] for step in STEPS]
        over = f"k = {', '.join(map(str, STEPS))} at τ = {RATES[0]:g}"
    found = exponent(points, drifts)
    evidence = f"drift {', '.join(f'{drift:.2e}' for drift in drifts)} over {over}" + (
        "; a false law: the gate matrix in place of the linear one" if false else ""
    )
    return Check(
        size.block, size.options, f"exponent of the drift in {variable}", "float64, gradient descent", expected, found,
        judge_number(expected, found, EXPONENT_TOLERANCE), evidence, role, parameters=_parameters(block), seconds=time.perf_counter() - began,
    )  # fmt: skip


def identity(size: Size, role: str, bench: Bench) -> Check:
    """How much of the drift Σ τ²h(g) leaves unexplained, relative to the squares that h is made of."""
    began = time.perf_counter()
    block, laws = _watched(size, false=False)
    seen = descend(block, laws, rate=0.05, steps=STEPS[-1], seed=bench.seed)
    bound = residual_bound(torch.float64)
    found = seen.unexplained / seen.scale if seen.drift[-1] > 1e3 * bound * seen.scale else None
    moved = f"drift {seen.drift[-1] / seen.scale:.3e} of ‖θ‖² after {STEPS[-1]} steps at τ = 0.05"
    evidence = f"{moved}; rounding explains at most {bound:g}" if found is not None else f"{moved}, too little to tell from rounding"
    return Check(
        size.block, size.options, "(drift − Σ τ²h(g)) / ‖θ‖²", "float64, gradient descent", 0.0, found,
        judge_number(0.0, found, bound), evidence, role, parameters=_parameters(block), seconds=time.perf_counter() - began,
    )  # fmt: skip


def exact_identity(dims: tuple[int, int, int], role: str, bench: Bench) -> Check:
    """The same for a linear network in rational arithmetic, where nothing may be left at all."""
    began = time.perf_counter()
    drift, gap = exact_drift(dims, seed=bench.seed)
    verdict = judge_exact(Fraction(0), gap) if drift else "undecided"
    evidence = f"the largest entry of UᵀU − VVᵀ moves by about {float(drift):.3e} in three steps at τ = 1/64; of it, Σ τ²h(g) leaves {gap}"
    return Check(
        "linear", {"dims": dims}, "drift − Σ τ²h(g)", "rational arithmetic", Fraction(0), gap, verdict, evidence, role,
        parameters=dims[1] * (dims[0] + dims[2]), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _parameters(block: Block) -> int:
    return sum(p.numel() for p in block.parameters())
