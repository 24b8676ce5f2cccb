r"""The flows whose laws are counted, each as a family of vector fields on its state space.

    gradient    θ̇ = −∇L(θ)                              state θ
    mirror      θ̇ = −M(θ) ∇L(θ), M diagonal             state θ
    momentum    θ̈ + γ θ̇ = −∇L(θ)                        state (t, θ, θ̇)
    nesterov    θ̈ + (3/t) θ̇ = −∇L(θ)                    state (t, θ, θ̇)
    mirror-momentum    θ̈ + γ θ̇ = −M(θ + θ̇/γ) ∇L(θ)     state (t, θ, θ̇)

The last is accelerated mirror descent: with M = (∇²φ)⁻¹ it says d/dt ∇φ(θ + θ̇/γ) = −∇L(θ)/γ (Wibisono, Wilson, Jordan 2016,
arXiv 1603.04245).

For every data set and loss, ∇L is a combination of the gradient fields g(θ; x, c), so the velocities of a flow are
combinations of *generators*, each given by one sample. The laws of the flow are the functions that all generators, and
hence all their iterated Lie brackets, annihilate.

Source: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144); for momentum and mirror flows 2024 (arXiv 2405.12888).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor
from torch.func import jvp

from conserved.certify.model import Model, Sample, exact
from conserved.errors import ConfigurationError

Field = Callable[[Tensor], Tensor]
"""A vector field: state (size,) to velocity (size,)."""

COMMUTING = 1e-4
"""Relative size of brackets below which an error of theirs counts less; differences leave 1e-11."""

FLOWS = ("gradient", "momentum", "nesterov", "mirror", "mirror-momentum")


@dataclass(frozen=True, eq=False)
class Flow:
    r"""A flow on the parameters of a model.

    Args:
        model: the model whose parameters flow.
        kind: one of `FLOWS`.
        damping: γ of "momentum" and "mirror-momentum"; not 0 for the latter.
        metric: diagonal of M as a function of flat θ, for the mirror flows; None takes the module's own: θ on the parameters that it keeps
            positive, 1 elsewhere.

    Raises:
        ConfigurationError: an unknown kind, a damping that is not finite, a mirror flow without a metric, a metric of another shape, or
            mirror-momentum without damping.
    """

    model: Model
    kind: str = "gradient"
    damping: float = 1.0
    metric: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Check the choices."""
        if self.kind not in FLOWS:
            raise ConfigurationError(f"flow {self.kind!r} is unknown; choose one of {', '.join(FLOWS)}")
        if self.metric is not None and not self.has_metric:
            raise ConfigurationError(f"the {self.kind} flow has no metric; choose mirror or mirror-momentum")
        if self.metric is not None:
            shape = tuple(self.metric(torch.ones(self.model.size, dtype=torch.float64)).shape)
            if shape != (self.model.size,):
                raise ConfigurationError(f"the value of metric has shape {shape}, its parameters ({self.model.size},); return the diagonal of M")
        if not isfinite(self.damping):
            raise ConfigurationError(f"damping={self.damping}; give a finite number")
        if self.kind == "mirror-momentum" and not self.damping:
            raise ConfigurationError("the mirror-momentum flow takes its metric at θ + θ̇/γ; give a damping that is not 0")
        if self.has_metric and self.metric is None and not self.model.positive:
            raise ConfigurationError(
                f"{type(self.model.module).__name__} has no metric of its own; pass metric=, the diagonal of M as a function of flat parameters"
            )

    @property
    def has_velocity(self) -> bool:
        """Whether the state is (t, θ, θ̇) rather than θ."""
        return self.kind in ("momentum", "nesterov", "mirror-momentum")

    @property
    def has_metric(self) -> bool:
        """Whether gradients are multiplied by a metric."""
        return self.kind in ("mirror", "mirror-momentum")

    def force(self, theta: Tensor, at: Tensor, sample: Sample) -> Tensor:
        """The gradient g of a sample at θ, multiplied by the metric at a point of its own: M(at) g(θ), or g."""
        gradient = self.model.gradient(theta, sample)
        return (self.metric or self.model.entropy_metric)(at) * gradient if self.has_metric else gradient

    @property
    def size(self) -> int:
        """Dimension of the state space."""
        return 2 * self.model.size + 1 if self.has_velocity else self.model.size

    def state(self, theta: Tensor, generator: torch.Generator) -> Tensor:
        """A state over θ: θ itself, or (t, θ, θ̇) with a random velocity, at t = 0 with momentum and t = 1 with Nesterov's.

        Like θ it is exact in every arithmetic, and so are e^{γt} and t³ there. Constant damping knows no special time.
        """
        if not self.has_velocity:
            return theta
        velocity = exact(torch.randn(theta.shape, generator=generator, dtype=theta.dtype))
        return torch.cat((torch.tensor([1.0 if self.kind == "nesterov" else 0.0], dtype=theta.dtype), theta, velocity))

    def theta(self, state: Tensor) -> Tensor:
        """The parameters at a state."""
        return state[1 : self.model.size + 1] if self.has_velocity else state

    def generator(self, sample: Sample) -> Field:
        """The vector field of one sample.

        With momentum: a multiple of the drift (1, θ̇, −γθ̇) plus the force (0, 0, g). Brackets are multilinear, so random
        multiples span the same algebra as the drift and all forces do.
        """
        if not self.has_velocity:
            return lambda theta: self.force(theta, theta, sample)
        return lambda state: self._accelerated(state, sample)

    def _accelerated(self, state: Tensor, sample: Sample) -> Tensor:
        n = self.model.size
        time, theta, velocity = state[:1], state[1 : n + 1], state[n + 1 :]
        damping = 3 / time if self.kind == "nesterov" else self.damping
        force = self.force(theta, theta + velocity / self.damping if self.has_metric else theta, sample)
        drift = sample.drift
        return torch.cat((drift * torch.ones_like(time), drift * velocity, force - drift * damping * velocity))


