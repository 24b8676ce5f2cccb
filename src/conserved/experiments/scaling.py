"""Exponents: how a quantity grows with a learning rate or a number of steps."""

import math
from collections.abc import Sequence
from statistics import linear_regression


def exponent(x: Sequence[float], y: Sequence[float | None]) -> float | None:
    """Least-squares slope of log y against log x.

    Args:
        x: positive values, such as learning rates.
        y: values at them, as many; None for not evaluated.

    Returns:
        The slope; None if there are fewer than two different x, or if any y is missing, zero, negative or not finite: a
        slope of what is left would not be that of the quantity.

    Example:
        >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 6)
        2.0
    """
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if b is not None and b > 0 and math.isfinite(b)]
    if len(pairs) < len(x) or len(set(x)) < 2:
        return None
    logs = [(math.log(a), math.log(b)) for a, b in pairs]
    slope, _ = linear_regression([a for a, _ in logs], [b for _, b in logs])
    return slope
