r"""The audit of arXiv 2606.17816: every claim of the paper as a check, with a verdict and its evidence.

A theorem about laws says how many independent ones there are. Here that number is a formula, written down from the theorem and nothing
else; `conserved.certify` counts the laws of the block without it; the verdict is the comparison of the two. So a verdict is never
written into this file, and the closed forms of the catalogue enter only as the other half of a proof.
"""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import log
from typing import Any

import torch

from conserved.catalog import Block, make_block
from conserved.catalog.block import SEED
from conserved.certify import Certification, certify_block
from conserved.errors import ConfigurationError, UnknownNameError
from conserved.experiments.claims import AuditResult, Check, Claim
from conserved.experiments.counterexample import ODDS, OUTPUTS, router_velocity, sigmoid_gate, softmax_gate
from conserved.experiments.discretization import descend, exact_drift
from conserved.experiments.reach import reach
from conserved.experiments.scaling import exponent
from conserved.law import Law, LawSet, Term, rate
from conserved.symmetry import Symmetry
from conserved.tolerance import residual_bound
from conserved.version import __version__

EXPONENT_TOLERANCE = 0.05
"""Of an exponent that was fitted: a twentieth of the distance between the two that are told apart."""

RATES = (2e-5, 4e-5, 8e-5)
STEPS = (5, 10, 20)
"""Learning rates and numbers of steps between which exponents are fitted: gradients change little over them."""

Options = Mapping[str, Any]
Formula = Callable[[Options], int]
Job = Callable[["_Bench"], Check]

LAWS = "independent laws"


@dataclass(frozen=True)
class Size:
    """A block with its sizes, and the arithmetic that it is certified in."""

    block: str
    options: Options
    arithmetic: str = "float64"


# ---------------------------------------------------------------------------------- what the theorems say, as formulas


def no_laws(_: Options) -> int:
    """Theorem 4.1."""
    return 0


def glu_laws(options: Options) -> int:
    """Theorem 4.2: h."""
    return int(options["hidden"])


def attention_laws(options: Options) -> int:
    """Theorem 4.3: two symmetric matrices of order d_h for each head, so heads · d_h(d_h + 1). For d_h ≤ 2d.

    Example:
        >>> attention_laws({"dim": 3, "heads": 2, "head_dim": 2})
        12
    """
    return int(options["heads"] * options["head_dim"] * (options["head_dim"] + 1))


