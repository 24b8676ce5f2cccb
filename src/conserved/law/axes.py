r"""The axes notation: how a term looks at a parameter.

A pattern names the axes of a tensor from left to right, in the manner of einops, and may split
and cut them:

    "i d"                     two axes
    "(h=4 i) d"               the first axis is 4 heads of i, heads outermost
    "(k=2 g=3 i) d"           key–value heads, query heads in each group, index
    "(c=2 i)[0:8] d"          only entries 0…7 of the first axis, as 2 halves of 4
    "(h=4 (c=2 i)[0:8]) d"    the same inside every head: partial rotary embedding
    "d (h=4 i)[64:128]"       a slice of a fused parameter

A name with `=n` has that size; in each pair of parentheses one name may leave it out. A view never
copies: slicing and splitting an axis of a strided tensor is again a strided tensor.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from conserved.errors import NotationError

_TOKEN = re.compile(r"\s*(?:(?P<open>\()|(?:(?P<name>[A-Za-z_]\w*)(?:=(?P<size>\d+))?|\))(?:\[(?P<start>\d+):(?P<stop>\d+)\])?(?P<end>(?=[\s()]|$))?)")


@dataclass(frozen=True)
class Axis:
    """One node of a parsed pattern: a named axis, or a group of them, perhaps cut."""

    name: str | None
    size: int | None
    cut: tuple[int, int] | None
    children: tuple["Axis", ...] = ()


@dataclass(frozen=True)
class View:
    """A pattern fitted to a shape.

    Attributes:
        names: names of the axes of the viewed tensor, in order.
        sizes: their sizes.
        steps: (axis, cut, split) to carry out from left to right.

    Example:
        >>> import torch
        >>> view = fit("(h=2 (c=2 i)[0:4]) d", (12, 3))
        >>> view.names, view.sizes
        (('h', 'c', 'i', 'd'), (2, 2, 2, 3))
        >>> view(torch.zeros(12, 3)).shape
        torch.Size([2, 2, 2, 3])
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[tuple[int, tuple[int, int] | None, tuple[int, ...]], ...]

    def __call__(self, tensor: Tensor, lead: int = 0) -> Tensor:
        """View `tensor` through the pattern; the first `lead` axes are left alone."""
        for axis, cut, split in self.steps:
            if cut is not None:
                tensor = tensor.narrow(axis + lead, cut[0], cut[1] - cut[0])
            if split:
                tensor = torch.unflatten(tensor, axis + lead, split)
        return tensor

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the sizes of the named axes."""
        return prod(self.sizes[self.names.index(name)] for name in names)


def parse(pattern: str) -> tuple[Axis, ...]:
    """Parse a pattern into its tree of axes.

    Raises:
        NotationError: the pattern is empty, malformed, or names an axis twice.
    """
    stack: list[list[Axis]] = [[]]
    position, text = 0, pattern.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is not None:
            position = match.end()
        if match is None or (not match["open"] and match["end"] is None):
            raise NotationError(f"axes {pattern!r}: cannot read {text[position:]!r}; write names, (groups), n=size, [start:stop]")
        cut = (int(match["start"]), int(match["stop"])) if match["start"] else None
        if match["name"]:
            stack[-1].append(Axis(match["name"], int(match["size"]) if match["size"] else None, cut))
        elif match["open"]:
            stack.append([])
        elif len(stack) == 1:
            raise NotationError(f"axes {pattern!r}: ')' without '('; close only what is open")
        else:
            children = tuple(stack.pop())
            if not children:
                raise NotationError(f"axes {pattern!r}: an empty group; name the axes inside the parentheses")
            stack[-1].append(Axis(None, None, cut, children))
    if len(stack) > 1:
        raise NotationError(f"axes {pattern!r}: '(' without ')'; close every group")
    axes = tuple(stack[0])
    names = [name for axis in axes for name in _names(axis)]
    if not names:
        raise NotationError(f"axes {pattern!r}: no axis named; write one name for each axis of the parameter")
    if len(set(names)) < len(names):
        raise NotationError(f"axes {pattern!r}: an axis is named twice; give each its own name")
    return axes


def _names(axis: Axis) -> tuple[str, ...]:
    if axis.name is not None:
        return (axis.name,)
    return tuple(name for child in axis.children for name in _names(child))


@lru_cache(maxsize=65536)
def fit(pattern: str, shape: tuple[int, ...]) -> View:
    """Fit a pattern to a parameter's shape.

    Raises:
        NotationError: number of axes, sizes or cuts do not fit the shape.
    """
    axes = parse(pattern)
    if len(axes) != len(shape):
        raise NotationError(f"axes {pattern!r} name {len(axes)} axes, the parameter has shape {shape}; name each axis once")
    names: list[str] = []
    sizes: list[int] = []
    steps: list[tuple[int, tuple[int, int] | None, tuple[int, ...]]] = []

    def place(axis: Axis, full: int) -> None:
        if axis.size is not None and axis.size != full:
            raise NotationError(f"axes {pattern!r}: axis {axis.name!r} is {full} long in shape {shape}, not {axis.size}")
        length = full
        if axis.cut is not None:
            start, stop = axis.cut
            if not start < stop <= full:
                raise NotationError(f"axes {pattern!r}: [{start}:{stop}] does not fit an axis of {full} in shape {shape}")
            length = stop - start
        split = _split(axis, length, pattern, shape)
        cut = axis.cut if length < full else None
        if cut is not None or split:
            steps.append((len(names), cut, split))
        if axis.name is not None:
            names.append(axis.name)
            sizes.append(length)
        for child, size in zip(axis.children, split, strict=True):
            place(child, size)

    for axis, full in zip(axes, shape, strict=True):
        place(axis, full)
    return View(tuple(names), tuple(sizes), tuple(steps))


def _split(axis: Axis, length: int, pattern: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of a group's children before their own cuts; empty for a named axis."""
    given = [child.size for child in axis.children]
    known = prod(size for size in given if size is not None)
    unknown = given.count(None)
    if axis.name is not None:
        return ()
    if unknown > 1:
        raise NotationError(f"axes {pattern!r}: a group leaves {unknown} sizes open; give all but one, as in (h=4 i)")
    if known == 0 or length % known or (unknown == 0 and known != length):
        raise NotationError(f"axes {pattern!r}: a group of {known} does not divide {length} in shape {shape}")
    return tuple(length // known if size is None else size for size in given)
