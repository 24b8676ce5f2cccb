"""Residuals over all runs: the table by layer and family, and the verdict on the exact laws."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from conserved.errors import UnknownNameError
from conserved.report.data import CONTROL, Cell, HeatMap, LawView, Residual, RunView, Verdict
from conserved.tolerance import residual_bound


def _worst(law: int, runs: tuple[RunView, ...]) -> tuple[Residual, str]:
    """The largest residual of a law over all runs, with the name of the run."""
    seen = [(run.residuals[law], run.name) for run in runs if run.residuals[law].worst is not None]
    return max(seen, key=lambda pair: pair[0].worst or 0.0, default=(Residual(law), ""))


def heat_map(laws: tuple[LawView, ...], families: tuple[str, ...], layers: tuple[str, ...], runs: tuple[RunView, ...]) -> HeatMap:
    """The largest residual of each layer and family, over all their laws, records and runs."""
    inside: dict[tuple[str, str], list[int]] = {}
    for position, law in enumerate(laws):
        inside.setdefault((law.layer, law.family), []).append(position)
    rows = tuple(tuple(_cell(inside.get((layer, family), []), laws, runs) for family in families) for layer in layers)
    return HeatMap(layers, families, rows)


def _cell(positions: list[int], laws: tuple[LawView, ...], runs: tuple[RunView, ...]) -> Cell:
    if not positions:
        return Cell()
    seen = [found for found in (_worst(law, runs) for law in positions) if found[0].worst is not None]
    exact = all(laws[law].exact for law in positions)
    if not seen:
        return Cell(len(positions), law=positions[0], exact=exact)
    residual, run = max(seen, key=lambda pair: pair[0].worst or 0.0)
    return Cell(len(positions), len(seen), residual.worst, residual.law, run, residual.step, exact)


def verdict(laws: tuple[LawView, ...], runs: tuple[RunView, ...], configuration: Mapping[str, Any], dtypes: Sequence[str] = ()) -> Verdict:
    """Whether every exact law's residual is at rounding level.

    Args:
        laws: what was watched.
        runs: their numbers.
        configuration: its "dtype", if any, is the user's word on the precision of the computation.
        dtypes: of the watched parameters: the lowest precision among them counts where the user says nothing.
    """
    dtype, assumed = _dtype(configuration, dtypes)
    bound = residual_bound(dtype)
    exact = [position for position, law in enumerate(laws) if law.exact and law.family != CONTROL]
    worst = {laws[position].name: value for position in exact if (value := _worst(position, runs)[0].worst) is not None}
    name = max(worst, key=lambda law: worst[law], default="")
    above = sum(value > bound for value in worst.values())
    return Verdict(len(exact), len(worst), above, worst.get(name), name, bound, str(dtype).removeprefix("torch."), assumed)


def _dtype(configuration: Mapping[str, Any], dtypes: Sequence[str]) -> tuple[torch.dtype, bool]:
    """The precision that the configuration names, else the lowest of the parameters; float32, assumed, if neither is known."""
    for names in ([configuration.get("dtype", "")], dtypes):
        known = [dtype for name in names if (dtype := _known(name)) is not None]
        if known:
            return max(known, key=residual_bound), False
    return torch.float32, True


def _known(name: object) -> torch.dtype | None:
    """The dtype of that name, if it has a bound."""
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    try:
        residual_bound(dtype)  # type: ignore[arg-type]
    except (UnknownNameError, TypeError):
        return None
    return dtype
