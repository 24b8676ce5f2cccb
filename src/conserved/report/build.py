"""From what was read to what is on the page."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conserved.experiments.claims import AuditResult
from conserved.law import Law, LawSet
from conserved.report.curves import run_view, step_limit
from conserved.report.data import CONTROL, HeatMap, LawView, Missing, Report, RunView, Settings, Study, Verdict
from conserved.report.reading import Run, Source
from conserved.report.residuals import heat_map, verdict
from conserved.report.study import control, study
from conserved.report.wording import audit_sentences, flatten, listed, number, plural
from conserved.version import __version__


def report_of(source: Source) -> Report:
    """Everything on the page."""
    if not source.runs and source.audit is not None:
        return _audit_alone(source.path, source.audit)
    head = source.runs[0].header
    laws = tuple(_law_view(law) for law in head.laws)
    limit = step_limit(len(laws), len(source.runs))
    runs = tuple(run_view(run, limit) for run in source.runs)
    configuration = dict(head.configuration) | dict((source.summary or {}).get("configuration") or {})
    families = tuple(sorted(head.laws.families, key=CONTROL.__eq__))
    layers = tuple(dict.fromkeys(law.layer for law in laws))
    found = verdict(laws, runs, configuration, [name for run in source.runs for name in run.header.dtypes])
    together = study(source.summary, families, laws, runs) if source.summary is not None else None
    real = LawSet.of(law for law in head.laws if law.family != CONTROL)
    independent = real.independent_count
    return Report(
        title=source.path.resolve().name,
        path=str(source.path),
        summary=_summary(independent, laws, runs, found, together) + (audit_sentences(source.audit) if source.audit else ()),
        notices=_notices(runs, found) + (source.audit.troubles if source.audit else ()),
        independent=independent,
        approximate=independent - real.select(exact=True).independent_count,
        laws=laws,
        missing=tuple(Missing(absence.where, absence.reason, absence.source) for absence in head.laws.absences),
        runs=runs,
        heat=heat_map(laws, families, layers, runs),
        verdict=found,
        control=control(source.summary, laws, runs),
        study=together,
        settings=_settings(source, configuration),
        version=__version__,
        audit=source.audit,
    )


def _audit_alone(path: Path, audit: AuditResult) -> Report:
    """The page on an audit without runs."""
    settings = Settings("Audit", (("directory", str(path)), ("seed", str(audit.seed)), ("seconds", f"{audit.seconds:.1f}")))
    return Report(
        title=path.resolve().name,
        path=str(path),
        summary=audit_sentences(audit),
        notices=audit.troubles,
        independent=0,
        approximate=0,
        laws=(),
        missing=(),
        runs=(),
        heat=HeatMap((), (), ()),
        verdict=Verdict(0, 0, 0, None, "", 0.0, "", False),
        control=None,
        study=None,
        settings=(settings, Settings("Versions", tuple(flatten(audit.versions)))),
        version=__version__,
        audit=audit,
    )


def _law_view(law: Law) -> LawView:
    symmetry = law.symmetry.value.replace("_", " ")
    return LawView(law.name, law.family, law.layer, symmetry, law.formula, law.count, law.exact, law.reason, law.source, law.symmetry.degree == 1)


def _summary(independent: int, laws: tuple[LawView, ...], runs: tuple[RunView, ...], found: Verdict, together: Study | None) -> tuple[str, str]:
    """Two sentences: what was watched, and whether it holds."""
    real = [position for position, law in enumerate(laws) if not law.is_control]
    span = _span(runs, together is not None)
    if not real:
        none = f"No conservation law was watched {span}: the set of laws is empty."
        return none, "So there is nothing to draw; what is known about the absence of laws follows."
    families = len({laws[position].family for position in real})
    were = "was" if independent == 1 else "were"
    first = f"{plural(independent, 'independent conservation law')} in {plural(families, 'family')} {were} watched {span}."
    missing = _not_evaluated(real, runs)
    empty = sum(family.empty for family in together.families) if together else 0
    missing += [plural(empty, "field") + " of the study's table"] if empty else []
    rest = f"not evaluated: {listed(missing)}" if missing else "everything on this page was evaluated"
    return first, f"{_holds(found)}; {rest}."


def _span(runs: tuple[RunView, ...], is_study: bool) -> str:
    optimizers = listed(dict.fromkeys(run.optimizer for run in runs))
    steps = max((run.last or 0 for run in runs), default=0)
    if not is_study:
        return f"over {plural(steps, 'step')} of {optimizers}"
    rates = [run.lr for run in runs if run.lr is not None]
    at = f" at learning rates {min(rates):g} to {max(rates):g}" if rates else ""
    each = len({run.last for run in runs}) == 1
    return f"in {plural(len(runs), 'run')} of {optimizers}{at}, over {'' if each else 'up to '}{plural(steps, 'step')}{' each' if each else ''}"


def _holds(found: Verdict) -> str:
    bound = f"bound {number(found.bound)} for {found.dtype}"
    if not found.exact:
        return "No law here is exact, so no residual has to be at rounding level"
    if found.state == "violated":
        have = "has" if found.above == 1 else "have"
        return (
            f"{found.above} of {plural(found.exact, 'exact law')} {have} a residual above rounding level "
            f"(worst {number(found.worst)} in {found.law}, {bound}), so the gradient identity does not hold there"
        )
    if found.state == "not evaluated":
        return "No exact law's residual was evaluated, so this page does not say whether the laws hold"
    who = "Every exact law's residual is" if found.state == "holds" else f"The residuals of {found.evaluated} of {found.exact} exact laws are"
    return f"{who} at rounding level (worst {number(found.worst)}, {bound})"


def _not_evaluated(real: list[int], runs: tuple[RunView, ...]) -> list[str]:
    """What is missing, counted over laws; a law counts if any run lacks it."""
    lacks: dict[str, Callable[[RunView, int], bool]] = {
        "the residual": lambda run, law: run.residuals[law].worst is None,
        "the drift": lambda run, law: run.finals[law].drift is None,
        "the predicted drift": lambda run, law: run.finals[law].predicted is None,
        "the split of the drift": lambda run, law: run.finals[law].total is None,
    }
    out = []
    for what, lack in lacks.items():
        count = sum(any(lack(run, law) for run in runs) for law in real)
        if count:
            out.append(what if count == len(real) else f"{what} of {plural(count, 'law')}")
    return out


def _notices(runs: tuple[RunView, ...], found: Verdict) -> tuple[str, ...]:
    out = []
    thinned = [run for run in runs if run.thinned]
    if thinned:
        most = max(thinned, key=lambda run: run.records)
        out.append(
            f"Curves draw {len(most.steps):,} of {most.records:,} recorded steps (log-spaced and evenly spaced ones together, the last one kept); "
            "every table, final number and worst residual uses all records."
        )
    if any(run.ledger == "sampled" for run in runs):
        out.append("The ledger was sampled: the predicted drift and the split of the drift are estimates.")
    if any(run.ledger is None for run in runs):
        where = "" if all(run.ledger is None for run in runs) else " in some runs"
        out.append(f"No ledger was kept{where}, so the split of the drift was not evaluated.")
    if found.assumed and found.exact:
        out.append(f"The run does not say its precision (dtypes, or configuration.dtype), so the bound for {found.dtype} is used: {number(found.bound)}.")
    return tuple(out)


def _settings(source: Source, configuration: Mapping[str, Any]) -> tuple[Settings, ...]:
    head, study = source.runs[0].header, source.summary is not None
    parts = [Settings("Configuration", tuple(flatten(configuration)))]
    parts.append(Settings("Optimiser" + (f" of {source.runs[0].name}" if study else ""), tuple(flatten(head.optimizer))))
    parts.append(Settings("Versions", tuple(flatten(head.versions))))
    parts += [Settings(f"Run {run.name}" if study else "Run", _run_pairs(run, source)) for run in source.runs]
    return tuple(parts)


def _run_pairs(run: Run, source: Source) -> tuple[tuple[str, str], ...]:
    folder = source.path if source.summary is None else source.path / run.name
    pairs = [
        ("directory", str(folder)),
        ("started", run.header.created or "unknown"),
        ("parameters", listed(run.header.dtypes) or "of unknown precision"),
        ("ledger", run.header.ledger or "none"),
        ("steps between records", str(run.header.every)),
        ("records", f"{len(run.records):,}"),
    ]
    return tuple(pairs + [(f"last {name}", str(value)) for name, value in run.last.items()])
