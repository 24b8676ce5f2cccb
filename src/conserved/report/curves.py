"""A run as drawn: thinned curves, and final numbers and worst residuals from all records."""

import polars as pl

from conserved.report.data import CURVES, Final, Residual, RunView
from conserved.report.reading import Run
from conserved.report.wording import optimizer_name

STEPS = 2000
"""Most steps that are drawn of a run."""

FEWEST = 200
"""Steps that are drawn however many laws there are."""

NUMBERS = 500_000
"""Numbers on a page, at most, unless `FEWEST` asks for more: about 10 MB."""


def step_limit(laws: int, runs: int) -> int:
    """How many steps of each run are drawn.

    Example:
        >>> step_limit(10, 1), step_limit(100, 1), step_limit(100, 5)
        (2000, 714, 200)
    """
    return min(STEPS, max(FEWEST, NUMBERS // max(1, laws * runs * len(CURVES))))


def thin(number: int, limit: int) -> list[int]:
    """Positions 0 … number−1, or at most `limit` of them: half log-spaced, half evenly spaced, with the first and the last.

    Log-spaced alone would leave a figure with a linear axis coarse at its end.

    Example:
        >>> thin(4, 10), thin(1000, 8)
        ([0, 1, 2, 3], [0, 9, 99, 333, 666, 999])
    """
    if number <= limit:
        return list(range(number))
    half = limit // 2
    spaced = [index / (half - 1) for index in range(half)]
    return sorted({round(number**part) - 1 for part in spaced} | {round((number - 1) * part) for part in spaced})


def run_view(run: Run, limit: int) -> RunView:
    """The run, with at most `limit` steps in its curves."""
    laws = len(run.header.laws)
    steps = run.records["step"]
    long = run.long()
    kept = thin(len(steps), limit)
    drawn = steps.gather(kept)
    lists = long.filter(pl.col("step").is_in(drawn.implode())).group_by("law", maintain_order=True).agg(*CURVES)
    curves = {name: tuple(map(tuple, lists[name].to_list())) if laws else () for name in CURVES}
    return RunView(
        name=run.name,
        lr=run.lr,
        ledger=run.header.ledger,
        optimizer=optimizer_name(run.header.optimizer),
        records=len(steps),
        last=int(steps[-1]) if len(steps) else None,
        steps=tuple(drawn.to_list()),
        curves=curves,
        finals=_finals(long, laws),
        residuals=_residuals(long, laws),
    )


def _finals(long: pl.DataFrame, laws: int) -> tuple[Final, ...]:
    last = long.filter(pl.col("drift").is_not_null()).group_by("law", maintain_order=True).last()
    found = {row["law"]: Final(**{name: value for name, value in row.items() if name != "residual"}) for row in last.to_dicts()}
    return tuple(found.get(law, Final(law)) for law in range(laws))


def _residuals(long: pl.DataFrame, laws: int) -> tuple[Residual, ...]:
    seen = long.filter(pl.col("residual").is_not_null()).group_by("law", maintain_order=True)
    worst = seen.agg(pl.col("residual").max().alias("worst"), pl.col("step").get(pl.col("residual").arg_max()), pl.len().alias("evaluated"))
    found = {row["law"]: Residual(**row) for row in worst.to_dicts()}
    return tuple(found.get(law, Residual(law)) for law in range(laws))
