r"""A module as what certification needs: a map (θ, x) ↦ f(θ, x) on flat parameters, with random samples.

    g(θ; x, c) = ∂_θ f(θ, x)ᵀ c        the gradient field of one sample

Its span over all inputs x and cotangents c is W(θ): the directions in which some loss on some data can move θ.
"""

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import log, prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from conserved.catalog import BatchNormBlock, Block, randomize
from conserved.certify.analytic import Analytic
from conserved.errors import ConfigurationError, ConservedError
from conserved.law import LawSet


class Sample(NamedTuple):
    """What picks one vector field out of a flow's family.

    Attributes:
        inputs: arguments of the module; a small batch, since some modules join the examples of a batch.
        cotangent: c, flat, over all outputs.
        drift: multiple of the flow's own drift; only flows with momentum read it.
    """

    inputs: tuple[Tensor, ...]
    cotangent: Tensor
    drift: Tensor


HINGES: dict[str, Callable[..., tuple[Any, ...]]] = {
    **dict.fromkeys(("relu", "leaky_relu", "prelu", "_prelu_kernel", "elu", "abs", "rrelu"), lambda x, *_: (0,)),
    "hardtanh": lambda x, low=-1, high=1: (low, high),
    **dict.fromkeys(("hardswish", "hardsigmoid"), lambda x: (-3, 3)),
    "clamp": lambda x, low=None, high=None: (low, high),
    **dict.fromkeys(("clamp_min", "clamp_max", "threshold", "maximum", "minimum", "gt", "ge", "lt", "le"), lambda x, at, *_: (at,)),
    **dict.fromkeys(("softshrink", "hardshrink"), lambda x, at=0.5: (-at, at)),
}
"""Operations that are analytic on either side of some values of their first argument: those values."""

SELECTIONS = frozenset(
    {"topk", "sort", "argsort", "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "median", "kthvalue", "cummax", "cummin", "mode",
     "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d", "sign", "sgn", "floor", "ceil", "round", "trunc",
     "frac", "remainder", "fmod", "floor_divide", "heaviside", "eq", "ne", "bucketize", "searchsorted"}
)  # fmt: skip
"""Operations that are analytic only as long as the order of their arguments, or an integer near them, stays."""

BYTES_PER_PAIR = 48
"""Memory for D² that a count takes at its peak, measured at D = 6144."""

GUARD = 1e-4
"""A bound no larger than this keeps a denominator from zero: no hinge that generic data reach."""

FEW = 16
"""Inputs on a side of a hinge that may not suffice to see what a unit does there."""

DRAWS = 512
"""Points θ among which the most varied ones are chosen, for modules that are analytic only in pieces."""

HALVINGS = 10
"""Of a segment between two inputs, in search of a hinge: what is left is longer than the rounding of exact inputs."""

Draw = Callable[[int, torch.Generator], tuple[Tensor, ...]]
"""Inputs for a number of examples: `Block.example`."""


