"""What several runs show together: drift against learning rate, and the negative control."""

from collections.abc import Mapping, Sequence
from math import hypot, isclose, log10
from statistics import linear_regression
from typing import Any

from conserved.report.data import CONTROL, Control, FamilyView, Fit, LawView, RunView, Study
from conserved.report.reading import number_or_none

ROUNDING = "the drift is rounding"


def fit_line(points: Sequence[tuple[float, float]]) -> Fit | None:
    """Least squares of log drift on log learning rate; None for fewer than two learning rates.

    Example:
        >>> fit = fit_line([(0.01, 3e-4), (0.1, 3e-2)])
        >>> round(fit.slope, 9), fit.points
        (2.0, 2)
    """
    logs = [(log10(lr), log10(drift)) for lr, drift in points if lr > 0 and drift > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    slope, offset = linear_regression([x for x, _ in logs], [y for _, y in logs])
    return Fit(slope, offset, len(logs))


def study(summary: Mapping[str, Any], families: tuple[str, ...], laws: tuple[LawView, ...], runs: tuple[RunView, ...]) -> Study:
    """The study's own summary, with drift against learning rate taken from the runs."""
    said = {str(entry["family"]): entry for entry in summary["families"]}
    control = summary.get("control")
    if control:
        said.setdefault(CONTROL, {"exact": False, **control})
    names = [name for name in dict.fromkeys([*families, *said]) if name != CONTROL]
    names += [CONTROL] if CONTROL in families or CONTROL in said else []
    return Study(tuple(_family(name, said.get(name, {}), laws, runs) for name in names), _kept(runs), number_or_none(summary.get("seconds")))


def _family(name: str, said: Mapping[str, Any], laws: tuple[LawView, ...], runs: tuple[RunView, ...]) -> FamilyView:
    members = [position for position, law in enumerate(laws) if law.family == name]
    points = tuple((run.lr, drift) for run in runs if run.lr is not None and (drift := _drift(members, run)) is not None)
    moved = [(run.lr, drift) for run in runs if run.lr is not None and (drift := _drift(members, run)) and not _is_rounding(members, run, laws)]
    fit = fit_line(moved)
    why = "no drift was evaluated" if not points else ROUNDING if len(moved) < len(points) else "fewer than two learning rates"
    symmetries = dict.fromkeys(laws[position].symmetry for position in members)
    exact = said.get("exact")
    numbers = {key: number_or_none(said.get(key)) for key in ("worst_residual", "drift", "predicted_drift", "mismatch", "floor", "exponent")}
    numbers["floor"] = number_or_none(said.get("rounding")) if numbers["floor"] is None else numbers["floor"]
    return FamilyView(
        family=name,
        symmetry=", ".join(symmetries) or str(said.get("symmetry") or ""),
        laws=int(said["laws"]) if number_or_none(said.get("laws")) is not None else None,
        exact=exact if isinstance(exact, bool) else None,
        note=str(said.get("note") or ""),
        points=points,
        fit=fit,
        why="" if fit else why,
        rounding_only=fit is None and why == ROUNDING,
        **numbers,
    )


def _drift(members: list[int], run: RunView) -> float | None:
    """Final drift of a family: root of the sum of squares over its laws; None if one was not evaluated."""
    drifts = [drift for law in members if (drift := run.finals[law].drift) is not None]
    return hypot(*drifts) if members and len(drifts) == len(members) else None


def _is_rounding(members: list[int], run: RunView, laws: tuple[LawView, ...]) -> bool:
    """Whether at least half of a family's drift may be rounding, which has no exponent.

    Of a linear law without a ledger it must be assumed: plain steps do not move it.
    """
    finals = [run.finals[law] for law in members]
    unknown = any(final.rounding is None and final.floor is None and laws[final.law].linear for final in finals)
    return unknown or (_drift(members, run) or 0.0) <= 2 * hypot(*(final.noise for final in finals))


def _kept(runs: tuple[RunView, ...]) -> str:
    spans = [(run.lr, run.last) for run in runs if run.lr and run.last]
    if len(spans) < 2:
        return ""
    if len({last for _, last in spans}) == 1:
        return "steps"
    times = [lr * last for lr, last in spans]
    return "time" if all(isclose(time, times[0], rel_tol=0.01) for time in times) else ""


def control(summary: Mapping[str, Any] | None, laws: tuple[LawView, ...], runs: tuple[RunView, ...]) -> Control | None:
    """The deliberately wrong law, beside the exact law that drifted most (a quadratic one if there is one)."""
    said = (summary or {}).get("control") or {}
    law = next((position for position, view in enumerate(laws) if view.is_control), None)
    if law is None and not said:
        return None
    first = runs[0]
    exact = [position for position, view in enumerate(laws) if view.exact and not view.is_control and first.finals[position].drift is not None]
    compared = max(exact, key=lambda position: (not laws[position].linear, first.finals[position].drift), default=None)
    worst = [run.residuals[law].worst for run in runs] if law is not None else []
    return Control(
        law=law,
        formula=laws[law].formula if law is not None else str(said.get("formula") or ""),
        note=(laws[law].reason if law is not None else "") or str(said.get("note") or ""),
        compared=compared,
        drift=first.finals[law].drift if law is not None else number_or_none(said.get("drift")),
        compared_drift=first.finals[compared].drift if compared is not None else None,
        residual=max((value for value in worst if value is not None), default=None),
        exponent=number_or_none(said.get("exponent")),
    )
