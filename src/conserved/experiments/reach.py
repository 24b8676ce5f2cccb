r"""How many directions gradient flow reaches: followed, not derived from brackets.

    E(t_1, …, t_m) = flow_m(t_m) ∘ … ∘ flow_1(t_1) (θ)          rank of ∂E/∂t = dimension of what can be reached

Every flow is the gradient flow of one example with a loss ⟨c, f(θ, x)⟩ of its own. For generic times the rank is the dimension of the
orbit of θ (Sussmann 1973), so it is D − number of laws if the level sets of the laws, and nothing more, are what the flow keeps.
Velocities alone are not enough where brackets count: the flows must be composed.

Numerically the flows are short and integrated by Runge–Kutta steps of order four. Directions that need a bracket have singular values
of the order of the times T, the error of the integration is T⁵: with shorter times the gap between them widens. The error is measured,
as the change from one step to two, and a singular value counts only if it is far above it:

    dimension r = argmax_i σ_i / max(σ_{i+1}, error),   σ_0 = 1

Holds for modules that are analytic along the way; the dimension is that near a generic θ.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, jacfwd, vjp

from conserved.catalog import Block, randomize
from conserved.certify.rank import CLEAR_GAP

TIMES = (1e-3, 2.5e-4, 6e-5)
"""Times of the flows in units of 1/speed, tried until the gap is clear."""


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
        coarse, fine = (jacfwd(partial(flows.end, steps=steps))(time * times / flows.speeds()) for steps in (1, 2))
        best = max(best, Reach(len(flows.start), *_rank(coarse, fine), time), key=lambda one: one.gap)
        if best.clear:
            break
    return best


def _rank(coarse: Tensor, fine: Tensor) -> tuple[int, float]:
    """The rank of a matrix that is known up to an error, and the gap that decides it; 0 if it is not finite."""
    lengths = torch.linalg.vector_norm(fine, dim=0)
    if not bool((fine / lengths).isfinite().all() and coarse.isfinite().all()):
        return 0, 0.0
    values = torch.linalg.svdvals(fine / lengths)
    error = float(torch.linalg.matrix_norm((fine - coarse) / lengths, ord=2)) + max(fine.shape) * torch.finfo(fine.dtype).eps
    levels = torch.cat((values.new_ones(1), values, values.new_zeros(1))).clamp(min=error)
    ratios = levels[:-1] / levels[1:]
    best = int(ratios.argmax())
    return best, float(ratios[best])


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

    def end(self, times: Tensor, steps: int) -> Tensor:
        """Where all flows together lead, each for its time and in so many Runge–Kutta steps."""
        theta = self.start
        for flow in range(self.number):
            step = times[flow] / steps
            for _ in range(steps):
                first = self.velocity(theta, flow)
                second = self.velocity(theta + step / 2 * first, flow)
                third = self.velocity(theta + step / 2 * second, flow)
                fourth = self.velocity(theta + step * third, flow)
                theta = theta + step / 6 * (first + 2 * second + 2 * third + fourth)
        return theta
