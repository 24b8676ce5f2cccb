"""The activations of the catalogue, and which of them keep a symmetry."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from conserved.catalog.block import require_choice

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "leaky_relu": partial(functional.leaky_relu, negative_slope=0.1),
    "identity": lambda x: x,
}

POSITIVELY_HOMOGENEOUS = frozenset({"relu", "leaky_relu", "identity"})
"""Activations with σ(cx) = cσ(x) for c > 0: a positive rescaling passes through them."""


def resolve(block: str, name: str) -> Callable[[Tensor], Tensor]:
    """The activation of that name.

    Raises:
        ConfigurationError: there is none.
    """
    require_choice(block, "activation", name, tuple(ACTIVATIONS))
    return ACTIVATIONS[name]
