r"""Evaluation of laws on tensors.

With B the bilinear form of a quadratic law, h(θ) = B(θ, θ), and a second vector x (a gradient g
or an update Δ), four numbers are enough for everything in this package:

    value      h(θ)                  = B(θ, θ)
    first      d/dε h(θ + εx) at 0   = 2B(θ, x)       rate ⟨∇h, g⟩, and first order of an update
    second     h(Δ)                  = B(x, x)        second order of an update
    magnitude  Σ |terms of `first`|                   what `first` is compared with

    h(θ + Δ) − h(θ) = 2B(θ, Δ) + B(Δ, Δ)              exactly.

A linear law has first = h(x) and second = 0.

Inside `torch.compile` an evaluation is one graph break: its plan is Python that a graph cannot hold.

Sums are accumulated in the parameters' dtype, but at least float32. Parameters are only read, no
graph is recorded, and no tensor is moved but those results that join terms on several devices.

Cost: for each parameter one pass over θ and x for each wanted form, through one scratch buffer that
stays in cache. Fresh temporaries of the size of the weights cost far more than the arithmetic.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TypeVar, cast

import torch
from torch import Tensor

from conserved.errors import LawError, MissingParameterError, ShapeMismatchError
from conserved.law.law import Law
from conserved.law.lawset import LawSet
from conserved.law.plan import Batch, Leg, Plan, Reduction, Use, make_plan

_C = TypeVar("_C", bound=Callable[..., object])

Tensors = Mapping[str, Tensor]
"""Tensors by parameter name."""

VALUE, FIRST, SECOND, MAGNITUDE = "value", "first", "second", "magnitude"
_ORDER = (VALUE, SECOND, FIRST, MAGNITUDE)  # the magnitude last: it takes over the product of `first`

# Small parameters of several layers are stacked up to this many entries; larger ones are
# read in place, because a copy would cost more than the calls it saves.
_STACK = {"cpu": 1 << 16, "cuda": 1 << 24}

# Larger ones are read in blocks of rows, where the laws allow it, so that products stay in cache.
_BLOCK = {"cpu": 1 << 18, "cuda": 1 << 28}


def eager(call: _C) -> _C:
    """Keep a function out of compiled graphs: one graph break, and the numbers of the uncompiled call."""
    return cast(_C, torch.compiler.disable(call))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Forms:
    """Results by kind; each a list with one tensor for every batch of the plan, laws first.

    The tensors belong to the evaluator and are overwritten by its next call.
    """

    plan: Plan
    parts: dict[str, list[Tensor]]

    def of(self, kind: str) -> dict[str, Tensor]:
        """One kind as a mapping from law names to tensors."""
        rows = {number: part[row] for batch, part in zip(self.plan.batches, self.parts[kind], strict=True) for row, number in enumerate(batch.laws)}
        return {law.name: rows[number] for number, law in enumerate(self.plan.laws)}


class Evaluator:
    """Evaluates one set of laws again and again without allocating.

    Args:
        laws: the laws.
        dtype: dtype of all sums; None takes the parameters' own, at least float32.

    Example:
        >>> from conserved.catalog import GatedLinearUnit
        >>> block = GatedLinearUnit(dim=3, hidden=5, out=2)
        >>> forms = Evaluator(block.laws())(dict(block.named_parameters()), wanted=("value",))
        >>> forms.of("value")["glu"].shape
        torch.Size([5])
    """

    def __init__(self, laws: LawSet, dtype: torch.dtype | None = None) -> None:
        self.plan = make_plan(laws)
        self.dtype = dtype
        self._signature: tuple[object, ...] = ()
        self._chunks: list[_Chunk] = []
        self._results: dict[str, list[Tensor]] = {}

    @eager
    @torch.no_grad()
    def __call__(self, params: Tensors, x: Tensors | None = None, wanted: Collection[str] = (VALUE,)) -> Forms:
        """Evaluate the wanted forms at θ = params and the second vector x.

        Args:
            params: parameter tensors by name; names that no law uses are ignored.
            x: gradients or updates by name; None entries or missing names count as zero.
            wanted: some of "value", "first", "second", "magnitude".

        Raises:
            MissingParameterError: a law's parameter is not in `params`.
            ShapeMismatchError: a tensor has another shape than the law was written for.
            LawError: a form other than the value was wanted without x.
        """
        if x is None and set(wanted) - {VALUE}:
            raise LawError("forms other than the value need a second vector; pass gradients or an update as x")
        kinds = [kind for kind in _ORDER if kind in wanted]
        self._prepare(params, kinds)
        for kind in kinds:
            for part in self._results[kind]:
                part.zero_()
        for chunk in self._chunks:
            chunk.add(params, x, kinds, self._results)
        for kind in {FIRST, MAGNITUDE}.intersection(kinds):
            for batch, part in zip(self.plan.batches, self._results[kind], strict=True):
                if batch.matrix:  # Σ c·X Yᵀ is half of 2B(θ, x)
                    part.add_(part.transpose(-1, -2).clone())
                elif batch.degree == 2:
                    part.mul_(2)
        return Forms(self.plan, {kind: self._results[kind] for kind in kinds})

    def _prepare(self, params: Tensors, kinds: list[str]) -> None:
        """Allocate buffers for these devices and dtypes, unless they are there already."""
        tensors = {name: find_tensor(params, name, leg.shape) for leg in self.plan.legs for name in leg.parameters}
        signature = tuple((t.device, t.dtype) for t in tensors.values())
        if signature != self._signature:
            self._signature, self._results = signature, {}
            scratch = _Scratch()
            self._chunks = [
                _Chunk(leg, names, rows, block, tensors[names[0]], self.dtype, scratch)
                for leg in self.plan.legs
                for names, rows in _runs(leg, [tensors[name] for name in leg.parameters])
                for block in _blocks(leg, tensors[names[0]])
            ]
        for kind in kinds:
            if kind not in self._results:
                self._results[kind] = [self._zeros(batch, tensors) for batch in self.plan.batches]

    def _zeros(self, batch: Batch, tensors: Tensors) -> Tensor:
        joined = [tensors[term.parameter] for number in batch.laws for term in self.plan.laws[number].terms]
        dtype = reduce(torch.promote_types, (_sum_dtype(tensor.dtype, self.dtype) for tensor in joined))
        return torch.zeros((len(batch.laws), *batch.value_shape), dtype=dtype, device=joined[0].device)


def _sum_dtype(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32) if wanted is None else wanted


def _runs(leg: Leg, tensors: list[Tensor]) -> Iterator[tuple[tuple[str, ...], slice]]:
    """Split a leg's parameters into runs that are stacked, or single ones that are read in place."""
    per = max(1, _STACK.get(tensors[0].device.type, 1) // max(1, tensors[0].numel()))
    start = 0
    for stop in range(1, len(tensors) + 1):
        alike = stop < len(tensors) and (tensors[stop].device, tensors[stop].dtype) == (tensors[start].device, tensors[start].dtype)
        if stop - start == per or not alike:
            yield leg.parameters[start:stop], slice(start, stop)
            start = stop


def _blocks(leg: Leg, tensor: Tensor) -> Iterator[tuple[int, int] | None]:
    """Blocks (start, length) of a large parameter's rows; None for all of it."""
    most = _BLOCK.get(tensor.device.type, tensor.numel())
    if tensor.numel() <= most or not all(reduction.sums_rows for reduction, _ in leg.uses):
        yield None
        return
    rows, length = len(tensor), max(1, most * len(tensor) // tensor.numel())
    for start in range(0, rows, length):
        yield start, min(length, rows - start)


class _Scratch:
    """Buffers that all chunks share, one for each purpose, dtype and device; they grow while chunks are made."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def reserve(self, slot: str, size: int, like: Tensor, dtype: torch.dtype) -> tuple[str, torch.dtype, torch.device]:
        """Make sure that the buffer holds `size` entries; returns its key."""
        key = (slot, dtype, like.device)
        if key not in self._held or self._held[key].numel() < size:
            self._held[key] = torch.empty(size, dtype=dtype, device=like.device)
        return key

    def view(self, key: tuple[str, torch.dtype, torch.device], shape: tuple[int, ...]) -> Tensor:
        """The buffer in a shape; its content is undefined."""
        return self._held[key][: prod(shape)].view(shape)


class _Chunk:
    """Some parameters of a leg, evaluated together: loaded, multiplied, reduced, added to the results."""

    def __init__(
        self,
        leg: Leg,
        names: tuple[str, ...],
        rows: slice,
        block: tuple[int, int] | None,
        like: Tensor,
        dtype: torch.dtype | None,
        scratch: _Scratch,
    ) -> None:
        self.leg, self.names, self.rows, self.block, self.scratch = leg, names, rows, block, scratch
        self.shape = (len(names), *leg.shape) if block is None else (len(names), block[1], *leg.shape[1:])
        self.dtype = _sum_dtype(like.dtype, dtype)
        self.keys = {slot: scratch.reserve(slot, prod(self.shape), like, self.dtype) for slot in ("theta", "x", "product", "abs_theta", "abs_x")}
        self.grams = [(r, uses) for r, uses in leg.uses if r.matrix]
        self.diagonals = sorted(((r, uses) for r, uses in leg.uses if not r.matrix and r.degree == 2), key=lambda part: not part[0].kept)  # totals last
        self.sums = [(r, uses) for r, uses in leg.uses if r.degree == 1]
        self._product: Tensor | None = None
        self._views: list[Tensor] = []

    def add(self, params: Tensors, x: Tensors | None, kinds: list[str], results: dict[str, list[Tensor]]) -> None:
        """Add this chunk's contribution to every wanted form."""
        theta = self._load("theta", [self._rows(params[name]) for name in self.names], self.leg.offset)
        given = [None if x is None else x.get(name) for name in self.names]
        if all(tensor is None for tensor in given):
            vector, kinds = theta, [kind for kind in kinds if kind == VALUE]  # a missing x is zero: it adds nothing
        else:
            for name, tensor in zip(self.names, given, strict=True):
                if tensor is not None and tuple(tensor.shape) != self.leg.shape:
                    raise ShapeMismatchError(
                        f"gradient or update of {name!r} has shape {tuple(tensor.shape)}, the parameter {self.leg.shape}; pass one of equal shape"
                    )
            vector = self._load("x", [None if tensor is None else self._rows(tensor) for tensor in given], 0.0)
        if self.diagonals:
            self._add_diagonals(theta, vector, kinds, results)
        if self.grams:
            self._add_grams(theta, vector, kinds, results)
        if self.sums:
            self._add_sums(theta, vector, kinds, results)

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor if self.block is None else tensor.narrow(0, *self.block)

    def _buffer(self, slot: str) -> Tensor:
        return self.scratch.view(self.keys[slot], self.shape)

    def _load(self, slot: str, tensors: list[Tensor | None], offset: float) -> Tensor:
        """The tensors stacked in the dtype of the sums; a single one that fits is read in place."""
        only = tensors[0]
        if len(tensors) == 1 and only is not None and only.dtype == self.dtype and not offset:
            return only.detach().unsqueeze(0)
        out = self._buffer(slot)
        for row, tensor in enumerate(tensors):
            if tensor is None:
                out[row].zero_()
            else:
                out[row].copy_(tensor)
        return out.add_(offset) if offset else out

    def _add_diagonals(self, theta: Tensor, x: Tensor, kinds: list[str], results: dict[str, list[Tensor]]) -> None:
        if self._product is None:  # the buffers have their final size only now, and keep it
            self._product = self._buffer("product")
            self._views = [reduction.view(self._product, lead=1) for reduction, _ in self.diagonals]
        for kind in kinds:
            if kind == MAGNITUDE:
                if FIRST not in kinds:
                    torch.mul(theta, x, out=self._product)
                self._product.abs_()
            else:
                torch.mul(x if kind == SECOND else theta, theta if kind == VALUE else x, out=self._product)
            parts: Tensor | None = None  # sums over some axes of the whole product: a total is their sum
            for view, (reduction, uses) in zip(self._views, self.diagonals, strict=True):
                known = parts if reduction.whole and not reduction.kept else None
                total = reduction.total(view) if known is None else known.reshape(len(self.names), -1).sum(1)
                parts = total if reduction.whole else parts
                self._spread(reduction, total, uses, kind, results)

    def _add_sums(self, theta: Tensor, x: Tensor, kinds: list[str], results: dict[str, list[Tensor]]) -> None:
        for kind in kinds:
            if kind == SECOND:  # a linear law has no second order
                continue
            source = theta if kind == VALUE else torch.abs(x, out=self._buffer("abs_x")) if kind == MAGNITUDE else x
            for reduction, uses in self.sums:
                self._spread(reduction, reduction.total(reduction.view(source, lead=1)), uses, kind, results)

    def _spread(self, reduction: Reduction, total: Tensor, uses: tuple[Use, ...], kind: str, results: dict[str, list[Tensor]]) -> None:
        """Add a sum over the contracted axes to the rows of every law that uses it."""
        if not reduction.in_order:
            total = total.permute(reduction.order)
        for use in uses:
            factor = use.weight if kind == MAGNITUDE else use.coefficient
            if factor:
                self._add_rows(results[kind][use.batch], use, total, factor)

    def _add_grams(self, theta: Tensor, x: Tensor, kinds: list[str], results: dict[str, list[Tensor]]) -> None:
        for kind in kinds:
            if kind == MAGNITUDE:
                left, right = torch.abs(theta, out=self._buffer("abs_theta")), torch.abs(x, out=self._buffer("abs_x"))
            else:
                left, right = x if kind == SECOND else theta, theta if kind == VALUE else x
            for reduction, uses in self.grams:
                order, batch, index = reduction.as_matrices
                shape = (batch * len(self.names), index, -1)
                a, b = (reduction.view(t, lead=1).permute(order).reshape(shape) for t in (left, right))
                for use in uses:
                    factor = use.weight if kind == MAGNITUDE else use.coefficient
                    out = results[kind][use.batch]
                    if factor and len(self.names) == 1 and (out.device, out.dtype) == (a.device, a.dtype):
                        out[use.rows[self.rows.start]].view(batch, index, index).baddbmm_(a, b.transpose(1, 2), alpha=factor)
                    elif factor:
                        self._add_rows(out, use, torch.bmm(a, b.transpose(1, 2)).view(len(self.names), *out.shape[1:]), factor)

    def _add_rows(self, out: Tensor, use: Use, total: Tensor, factor: float) -> None:
        total = total.to(out)  # terms of one law may lie on several devices and have several dtypes
        if len(self.names) == 1:
            row = use.rows[self.rows.start]
            out[row : row + 1].add_(total, alpha=factor)
        else:
            out.index_add_(0, torch.tensor(use.rows[self.rows], device=out.device), total, alpha=factor)


def find_tensor(params: Tensors, name: str, shape: tuple[int, ...] | None = None, law: Law | None = None) -> Tensor:
    """The tensor of a parameter.

    Raises:
        MissingParameterError: it is not in the mapping.
        ShapeMismatchError: it has another shape than the laws were written for.
    """
    tensor = params.get(name)
    if tensor is None:
        where = f"law {law.name!r} needs" if law is not None else "a law needs"
        raise MissingParameterError(f"{where} the parameter {name!r}, which the mapping lacks; pass dict(model.named_parameters())")
    if shape is not None and tuple(tensor.shape) != shape:
        raise ShapeMismatchError(f"parameter {name!r} has shape {tuple(tensor.shape)}, its laws were written for {shape}; find the laws of this model anew")
    return tensor
