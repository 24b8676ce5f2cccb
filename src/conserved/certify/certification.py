r"""How many conservation laws a block has, and whether the closed forms are all of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from conserved.catalog import BLOCKS, make_block
from conserved.catalog.registry import block_options
from conserved.certify.certificate import ARITHMETICS, Certificate
from conserved.certify.charges import independent, known_gradients
from conserved.certify.flows import Flow, bracket_error
from conserved.certify.lie import MAX_DEPTH, STAGNATION, Closure, closure
from conserved.certify.model import DRAWS, Sample, exact_laws, model_of
from conserved.certify.pde import Share, complement, shares
from conserved.certify.proof import DEPTH, Proof, prove, require_supported
from conserved.certify.rank import CLEAR_GAP
from conserved.certify.sampling import MeromorphicWords, meromorphic
from conserved.certify.scalars import UnsupportedOperation
from conserved.certify.words import RealWords
from conserved.errors import ConfigurationError
from conserved.law import LawSet

VERDICTS = ("proved", "numerical", "refuted", "undecided")
POINTS = 6
"""Points θ of a round that are tried where the fields are analytic only in pieces; the rank at the best one counts."""

PLACES, PROBES = 12, 1024
"""Points at which, and samples with which, it is seen what moves; one point where the fields are analytic."""

ROUNDS = 6
"""Rounds of such points, as long as algebra and known laws do not fill the space."""

WRONG_BRACKET = 1e-3
"""Relative error of brackets above which torch's derivatives are not believed; central differences leave 1e-5 at most."""

MISFIT = 1e-8
"""Relative product of a law's gradient and a field above which the law is not conserved."""

SEARCH_DEPTH = 2
"""Length of the brackets while points are compared; one more with momentum, whose forces come into the velocities only."""


@dataclass(frozen=True)
class Certification:
    """How many laws, with the evidence.

    Attributes:
        block: name of the module's class, or of the catalogue block.
        flow: the flow whose laws are counted.
        parameters: D, trainable entries that move; `unmoved` are apart.
        size: dimension of the state space: D, or 2D + 1 with momentum.
        rank_span: rank of W, the span of the fields themselves.
        rank_lie: dimension of the Lie algebra.
        independent_laws: size − rank_lie; None if undecided.
        known_laws: functionally independent closed forms at the point.
        complete: whether the closed forms are all laws; None if undecided.
        verdict: one of `VERDICTS`.
        reason: what the verdict rests on, or what to try.
        gap: the smallest ratio of singular values that decided a rank.
        arithmetic: "float64", "rational", "modular" or "ball".
        sampling: "real" or "meromorphic".
        seconds: of computation.
        depth: length of the longest brackets taken.
        unmoved: parameters that no gradient moves, of many random inputs; never called laws.
        shares: the parameters' part in the gradients of laws.
        certificate: of a proof by `certify_block`, for `verify`.
    """

    block: str
    flow: str
    parameters: int
    size: int
    rank_span: int
    rank_lie: int
    independent_laws: int | None
    known_laws: int
    complete: bool | None
    verdict: str
    reason: str
    gap: float
    arithmetic: str
    sampling: str
    seconds: float
    depth: int
    unmoved: tuple[str, ...] = ()
    shares: tuple[Share, ...] = field(default=(), repr=False)
    certificate: Certificate | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "block": self.block,
            "flow": self.flow,
            "parameters": self.parameters,
            "size": self.size,
            "rank_span": self.rank_span,
            "rank_lie": self.rank_lie,
            "independent_laws": self.independent_laws,
            "known_laws": self.known_laws,
            "complete": self.complete,
            "verdict": self.verdict,
            "reason": self.reason,
            "gap": self.gap if self.gap != float("inf") else None,
            "arithmetic": self.arithmetic,
            "sampling": self.sampling,
            "seconds": round(self.seconds, 3),
            "depth": self.depth,
            "unmoved": list(self.unmoved),
            "account": [{"parameter": s.parameter, "entries": s.entries, "rank": s.rank} for s in self.shares],
        }

    def __str__(self) -> str:
        """Two lines."""
        known = f"{self.known_laws} known, " + {True: "complete", False: "not complete", None: "completeness open"}[self.complete]
        count = "an undecided number of" if self.independent_laws is None else self.independent_laws
        return f"{self.block}: {count} independent laws of the {self.flow} flow ({known})\n{self.verdict}: {self.reason}"


