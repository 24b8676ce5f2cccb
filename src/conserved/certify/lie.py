r"""Dimension of the Lie algebra of a flow's fields at a point: how far the flow can move, and so how much it keeps.

    laws near θ = size − dim Lie(θ),     Lie = span of all iterated brackets of the generators

Left-normed words [v_1, [v_2, … [v_{k−1}, v_k]]] span the algebra, so the closure takes random words of depth 1, 2, 3, … and adds
their values at θ to a span. It ends early when the span and the known laws fill the space together: the span can never meet the
gradients of laws. Otherwise it ends when two further depths in a row add nothing.

The fields of samples at fixed θ are analytic in the data, so random data reach the full span (design 2.5: with real data in
float64 not always visibly; see `conserved.certify.sampling`).

Source: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144), theorem 3.3 (Frobenius); Sussmann 1973 for the orbits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from conserved.certify.rank import CLEAR_GAP, Span, complement_gap

Words = Callable[[int, int], Tensor]
"""(depth, number) to rows: values at θ of that many random words of that depth, shape (number, size)."""

MAX_DEPTH = 9
STAGNATION = 2


@dataclass(frozen=True, eq=False)
class Closure:
    """What the closure found.

    Attributes:
        ranks: rank after depth 1, 2, …; the first is the rank of W.
        size: dimension of the state space.
        gap: smallest ratio of singular values that decided a rank.
        settled: whether the last ranks are final: filled by the known laws, or stagnant twice.
        span: orthonormal basis of the algebra at θ.
        filled: whether the algebra and the known laws fill the space, so that no more words can add anything.
    """

    ranks: tuple[int, ...]
    size: int
    gap: float
    settled: bool
    span: Tensor | None
    filled: bool = False

    @property
    def rank(self) -> int:
        """The dimension of Lie(θ)."""
        return self.ranks[-1]

    @property
    def clear(self) -> bool:
        """Whether every rank was decided by a clear gap and the closure settled."""
        return self.settled and self.gap >= CLEAR_GAP


def closure(words: Words, size: int, law_gradients: Tensor, *, exhaustive: bool = False, max_depth: int = MAX_DEPTH, least: int = 0) -> Closure:
    """The closure at one point.

    Args:
        words: values of random words.
        size: dimension of the state space.
        law_gradients: independent gradients of known laws, (k, size); they bound the rank by size − k.
        exhaustive: whether to draw until a full batch adds nothing: for fields that are analytic only in pieces, and for samples that aim
            at one unit each.
        max_depth: of the words.
        least: fields drawn at once, before brackets: many where some pieces are small.
    """
    target = size - len(law_gradients)
    if filled := _filled_at_once(words, size, law_gradients, target):
        return filled
    span, ranks = Span.empty(size), list[int]()
    for depth in range(1, max_depth + 1):
        span = _with_depth(span, words, depth, target, exhaustive, least if depth == 1 else 0)
        ranks.append(span.rank)
        if span.rank >= target:
            gap = min(span.gap, complement_gap(span.basis, law_gradients)) if span.rank == target else span.gap
            return Closure(tuple(ranks), size, gap, True, span.basis, filled=span.rank == target)
        if span.gap < CLEAR_GAP:
            return Closure(tuple(ranks), size, span.gap, False, span.basis)
        if len(ranks) > STAGNATION and ranks[-1 - STAGNATION] == ranks[-1]:
            return Closure(tuple(ranks), size, span.gap, True, span.basis)
    return Closure(tuple(ranks), size, span.gap, False, span.basis)


def _with_depth(span: Span, words: Words, depth: int, target: int, exhaustive: bool, least: int) -> Span:
    """The span with the words of one depth. A few words that add nothing show that no more would, except across pieces."""
    few = 0 if exhaustive or depth == 1 else 8
    while span.rank < target:
        missing = target - span.rank
        before, full = span.rank, max(least, missing + _spare(missing))
        span = span.extended(words(depth, min(few, full) if few else full))
        if span.rank == before or (not few and not exhaustive):
            break
        few = 0
    return span


def _spare(missing: int) -> int:
    """Rows beyond the smallest number, so that an unlucky sample does not lower the rank."""
    return max(8, missing // 16)


def _filled_at_once(words: Words, size: int, law_gradients: Tensor, target: int) -> Closure | None:
    """For large sizes: one QR factorisation that shows W and the laws to fill the space, with no singular values taken."""
    if size < 512:
        return None
    gap = complement_gap(words(1, target + _spare(target)), law_gradients)
    return Closure((target,), size, gap, True, None, filled=True) if gap >= CLEAR_GAP else None
