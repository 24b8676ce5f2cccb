"""The axes notation: what it reads, what it refuses, and that a view is what einops and naive indexing say."""

from dataclasses import dataclass
from math import prod

import einops
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conserved.errors import ConservedError, NotationError
from conserved.law.axes import Axis, fit, parse

FITS = [
    ("i", (1,), ("i",), (1,)),
    ("i", (0,), ("i",), (0,)),
    ("(h=1 i)", (1,), ("h", "i"), (1, 1)),
    ("i[0:1]", (3,), ("i",), (1,)),
    ("i d", (4, 3), ("i", "d"), (4, 3)),
    ("  i   d ", (4, 3), ("i", "d"), (4, 3)),
    ("(h=4 i) d", (12, 2), ("h", "i", "d"), (4, 3, 2)),
    ("(h i=4) d", (12, 2), ("h", "i", "d"), (3, 4, 2)),
    ("(k=2 g=3 i) d", (24, 5), ("k", "g", "i", "d"), (2, 3, 4, 5)),
    ("(c=2 i)[0:8] d", (10, 3), ("c", "i", "d"), (2, 4, 3)),
    ("(h=4 (c=2 i)[0:4]) d", (24, 3), ("h", "c", "i", "d"), (4, 2, 2, 3)),
    ("d (h=4 i)[4:12]", (3, 20), ("d", "h", "i"), (3, 4, 2)),
    ("i=4[1:3] d", (4, 3), ("i", "d"), (2, 3)),
    ("(h=3 i=4[1:2])", (12,), ("h", "i"), (3, 1)),
    ("(((a b=2) c=2) d=2)", (8,), ("a", "b", "c", "d"), (1, 2, 2, 2)),
    ("_x y2", (2, 3), ("_x", "y2"), (2, 3)),
]

PARSE_ERRORS = [
    ("", "no axis named; write one name for each axis"),
    ("   ", "no axis named"),
    ("i, d", r"cannot read ', d'; write names"),
    ("2i", "cannot read '2i'"),
    ("i[2]", r"cannot read '\[2\]'"),
    ("i[:2]", r"cannot read '\[:2\]'"),
    ("i[-1:2]", "cannot read"),
    ("h=", "cannot read '='"),
    ("i d)", r"'\)' without '\('; close only what is open"),
    (")", r"'\)' without '\('"),
    ("() d", "an empty group; name the axes"),
    ("(h=4 i d", r"'\(' without '\)'; close every group"),
    ("i i", "an axis is named twice; give each its own name"),
    ("(h=2 i) h", "an axis is named twice"),
    ("([0:2] a b)", "cannot read"),  # a cut belongs after the group that it cuts
    ("a=2b", "cannot read"),  # two axes need a space between them
]

FIT_ERRORS = [
    ("i", (4, 3), r"name 1 axes, the parameter has shape \(4, 3\); name each axis once"),
    ("i d", (4,), "name 2 axes"),
    ("i=3 d", (4, 3), r"axis 'i' is 4 long in shape \(4, 3\), not 3"),
    ("(h=2 i=3)", (8,), "a group of 6 does not divide 8"),
    ("(h=3 i)", (8,), "a group of 3 does not divide 8"),
    ("(h=0 i)", (8,), "a group of 0 does not divide 8"),
    ("(h i)", (8,), r"a group leaves 2 sizes open; give all but one, as in \(h=4 i\)"),
    ("i[0:9]", (8,), r"\[0:9\] does not fit an axis of 8 in shape \(8,\)"),
    ("i[3:3]", (8,), r"\[3:3\] does not fit"),
    ("i[5:3]", (8,), r"\[5:3\] does not fit"),
    ("(h=2 (c=2 i)[0:6]) d", (8, 1), r"\[0:6\] does not fit an axis of 4"),
    ("(c=2 i)[0:3]", (8,), "a group of 2 does not divide 3"),
]


