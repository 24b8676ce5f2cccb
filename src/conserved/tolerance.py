"""The one table of tolerances, by dtype.

A gradient's residual is rounding error over the sum of absolute terms: a small multiple of machine epsilon
times the growth of errors through a backward pass. The bounds are what every exact law of the catalogue
keeps with room to spare, and what every deliberately wrong law exceeds by far.
"""

import torch

from conserved.errors import UnknownNameError

_RESIDUAL = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}

CONTROL_RESIDUAL = 1e-2
"""A deliberately wrong law must have at least this residual."""


def residual_bound(dtype: torch.dtype) -> float:
    """Largest residual of an exact law that rounding alone explains, for parameters and gradients of a dtype.

    Raises:
        UnknownNameError: the dtype is not a floating-point type of the table.

    Example:
        >>> residual_bound(torch.float64)
        1e-12
    """
    if dtype not in _RESIDUAL:
        raise UnknownNameError(f"no tolerance for {dtype}; use one of {', '.join(str(d).removeprefix('torch.') for d in _RESIDUAL)}")
    return _RESIDUAL[dtype]
