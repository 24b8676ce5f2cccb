"""What is on the page: frozen values, made by `conserved.report.build`.

Laws are named by their position in `Report.laws`. None stands for "not evaluated" everywhere.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from conserved.experiments.claims import AuditResult

CONTROL = "control"
"""Family of the deliberately wrong law."""

PARTS = ("step_size", "decay", "work", "rounding")
"""The parts that add up to a drift."""

CURVES = ("drift", "predicted", *PARTS, "residual")
"""The columns that are drawn over steps."""

COLUMNS = (*CURVES, "size", "mismatch", "floor")
"""The columns of a record that the page uses."""


@dataclass(frozen=True)
class LawView:
    """A row of the table of laws.

    Args:
        name, family, layer, formula, count, exact, reason, source: as in `Law`.
        symmetry: its name in words.
        linear: whether h is linear, so that plain steps do not move it.
    """

    name: str
    family: str
    layer: str
    symmetry: str
    formula: str
    count: int
    exact: bool
    reason: str
    source: str
    linear: bool

    @property
    def short(self) -> str:
        """The formula with parameters named relative to the layer."""
        return re.sub(rf"(?<![\w.]){re.escape(self.layer)}\.", "", self.formula) if self.layer else self.formula

    @property
    def is_control(self) -> bool:
        """Whether it is wrong on purpose."""
        return self.family == CONTROL


@dataclass(frozen=True)
class Missing:
    """Where there is no law, and why."""

    where: str
    reason: str
    source: str


@dataclass(frozen=True)
class Final:
    """The numbers of a law at the last record that evaluated its drift.

    Args:
        law: position of the law.
        step: of that record.
        drift, predicted, mismatch, size, step_size, decay, work, rounding, floor: as recorded.
    """

    law: int
    step: int | None = None
    drift: float | None = None
    predicted: float | None = None
    mismatch: float | None = None
    size: float | None = None
    step_size: float | None = None
    decay: float | None = None
    work: float | None = None
    rounding: float | None = None
    floor: float | None = None

    @property
    def parts(self) -> tuple[float | None, ...]:
        """The four parts, in the order of `PARTS`."""
        return self.step_size, self.decay, self.work, self.rounding

    @property
    def total(self) -> float | None:
        """Sum of the four parts; None if one is missing."""
        known = [part for part in self.parts if part is not None]
        return sum(known) if len(known) == len(PARTS) else None

    @property
    def difference(self) -> float | None:
        """Observed drift minus the sum of its parts: what nothing explains."""
        return None if self.drift is None or self.total is None else self.drift - self.total

    @property
    def noise(self) -> float:
        """Size of the rounding, as far as it is known."""
        return max(abs(part) for part in (self.floor, self.rounding, 0.0) if part is not None)

    @property
    def is_rounding(self) -> bool:
        """Whether at least half of the drift may be rounding, so that it says nothing about step size."""
        return self.drift is not None and self.drift <= 2 * self.noise


@dataclass(frozen=True)
class Residual:
    """The residual of a law over a run.

    Args:
        law: position of the law.
        worst: the largest over all records that evaluated it.
        step: where that was.
        evaluated: number of those records.
    """

    law: int
    worst: float | None = None
    step: int | None = None
    evaluated: int = 0


@dataclass(frozen=True)
class RunView:
    """A run as drawn.

    Args:
        name: of its directory.
        lr: learning rate, in a study.
        ledger: "exact", "sampled" or None.
        optimizer: class of the optimiser.
        records: number of records; last: step of the last one.
        steps: steps that are drawn.
        curves: for each of `CURVES`, a tuple for each law of values at `steps`.
        finals, residuals: one for each law, from all records.
    """

    name: str
    lr: float | None
    ledger: str | None
    optimizer: str
    records: int
    last: int | None
    steps: tuple[int, ...]
    curves: Mapping[str, tuple[tuple[float | None, ...], ...]]
    finals: tuple[Final, ...]
    residuals: tuple[Residual, ...]

    @property
    def thinned(self) -> bool:
        """Whether fewer steps are drawn than were recorded."""
        return len(self.steps) < self.records

    @property
    def label(self) -> str:
        """The run in a list of choices."""
        return self.name if self.lr is None else f"learning rate {self.lr:g} ({self.name})"


@dataclass(frozen=True)
class Cell:
    """A field of the table of residuals: the laws of one family in one layer.

    Args:
        laws: how many there are.
        evaluated: how many of them have a residual in some run.
        worst: the largest residual.
        law: position of the law that has it, or of the first one.
        run: name of the run that has it.
        step: where that was.
        exact: whether all of them are exact.
    """

    laws: int = 0
    evaluated: int = 0
    worst: float | None = None
    law: int | None = None
    run: str = ""
    step: int | None = None
    exact: bool = True

    @property
    def state(self) -> str:
        """One of "no law", "not evaluated", "partly" and "value"."""
        if not self.laws:
            return "no law"
        if not self.evaluated:
            return "not evaluated"
        return "value" if self.evaluated == self.laws else "partly"


@dataclass(frozen=True)
class HeatMap:
    """Residuals by layer (rows) and family (columns)."""

    layers: tuple[str, ...]
    families: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """Whether the exact laws' residuals are at rounding level.

    Args:
        exact: number of exact laws; evaluated: with a residual; above: over the bound.
        worst: largest residual; law: name of the law that has it.
        bound: largest residual that rounding explains.
        dtype: the precision it is for; assumed: whether the run does not say it.
    """

    exact: int
    evaluated: int
    above: int
    worst: float | None
    law: str
    bound: float
    dtype: str
    assumed: bool

    @property
    def state(self) -> str:
        """One of "violated", "not evaluated", "partly" and "holds"."""
        if self.above:
            return "violated"
        if not self.evaluated:
            return "not evaluated"
        return "holds" if self.evaluated == self.exact else "partly"


@dataclass(frozen=True)
class Control:
    """The deliberately wrong law, beside an exact one.

    Args:
        law: its position; None if the runs have none and only the study's summary tells of it.
        formula, note: what it is and why it is wrong.
        compared: position of the exact law that it is shown with.
        drift, residual: at the end, of the run shown first; the residual is the largest.
        exponent: of its drift against learning rate, from the study's summary.
    """

    law: int | None
    formula: str
    note: str
    compared: int | None
    drift: float | None
    compared_drift: float | None
    residual: float | None
    exponent: float | None


@dataclass(frozen=True)
class Fit:
    """A line through log drift against log learning rate.

    Args:
        slope, offset: log10(drift) = slope · log10(lr) + offset.
        points: number of runs that it rests on.
    """

    slope: float
    offset: float
    points: int


@dataclass(frozen=True)
class FamilyView:
    """A family in a study.

    Args:
        family, symmetry, note: names and text.
        laws: independent count; exact: whether all are.
        worst_residual, drift, predicted_drift, mismatch, floor, exponent: as in summary.json (the floor may be called rounding there).
        points: (learning rate, final drift over its laws) for each run with both.
        fit: through the points; None where there is nothing to fit.
        why: why there is no fit.
        rounding_only: whether it cannot be fitted because its drift is rounding.
    """

    family: str
    symmetry: str
    laws: int | None
    exact: bool | None
    worst_residual: float | None
    drift: float | None
    predicted_drift: float | None
    mismatch: float | None
    floor: float | None
    exponent: float | None
    note: str
    points: tuple[tuple[float, float], ...]
    fit: Fit | None
    why: str
    rounding_only: bool

    @property
    def empty(self) -> int:
        """Number of fields that summary.json leaves without a number, of those that the family can have."""
        numbers = [self.drift, self.exponent]
        numbers += [] if self.family == CONTROL else [self.laws, self.worst_residual, self.predicted_drift, self.mismatch, self.floor]
        return sum(number is None for number in numbers)


@dataclass(frozen=True)
class Study:
    """What several runs show together.

    Args:
        families: a row for each, the control last.
        kept: "steps" if all runs took equally many, "time" if learning rate × steps is equal, else "".
        seconds: how long the study took.
    """

    families: tuple[FamilyView, ...]
    kept: str
    seconds: float | None


@dataclass(frozen=True)
class Settings:
    """A titled list of settings."""

    title: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Report:
    """Everything on the page.

    Args:
        title: of the page; path: where the run is.
        summary: two sentences.
        notices: what the reader must know before reading the figures.
        independent, approximate: numbers of independent scalars in all laws without the control, and in the approximate ones.
        laws, missing: the tables of laws and of absences.
        runs: at least one, unless there is only an audit.
        heat, verdict: of the residuals, over all runs.
        control, study: None where there is none.
        settings: configuration, optimiser, versions.
        version: of the program that wrote the page.
        audit: of a paper's claims; None where there is none.
    """

    title: str
    path: str
    summary: tuple[str, ...]
    notices: tuple[str, ...]
    independent: int
    approximate: int
    laws: tuple[LawView, ...]
    missing: tuple[Missing, ...]
    runs: tuple[RunView, ...]
    heat: HeatMap
    verdict: Verdict
    control: Control | None
    study: Study | None
    settings: tuple[Settings, ...]
    version: str
    audit: AuditResult | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """Families in order of appearance, the control last."""
        names = dict.fromkeys(law.family for law in self.laws)
        return tuple(sorted(names, key=CONTROL.__eq__))

    @property
    def ledgers(self) -> frozenset[str | None]:
        """The kinds of ledger that the runs kept."""
        return frozenset(run.ledger for run in self.runs)
