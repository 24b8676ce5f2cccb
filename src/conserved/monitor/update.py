r"""What an optimiser does to each parameter, as far as the ledger needs to know it.

Two facts are read from the parameter groups just before a step: whether the step is plain (S)GD with one
learning rate, so that Δ = −τ(g + λθ) is known without looking at the weights afterwards; and which part
−τλθ of any step is weight decay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PlainStep:
    """Δ = −τ(g + λθ) for every watched parameter.

    Args:
        rate: τ, negative if the optimiser maximises.
        decay: λ.
    """

    rate: float
    decay: float


def plain_step(optimizer: torch.optim.Optimizer, watched: Mapping[str, nn.Parameter], offset: bool) -> PlainStep | None:
    """The step if it is plain (S)GD with one rate and decay for all watched parameters, otherwise None.

    With weight decay it is not called plain if a watched parameter has no gradient (SGD then skips its decay),
    or if a law has an offset (decay pulls θ to zero, not θ + offset).
    """
    if type(optimizer) is not torch.optim.SGD:
        return None
    groups = _groups(optimizer)
    seen: set[tuple[float, float]] = set()
    for parameter in watched.values():
        group = groups.get(id(parameter))
        if group is None:
            if parameter.grad is not None:
                return None
            continue
        if group["momentum"]:
            return None
        decay = float(group["weight_decay"])
        if decay and (offset or parameter.grad is None):
            return None
        sign = -1.0 if group.get("maximize") else 1.0
        seen.add((sign * float(group["lr"]), sign * decay))
    if len(seen) != 1:
        return None
    ((rate, decay),) = seen
    return PlainStep(rate, decay)


def decay_factors(optimizer: torch.optim.Optimizer, watched: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """τλ for each watched parameter that this step shrinks by the factor 1 − τλ.

    Decay is recognised in SGD (L2, without what momentum remembers of it) and wherever it is decoupled (AdamW, Muon).
    L2 in an adaptive optimiser is scaled entry by entry with the gradient and counts as the optimiser's work.
    """
    groups = _groups(optimizer)
    sgd = type(optimizer) is torch.optim.SGD
    factors = {}
    for name, parameter in watched.items():
        group = groups.get(id(parameter))
        if group is None or parameter.grad is None or not group.get("weight_decay"):
            continue
        if sgd or group.get("decoupled_weight_decay") or type(optimizer).__name__ in ("AdamW", "Muon"):
            share = _share_of_gradient(group, optimizer.state.get(parameter, {})) if sgd else 1.0
            factors[name] = float(group["lr"]) * float(group["weight_decay"]) * share
    return factors


def _share_of_gradient(group: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """How much of this step's g + λθ goes into SGD's update at once: 1, or as momentum, dampening and Nesterov have it."""
    momentum = float(group["momentum"])
    if not momentum:
        return 1.0
    kept = 1.0 if state.get("momentum_buffer") is None else 1.0 - float(group["dampening"])
    return 1.0 + momentum * kept if group["nesterov"] else kept


def describe(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class and options of an optimiser as plain data."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: _plain(value) for key, value in group.items() if key != "params"}
        groups.append(options | {"parameters": len(group["params"])})
    return {"class": type(optimizer).__name__, "groups": groups}


def _groups(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    return {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str | bool | None) else str(value)
