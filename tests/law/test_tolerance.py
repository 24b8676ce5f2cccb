"""The table of tolerances, and the family of errors."""

import inspect

import pytest
import torch

from conserved import errors
from conserved.errors import ConservedError, MissingParameterError, UnknownNameError
from conserved.tolerance import CONTROL_RESIDUAL, residual_bound


def test_bounds_grow_with_machine_epsilon() -> None:
    """Every bound is well above epsilon, those of single and double precision well below what a wrong law shows."""
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    bounds = [residual_bound(dtype) for dtype in dtypes]
    assert bounds == sorted(bounds)
    assert all(bound > 4 * torch.finfo(dtype).eps for bound, dtype in zip(bounds, dtypes, strict=True))
    assert all(bound <= CONTROL_RESIDUAL / 100 for bound in bounds[:2])


def test_a_dtype_outside_the_table() -> None:
    """Named, with those that are there."""
    with pytest.raises(UnknownNameError, match=r"no tolerance for torch.int64; use one of float64, float32, bfloat16, float16"):
        residual_bound(torch.int64)


def test_every_error_has_one_base_and_a_builtin_one() -> None:
    """A caller may catch `ConservedError`, or the built-in kind of error."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, ConservedError)
        assert kind is ConservedError or len(kind.__mro__) > len(ConservedError.__mro__) + 1, f"{kind.__name__} has no built-in base"
    assert str(MissingParameterError("'A' is missing")) == "'A' is missing"