@dataclass(frozen=True, eq=False)
class _Found:
    """The closure at one point."""

    closure: Closure
    state: Tensor
    moving: Tensor
    law_gradients: Tensor
    law_gap: float
    misfit: float
    sampling: str = "real"
    note: str = ""

    @property
    def bounds(self) -> Tensor:
        """The law gradients as far as they bound the algebra: none if a listed law is not conserved."""
        return self.law_gradients[:0] if self.misfit > MISFIT else self.law_gradients


def certify(
    module: nn.Module,
    example_inputs: tuple[Tensor, ...] | None = None,
    *,
    flow: str = "gradient",
    damping: float = 1.0,
    metric: Callable[[Tensor], Tensor] | None = None,
    arithmetic: str = "float64",
    sampling: str = "auto",
    seed: int = 0,
    name: str | None = None,
) -> Certification:
    r"""Count the independent conservation laws of a module, and compare with its closed forms.

        laws = size − dim Lie(W)(θ)

    Holds near almost every θ: the dimension found at one point is a lower bound of the generic one, and known laws bound it from
    above. In float64 the verdict is at best "numerical", with the singular-value gap that decided. In balls, rationals or a prime
    field it is "proved" where a minor that is certainly not zero and the known laws fill the space.

    Args:
        module: a catalogue block, or any module with `example_inputs`. It is not changed.
        example_inputs: tensors that `forward` takes; they give shapes, values are drawn.
        flow: one of `conserved.certify.flows.FLOWS`: "gradient", "mirror", "momentum", "nesterov", "mirror-momentum".
        damping: γ of the momentum flows with constant damping.
        metric: diagonal of M(θ) of the mirror flow, as a function of flat θ; None takes that of the block: θ on the parameters that
            it keeps positive, 1 elsewhere.
        arithmetic: "float64", or what a proof is sought in: "ball", and for polynomial modules "rational" or "modular".
        sampling: "auto" takes complex data near the singularities of the activations where real data do not fill the space; "real"
            never does, and may then leave wide layers undecided.
        seed: of everything random.
        name: what to call the module.

    Returns:
        The count; without a certificate, which `certify_block` has.

    Raises:
        ConfigurationError: nothing flows, the module is not deterministic, or its fields cannot be differentiated.
        UnsupportedOperation: the arithmetic lacks a function of the module.

    Source: design of the count: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144).

    Example:
        >>> from conserved.catalog import GatedLinearUnit
        >>> found = certify(GatedLinearUnit(dim=3, hidden=4, out=2))
        >>> found.parameters, found.rank_span, found.rank_lie, found.independent_laws, found.complete, found.verdict
        (32, 28, 28, 4, True, 'numerical')
    """
    found = _certified(module, example_inputs, flow=flow, damping=damping, metric=metric, arithmetic=arithmetic, sampling=sampling, seed=seed, name=name)
    return replace(found, certificate=None)  # `verify` builds blocks by name


def _certified(
    module: nn.Module,
    example_inputs: tuple[Tensor, ...] | None = None,
    *,
    flow: str,
    damping: float,
    metric: Callable[[Tensor], Tensor] | None = None,
    arithmetic: str,
    sampling: str = "auto",
    seed: int,
    name: str | None,
) -> Certification:
    """`certify`, with the certificate of a block whose name is not known."""
    began = time.perf_counter()
    if arithmetic not in ARITHMETICS:
        raise ConfigurationError(f"arithmetic {arithmetic!r} is unknown; choose one of {', '.join(ARITHMETICS)}")
    if sampling not in ("auto", "real"):
        raise ConfigurationError(f"sampling {sampling!r} is unknown; choose one of auto, real")
    model = model_of(module, example_inputs)
    generator = torch.Generator().manual_seed(seed)
    flowing = Flow(model, flow, damping, metric)
    if arithmetic != "float64":
        require_supported(flowing, arithmetic, torch.Generator().manual_seed(seed))
    laws = exact_laws(model.module)
    movable = _movable(flowing, laws, generator)
    if model.piecewise:
        found = _at_best_point(flowing, laws, movable, generator)
    else:
        found = _at_point(flowing, laws, movable, _state(flowing, generator), generator, MAX_DEPTH)
    if sampling == "auto" and not (found.closure.filled and found.closure.clear):
        found = _on_complex_data(flowing, found, generator)
    judged = _judge(name or type(module).__name__, flowing, found)
    if judged.verdict == "numerical" and model.piecewise and not found.closure.filled and (hidden := _hidden(flowing, found)):
        judged = replace(judged, verdict="undecided", complete=None, independent_laws=None, reason=hidden)
    if judged.verdict == "numerical" and len(found.closure.ranks) > 1 and (error := _bracket_error(flowing, found, generator)) > WRONG_BRACKET:
        reason = f"derivatives of {judged.block}'s gradients are wrong, as after detach(): its brackets differ from central differences by {error:.0%}"
        judged = replace(judged, verdict="undecided", complete=None, independent_laws=None, reason=reason)
    if arithmetic != "float64" and judged.verdict != "refuted":
        judged = _proved(judged, prove(flowing, found.state, found.moving, arithmetic, generator, _depth_of_proof(found.closure)), arithmetic, flowing, found)
    return replace(judged, seconds=time.perf_counter() - began)


