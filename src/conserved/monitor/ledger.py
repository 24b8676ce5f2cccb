r"""The ledger: every bit of drift of a law, split without remainder.

For an update θ⁺ = θ + Δ and the bilinear form B of a law,

    h(θ⁺) − h(θ) = 2B(θ, Δ) + h(Δ)                          exact
    2B(θ, Δ)     = decay + work,   decay = 2B(θ, −τλθ)

| part | meaning | plain SGD |
| --- | --- | --- |
| step_size | Σ h(Δ): steps are not infinitesimal | Σ τ²h(g) |
| decay | Σ 2B(θ, −τλθ): weight decay | −2τλ h(θ) |
| work | Σ 2B(θ, Δ) − decay: what the optimiser does beyond following the gradient, or a wrong gradient | 0 |
| rounding | what is left of h(θ_k) − h(θ_0): rounding of weights, of gradients, of these sums | – |

For plain SGD, Δ is known before it is rounded into the weights, and −τ⟨∇h, g⟩ is booked as work only where it
exceeds what rounding of the gradient explains (`conserved.tolerance`); so rounding is all that low precision
does. For other optimisers Δ is measured on the weights, and the rounding of the update is part of its work.

Source: new; the second-order term is the O(τ²k) of arXiv 2606.17816, as an equality.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conserved.errors import RunError
from conserved.law import Evaluator, LawSet
from conserved.law.evaluate import FIRST, MAGNITUDE, SECOND, VALUE, Forms, Tensors
from conserved.law.quantities import relative
from conserved.monitor.update import PlainStep
from conserved.tolerance import residual_bound

PARTS = ("step_size", "decay", "work")


@dataclass(frozen=True)
class LawAccount:
    """Where the drift of one law stands.

    Scalars are norms over the components of the law, in units of h; the parts are projected on the
    direction of the drift, so step_size + decay + work + rounding = drift. None is "not evaluated".

    Args:
        name: of the law.
        size: ‖h(θ_k)‖.
        drift: ‖h(θ_k) − h(θ_0)‖.
        predicted: ‖Σ τ²h(g)‖ for plain SGD without decay.
        mismatch: ‖drift − predicted‖ / ‖drift‖ as vectors; None where nothing is predicted or the law is linear
            (it does not drift under plain SGD).
        residual: worst component of the gradient identity at the last evaluated step.
        worst_residual: the same over all evaluated steps.
        step_size, decay, work, rounding: the parts.
        floor: ‖rounding‖ as a vector: a drift below it cannot be told from rounding.
    """

    name: str
    size: float | None
    drift: float | None
    predicted: float | None
    mismatch: float | None
    residual: float | None
    worst_residual: float | None
    step_size: float | None
    decay: float | None
    work: float | None
    rounding: float | None
    floor: float | None


class Ledger:
    """Running sums for a set of laws; tensors in float64, one for each batch of equal laws.

    Args:
        laws: the laws.
        params: parameters at the start, θ_0.
        split: whether the parts are kept, or only drift and residual.

    Raises:
        NonFiniteError, MissingParameterError, ShapeMismatchError: as evaluation does.
    """

    def __init__(self, laws: LawSet, params: Tensors, split: bool = True) -> None:
        self.laws, self.split = laws, split
        self.offset = any(term.offset for law in laws for term in law.terms)
        self._values = Evaluator(laws, dtype=torch.float64)
        self._steps = Evaluator(laws)
        self.plan = self._values.plan
        self.current = self._evaluate(params)
        self.initial = [part.clone() for part in self.current]
        self.sums = {name: [torch.zeros_like(part) for part in self.initial] for name in (*PARTS, "predicted")}
        self.predictable = True
        self.residuals = [torch.full(part.shape[:1], torch.nan, dtype=torch.float64, device=part.device) for part in self.initial]
        self.worst = [part.clone() for part in self.residuals]
        self._bounds = [_bounds(laws, batch.laws, params) for batch in self.plan.batches]

    def _evaluate(self, params: Tensors) -> list[Tensor]:
        return [part.clone() for part in self._values(params, wanted=(VALUE,)).parts[VALUE]]

    def observe(self, params: Tensors) -> None:
        """Take the value h(θ_k)."""
        for held, part in zip(self.current, self._values(params, wanted=(VALUE,)).parts[VALUE], strict=True):
            held.copy_(part)

    def check(self, params: Tensors, grads: Tensors) -> None:
        """Take the residuals of a gradient, without booking anything."""
        self._take_residuals(self._steps(params, grads, (FIRST, MAGNITUDE)))

    def book_plain(self, params: Tensors, grads: Tensors, step: PlainStep, weight: int = 1) -> None:
        """Book a plain step Δ = −τ(g + λθ) before it is taken.

        Args:
            params: θ.
            grads: g.
            step: τ and λ.
            weight: number of steps that this one stands for (sampled ledger).
        """
        forms = self._steps(params, grads, (FIRST, SECOND, MAGNITUDE))
        self._take_residuals(forms)
        if step.decay:
            self.predictable = False
            self.observe(params)
        rate, decay = step.rate, step.decay
        for number, batch in enumerate(self.plan.batches):
            first, second, magnitude = (forms.parts[kind][number].double() for kind in (FIRST, SECOND, MAGNITUDE))
            self.sums["predicted"][number].add_(second, alpha=weight * rate**2)
            identity = torch.where(relative(first, magnitude) > self._bounds[number], first, 0.0)
            self.sums["work"][number].add_(identity, alpha=-weight * rate)
            if decay:
                value = self.current[number]
                degree = batch.degree
                self.sums["decay"][number].add_(value, alpha=-weight * degree * rate * decay)
                if degree == 2:  # h(g + λθ) = h(g) + λ·2B(θ, g) + λ²h(θ)
                    second = second + decay * first + decay**2 * value
            self.sums["step_size"][number].add_(second, alpha=weight * rate**2)

    def book_decay(self, params: Tensors, factors: Mapping[str, float], weight: int = 1) -> None:
        """Book the weight decay of a step before it is taken, and take it out of the work.

        Args:
            params: θ.
            factors: τλ for each parameter that the step shrinks.
            weight: number of steps that this one stands for.
        """
        if set(self.laws.parameters) <= factors.keys() and len(set(factors.values())) == 1 and not self.offset:
            self.observe(params)  # one factor for all: 2B(θ, −τλθ) is a multiple of h(θ)
            factor = next(iter(factors.values()))
            parts = [value * (-factor * batch.degree) for value, batch in zip(self.current, self.plan.batches, strict=True)]
        else:
            parts = self._steps(params, {name: params[name] * -factor for name, factor in factors.items()}, (FIRST,)).parts[FIRST]
        for number, part in enumerate(parts):
            self.sums["decay"][number].add_(part, alpha=weight)
            self.sums["work"][number].sub_(part, alpha=weight)

    def book_measured(self, after: Tensors, update: Tensors, weight: int = 1) -> None:
        """Book the measured update Δ = θ⁺ − θ of any optimiser.

        It is evaluated at θ⁺, so that θ need not be kept: 2B(θ, Δ) = 2B(θ⁺, Δ) − 2h(Δ).

        Args:
            after: θ⁺.
            update: Δ.
            weight: number of steps that this one stands for.
        """
        self.predictable = False
        forms = self._steps(after, update, (FIRST, SECOND))
        for number, (first, second) in enumerate(zip(forms.parts[FIRST], forms.parts[SECOND], strict=True)):
            self.sums["work"][number].add_(first, alpha=weight).sub_(second, alpha=2 * weight)
            self.sums["step_size"][number].add_(second, alpha=weight)

    def _take_residuals(self, forms: Forms) -> None:
        for number, (first, magnitude) in enumerate(zip(forms.parts[FIRST], forms.parts[MAGNITUDE], strict=True)):
            each = _rows(relative(first, magnitude)).double()
            seen = torch.where(each.isnan(), -1.0, each).amax(1)
            self.residuals[number] = torch.where(seen < 0, torch.nan, seen)
            self.worst[number] = torch.fmax(self.worst[number], self.residuals[number])

    def accounts(self) -> list[LawAccount]:
        """Where every law stands, in the order of the laws."""
        out: dict[int, LawAccount] = {}
        for number, batch in enumerate(self.plan.batches):
            now, start = _rows(self.current[number]), _rows(self.initial[number])
            drift = now - start
            norm = drift.norm(dim=1)
            unit = drift / torch.where(norm > 0, norm, 1.0)[:, None]
            parts = {name: (_rows(self.sums[name][number]) * unit).sum(1) for name in PARTS}
            predicted = _rows(self.sums["predicted"][number])
            unexplained = drift - sum(_rows(self.sums[name][number]) for name in PARTS)
            mismatch = (drift - predicted).norm(dim=1) / norm
            columns = {
                "size": now.norm(dim=1),
                "drift": norm,
                "predicted": predicted.norm(dim=1),
                "mismatch": mismatch if batch.degree == 2 else torch.full_like(norm, torch.nan),
                "residual": self.residuals[number],
                "worst_residual": self.worst[number],
                **parts,
                "rounding": norm - sum(parts.values()),
                "floor": unexplained.norm(dim=1),
            }
            table = torch.stack([column.to(norm.device) for column in columns.values()]).T.tolist()
            for row, law in zip(table, batch.laws, strict=True):
                cells = {key: value if math.isfinite(value) else None for key, value in zip(columns, row, strict=True)}
                if not self.split:
                    cells |= dict.fromkeys((*PARTS, "rounding", "floor", "predicted", "mismatch"))
                if not self.predictable:
                    cells |= {"predicted": None, "mismatch": None}
                out[law] = LawAccount(self.laws[law].name, **cells)
        return [out[number] for number in range(len(self.laws))]

    def state_dict(self) -> dict[str, Any]:
        """All sums, to continue exactly."""
        held = {"initial": self.initial, "current": self.current, "residuals": self.residuals, "worst": self.worst, **self.sums}
        tensors = {key: [tensor.cpu().clone() for tensor in value] for key, value in held.items()}
        return {"laws": self.laws.to_json(), "predictable": self.predictable, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            RunError: the state is of other laws, or the weights are not those it was saved with.
        """
        if LawSet.from_json(state["laws"]) != self.laws:
            raise RunError("the state to resume is of other laws; resume with the model it was saved with")
        tensors = state["tensors"]
        for mine, theirs in zip(self.current, tensors["current"], strict=True):
            if not torch.equal(mine.cpu(), theirs):
                raise RunError("the weights are not those that the state was saved with; load the model's checkpoint of the same step before resuming")
        self.predictable = state["predictable"]
        for key, held in {"initial": self.initial, "residuals": self.residuals, "worst": self.worst, **self.sums}.items():
            for mine, theirs in zip(held, tensors[key], strict=True):
                mine.copy_(theirs)


def _bounds(laws: LawSet, rows: tuple[int, ...], params: Tensors) -> Tensor:
    """For each law of a batch, the residual that rounding explains; −1 for an approximate law, where none is explained."""
    like = params[laws[rows[0]].terms[0].parameter]
    bounds = [max(residual_bound(params[n].dtype) for n in laws[r].parameters) if laws[r].exact else -1.0 for r in rows]
    shape = (-1, *[1] * len(laws[rows[0]].value_shape))
    return torch.tensor(bounds, dtype=torch.float64, device=like.device).reshape(shape)


def _rows(tensor: Tensor) -> Tensor:
    """(laws, components): a law of one number has no axis of its own."""
    return tensor.reshape(tensor.shape[0], -1)
