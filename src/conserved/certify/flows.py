r"""The flows whose laws are counted, each as a family of vector fields on its state space.

    gradient    θ̇ = −∇L(θ)                              state θ
    mirror      θ̇ = −M(θ) ∇L(θ), M diagonal             state θ
    momentum    θ̈ + γ θ̇ = −∇L(θ)                        state (t, θ, θ̇)
    nesterov    θ̈ + (3/t) θ̇ = −∇L(θ)                    state (t, θ, θ̇)

For every data set and loss, ∇L is a combination of the gradient fields g(θ; x, c), so the velocities of a flow are
combinations of *generators*, each given by one sample. The laws of the flow are the functions that all generators, and
hence all their iterated Lie brackets, annihilate.

Source: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144); for momentum and mirror flows 2024 (arXiv 2405.12888).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp

from conserved.certify.model import Model, Sample, exact
from conserved.errors import ConfigurationError

Field = Callable[[Tensor], Tensor]
"""A vector field: state (size,) to velocity (size,)."""

FLOWS = ("gradient", "momentum", "nesterov", "mirror")


@dataclass(frozen=True, eq=False)
class Flow:
    r"""A flow on the parameters of a model.

    Args:
        model: the model whose parameters flow.
        kind: one of `FLOWS`.
        damping: γ of "momentum".
        metric: diagonal of M as a function of flat θ, for "mirror"; None takes the module's own: θ on the parameters that it keeps
            positive, 1 elsewhere.

    Raises:
        ConfigurationError: an unknown kind, or a mirror flow without a metric.
    """

    model: Model
    kind: str = "gradient"
    damping: float = 1.0
    metric: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Check the choices."""
        if self.kind not in FLOWS:
            raise ConfigurationError(f"flow {self.kind!r} is unknown; choose one of {', '.join(FLOWS)}")
        if self.kind == "mirror" and self.metric is None and not getattr(self.model.module, "positive", ()):
            raise ConfigurationError(
                f"{type(self.model.module).__name__} has no metric of its own; pass metric=, the diagonal of M as a function of flat parameters"
            )

    @property
    def has_velocity(self) -> bool:
        """Whether the state is (t, θ, θ̇) rather than θ."""
        return self.kind in ("momentum", "nesterov")

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
        return torch.cat((torch.tensor([0.0 if self.kind == "momentum" else 1.0], dtype=theta.dtype), theta, velocity))

    def theta(self, state: Tensor) -> Tensor:
        """The parameters at a state."""
        return state[1 : self.model.size + 1] if self.has_velocity else state

    def generator(self, sample: Sample) -> Field:
        """The vector field of one sample.

        With momentum: a multiple of the drift (1, θ̇, −γθ̇) plus the force (0, 0, g). Brackets are multilinear, so random
        multiples span the same algebra as the drift and all forces do.
        """
        if self.kind == "mirror":
            metric = self.metric or self.model.entropy_metric
            return lambda theta: metric(theta) * self.model.gradient(theta, sample)
        if not self.has_velocity:
            return lambda theta: self.model.gradient(theta, sample)
        return lambda state: self._accelerated(state, sample)

    def _accelerated(self, state: Tensor, sample: Sample) -> Tensor:
        n = self.model.size
        time, theta, velocity = state[:1], state[1 : n + 1], state[n + 1 :]
        damping = self.damping if self.kind == "momentum" else 3 / time
        force = self.model.gradient(theta, sample)
        drift = sample.drift
        return torch.cat((drift * torch.ones_like(time), drift * velocity, force - drift * damping * velocity))


def bracket(first: Field, second: Field) -> Field:
    """The Lie bracket [u, v] = Dv·u − Du·v of two vector fields, by forward derivatives.

    For gradient fields this is H_v u − H_u v with the Hessians of their potentials.
    """

    def field(state: Tensor) -> Tensor:
        v, dv = jvp(second, (state,), (first(state),))
        _, du = jvp(first, (state,), (v,))
        return dv - du  # type: ignore[no-any-return]

    return field


def word(flow: Flow, samples: tuple[Sample, ...]) -> Field:
    """The left-normed bracket [v_1, [v_2, … [v_{k−1}, v_k]]] of the generators of k samples; they span the Lie algebra."""
    field = flow.generator(samples[-1])
    for sample in reversed(samples[:-1]):
        field = bracket(flow.generator(sample), field)
    return field
