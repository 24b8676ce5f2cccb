r"""How many directions gradient flow reaches: followed, not derived from brackets.

    E(t_1, …, t_m) = flow_m(t_m) ∘ … ∘ flow_1(t_1) (θ)          rank of ∂E/∂t = dimension of what can be reached

Every flow is the gradient flow of one example with a loss ⟨c, f(θ, x)⟩ of its own. For generic times the rank is the dimension of the
orbit of θ (Sussmann 1973), so it is D − number of laws if the level sets of the laws, and nothing more, are what the flow keeps.
Velocities alone are not enough where brackets count: the flows must be composed.

Numerically the flows are short and integrated by Runge–Kutta steps of order four. Directions that need a bracket have a singular value
of the order of the times T, the error of the integration T⁵: with shorter times the gap between them widens.

Holds for modules that are analytic along the way; the dimension is that near a generic θ.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, jacfwd, vjp

from conserved.catalog import Block, randomize
from conserved.certify.rank import CLEAR_GAP, numerical_rank

TIMES = (4e-3, 1e-3, 2.5e-4)
"""Times of the flows in units of 1/speed, tried until the gap is clear."""

STEPS = 2
"""Runge–Kutta steps of a flow."""


@dataclass(frozen=True)
class Reach:
    """What composed gradient flows reach.

    Attributes:
        parameters: D.
        dimension: rank of ∂E/∂t.
        gap: between the singular values on its two sides.
        time: of the flows, in units of 1/speed.
    """

    parameters: int
    dimension: int
    gap: float
    time: float

    @property
    def clear(self) -> bool:
        """Whether the gap decides the dimension."""
        return self.gap >= CLEAR_GAP


def reach(block: Block, seed: int = 0) -> Reach:
    """The dimension of what gradient flows reach from a random point.

    Args:
        block: the model; it is not changed.
        seed: of the point, the data and the times.

    Example:
        >>> from conserved.catalog import Attention
        >>> found = reach(Attention(dim=2, heads=1, head_dim=2))     # 8 velocities, 10 dimensions, 6 laws
        >>> found.parameters, found.dimension
        (16, 10)
    """
    generator = torch.Generator().manual_seed(seed)
    flows = _Flows.drawn(block, generator)
    times = torch.rand(flows.number, generator=generator, dtype=torch.float64) + 0.5
    best = Reach(len(flows.start), 0, 0.0, 0.0)
    for time in TIMES:
        jacobian = jacfwd(flows.end)(time * times / flows.speeds())
        found = numerical_rank(jacobian.mT)
        best = max(best, Reach(len(flows.start), found.rank, found.gap, time), key=lambda one: one.gap)
        if best.clear:
            break
    return best


@dataclass(frozen=True, eq=False)
class _Flows:
    """One gradient flow for each example, as many as there are parameters."""

    block: Block
    shapes: dict[str, torch.Size]
    start: Tensor
    inputs: tuple[Tensor, ...]
    cotangents: Tensor

    @staticmethod
    def drawn(block: Block, generator: torch.Generator) -> "_Flows":
        model = deepcopy(block).double()
        randomize(model, generator)
        params = dict(model.named_parameters())
        start = torch.cat([p.detach().flatten() for p in params.values()])
        inputs = model.example(len(start), generator)
        outputs = model(*inputs)
        cotangents = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
        return _Flows(model, {name: p.shape for name, p in params.items()}, start, inputs, cotangents)

    @property
    def number(self) -> int:
        return len(self.cotangents)

    def velocity(self, theta: Tensor, flow: int) -> Tensor:
        """−∇⟨c, f(θ, x)⟩ for the example of a flow."""
        inputs = tuple(x[flow : flow + 1] for x in self.inputs)

        def output(point: Tensor) -> Tensor:
            parts = torch.split(point, [shape.numel() for shape in self.shapes.values()])
            params = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
            return functional_call(self.block, params, inputs)  # type: ignore[no-any-return]

        _, pull_back = vjp(output, theta)  # type: ignore[misc]
        return -pull_back(self.cotangents[flow : flow + 1])[0]  # type: ignore[no-any-return]

    def speeds(self) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(self.velocity(self.start, flow)) for flow in range(self.number)])

    def end(self, times: Tensor) -> Tensor:
        """Where all flows together lead, each for its time."""
        theta = self.start
        for flow in range(self.number):
            step = times[flow] / STEPS
            for _ in range(STEPS):
                first = self.velocity(theta, flow)
                second = self.velocity(theta + step / 2 * first, flow)
                third = self.velocity(theta + step / 2 * second, flow)
                fourth = self.velocity(theta + step * third, flow)
                theta = theta + step / 6 * (first + 2 * second + 2 * third + fourth)
        return theta