def bracket(first: Field, second: Field) -> Field:
    """The Lie bracket [u, v] = Dv·u − Du·v of two vector fields, by forward derivatives.

    For gradient fields this is H_v u − H_u v with the Hessians of their potentials.
    """

    def field(state: Tensor) -> Tensor:
        v, dv = jvp(second, (state,), (first(state),))  # type: ignore[misc]  # without has_aux there are two
        _, du = jvp(first, (state,), (v,))  # type: ignore[misc]
        return dv - du  # type: ignore[no-any-return]

    return field


def word(flow: Flow, samples: tuple[Sample, ...]) -> Field:
    """The left-normed bracket [v_1, [v_2, … [v_{k−1}, v_k]]] of the generators of k samples; they span the Lie algebra."""
    field = flow.generator(samples[-1])
    for sample in reversed(samples[:-1]):
        field = bracket(flow.generator(sample), field)
    return field


def bracket_error(flow: Flow, state: Tensor, samples: tuple[Sample, ...]) -> float:
    """Relative distance of a word from its value by central differences: what derivatives of torch are worth on this module.

    About 1e-8 where they are right; a kink between the points makes it large, too. Of fields that commute, words and differences
    are rounding: they are measured by the product of the fields.
    """
    first, rest = flow.generator(samples[0]), word(flow, samples[1:])
    exactly = word(flow, samples)(state)

    def along(field: Field, direction: Tensor) -> Tensor:
        step: Tensor = 1e-5 * torch.linalg.vector_norm(state) / torch.linalg.vector_norm(direction).clamp(min=1e-300)
        difference: Tensor = field(state + step * direction) - field(state - step * direction)
        return difference / (2 * step)

    differences = along(rest, first(state)) - along(first, rest(state))
    lengths = [torch.linalg.vector_norm(flow.generator(sample)(state)) for sample in samples]
    product = torch.stack(lengths).prod() / torch.linalg.vector_norm(state) ** (len(samples) - 1)
    scale = torch.linalg.vector_norm(exactly) + torch.linalg.vector_norm(differences) + COMMUTING * product
    return float(torch.linalg.vector_norm(exactly - differences) / scale) if scale > 0 else 0.0
