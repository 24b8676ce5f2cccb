"""A small training loop with every switch that the ledger has to survive."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from conserved.catalog import Decoder, TransformerConfig, randomize
from conserved.law import LawSet
from conserved.monitor import Monitor

MODEL = TransformerConfig(kv_heads=1, mlp=("swiglu", "moe"), top_k=2, norm_offset=0.0)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Args:
        id: readable name.
        optimizer: from parameters.
        clip: None, "global" or "each" (parameter).
        accumulate: micro-batches in a step.
        schedule: learning rate at a step as a factor.
    """

    id: str
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    clip: str | None = None
    accumulate: int = 1
    schedule: Callable[[int], float] | None = None


def _groups(model_parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Two groups that cut through laws: every second parameter learns at half the rate."""
    parameters = list(model_parameters)
    return [{"params": parameters[::2], "lr": 0.05}, {"params": parameters[1::2], "lr": 0.025}]


RECIPES = (
    Recipe("sgd", lambda p: torch.optim.SGD(p, 0.05)),
    Recipe("sgd-maximize", lambda p: torch.optim.SGD(p, 0.001, maximize=True, weight_decay=0.01)),
    Recipe("sgd-decay", lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.01)),
    Recipe("sgd-groups", lambda p: torch.optim.SGD(_groups(p), 0.05)),
    Recipe("sgd-groups-decay", lambda p: torch.optim.SGD(_groups(p), 0.05, weight_decay=0.01)),
    Recipe("sgd-global-clip-accumulation-schedule", lambda p: torch.optim.SGD(p, 0.3), "global", 3, lambda k: 1 / (1 + k / 50)),
    Recipe("sgd-clip-each", lambda p: torch.optim.SGD(p, 0.05), "each"),
    Recipe("momentum-decay", lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, weight_decay=0.01)),
    Recipe("momentum-dampening", lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, dampening=0.5, weight_decay=0.01)),
    Recipe("nesterov-decay-clip", lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=0.01), "global"),
    Recipe("adamw", lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1)),
    Recipe("adamw-clip-accumulation", lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1), "each", 2),
    Recipe("adam-l2", lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.1)),
    Recipe("rmsprop", lambda p: torch.optim.RMSprop(p, 1e-3)),
)


def recipe(name: str) -> Recipe:
    """The recipe of that name."""
    return next(r for r in RECIPES if r.id == name)


def make_model(config: TransformerConfig = MODEL, dtype: torch.dtype = torch.float64, seed: int = 0) -> Decoder:
    """A decoder with random parameters."""
    torch.manual_seed(seed)
    model = Decoder(config).to(dtype)
    randomize(model, torch.Generator().manual_seed(seed))
    return model


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    how: Recipe,
    steps: range,
    monitor: Monitor | None = None,
    tamper: Callable[[nn.Module], None] | None = None,
) -> None:
    """Train; the batches of step k depend on k alone, so that a run can be cut in two."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for k in steps:
        generator = torch.Generator().manual_seed(1000 + k)
        if how.schedule is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * how.schedule(k)
        optimizer.zero_grad()
        for _ in range(how.accumulate):
            (tokens,) = model.example(4, generator)
            loss = nn.functional.nll_loss(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        if how.clip == "global":
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        elif how.clip == "each":
            for parameter in model.parameters():
                nn.utils.clip_grad_norm_([parameter], 0.1)
        if tamper is not None:
            tamper(model)
        optimizer.step()
        if monitor is not None:
            monitor.step(loss=loss.item())


def naive_drift(laws: LawSet, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """h(θ_k) − h(θ_0) in float64 through `value`, which has tests of its own."""
    from conserved import value

    start, now = (value(laws, {n: t.double() for n, t in tensors.items()}) for tensors in (before, after))
    return {name: now[name] - start[name] for name in now}
