r"""One interpreter of a traced computation, generic over the scalar.

    function  —trace→  graph of ATen operations  —interpret→  its values in any `Scalars`

The same graph gives floating-point values at complex points, enclosures in balls, exact rationals, residues or polynomials.
Activations are evaluated by their exact formulas, not by the double-precision ones of torch (`conserved.certify.analytic`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from conserved.certify.analytic import Analytic
from conserved.certify.scalars import Array, Scalars, UnsupportedOperation, _boxed
from conserved.errors import ConfigurationError

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------------------------- tracing


def trace(function: Callable[..., Any], *examples: Any) -> fx.GraphModule:
    """The computation of a function on example tensors, as a graph of ATen operations without mutation or repetition.

    Shapes, and branches of Python code, are those of the examples.

    Args:
        function: of tensors; may use vmap, vjp, jvp.
        examples: its arguments, tensors or nests of tensors.

    Example:
        >>> graph = trace(lambda x: (x * x).add_(x * x), torch.ones(2, dtype=torch.float64))
        >>> [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        ['aten.mul.Tensor', 'aten.add.Tensor']
    """

    def analytic(*arguments: Any) -> Any:
        with Analytic():
            return function(*arguments)

    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):  # one for the shapes of all nodes; torch makes one for each otherwise
        graph = make_fx(analytic)(*examples)
        if any(_mutates(node) for node in graph.graph.nodes):
            leaves = [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, Tensor)]
            inner = fx.GraphModule(graph, graph.graph)
            inner.graph.set_codegen(fx.graph.CodeGen())
            inner.recompile()
            graph = make_fx(functionalize(inner, remove="mutations"))(*leaves)
    _share(graph.graph)
    _choose_all(graph.graph)
    _name_softmax(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _share(graph: Any) -> None:
    """Compute the same operation on the same arguments once."""
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "get_attr"):
            continue
        key = repr((node.op, str(node.target), node.args, sorted(node.kwargs.items())))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        else:
            seen[key] = node


def _choose_all(graph: Any) -> None:
    """The top k of k entries are all of them: where their places only mark entries, their order does not matter."""
    for node in list(graph.nodes):
        if node.target != aten.scatter.value:
            continue
        marked, dim, index, value = node.args
        top = index.args[0] if index.op == "call_function" and index.target is getitem and index.args[1] == 1 else None
        if top is None or top.target != aten.topk.default:
            continue
        chosen, size = top.args[0], marked.meta["val"].shape
        axis = (top.args[2] if len(top.args) > 2 else -1) % len(size)
        if chosen.meta["val"].shape == size and top.args[1] == size[axis] and dim % len(size) == axis:
            _replace(graph, node, aten.full_like.default, (marked, value))


def _name_softmax(graph: Any) -> None:
    """exp(z)/Σ exp(z) is softmax(z), which floating point evaluates without overflow."""
    for node in list(graph.nodes):
        if node.target != aten.div.Tensor or not all(isinstance(part, fx.Node) for part in node.args):
            continue
        e, total = node.args
        summed = total.target == aten.sum.dim_IntList and total.args[0] is e and total.args[2:] == (True,)
        if summed and e.target == aten.exp.default and len(total.args[1]) == 1:
            _replace(graph, node, aten._softmax.default, (e.args[0], total.args[1][0], False))


def _replace(graph: Any, node: Any, target: Any, args: tuple[Any, ...]) -> None:
    with graph.inserting_before(node):
        other = graph.call_function(target, args)
    other.meta = dict(node.meta)
    node.replace_all_uses_with(other)
    graph.erase_node(node)


# ----------------------------------------------------------------------------------------------------------- interpretation


@dataclass(frozen=True)
class _Machine:
    """Scalars, and where activations leave their arguments."""

    scalars: Scalars
    record: dict[str, list[tuple[str, Array]]] | None = None

    def lift(self, x: Any) -> Array:
        """Anything as an array of scalars."""
        if not isinstance(x, np.ndarray):
            return _boxed(self.scalars.literal(x))
        return x if x.dtype == self.scalars.dtype else self.scalars.array(x)

    def full(self, shape: Sequence[int], value: Any, dtype: torch.dtype | None = None) -> Array:
        """An array with one value; of integers if the type says so."""
        whole = not dtype.is_floating_point if dtype is not None else isinstance(value, (bool, int))
        if whole:
            return np.full(tuple(shape), value, dtype=bool if dtype is torch.bool else np.int64)
        return self.scalars.full(tuple(shape), value)

    def apply(self, name: str, x: Array) -> Array:
        """A function of the scalars, recorded."""
        self.note(name, x)
        return getattr(self.scalars, name)(x)  # type: ignore[no-any-return]

    def note(self, name: str, x: Array) -> None:
        """Record the argument of an activation."""
        if self.record is not None:
            self.record.setdefault("activations", []).append((name, x))


def interpret(graph: fx.GraphModule, arguments: Sequence[Any], scalars: Scalars, record: dict[str, list[tuple[str, Array]]] | None = None) -> list[Array]:
    """Values of a traced computation in the given scalars.

    Args:
        graph: what `trace` returned.
        arguments: one array of scalars for each tensor argument, integer or boolean arrays for integer tensors; nests as in the trace.
        scalars: the numbers.
        record: if given, record["activations"] becomes the list of (function, its arguments) in order of execution, for "sigmoid",
            "tanh", "erf", "softmax" (softmax axis last), "logsumexp" (the same), "exp", "log", "sqrt", "rsqrt", "div" (the divisor).

    Returns:
        The outputs, in order.

    Raises:
        UnsupportedOperation: an operation that is not known, or that the scalars cannot do.
        ConfigurationError: another number of arguments than the graph takes.

    Example:
        >>> from conserved.certify.scalars import Rational
        >>> graph = trace(lambda x: (x @ x).sum(), torch.ones(2, 2, dtype=torch.float64))
        >>> print(interpret(graph, [Rational().array([[0.5, 1], [2, 0.25]])], Rational())[0])
        105/16
    """
    machine = _Machine(scalars, record)
    _require_known(graph)
    leaves = pytree.tree_leaves(list(arguments))
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if len(leaves) != len(places):
        raise ConfigurationError(f"the graph takes {len(places)} tensors, {len(leaves)} were given; pass the arguments it was traced with")
    given = dict(zip(places, leaves, strict=True))
    values: dict[fx.Node, Any] = {}
    last = {use: node for node in graph.graph.nodes for use in node.all_input_nodes}
    with scalars.precision(), np.errstate(all="ignore"):
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = machine.lift(given[node]) if given[node].dtype.kind in "fc" else given[node]
            elif node.op == "get_attr":
                values[node] = _constant(machine, graph, node.target)
            elif node.op == "output":
                return [machine.lift(values[out]) if isinstance(out, fx.Node) else out for out in pytree.tree_leaves(node.args)]
            else:
                values[node] = _execute(machine, node, values)
            for used in node.all_input_nodes:
                if last[used] is node:
                    del values[used]
    raise UnsupportedOperation("the graph has no output")


def _require_known(graph: fx.GraphModule) -> None:
    """Look at all operations before any is done."""
    unknown = dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "call_function" and node.target not in OPERATIONS)
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        raise UnsupportedOperation(f"{', '.join(unknown)} {verb} not known to the interpreter; certify this module with arithmetic='float64'")


def _execute(machine: _Machine, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    operation = OPERATIONS[node.target]
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: values[used])
    try:
        result = operation(machine, *args, **kwargs)
    except UnsupportedOperation as error:
        raise UnsupportedOperation(f"{node.target}: {error}") from error
    except (ZeroDivisionError, ArithmeticError) as error:
        raise UnsupportedOperation(f"{node.target}: {error} in {machine.scalars.title}; move the point") from error
    return result if isinstance(result, (list, tuple)) else _boxed(result)


def _constant(machine: _Machine, graph: fx.GraphModule, name: Any) -> Array:
    tensor = getattr(graph, name)
    return machine.scalars.array(tensor) if tensor.is_floating_point() else tensor.detach().cpu().numpy()


def _whole(x: Any) -> bool:
    """Whether these are integers or truth values rather than scalars."""
    return x.dtype.kind in "biu" if isinstance(x, np.ndarray) else isinstance(x, (bool, int))


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """Axes of a reduction; none given means all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    return tuple(d % max(ndim, 1) for d in ((dim,) if isinstance(dim, int) else dim)) if ndim else ()


# ----------------------------------------------------------------------------------------------------------------- shapes


def _slice(m: _Machine, x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _expand(m: _Machine, x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    padded = (1,) * (len(size) - x.ndim) + x.shape
    return np.broadcast_to(x, [old if new == -1 else new for old, new in zip(padded, size, strict=True)])


def _squeeze(m: _Machine, x: Array, dim: Any = None) -> Array:
    return np.squeeze(x, tuple(axis for axis in _axes(dim, x.ndim) if x.shape[axis] == 1))


def _split(m: _Machine, x: Array, sizes: Any, dim: int = 0) -> list[Array]:
    total = x.shape[dim]
    lengths = list(sizes) if isinstance(sizes, (list, tuple)) else [min(sizes, total - start) for start in range(0, total, sizes)]
    return np.split(x, np.cumsum(lengths)[:-1], axis=dim)


def _placed(m: _Machine, grad: Array, size: Sequence[int], place: Any) -> Array:
    """Zeros of a size with a gradient in one place: the transpose of indexing."""
    out = m.scalars.full(tuple(size), 0)
    out[place] = grad
    return out


def _slice_backward(m: _Machine, grad: Array, size: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    return _placed(m, grad, size, (slice(None),) * (dim % len(size)) + (slice(start, end, step),))


def _select_backward(m: _Machine, grad: Array, size: Sequence[int], dim: int, index: int) -> Array:
    return _placed(m, grad, size, (slice(None),) * (dim % len(size)) + (index,))


def _slice_scatter(m: _Machine, x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    out = x.copy()
    out[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)] = source if _whole(x) else m.lift(source)
    return out


def _select_scatter(m: _Machine, x: Array, source: Array, dim: int, index: int) -> Array:
    out = x.copy()
    np.moveaxis(out, dim, 0)[index] = source if _whole(x) else m.lift(source)
    return out


def _pad(m: _Machine, x: Array, pad: Sequence[int], value: float = 0) -> Array:
    pairs = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True))
    out = m.full(shape, value, torch.int64 if _whole(x) else torch.float64)
    into = tuple(slice(max(before, 0), max(before, 0) + n + min(before, 0) + min(after, 0)) for n, (before, after) in zip(x.shape, widths, strict=True))
    taken = tuple(slice(max(-before, 0), n - max(-after, 0)) for n, (before, after) in zip(x.shape, widths, strict=True))
    out[into] = x[taken]
    return out


def _cat(m: _Machine, parts: Sequence[Array], dim: int = 0) -> Array:
    return np.concatenate(parts if all(map(_whole, parts)) else [m.lift(part) for part in parts], axis=dim)


def _stack(m: _Machine, parts: Sequence[Array], dim: int = 0) -> Array:
    return np.stack(parts if all(map(_whole, parts)) else [m.lift(part) for part in parts], axis=dim)


def _copy(m: _Machine, x: Array, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """A copy in another type: truth values and integers become scalars, scalars truth values."""
    if dtype is None:
        return x.copy()
    if dtype.is_floating_point:
        return m.lift(x)
    if dtype is torch.bool:
        return np.logical_not(_equal(m, x, 0))
    if not _whole(x):
        raise UnsupportedOperation(f"rounding of {m.scalars.title} to integers")
    return x.astype(np.int64)


SHAPES: dict[str, Callable[..., Any]] = {
    "view _unsafe_view reshape": lambda m, x, size: x.reshape(tuple(size)),
    "t": lambda m, x: x.T,
    "transpose.int": lambda m, x, a, b: np.swapaxes(x, a, b) if x.ndim else x,
    "permute": lambda m, x, dims: np.transpose(x, dims),
    "expand": _expand,
    "unsqueeze": lambda m, x, dim: np.expand_dims(x, dim),
    "squeeze squeeze.dim squeeze.dims": _squeeze,
    "slice.Tensor": _slice,
    "select.int": lambda m, x, dim, index: np.take(x, index, axis=dim) if x.ndim == 1 else x[(slice(None),) * (dim % x.ndim) + (index,)],
    "unbind.int": lambda m, x, dim=0: [_boxed(part) for part in np.moveaxis(x, dim, 0)],
    "split_with_sizes split.Tensor": _split,
    "cat": _cat,
    "stack": _stack,
    "flip": lambda m, x, dims: np.flip(x, tuple(dims)),
    "repeat": lambda m, x, times: np.tile(x, tuple(times)),
    "diagonal": lambda m, x, offset=0, dim1=0, dim2=1: np.diagonal(x, offset, dim1, dim2),
    "triu": lambda m, x, diagonal=0: np.where(np.triu(np.ones(x.shape[-2:], dtype=bool), diagonal), x, _zeros_like(m, x)),
    "tril": lambda m, x, diagonal=0: np.where(np.tril(np.ones(x.shape[-2:], dtype=bool), diagonal), x, _zeros_like(m, x)),
    "constant_pad_nd": _pad,
    "alias detach lift_fresh lift_fresh_copy": lambda m, x: x,
    "clone _to_copy": _copy,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
}


# --------------------------------------------------------------------------------------------------------------- creation


def _arange(m: _Machine, *bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> Array:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    whole = np.arange(start, end, step)
    floating = dtype.is_floating_point if dtype is not None else not _whole(whole)
    return m.scalars.array(whole) if floating else whole


def _zeros_like(m: _Machine, x: Array, **_: Any) -> Array:
    return np.zeros_like(x) if _whole(x) else m.scalars.full(x.shape, 0)


def _full_like(m: _Machine, x: Array, value: Any, dtype: torch.dtype | None = None, **_: Any) -> Array:
    kind = dtype or (torch.bool if x.dtype.kind == "b" else torch.int64 if _whole(x) else torch.float64)
    return m.full(x.shape, value, kind)


def _full(m: _Machine, size: Sequence[int], value: Any = 0, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    return m.full(size, value, dtype)


def _new(value: int) -> Callable[..., Array]:
    return lambda m, x, size, *_, dtype=None, **__: m.full(size, value, dtype or (torch.int64 if _whole(x) else torch.float64))


def _filled(value: int) -> Callable[..., Array]:
    return lambda m, size, dtype=None, **_: m.full(size, value, dtype or torch.float64)


CREATION: dict[str, Callable[..., Any]] = {
    "zeros empty.memory_format _efficientzerotensor": _filled(0),
    "ones": _filled(1),
    "full": _full,
    "scalar_tensor": lambda m, value, dtype=None, **_: m.full((), value, dtype or torch.float64),
    "eye": lambda m, n, dtype=None, **_: _copy(m, np.eye(n, dtype=bool), dtype=dtype or torch.float64),
    "zeros_like empty_like": lambda m, x, dtype=None, **_: _full_like(m, x, 0, dtype),
    "ones_like": lambda m, x, dtype=None, **_: _full_like(m, x, 1, dtype),
    "full_like": _full_like,
    "fill.Scalar": _full_like,
    "new_zeros new_empty": _new(0),
    "new_ones": _new(1),
    "_new_zeros_with_same_feature_meta": lambda m, x, other, self_num_batch_dims=0: m.scalars.full((*x.shape[:self_num_batch_dims], *other.shape), 0),
    "new_full": lambda m, x, size, value, dtype=None, **_: m.full(size, value, dtype or (torch.int64 if _whole(x) else torch.float64)),
    "arange arange.start arange.start_step": _arange,
    "copy": lambda m, x, source, *_: np.broadcast_to(source if _whole(x) else m.lift(source), x.shape),
}


# ------------------------------------------------------------------------------------------------------------- arithmetic


def _binary(ufunc: Any, m: _Machine, a: Any, b: Any, *, alpha: Any = 1) -> Array:
    """An operation on two arrays or numbers; integers stay integers, everything else becomes scalars."""
    if _whole(a) and _whole(b):
        return np.asarray(ufunc(a, b if alpha == 1 else b * alpha))
    second = m.lift(b)
    return _boxed(ufunc(m.lift(a), second if alpha == 1 else _boxed(second * m.lift(alpha))))


def _multiply(m: _Machine, a: Any, b: Any) -> Array:
    return _binary(np.logical_and if _truth(a) and _truth(b) else np.multiply, m, a, b)


def _truth(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "b"


def _divide(m: _Machine, a: Any, b: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode is not None:
        if not (_whole(a) and _whole(b)):
            raise UnsupportedOperation(f"rounded division of {m.scalars.title}")
        return np.asarray(np.floor_divide(a, b))
    divisor = m.lift(b)
    if isinstance(b, np.ndarray) and not _whole(b):
        m.note("div", divisor)
    return _boxed(np.true_divide(m.lift(a), divisor))


def _power(m: _Machine, x: Array, exponent: Any) -> Array:
    if _whole(x) and _whole(exponent):
        return np.asarray(x**exponent)
    base = m.lift(x)
    if exponent in (-0.5, 0.5):
        m.note("rsqrt" if exponent < 0 else "sqrt", base)
    elif exponent < 0:
        m.note("div", base)
    elif exponent != int(exponent):
        m.note("log", base)
    return m.scalars.power(base, exponent)


def _reduced(m: _Machine, x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Sum over axes."""
    axes = _axes(dim, x.ndim)
    if not axes:
        return x if x.dtype.kind != "b" else x.astype(np.int64)
    rest = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    total = np.add.reduce(x.astype(np.int64) if x.dtype.kind == "b" else x, axis=axes, keepdims=True) if x.size else m.full(rest, 0, _kind(x))
    return total if keepdim else total.reshape([n for axis, n in enumerate(x.shape) if axis not in axes])


def _kind(x: Array) -> torch.dtype:
    return torch.int64 if _whole(x) else torch.float64


def _sum(m: _Machine, x: Array, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    return _reduced(m, m.lift(x) if dtype is not None and dtype.is_floating_point else x, dim, keepdim)


def _mean(m: _Machine, x: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
    count = prod(x.shape[axis] for axis in _axes(dim, x.ndim))
    return _boxed(_reduced(m, m.lift(x), dim, keepdim) / m.lift(count))


def _variance(m: _Machine, x: Array, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Array:
    count = prod(x.shape[axis] for axis in _axes(dim, x.ndim)) - (1 if correction is None else correction)
    centred = _boxed(x - _mean(m, x, dim, keepdim=True))
    return _boxed(_reduced(m, _boxed(centred * centred), dim, keepdim) / m.lift(count))


def _hyperbolic(sign: int) -> Callable[[_Machine, Array], Array]:
    """(eˣ ± e⁻ˣ)/2."""
    return lambda m, x: _boxed((m.scalars.exp(x) + m.lift(sign) * m.scalars.exp(_boxed(-x))) / m.lift(2))


def _function(name: str) -> Callable[[_Machine, Array], Array]:
    return lambda m, x: m.apply(name, m.lift(x))


def _plain(name: str) -> Callable[[_Machine, Array], Array]:
    """An entire function: nothing to record."""
    return lambda m, x: getattr(m.scalars, name)(m.lift(x))


def _absolute(m: _Machine, x: Array) -> Array:
    return np.abs(x) if _whole(x) else np.where(m.scalars.greater(m.lift(0), x), _boxed(-x), x)


def _sign(m: _Machine, x: Array) -> Array:
    return m.scalars.array(m.scalars.greater(x, m.lift(0)).astype(np.int64) - m.scalars.greater(m.lift(0), x).astype(np.int64))


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add.Tensor add.Scalar prims::add": partial(_binary, np.add),
    "sub.Tensor sub.Scalar prims::sub": partial(_binary, np.subtract),
    "rsub.Scalar rsub.Tensor": lambda m, a, b, alpha=1: _binary(np.subtract, m, b, a if alpha == 1 else _multiply(m, a, alpha)),
    "mul.Tensor mul.Scalar prims::mul": _multiply,
    "div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode prims::div": _divide,
    "floor_divide floor_divide.Scalar": lambda m, a, b: _divide(m, a, b, "floor"),
    "neg prims::neg": lambda m, x: -x,
    "reciprocal": lambda m, x: _divide(m, 1, x),
    "square": lambda m, x: x * x,
    "pow.Tensor_Scalar": _power,
    "pow.Scalar": lambda m, base, x: m.scalars.exponential(base, m.lift(x)),
    "sqrt": _function("sqrt"),
    "rsqrt": _function("rsqrt"),
    "log": _function("log"),
    "exp": _function("exp"),
    "sin": _plain("sin"),
    "cos": _plain("cos"),
    "cosh": _hyperbolic(1),
    "sinh": _hyperbolic(-1),
    "abs": _absolute,
    "sgn sign": _sign,
    "sum sum.dim_IntList": _sum,
    "mean mean.dim": _mean,
    "var.correction": _variance,
    "cumsum": lambda m, x, dim, **_: np.add.accumulate(x, axis=dim),
    "addcmul": lambda m, x, a, b, value=1: _binary(np.add, m, x, _multiply(m, _multiply(m, a, b), value)),
}


# ------------------------------------------------------------------------------------------------------------ contraction


def _product(m: _Machine, a: Array, b: Array) -> Array:
    """Matrix product over the last axis of one and the last but one of the other."""
    a, b = m.lift(a), m.lift(b)
    if a.shape[-1]:
        return _boxed(np.matmul(a, b))
    return m.scalars.full((*a.shape[:-1], *b.shape[-1:]), 0)


def _added(m: _Machine, x: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    product = _product(m, a, b)
    scaled = product if alpha == 1 else _multiply(m, product, alpha)
    return _binary(np.add, m, x if beta == 1 else _multiply(m, x, beta), scaled)


@dataclass(frozen=True)
class _Window:
    """How a convolution slides: which entries of the padded input meet each entry of the kernel."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, rank: int, stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int) -> "_Window":
        """The window of a convolution's arguments."""
        if transposed:
            raise UnsupportedOperation("a transposed convolution")
        wide_stride, wide_padding, wide_dilation = (tuple(s) * rank if len(s) == 1 else tuple(s) for s in (stride, padding, dilation))
        return cls(wide_stride, wide_padding, wide_dilation, groups)

    def patches(self, kernel: tuple[int, ...], out: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
        """For each entry of the kernel: its place in the weight, and the places of the padded input that it meets."""
        entire = slice(None)
        for offset in np.ndindex(*kernel):
            starts = [o * d for o, d in zip(offset, self.dilation, strict=True)]
            met = (slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, out, self.stride, strict=True))
            yield (entire, entire, *offset), (entire, entire, *met)

    def padded(self, m: _Machine, x: Array) -> Array:
        """The input with zeros around it."""
        return _pad(m, x, [p for pad in reversed(self.padding) for p in (pad, pad)])

    def unpadded(self, x: Array) -> Array:
        """The inverse of `padded`."""
        return x[slice(None), slice(None), *(slice(p, n - p) for p, n in zip(self.padding, x.shape[2:], strict=True))]


def _grouped(x: Array, groups: int) -> Array:
    """(N, C, …) as (N, groups, C/groups, positions)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, prod(x.shape[2:]))


def _convolution(
    m: _Machine, x: Array, w: Array, bias: Array | None, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Array:
    window = _Window.of(w.ndim - 2, stride, padding, dilation, transposed, groups)
    x, kernel = window.padded(m, x), w.shape[2:]
    size = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, window.stride, window.dilation, strict=True))
    out = m.scalars.full((x.shape[0], groups, w.shape[0] // groups, prod(size)), 0)
    for offset, places in window.patches(kernel, size):
        part = w[offset].reshape(groups, w.shape[0] // groups, w.shape[1])
        out = out + _product(m, part, _grouped(x[places], groups))
    result = out.reshape(x.shape[0], w.shape[0], *size)
    return result if bias is None else _boxed(result + bias.reshape(-1, *(1,) * len(size)))


def _convolution_backward(
    m: _Machine,
    grad: Array,
    x: Array,
    w: Array,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    window = _Window.of(w.ndim - 2, stride, padding, dilation, transposed, groups)
    wide, g = window.padded(m, x), _grouped(grad, groups)
    into_x, into_w = m.scalars.full(wide.shape, 0), m.scalars.full(w.shape, 0)
    for offset, places in window.patches(w.shape[2:], grad.shape[2:]):
        part = w[offset].reshape(groups, w.shape[0] // groups, w.shape[1])
        patch = wide[places]
        into_w[offset] = _reduced(m, _product(m, g, np.swapaxes(_grouped(patch, groups), -1, -2)), 0).reshape(w.shape[:2])
        into_x[places] = into_x[places] + _product(m, np.swapaxes(part, -1, -2), g).reshape(patch.shape)
    bias = _reduced(m, grad, (0, *range(2, grad.ndim)))
    parts = (window.unpadded(into_x), into_w, bias)
    return tuple(part if wanted else None for part, wanted in zip(parts, output_mask, strict=True))


CONTRACTION: dict[str, Callable[..., Any]] = {
    "mm bmm mv dot": _product,
    "addmm baddbmm addmv": _added,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}


# ------------------------------------------------------------------------------------------------------------ activations


def _gaussian(m: _Machine, x: Array) -> tuple[Array, Array]:
    """The normal distribution Φ(x) = erfc(−x/√2)/2 and its density φ(x) = exp(−x²/2)/√(2π)."""
    half = m.lift(0.7071067811865476)
    m.note("erf", _boxed(x * half))
    distribution = _boxed(m.scalars.erfc(_boxed(-(x * half))) / m.lift(2))
    return distribution, _boxed(m.scalars.exp(_boxed(-(x * x) / m.lift(2))) * m.lift(0.3989422804014327))


def _bell(m: _Machine, x: Array) -> tuple[Array, Array, Array]:
    """tanh(u) of GELU's tanh form with u = √(2/π)(x + 0.044715 x³), and u'."""
    root, cube = m.lift(0.7978845608028654), m.lift(0.044715)
    u = _boxed(root * (x + cube * x * x * x))
    t = m.apply("tanh", u)
    return t, _boxed(m.lift(1) - t * t), _boxed(root * (m.lift(1) + m.lift(3) * cube * x * x))


def _gelu(m: _Machine, x: Array, approximate: str = "none") -> Array:
    if approximate == "none":
        return _boxed(x * _gaussian(m, x)[0])
    return _boxed(x * (m.lift(1) + _bell(m, x)[0]) / m.lift(2))


def _gelu_backward(m: _Machine, grad: Array, x: Array, approximate: str = "none") -> Array:
    if approximate == "none":
        distribution, density = _gaussian(m, x)
        return _boxed(grad * (distribution + x * density))
    t, slope, inner = _bell(m, x)
    return _boxed(grad * (m.lift(1) + t + x * slope * inner) / m.lift(2))


def _silu_backward(m: _Machine, grad: Array, x: Array) -> Array:
    s = m.apply("sigmoid", x)
    return _boxed(grad * s * (m.lift(1) + x * (m.lift(1) - s)))


def _shift(m: _Machine, z: Array, axis: int) -> Array:
    """In floating point, what keeps exp from overflowing; any number gives the same softmax."""
    return np.max(z.real, axis=axis, keepdims=True) if m.scalars.dtype is np.complex128 and z.size else m.lift(0)


def _exponentials(m: _Machine, name: str, z: Array, dim: int) -> tuple[Array, Array, Array]:
    """exp(z − a), its sum along the axis, and a."""
    m.note(name, np.moveaxis(z, dim, -1) if z.ndim else z)
    shift = _shift(m, z, dim)
    e = m.scalars.exp(_boxed(z - shift))
    return e, _reduced(m, e, dim, keepdim=True), shift


def _softmax_value(m: _Machine, z: Array, dim: int, half: bool = False) -> Array:
    e, total, _ = _exponentials(m, "softmax", z, dim)
    return _boxed(e / total)


def _logsumexp_value(m: _Machine, z: Array, dim: Any, keepdim: bool = False) -> Array:
    axes = _axes(dim, z.ndim)
    if len(axes) > 1:
        raise UnsupportedOperation("logsumexp over several axes at once")
    if not axes:
        return z
    _, total, shift = _exponentials(m, "logsumexp", z, axes[0])
    out = _boxed(m.scalars.log(total) + shift)
    return out if keepdim else out.reshape([n for axis, n in enumerate(z.shape) if axis != axes[0]])


def _softmax_backward(m: _Machine, grad: Array, p: Array, dim: int, dtype: Any = None) -> Array:
    return _boxed(p * (grad - _reduced(m, _boxed(grad * p), dim, keepdim=True)))


def _log_softmax_backward(m: _Machine, grad: Array, logp: Array, dim: int, dtype: Any = None) -> Array:
    return _boxed(grad - m.scalars.exp(logp) * _reduced(m, grad, dim, keepdim=True))


def _above(m: _Machine, x: Array, threshold: Any = 0) -> Array:
    return m.scalars.greater(x, m.lift(threshold))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "sigmoid": _function("sigmoid"),
    "sigmoid_backward": lambda m, grad, s: grad * s * (m.lift(1) - s),
    "tanh": _function("tanh"),
    "tanh_backward": lambda m, grad, t: grad * (m.lift(1) - t * t),
    "erf": _function("erf"),
    "silu": lambda m, x: x * m.apply("sigmoid", x),
    "silu_backward": _silu_backward,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "_softmax": _softmax_value,
    "_safe_softmax": lambda m, z, dim, dtype=None: _softmax_value(m, z, dim),  # differs where all of a row is −∞
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": lambda m, z, dim, half=False: z - _logsumexp_value(m, z, dim, keepdim=True),
    "_log_softmax_backward_data": _log_softmax_backward,
    "logsumexp": _logsumexp_value,
    "relu": lambda m, x: np.where(_above(m, x), x, m.lift(0)),
    "threshold_backward": lambda m, grad, x, threshold: np.where(_above(m, x, threshold), grad, m.lift(0)),
    "leaky_relu": lambda m, x, slope=0.01: np.where(_above(m, x), x, _boxed(x * m.lift(slope))),
    "leaky_relu_backward": lambda m, grad, x, slope, is_result: np.where(_above(m, x), grad, _boxed(grad * m.lift(slope))),
}


# --------------------------------------------------------------------------------------------------- comparison and indexing


def _equal(m: _Machine, a: Any, b: Any) -> Array:
    if _whole(a) and _whole(b):
        return np.asarray(np.equal(a, b))
    return m.scalars.equal(m.lift(a), m.lift(b))


def _greater(m: _Machine, a: Any, b: Any) -> Array:
    if _whole(a) and _whole(b):
        return np.asarray(np.greater(a, b))
    return m.scalars.greater(m.lift(a), m.lift(b))


def _where(m: _Machine, condition: Array, a: Any, b: Any) -> Array:
    return np.where(condition, a, b) if _whole(a) and _whole(b) else _boxed(np.where(condition, m.lift(a), m.lift(b)))


def _masked(m: _Machine, x: Array, mask: Array, value: Any) -> Array:
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        value = m.scalars.array(value)
    return _where(m, mask, value, x)


def _order(m: _Machine, row: Array) -> list[int]:
    """Places of a row from the largest entry to the smallest, earlier ones first among equals."""
    places: list[int] = []
    for place in range(len(row)):
        before = [at for at, other in enumerate(places) if _greater(m, row[place : place + 1], row[other : other + 1])[0]]
        places.insert(before[0] if before else len(places), place)
    return places


def _topk(m: _Machine, x: Array, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True, **_: Any) -> tuple[Array, Array]:
    if not x.ndim:
        return x, np.zeros((), dtype=np.int64)
    rows = np.moveaxis(x, dim, -1)
    index = np.empty((*rows.shape[:-1], k), dtype=np.int64)
    for at in np.ndindex(*rows.shape[:-1]):
        index[at] = _order(m, rows[at])[:k] if largest else _order(m, rows[at])[::-1][:k]
    back = np.moveaxis(index, -1, dim)
    return np.take_along_axis(x, back, axis=dim), back


def _amax(m: _Machine, x: Array, dim: Any = (), keepdim: bool = False) -> Array:
    axes = _axes(dim, x.ndim)
    out = x
    for axis in axes:
        parts = [np.take(out, [place], axis=axis) for place in range(out.shape[axis])]
        best = parts[0]
        for part in parts[1:]:
            best = np.where(_greater(m, part, best), part, best)
        out = best
    return out if keepdim else out.reshape([n for axis, n in enumerate(x.shape) if axis not in axes])


def _along(x: Array, index: Array, dim: int) -> tuple[Any, ...]:
    """Numpy's places of `x.gather(dim, index)`."""
    places: list[Any] = list(np.ogrid[tuple(slice(0, n) for n in index.shape)])
    places[dim % index.ndim] = index
    return tuple(places)


def _gather(m: _Machine, x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    return _boxed(x[_along(x, index, dim)]) if x.ndim else x


def _scatter(m: _Machine, x: Array, dim: int, index: Array, source: Any) -> Array:
    out = x.copy()
    values = source if _whole(x) else m.lift(source)
    if isinstance(values, np.ndarray) and values.ndim:
        values = values[tuple(slice(0, n) for n in index.shape)]
    out[_along(x, index, dim)] = values
    return out


def _scatter_add(m: _Machine, x: Array, dim: int, index: Array, source: Array) -> Array:
    out = x.copy()
    np.add.at(out, _along(x, index, dim), source[tuple(slice(0, n) for n in index.shape)])
    return out


def _places(indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


def _index_put(m: _Machine, x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    out = x.copy()
    if accumulate:
        np.add.at(out, _places(indices), values)
    else:
        out[_places(indices)] = values
    return out


def _embedding_backward(m: _Machine, grad: Array, index: Array, number: int, padding: int = -1, scale: bool = False) -> Array:
    if scale:
        raise UnsupportedOperation("embedding gradients scaled by frequency")
    out = m.scalars.full((number, grad.shape[-1]), 0)
    kept = index.reshape(-1) != padding
    np.add.at(out, index.reshape(-1)[kept], grad.reshape(-1, grad.shape[-1])[kept])
    return out


COMPARISON: dict[str, Callable[..., Any]] = {
    "eq.Tensor eq.Scalar": _equal,
    "ne.Tensor ne.Scalar": lambda m, a, b: np.logical_not(_equal(m, a, b)),
    "gt.Tensor gt.Scalar": _greater,
    "lt.Tensor lt.Scalar": lambda m, a, b: _greater(m, b, a),
    "ge.Tensor ge.Scalar": lambda m, a, b: np.logical_not(_greater(m, b, a)),
    "le.Tensor le.Scalar": lambda m, a, b: np.logical_not(_greater(m, a, b)),
    "logical_not bitwise_not": lambda m, x: np.logical_not(x),
    "logical_and bitwise_and.Tensor": lambda m, a, b: np.logical_and(a, b),
    "logical_or bitwise_or.Tensor": lambda m, a, b: np.logical_or(a, b),
    "where.self where.ScalarSelf where.ScalarOther where.Scalar": _where,
    "masked_fill.Scalar masked_fill.Tensor": _masked,
    "amax": _amax,
    "topk": _topk,
}

INDEXING: dict[str, Callable[..., Any]] = {
    "gather": _gather,
    "scatter.value scatter.src": _scatter,
    "scatter_add": _scatter_add,
    "index.Tensor": lambda m, x, indices: _boxed(x[_places(indices)]),
    "index_select": lambda m, x, dim, index: np.take(x, index, axis=dim),
    "index_put": _index_put,
    "embedding": lambda m, table, index, *_: table[index],
    "embedding_dense_backward": _embedding_backward,
}


def _operations() -> dict[Any, Callable[..., Any]]:
    """The tables above by operation; a name without overload means `default`."""
    table: dict[Any, Callable[..., Any]] = {getitem: lambda m, parts, index: parts[index]}
    for group in (SHAPES, CREATION, ARITHMETIC, CONTRACTION, ACTIVATIONS, COMPARISON, INDEXING):
        for names, function in group.items():
            for name in names.split():
                space, _, plain = name.rpartition("::")
                packet, _, overload = plain.partition(".")
                table[getattr(getattr(getattr(torch.ops, space or "aten"), packet), overload or "default")] = function
    return table


OPERATIONS = _operations()
"""What each operation does: (machine, *arguments) to an array or a tuple of arrays."""