@dataclass(frozen=True, eq=False)
class Model:
    """A module in evaluation form, its trainable parameters flat and in float64.

    Args:
        module: any module; it is not changed.
        draw: inputs for a number of examples.
        batch: examples in one sample.

    Raises:
        ConfigurationError: no trainable parameters, an output that does not depend on them or is not repeatable.
    """

    module: nn.Module
    draw: Draw
    batch: int = 1

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trainable parameters, in order."""
        return {name: tuple(p.shape) for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def size(self) -> int:
        """D: the number of trainable entries."""
        return sum(prod(shape) for shape in self.shapes.values())

    def parameters(self, theta: Tensor) -> dict[str, Tensor]:
        """Flat θ as tensors by name; views."""
        parts = torch.split(theta, [prod(shape) for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def flat(self, params: dict[str, Tensor]) -> Tensor:
        """The inverse of `parameters`; missing names are zero."""
        zero = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self.shapes.items() if name not in params}
        return torch.cat([(dict(params) | zero)[name].detach().double().flatten() for name in self.shapes])

    def outputs(self, theta: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """f(θ, x): all outputs, flat.

        Raises:
            ConfigurationError: there are none.
        """
        with Analytic(), sdpa_kernel(SDPBackend.MATH):  # some functions of torch call attention past the former
            result = functional_call(self.module, self.parameters(theta), inputs)
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if not leaves:
            raise ConfigurationError(f"{type(self.module).__name__} returns no floating-point tensor; return what its loss is computed from")
        return torch.cat([leaf.flatten() for leaf in leaves])

    def gradient(self, theta: Tensor, sample: Sample) -> Tensor:
        """g(θ; x, c) = ∂_θ f(θ, x)ᵀ c."""
        _, pull_back = vjp(lambda t: self.outputs(t, sample.inputs), theta)  # type: ignore[misc]
        return pull_back(sample.cotangent)[0]  # type: ignore[no-any-return]

    @cached_property
    def _given(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.module.state_dict().items()}

    def generic_point(self, generator: torch.Generator) -> Tensor:
        """Random θ, exact in every arithmetic. Positive where the module says so."""
        self.module.load_state_dict(self._given)  # vectors are drawn around their values, not around the last draw
        randomize(self.module, generator)
        held = {name: p.detach().abs() + 0.125 if name in self.positive else p for name, p in self.module.named_parameters()}
        return exact(self.flat(held))

    @property
    def positive(self) -> tuple[str, ...]:
        """Names of the parameters that the module keeps positive."""
        given = getattr(self.module, "positive", ())
        return given if isinstance(given, tuple) and set(given) <= set(self.shapes) else ()

    def entropy_metric(self, theta: Tensor) -> Tensor:
        """Diagonal of the metric of the entropy on the parameters that the module keeps positive: θ there, 1 elsewhere."""
        return torch.cat([(part if name in self.positive else torch.ones_like(part)).flatten() for name, part in self.parameters(theta).items()])

    @cached_property
    def piecewise(self) -> bool:
        """Whether f is analytic only in pieces (ReLU, top-k): then the rank may differ from piece to piece."""
        return self._watch(self.generic_point(torch.Generator().manual_seed(0)), 1).met

    @cached_property
    def has_hinges(self) -> bool:
        """Whether there are units that switch, so that some points θ tell more than others."""
        return self._watch(self.generic_point(torch.Generator().manual_seed(0)), 2).sides(2 * self.batch) is not None

    def points(self, generator: torch.Generator, number: int, draws: int = DRAWS) -> list[Tensor]:
        """Generic points θ, the most telling ones first.

        A ReLU unit that is never off, or never on, acts on no data as a ReLU, and there are more laws near such θ. So for modules
        that are analytic only in pieces, the points whose units change sign over the data, and not all together, come first:
        Σ_units log(min(share of inputs on, share off) + 1/n) + units · log(number of patterns) is largest, among random points and
        mixtures of them.
        """
        if not self.has_hinges:
            return [self.generic_point(generator) for _ in range(number)]
        drawn = [self.generic_point(generator) for _ in range(draws)]
        scored = [(self._watch(theta, 96).variety(96 * self.batch), theta) for theta in drawn]
        best, theta = max(scored, key=lambda pair: pair[0])
        for other in drawn:  # narrow layers make such points rare: take a tenth of the entries from elsewhere where that helps
            mixed = torch.where(torch.rand(self.size, generator=generator) < 0.1, other, theta)
            if (score := self._watch(mixed, 96).variety(96 * self.batch)) > best:
                best, theta = score, mixed
                scored.append((score, mixed))
        scored.sort(key=lambda pair: -pair[0])
        return [theta for _, theta in scored[:number]]

    def across_hinges(self, theta: Tensor, number: int, generator: torch.Generator) -> tuple[Tensor, ...] | None:
        """Inputs in pairs, close to each other, on the two sides of a hinge of each unit in turn; None if there are none.

        Between two units that switch at nearly the same input lies a piece that random inputs miss, and with it the difference
        of the fields that tells the units apart. Halving the segment between two random inputs finds the hinge of a unit.

        Shapes: each (number, *shape of one input).
        """
        pairs = max(64, (number + 1) // 2)
        first, second = (self.draw(pairs, generator) for _ in range(2))
        if not self.piecewise or self.batch != 1 or not all(x.is_floating_point() for x in first):
            return None
        low, high = ([x.double() for x in end] for end in (first, second))
        low_sides, high_sides = (self._sides(theta, end) for end in (low, high))
        if low_sides is None or high_sides is None or not bool((low_sides != high_sides).any()):
            return None
        apart = low_sides != high_sides
        hits = apart.any(1)
        low, high, start = [x[hits] for x in low], [x[hits] for x in high], low_sides[hits]
        unit = _in_turn(apart[hits], generator)
        for _ in range(HALVINGS):
            middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
            stays = (cast(Tensor, self._sides(theta, middle)) == start).gather(1, unit).flatten()
            low = [torch.where(stays.view(-1, *[1] * (m.ndim - 1)), m, a) for m, a in zip(middle, low, strict=True)]
            high = [torch.where(stays.view(-1, *[1] * (m.ndim - 1)), b, m) for m, b in zip(middle, high, strict=True)]
        both = [torch.stack((a, b), 1).flatten(0, 1) for a, b in zip(low, high, strict=True)]
        return tuple(x[torch.arange(number) % len(x)].unsqueeze(1) for x in both)

    def one_sided(self, theta: Tensor, number: int = 4096) -> int:
        """How many units are on one side of their hinge for all but a few of many inputs of several scales: the other is hardly seen."""
        inputs = self.samples(number, torch.Generator().manual_seed(2)).inputs
        sides = self._sides(theta, [x.flatten(0, 1) for x in inputs])
        if sides is None:
            return 0
        on = sides.sum(0)
        return int((torch.minimum(on, len(sides) - on) < FEW).sum())

    def _sides(self, theta: Tensor, inputs: list[Tensor]) -> Tensor | None:
        """On which side of its hinge every unit is, (inputs, units)."""
        with _Watch() as watch, torch.no_grad():
            self.outputs(theta, tuple(inputs))
        return cast(_Watch, watch).sides(len(inputs[0]))

    def _watch(self, theta: Tensor, number: int) -> "_Watch":
        """What a forward pass over random inputs meets."""
        drawn = self.draw(number * self.batch, torch.Generator().manual_seed(1))
        with _Watch() as watch, torch.no_grad():
            self.outputs(theta, tuple(x.double() if x.is_floating_point() else x for x in drawn))
        return cast(_Watch, watch)

    def samples(self, number: int, generator: torch.Generator, scale: float = 1.0) -> Sample:
        """Random samples, stacked along a new first axis.

        Args:
            number: of samples.
            generator: the source of randomness.
            scale: of floating-point inputs; samples alternate between a third of it, itself, and three times it.
        """
        drawn = self.draw(number * self.batch, generator)
        factor = scale * 3.0 ** (torch.arange(number, dtype=torch.float64) % 3 - 1)
        inputs = []
        for x in drawn:
            stacked = x.reshape(number, self.batch, *x.shape[1:])
            inputs.append(stacked.double() * factor.view(-1, *[1] * (stacked.ndim - 1)) if x.is_floating_point() else stacked)
        cotangents = torch.randn(number, self.output_size, generator=generator, dtype=torch.float64)
        drifts = torch.randn(number, 1, generator=generator, dtype=torch.float64)
        return Sample(tuple(inputs), cotangents, drifts)

    @cached_property
    def output_size(self) -> int:
        """Number of outputs of one sample."""
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(x.double() if x.is_floating_point() else x for x in self.draw(self.batch, generator))
        with torch.no_grad():
            return self.outputs(self.generic_point(generator), inputs).numel()


def exact(x: Tensor) -> Tensor:
    """The nearest multiples of 2⁻¹²: short in every arithmetic, and random ones are seldom equal, as weights at a generic θ must not be."""
    return (x * 4096).round() / 4096


def _in_turn(apart: Tensor, generator: torch.Generator) -> Tensor:
    """One of the marked units for each row, the unit whose turn it is if it is marked; (rows, 1)."""
    row = torch.arange(len(apart))
    weight = torch.rand(apart.shape, generator=generator, dtype=torch.float64) * apart
    weight[row, row % apart.shape[1]] += 1.0 * apart[row, row % apart.shape[1]]
    return weight.argmax(1, keepdim=True)


class _Watch(TorchDispatchMode):
    """Notices operations that are analytic only in pieces, and on which side of a hinge their arguments are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met = False
        self._met: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name.removeprefix("aten::")
        given = [a for a in args if isinstance(a, Tensor)]
        if given and given[0].is_floating_point() and (name in HINGES or name in SELECTIONS):
            self.met = True
            for at in HINGES[name](*args, **(kwargs or {})) if name in HINGES else ():
                if at is not None and not (isinstance(at, float) and 0 < abs(at) <= GUARD):
                    self._met.append(given[0].detach() > (at.detach() if isinstance(at, Tensor) else at))
        return func(*args, **(kwargs or {}))

    def sides(self, number: int) -> Tensor | None:
        """Sides of all hinges, (number, units); None if there are none."""
        met = [side.flatten(1) for side in self._met if len(side) == number and side.ndim > 1]
        return torch.cat(met, 1) if met else None

    def variety(self, number: int) -> float:
        """Σ_units log(min(share on, share off) + 1/n) + units · log(number of patterns); 0 without hinges."""
        sides = self.sides(number)
        if sides is None:
            return 0.0
        on = sides.double().mean(0)
        patterns = len(set(map(bytes, sides.byte().numpy())))
        return float((torch.minimum(on, 1 - on) + 1 / number).log().sum()) + sides.shape[1] * log(patterns)