def certify_block(
    block: str,
    options: Mapping[str, Any] | None = None,
    *,
    flow: str = "gradient",
    damping: float = 1.0,
    arithmetic: str = "float64",
    seed: int = 0,
) -> Certification:
    """`certify` for a catalogue block by name; a proof comes with a certificate that can be saved and verified.

    Args:
        block: a key of `conserved.catalog.BLOCKS`.
        options: of the block.
        flow: as in `certify`.
        damping: as in `certify`.
        arithmetic: as in `certify`.
        seed: of everything random.

    Raises:
        UnknownNameError: no block or option of that name.
        ConfigurationError: as in `certify`, and options that contradict each other.

    Example:
        >>> from conserved.certify.certificate import verify
        >>> found = certify_block("linear", {"dims": (3, 2, 3)}, arithmetic="rational")
        >>> print(found)
        linear: 3 independent laws of the gradient flow (3 known, complete)
        proved: a minor of order 9 is not zero, 3 closed forms are independent, together all 12 dimensions
        >>> verify(found.certificate).valid
        True
    """
    given = block_options(block) | dict(options or {}) if block in BLOCKS else options
    found = _certified(make_block(block, given), flow=flow, damping=damping, arithmetic=arithmetic, seed=seed, name=block)
    if found.certificate is None:
        return found
    return replace(found, certificate=replace(found.certificate, block=block, options=dict(given or {})))


def _proved(judged: Certification, proof: Proof, arithmetic: str, flow: Flow, found: _Found) -> Certification:
    rank = proof.ranks[-1]
    if not proof.complete:
        more = f"{arithmetic} arithmetic proves rank ≥ {rank}, which with {proof.laws} known laws leaves {proof.size - rank - proof.laws} dimensions open"
        more += f", without brackets of {len(proof.ranks) + 1} fields ({proof.stopped})" if proof.stopped else ""
        return replace(judged, reason=f"{judged.reason}; {more}", arithmetic=arithmetic)
    certificate = Certificate(
        "", {}, flow.kind, flow.damping, arithmetic, proof.parameter, tuple(found.state.tolist()), tuple(found.moving.tolist()),
        proof.letters, proof.columns, proof.laws, proof.determinant,
    )  # fmt: skip
    near = " near the point, whose pieces these are" if flow.model.piecewise else ""
    reason = f"a minor of order {rank} is not zero, {proof.laws} closed forms are independent, together all {proof.size} dimensions{near}"
    named = replace(judged, rank_span=proof.ranks[0], rank_lie=rank, independent_laws=proof.laws, known_laws=proof.laws, complete=True)
    return replace(named, verdict="proved", reason=reason, arithmetic=arithmetic, depth=len(proof.ranks), certificate=None if flow.metric else certificate)


def _state(flow: Flow, generator: torch.Generator) -> Tensor:
    return flow.state(flow.model.generic_point(generator), generator)