@pytest.mark.parametrize(("pattern", "shape", "names", "sizes"), FITS)
def test_a_pattern_fits(pattern: str, shape: tuple[int, ...], names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Names, sizes, and the shape of the viewed tensor agree."""
    view = fit(pattern, shape)
    assert (view.names, view.sizes) == (names, sizes)
    assert view(torch.zeros(shape)).shape == sizes
    assert view(torch.zeros(7, *shape), lead=1).shape == (7, *sizes)
    assert view.size(names) == prod(sizes)
    assert view.size(()) == 1


@pytest.mark.parametrize(("pattern", "message"), PARSE_ERRORS)
def test_a_malformed_pattern_is_refused(pattern: str, message: str) -> None:
    """Every parse error names the pattern and says what to write."""
    with pytest.raises(NotationError, match=message) as caught:
        parse(pattern)
    assert repr(pattern) in str(caught.value)
    assert isinstance(caught.value, ConservedError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("pattern", "shape", "message"), FIT_ERRORS)
def test_a_pattern_that_does_not_fit_is_refused(pattern: str, shape: tuple[int, ...], message: str) -> None:
    """Every fit error names the pattern and says what does not fit."""
    with pytest.raises(NotationError, match=message) as caught:
        fit(pattern, shape)
    assert repr(pattern) in str(caught.value)


def test_the_tree_of_a_pattern() -> None:
    """Sizes belong to names, cuts to the node that they follow."""
    assert parse("(h=4 (c=2 i)[0:8]) d[1:3]") == (
        Axis(None, None, None, (Axis("h", 4, None), Axis(None, None, (0, 8), (Axis("c", 2, None), Axis("i", None, None))))),
        Axis("d", None, (1, 3)),
    )


@pytest.mark.parametrize(
    ("pattern", "einops_pattern", "shape", "sizes"),
    [
        ("(h=4 i) d", "(h i) d -> h i d", (12, 3), {"h": 4}),
        ("(k=2 g=3 i) d", "(k g i) d -> k g i d", (12, 3), {"k": 2, "g": 3}),
        ("a (b=2 (c=2 d))", "a (b c d) -> a b c d", (3, 12), {"b": 2, "c": 2}),
        ("d (j c=2)", "d (j c) -> d j c", (3, 8), {"c": 2}),
    ],
)
def test_a_split_agrees_with_einops(pattern: str, einops_pattern: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Without cuts the notation is that of einops."""
    x = torch.arange(prod(shape)).reshape(shape)
    assert torch.equal(fit(pattern, shape)(x), einops.rearrange(x, einops_pattern, **sizes))


@dataclass(frozen=True)
class Node:
    """A random piece of a pattern, with its length and the source entry of every entry of its view."""

    text: str
    length: int
    entries: np.ndarray


@st.composite
def nodes(draw: st.DrawFn, names: list[str], depth: int = 2) -> Node:
    """A random axis or group; its entries are built by mixed-radix arithmetic alone."""
    if depth == 0 or not draw(st.booleans()):
        name, length = names.pop(), draw(st.integers(1, 4))
        text = f"{name}={length}"
        entries = np.arange(length)
    else:
        children = [draw(nodes(names, 0)) for _ in range(draw(st.integers(0, 2)))]
        children.insert(draw(st.integers(0, len(children))), draw(nodes(names, depth - 1)))  # at most one size is left open
        inside = prod(child.length for child in children)
        entries, weight = np.zeros((), dtype=int), inside
        for child in children:
            weight //= child.length
            entries = np.add.outer(entries, weight * child.entries)
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        length = before + inside + after
        text = "(" + " ".join(child.text for child in children) + ")"
        if before or after:
            return Node(f"{text}[{before}:{before + inside}]", length, entries + before)
        return Node(text, length, entries)
    start = draw(st.integers(0, length - 1))
    stop = draw(st.integers(start + 1, length))
    if (start, stop) != (0, length):
        return Node(f"{text}[{start}:{stop}]", length, entries[start:stop])
    return Node(text, length, entries)


@st.composite
def patterns(draw: st.DrawFn) -> list[Node]:
    """Random nodes for a tensor of one to three axes."""
    names = [f"n{i}" for i in range(64)]
    return [draw(nodes(names)) for _ in range(draw(st.integers(1, 3)))]


@settings(max_examples=150, deadline=None)
@given(patterns(), st.booleans())
def test_a_random_pattern_agrees_with_naive_indexing(tree: list[Node], flipped: bool) -> None:
    """view[i, j, …] is the entry that mixed-radix arithmetic names, with and without contiguous storage; nothing is copied."""
    shape = tuple(node.length for node in tree)
    pattern = " ".join(node.text for node in tree)
    x = torch.arange(prod(shape)).reshape(shape)
    if flipped:
        x = x.permute(*reversed(range(len(shape)))).contiguous().permute(*reversed(range(len(shape))))
    view = fit(pattern, shape)
    seen = view(x)
    flat = np.zeros((), dtype=int)
    for node in tree:
        flat = np.add.outer(flat * node.length, node.entries)
    assert seen.numpy().tolist() == flat.tolist()
    assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("pattern", ["(h=2 i) (a=3 (c=2 j)[0:2])", "(h=2 i)[2:6] d", "i[1:3] (a=3 b)"])
def test_a_view_never_copies(pattern: str) -> None:
    """Writing through a view writes into the tensor, transposed storage included; reading writes nothing."""
    for x in (torch.zeros(8, 12), torch.zeros(12, 8).T, torch.zeros(8, 24)[:, ::2]):
        view = fit(pattern, (8, 12))
        seen = view(x)
        assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        seen.fill_(1.0)
        assert int(x.sum()) == prod(view.sizes)
        assert bool((view(x) == 1).all())