def model_of(module: nn.Module, example_inputs: tuple[Tensor, ...] | None = None) -> Model:
    """The model of a catalogue block, or of any module with example inputs; the module itself is left as it is.

    Inputs of other modules are drawn at random in the shape of the examples: normal numbers, and integers up to the largest
    one in the example.

    Raises:
        ConfigurationError: not a module; no example inputs and not a block, or inputs that it does not take; no trainable
            parameter, or complex ones; active dropout or running statistics; outputs that do not depend on the parameters, are not finite, or change
            from call to call.
    """
    what = type(module).__name__
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"a {what} is no module of torch; pass an instance of nn.Module")
    if any(p.is_complex() for p in module.parameters()):
        raise ConfigurationError(f"{what} has complex parameters; make real and imaginary parts parameters of their own")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise ConfigurationError(f"{what}: the dropout {name or what} is on, its outputs are random; call module.eval() first")
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.training and part.track_running_stats:
            raise ConfigurationError(f"{what}: the norm {name or what} changes its statistics with each call; call module.eval() first")
    _require_room(sum(p.numel() for p in module.parameters() if p.requires_grad), what)
    if isinstance(module, Block) and example_inputs is None:
        draw: Draw = module.example
        batch = 2 if _joins_examples(module) else 1
    else:
        examples = _checked(example_inputs, what)
        draw, batch = _like(examples), len(examples[0])
    model = Model(deepcopy(module).double(), draw, batch)
    if not model.size:
        raise ConfigurationError(f"{what} has no trainable parameter; nothing flows")
    _check(model, what)
    return model