def _movable(flow: Flow, laws: LawSet, generator: torch.Generator) -> Tensor:
    """Which coordinates of the state some field moves, at one of several points; at a single one, units that are off would hide theirs.

    Raises:
        ConfigurationError: none.
    """
    moved = torch.zeros(flow.size, dtype=torch.bool)
    everything = torch.arange(flow.size)
    for _ in range(PLACES if flow.model.piecewise else 1):
        theta = flow.model.generic_point(generator)
        if flow.model.piecewise and not flow.model.positive:  # biases too are far from where they were
            theta = theta + torch.randn(len(theta), generator=generator, dtype=torch.float64)
        state = flow.state(theta, generator)
        probe = RealWords(flow, state, everything, generator)(1, max(24, min(PROBES, 2**21 // flow.size)))
        moved |= (probe.abs() > 1e-12 * probe.abs().amax(1, keepdim=True)).any(0)
        moved |= (known_gradients(flow, laws, state).abs() > 0).any(0)
    if flow.has_velocity:  # a coordinate and its velocity move or rest together
        force = moved[flow.model.size + 1 :]
        moved = torch.cat((torch.ones(1, dtype=torch.bool), force, force))
    if not moved.any() or (flow.has_velocity and not force.any()):
        raise ConfigurationError(f"{type(flow.model.module).__name__}: no parameter moves along the {flow.kind} flow; look at its metric and its outputs")
    return moved


def _hidden(flow: Flow, found: _Found) -> str:
    """Why data and point may not show all that the fields can do; empty if nothing says so."""
    whole = f"; {type(flow.model.module).__name__} is analytic only in pieces, and others may have fewer laws: another seed may find a better point"
    probe = RealWords(flow, found.state, found.moving, torch.Generator().manual_seed(3))(1, PROBES)
    if resting := int((probe.abs().amax(0) == 0).sum()):
        return f"{resting} of {len(found.moving)} coordinates move on none of {PROBES} inputs, though they can{whole}"
    theta = found.state[1 : flow.model.size + 1] if flow.has_velocity else found.state
    if idle := flow.model.one_sided(theta):
        return f"{idle} units are on one side of their hinge on all but a few of 4096 inputs{whole}"
    return ""


def _at_best_point(flow: Flow, laws: LawSet, movable: Tensor, generator: torch.Generator) -> _Found:
    """Where the algebra is largest, or fills the space, of a few telling points; brackets are long only there."""
    best: _Found | None = None
    for turn in range(ROUNDS):
        before = best
        for theta in flow.model.points(generator, POINTS, min(DRAWS, 64 * 2**turn)):  # most need few
            found = _at_point(flow, laws, movable, flow.state(theta, generator), generator, SEARCH_DEPTH + flow.has_velocity)
            if found.closure.filled:
                return found
            if best is None or (found.closure.rank, found.closure.gap) > (best.closure.rank, best.closure.gap):
                best = found
        if not flow.model.has_hinges or (not len(laws) and before is not None and best is before):
            break
    assert best is not None  # ROUNDS and POINTS > 0
    return _at_point(flow, laws, movable, best.state, generator, MAX_DEPTH)


def _at_point(flow: Flow, laws: LawSet, movable: Tensor, state: Tensor, generator: torch.Generator, depth: int) -> _Found:
    gradients = known_gradients(flow, laws, state)
    moving = torch.arange(flow.size)[movable]
    basis, law_gap = independent(gradients[:, moving])
    probe = RealWords(flow, state, moving, generator)(1, 24)
    misfit = float((probe @ basis.mT).abs().max() / probe.abs().max()) if len(basis) else 0.0
    bounds = basis[:0] if misfit > MISFIT else basis
    least = min(4 * PROBES if depth == MAX_DEPTH else PROBES, 2**21 // len(moving)) if flow.model.piecewise else 0
    words = RealWords(flow, state, moving, generator)
    result = closure(words, len(moving), bounds, exhaustive=flow.model.piecewise, max_depth=depth, least=least)
    return _Found(result, state, moving, basis, law_gap, misfit)


def _bracket_error(flow: Flow, found: _Found, generator: torch.Generator) -> float:
    """The largest error of brackets as long as those that were taken; the smallest of a few for each length, since a kink makes some large."""
    worst = 0.0
    for depth in range(2, min(len(found.closure.ranks), 3) + 1):
        errors = list[float]()
        for _ in range(3):
            letters = (flow.model.samples(1, generator) for _ in range(depth))
            samples = tuple(Sample(tuple(x[0] for x in one.inputs), one.cotangent[0], one.drift[0]) for one in letters)
            errors.append(bracket_error(flow, found.state, samples))
        worst = max(worst, min(errors))
    return worst


def _on_complex_data(flow: Flow, found: _Found, generator: torch.Generator) -> _Found:
    """The closure with meromorphic sampling, if that is possible and does not find less."""
    words = meromorphic(flow, found.state, found.moving, generator)
    if isinstance(words, str):
        return replace(found, note=f"; real data only: {words}")
    try:
        return _with_complex(words, found)
    except UnsupportedOperation as error:  # derivatives may bring operations that the fields themselves do not have
        return replace(found, note=f"; real data only: complex evaluation is impossible ({str(error).split(';')[0]})")


def _last_of_use(done: Closure) -> int:
    """Length of the longest brackets that brought something to a closure that stagnated."""
    return max(1, len(done.ranks) - STAGNATION)


def _depth_of_proof(done: Closure) -> int:
    """Length of the brackets that are worth their exact evaluation."""
    return min(_last_of_use(done), DEPTH) if done.clear and not done.filled else DEPTH


def _with_complex(words: MeromorphicWords, found: _Found) -> _Found:
    if found.closure.clear:  # then as long brackets as brought something, to see whether complex data bring more
        depth = _last_of_use(found.closure)
        if closure(words, len(found.moving), found.bounds, exhaustive=True, max_depth=depth).rank <= found.closure.rank:
            return replace(found, note="; complex data add nothing")
    done = closure(words, len(found.moving), found.bounds, exhaustive=True)
    if (done.clear, done.rank) < (found.closure.clear, found.closure.rank):
        return replace(found, note="; complex data gave no clearer rank")
    return replace(found, closure=done, sampling="meromorphic")


def _judge(name: str, flow: Flow, found: _Found) -> Certification:
    done, known = found.closure, len(found.law_gradients)
    count: int | None = done.size - done.rank
    gap = min(done.gap, found.law_gap)
    if found.misfit > MISFIT or done.rank + known > done.size:
        verdict, complete, count = "refuted", False, count if done.clear else None
        reason = f"listed laws are not conserved: their gradients are not orthogonal to the fields (relative product {found.misfit:.1e})"
    elif not done.clear or found.law_gap < CLEAR_GAP:
        verdict, complete, count = "undecided", None, None
        unsettled = f"brackets of depth {len(done.ranks)} still add directions" if not done.settled and done.gap >= CLEAR_GAP else f"no clear gap ({gap:.1e})"
        reason = f"{unsettled}; try another seed, smaller sizes, or arithmetic='ball'{found.note}"
    else:
        verdict, complete = "numerical", count == known
        reason = f"rank {done.rank} of {done.size} at a random point, singular values apart by {gap:.0e}{found.note}"
    places = _places(flow, found.moving)
    rest = complement(done.span) if done.span is not None else found.bounds
    return Certification(
        name, flow.kind, _parameters(flow, found.moving), done.size, done.ranks[0], done.rank, count, known, complete, verdict, reason, gap,
        "float64", found.sampling, 0.0, len(done.ranks), _unmoved(flow, found.moving), shares(rest, places),
    )  # fmt: skip


def _parameters(flow: Flow, moving: Tensor) -> int:
    return (len(moving) - 1) // 2 if flow.has_velocity else len(moving)


def _places(flow: Flow, moving: Tensor) -> dict[str, Tensor]:
    """Positions among the moving coordinates of every parameter's entries (with momentum: of θ, not of θ̇)."""
    first = 1 if flow.has_velocity else 0
    places, start = {}, first
    for name, part in flow.model.parameters(torch.zeros(flow.model.size)).items():
        places[name] = ((moving >= start) & (moving < start + part.numel())).nonzero().flatten()
        start += part.numel()
    return places


def _unmoved(flow: Flow, moving: Tensor) -> tuple[str, ...]:
    out = []
    for name, at in _places(flow, moving).items():
        entries = flow.model.parameters(torch.zeros(flow.model.size))[name].numel()
        if len(at) < entries:
            out.append(name if not len(at) else f"{name} ({entries - len(at)} of {entries} entries)")
    return tuple(out)