def rotary_laws(options: Options) -> int:
    """Theorem 4.4: for each head, a number for each of d_h/2 frequencies, and one symmetric matrix of order d_h.

    Example:
        >>> rotary_laws({"dim": 3, "heads": 1, "head_dim": 4})
        12
    """
    width = options["head_dim"]
    return int(options["heads"] * (width // 2 + width * (width + 1) // 2))


def expert_laws(options: Options) -> int:
    """The part of the experts in theorems 4.5, 4.6 and 4.7: Σ h."""
    return int(options["experts"] * options["hidden"])


def mixture_laws(options: Options) -> int:
    """Theorems 4.5, 4.6 and, as it claims, 4.7: Σ h, and the d components of Σ_e W_e."""
    return expert_laws(options) + int(options["dim"])


def gated_pair_laws(options: Options) -> int:
    """A gated unit without an activation: two differences for each hidden unit."""
    return 2 * glu_laws(options)


def relu_laws(options: Options) -> int:
    """A ReLU net: one number for each hidden unit."""
    return int(sum(options["dims"][1:-1]))


# ---------------------------------------------------------------------------------- how verdicts are reached


def judge_count(expected: int, found: int, certification: Certification) -> str:
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
class _Bench:
    """Where certifications are done, each one once."""

    seed: int
    done: dict[str, Certification] = field(default_factory=dict)

    def certify(self, size: Size) -> tuple[Certification, float]:
        """The certification, and the seconds that it took now."""
        began, key = time.perf_counter(), repr(size)
        if key not in self.done:
            self.done[key] = certify_block(size.block, size.options, arithmetic=size.arithmetic, seed=self.seed)
        return self.done[key], time.perf_counter() - began


def _count(size: Size, formula: Formula, role: str, bench: _Bench) -> Check:
    """How many independent laws."""
    found, seconds = bench.certify(size)
    return _of_certification(size, LAWS, formula(size.options), found.independent_laws, role, found, seconds)


def _algebra(size: Size, formula: Formula, role: str, bench: _Bench) -> Check:
    """The dimension of the Lie algebra: D − number of laws."""
    found, seconds = bench.certify(size)
    return _of_certification(size, "rank of the Lie algebra", found.parameters - formula(size.options), found.rank_lie, role, found, seconds)


def _silent_router(size: Size, role: str, bench: _Bench) -> Check:
    """How many entries of the router get a gradient: none, where the gate is constant."""
    found, seconds = bench.certify(size)
    total = sum(p.numel() for p in make_block(size.block, size.options).parameters())
    others = total - int(size.options["experts"] * size.options["dim"])
    return _of_certification(size, "router entries that get a gradient", 0, found.parameters - others, role, found, seconds)


def _of_certification(size: Size, quantity: str, expected: int, found: int, role: str, one: Certification, seconds: float) -> Check:
    verdict = judge_count(expected, found, one)
    agreement = "" if verdict != "refuted" or one.verdict == "refuted" else f"; {expected} expected, {found} found"
    method = f"{one.arithmetic}, {one.sampling} data" if one.verdict != "proved" else f"proof in {one.arithmetic} arithmetic"
    return Check(
        size.block, size.options, quantity, method, expected, found, verdict, one.reason + agreement, role,
        one.parameters, one.rank_lie, one.complete, seconds, certificate=one.certificate,
    )  # fmt: skip


def _reached(size: Size, formula: Formula, role: str, bench: _Bench) -> Check:
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


# ---------------------------------------------------------------------------------- Theorem 4.7


def _exact_router(gate: str, role: str, _: _Bench) -> Check:
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


def _router_of_the_block(role: str, _: _Bench) -> Check:
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


# ---------------------------------------------------------------------------------- gradient descent


def _watched(size: Size, false: bool) -> tuple[Block, LawSet]:
    """A block with its laws, or with the law of a gated unit that is written for the gate matrix B instead of C: it is none."""
    block = make_block(size.block, size.options)
    if not false:
        return block, block.laws()
    terms = (block.term("A", "o i"), block.term("B", "i d", -1))
    return block, LawSet((Law("control", "control", "", Symmetry.RESCALE, terms, index="i", exact=False, reason="written for the gate matrix"),))


def _exponent(size: Size, variable: str, expected: float, role: str, bench: _Bench, false: bool = False) -> Check:
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


def _identity(size: Size, role: str, bench: _Bench) -> Check:
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


def _exact_identity(dims: tuple[int, int, int], role: str, bench: _Bench) -> Check:
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


# ---------------------------------------------------------------------------------- the claims


@dataclass(frozen=True)
class _Plan:
    """A claim with what is to be done about it."""

    id: str
    statement: str
    source: str
    jobs: tuple[Job, ...]


def _counts(formula: Formula, *sizes: Size, role: str = "claim") -> tuple[Job, ...]:
    return tuple(partial(_count, size, formula, role) for size in sizes)


GLU = Size("swiglu", {"dim": 2, "hidden": 3, "out": 2}, "ball")
MHA = Size("mha", {"dim": 2, "heads": 1, "head_dim": 2}, "ball")
ROPE = Size("rope", {"dim": 2, "heads": 1, "head_dim": 2}, "ball")
MOE = Size("moe", {"dim": 2, "hidden": 1, "out": 2, "experts": 2}, "ball")
SPARSE = {"dim": 2, "hidden": 1, "out": 2, "experts": 3}
SIGMOID = (
    Size("moe", {"dim": 2, "hidden": 1, "out": 2, "experts": 2, "gate": "sigmoid"}, "ball"),
    Size("moe", {"dim": 2, "hidden": 2, "out": 2, "experts": 2, "gate": "sigmoid"}),
    Size("moe", SPARSE | {"top_k": 2, "gate": "sigmoid"}, "ball"),
)

_LEVELS: tuple[tuple[Size, Formula], ...] = ((GLU, glu_laws), (MHA, attention_laws), (ROPE, rotary_laws), (MOE, mixture_laws))

_TRAINED = (
    Size("swiglu", {"dim": 3, "hidden": 5, "out": 2}),
    Size("rope", {"dim": 3, "heads": 2, "head_dim": 2}),
    Size("moe", {"dim": 3, "hidden": 2, "out": 2, "experts": 3}),
)

PLANS = (
    _Plan(
        "4.1",
        "A two-layer net x ↦ A σ(Bx) with σ = GELU or SiLU has no conservation laws but constants.",
        f"{SEED}, Theorem 4.1",
        (
            *_counts(
                no_laws,
                *(Size(name, {"dim": 2, "hidden": 3, "out": 2}, "ball") for name in ("gelu", "silu")),
                *(Size(name, {"dim": 16, "hidden": 32, "out": 8}) for name in ("gelu", "silu")),
                Size("gelu", {"dim": 1, "hidden": 12, "out": 1}),
                Size("silu", {"dim": 1, "hidden": 32, "out": 1}),
            ),
            *_counts(relu_laws, Size("relu", {"dims": (3, 4, 2)}), role="control"),
        ),
    ),
    _Plan(
        "4.2",
        "SwiGLU x ↦ A(SiLU(Bx) ⊙ Cx): the laws are ‖A[:,i]‖² − ‖C[i,:]‖² of the h hidden units, and functions of these.",
        f"{SEED}, Theorem 4.2",
        (
            *_counts(glu_laws, GLU, Size("swiglu", {"dim": 3, "hidden": 4, "out": 2}, "ball"), Size("swiglu", {"dim": 16, "hidden": 32, "out": 16})),
            *_counts(gated_pair_laws, Size("bilinear", {"dim": 2, "hidden": 3, "out": 2}), role="control"),
        ),
    ),
    _Plan(
        "4.3",
        "Multi-head attention: the laws are QᵀQ − KᵀK and VᵀV − OᵀO of every head, heads · d_h(d_h + 1) numbers, and functions of these.",
        f"{SEED}, Theorem 4.3",
        _counts(
            attention_laws,
            MHA,
            Size("mha", {"dim": 3, "heads": 2, "head_dim": 2}),
            Size("mha", {"dim": 5, "heads": 2, "head_dim": 3, "causal": True}),
            Size("mha", {"dim": 16, "heads": 4, "head_dim": 4}),
        ),
    ),
    _Plan(
        "4.3-sinusoidal",
        "A sinusoidal encoding that is added to the input changes nothing: the laws are those of Theorem 4.3.",
        f"{SEED}, corollary of Theorem 4.3",
        _counts(
            attention_laws,
            Size("mha", {"dim": 2, "heads": 1, "head_dim": 2, "position": "sinusoidal"}, "ball"),
            Size("mha", {"dim": 3, "heads": 2, "head_dim": 2, "position": "sinusoidal"}),
        ),
    ),
    _Plan(
        "4.4",
        "With rotary encoding, ‖Q⁽ʲ⁾‖² − ‖K⁽ʲ⁾‖² of every frequency remains of the law of Q and K; that of V and O stays as it is.",
        f"{SEED}, Theorem 4.4",
        _counts(
            rotary_laws,
            ROPE,
            Size("rope", {"dim": 3, "heads": 1, "head_dim": 4}),
            Size("rope", {"dim": 5, "heads": 2, "head_dim": 2, "causal": True}),
            Size("rope", {"dim": 8, "heads": 2, "head_dim": 4}),
        ),
    ),
    _Plan(
        "4.5",
        "A dense mixture of SwiGLU experts under a softmax gate has the laws of its experts, the d numbers Σ_e W_e, and no others.",
        f"{SEED}, Theorem 4.5",
        (
            *_counts(
                mixture_laws,
                MOE,
                Size("moe", {"dim": 3, "hidden": 2, "out": 2, "experts": 3}, "ball"),
                Size("moe", {"dim": 8, "hidden": 12, "out": 8, "experts": 4}),
            ),
            *_counts(expert_laws, Size("moe", {"dim": 2, "hidden": 2, "out": 3, "experts": 2, "z_loss": True}), role="control"),
        ),
    ),
    _Plan(
        "4.6",
        "A sparse mixture with k > 1 active experts has the laws of the dense one. With k = 1 and renormalised weights the gate is constant "
        "and the router gets no gradient: only the experts have laws.",
        f"{SEED}, Theorem 4.6",
        (
            *_counts(
                mixture_laws,
                Size("moe", SPARSE | {"top_k": 2}, "ball"),
                Size("moe", SPARSE | {"top_k": 2, "gate": "topk_softmax"}, "ball"),
                Size("moe", {"dim": 3, "hidden": 2, "out": 2, "experts": 3, "top_k": 2, "renormalize": True}),
                Size("moe", {"dim": 5, "hidden": 4, "out": 3, "experts": 4, "top_k": 3}),
            ),
            *_counts(expert_laws, Size("moe", SPARSE | {"top_k": 1, "gate": "topk_softmax"}, "ball"), role="beside"),
            partial(_silent_router, Size("moe", SPARSE | {"top_k": 1, "gate": "topk_softmax"}, "ball"), "beside"),
            *_counts(mixture_laws, Size("moe", SPARSE | {"top_k": 1}, "ball"), role="beside"),
        ),
    ),
    _Plan(
        "4.7",
        "Under a normalised sigmoid gate, dense or sparse, a mixture has the laws of its experts and the d numbers Σ_e W_e.",
        f"{SEED}, Theorem 4.7",
        (
            partial(_exact_router, "sigmoid", "claim"),
            *_counts(mixture_laws, *SIGMOID),
            *_counts(expert_laws, *SIGMOID, role="beside"),
            partial(_router_of_the_block, "beside"),
            partial(_exact_router, "softmax", "control"),
        ),
    ),
    _Plan(
        "level-sets",
        "The laws are all that gradient flow keeps: the Lie algebra has rank D − number of laws, and flows reach every direction along the level sets.",
        f"{SEED}, completeness",
        (
            *(partial(_algebra, size, formula, "claim") for size, formula in _LEVELS),
            *(partial(_reached, size, formula, "claim") for size, formula in _LEVELS),
            partial(_reached, Size("bilinear", {"dim": 2, "hidden": 3, "out": 2}), gated_pair_laws, "control"),
        ),
    ),
    _Plan(
        "discretization",
        "k steps of gradient descent with learning rate τ move a law by O(τ²k); a quadratic one by Σ τ²h(g) exactly.",
        f"{SEED}, discretisation",
        (
            *(partial(_exponent, size, variable, expected, "claim") for size in _TRAINED for variable, expected in (("τ", 2.0), ("k", 1.0))),
            *(partial(_identity, size, "claim") for size in _TRAINED),
            partial(_exact_identity, (2, 3, 2), "claim"),
            partial(_exponent, _TRAINED[0], "τ", 1.0, "control", false=True),
        ),
    ),
)
"""The claims of the paper, in its order."""


def audit(claims: Sequence[str] | None = None, *, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> AuditResult:
    """Check the claims of the paper.

    Args:
        claims: ids of `PLANS`, such as "4.2" or "level-sets"; None for all.
        seed: of everything random.
        progress: called with (checks done, checks in all).

    Raises:
        UnknownNameError: no claim has that id.
        ConfigurationError: the seed is no whole number from 0 to 2**63 − 1.

    Example:
        >>> found = audit(["4.2"])
        >>> [(claim.id, claim.verdict, claim.summary) for claim in found.claims]
        [('4.2', 'proved', 'proved in 2, numerical in 1 of 3 checks')]
        >>> found.holds
        True
    """
    if not 0 <= seed < 2**63:
        raise ConfigurationError(f"audit: seed={seed}; give a whole number from 0 to 2**63 - 1")
    known = [plan.id for plan in PLANS]
    for name in claims or ():
        if name not in known:
            raise UnknownNameError(f"the audit has no claim {name!r}; choose among {', '.join(known)}")
    chosen = [plan for plan in PLANS if not claims or plan.id in claims]
    total, done, bench = sum(len(plan.jobs) for plan in chosen), 0, _Bench(seed)
    began, found = time.perf_counter(), []
    for plan in chosen:
        checks = []
        for job in plan.jobs:
            checks.append(job(bench))
            done += 1
            if progress is not None:
                progress(done, total)
        found.append(Claim(plan.id, plan.statement, plan.source, tuple(checks)))
    versions = {"conserved": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return AuditResult(SEED, tuple(found), seed, versions, time.perf_counter() - began)