def _require_room(size: int, what: str) -> None:
    """Refuse matrices of D² numbers that memory does not hold."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if BYTES_PER_PAIR * size**2 > room:
        most = int((room / BYTES_PER_PAIR) ** 0.5)
        raise ConfigurationError(
            f"{what} has {size} parameters, and their Lie algebra needs memory for a square of them: at most {most} here; give smaller sizes"
        )


def _joins_examples(module: nn.Module) -> bool:
    """Whether outputs of one example depend on the others: batch statistics, a load-balancing loss."""
    return any(isinstance(part, BatchNormBlock) or getattr(part, "load_balancing", False) for part in module.modules())


def _checked(examples: Any, what: str) -> tuple[Tensor, ...]:
    """The example inputs, if they can be imitated."""
    if examples is None or (isinstance(examples, (tuple, list)) and not examples):
        raise ConfigurationError(f"{what} is not a catalogue block; pass example_inputs, a tuple of the tensors that its forward takes")
    if not isinstance(examples, (tuple, list)) or not all(isinstance(x, Tensor) for x in examples):
        raise ConfigurationError(f"{what}: example_inputs is not a tuple of tensors; pass those that its forward takes, as in (x,)")
    if not all(x.ndim and len(x) == len(examples[0]) > 0 for x in examples):
        shapes = ", ".join(str(tuple(x.shape)) for x in examples)
        raise ConfigurationError(
            f"{what}: example_inputs of shapes {shapes}; their first axis is that of the examples, give the same number, at least 1, in each"
        )
    return tuple(examples)


def _like(examples: tuple[Tensor, ...]) -> Draw:
    batch = len(examples[0])

    def draw(number: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        times = number // batch
        out = []
        for x in examples:
            shape = (times * x.shape[0], *x.shape[1:])
            if x.is_floating_point():
                out.append(torch.randn(shape, generator=generator, dtype=torch.float64))
            else:
                out.append(_covering(int(x.max()) + 1, prod(shape), generator).reshape(shape).to(x.dtype))
        return tuple(out)

    return draw


def _covering(values: int, number: int, generator: torch.Generator) -> Tensor:
    """Random integers below `values`, each as often as any other: rows of a table that no draw meets would be taken for constants."""
    rounds = -(-number // values)
    return torch.cat([torch.randperm(values, generator=generator) for _ in range(rounds)])[:number]


def _check(model: Model, what: str) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = model.generic_point(generator)
    try:
        inputs = tuple(x[0] for x in model.samples(1, generator).inputs)
        first, second = (model.outputs(theta, inputs).detach() for _ in range(2))
    except ConservedError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigurationError(f"{what} does not run on random inputs like the examples ({str(error).splitlines()[0]}); pass other example_inputs") from error
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ConfigurationError(f"{what} gives other outputs when called again; switch dropout and noise off, as with module.eval()")
    if not first.isfinite().all():
        raise ConfigurationError(f"{what} gives NaN or infinity on random inputs; pass a module that is finite on normal numbers")
    many = model.samples(6, generator)
    few = [Sample(tuple(x[i] for x in many.inputs), many.cotangent[i], many.drift[i]) for i in range(6)]
    try:
        points = (theta, *(model.generic_point(generator) for _ in range(32)))  # units that are off may hide the parameters at some
        moved = any(bool(model.gradient(point, sample).any()) for point in points for sample in few)
    except RuntimeError as error:
        raise ConfigurationError(f"{what}: its outputs have no gradient for its parameters ({str(error).splitlines()[0]})") from error
    if not moved:
        raise ConfigurationError(f"the outputs of {what} do not depend on its parameters; nothing flows")


def exact_laws(module: nn.Module) -> LawSet:
    """The closed-form laws of a block that hold exactly; none for other modules."""
    return module.laws().select(exact=True) if isinstance(module, Block) else LawSet()
