"""From files to tables: a run, or a study of several runs, read and checked as a whole.

    run      a directory with run.json and trace.jsonl (`conserved.monitor.runlog`)
    study    a directory of runs, with summary.json beside them (`conserved demo` writes it)
    audit    a directory with audit.json (`conserved audit -o` writes it), alone or in one of the above

Whatever is not a finite number in the files is null here: "not evaluated".
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from conserved.errors import ConfigurationError, RunError
from conserved.experiments.claims import AUDIT, AuditResult
from conserved.monitor.runlog import HEADER, TRACE, RunHeader, per_law, read_header, read_records
from conserved.report.data import COLUMNS

SUMMARY = "summary.json"


@dataclass(frozen=True, eq=False)
class Run:
    """One run as read.

    Args:
        name: of its directory.
        header: what run.json says.
        records: a row for each record: step, and one list over the laws for each of `COLUMNS`.
        last: the scalars (loss, lr, time, …) of the last record.
        lr: learning rate that the study gives for it.
    """

    name: str
    header: RunHeader
    records: pl.DataFrame
    last: Mapping[str, Any]
    lr: float | None = None

    def long(self) -> pl.DataFrame:
        """A row for each record and law: step, law (its position), `COLUMNS`."""
        number = len(self.header.laws)
        positions = pl.lit(pl.Series([list(range(number))], dtype=pl.List(pl.Int64))).first().alias("law")
        return self.records.select("step", positions, *COLUMNS).explode("law", *COLUMNS)


@dataclass(frozen=True, eq=False)
class Source:
    """What a page is made from.

    Args:
        path: the directory that was given.
        runs: one run, or those of the study; none if there is only an audit.
        summary: what summary.json says; None for a single run.
        audit: what audit.json says, if it is there.
    """

    path: Path
    runs: tuple[Run, ...]
    summary: Mapping[str, Any] | None = None
    audit: AuditResult | None = None


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a run, a study or an audit.

    Raises:
        RunError: neither is there, a file is missing or damaged, a run with laws has no records, or
            the runs of a study do not watch the same laws.
    """
    folder = Path(path)
    if (folder / HEADER).exists():
        return Source(folder, (read_run(folder, folder.resolve().name),), audit=_read_audit(folder))
    if (folder / SUMMARY).exists():
        return replace(_read_study(folder), audit=_read_audit(folder))
    if (audit := _read_audit(folder)) is not None:
        return Source(folder, (), audit=audit)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a directory; give the directory of a run or of a study")
    inside = sorted(file.parent for file in folder.glob(f"*/{HEADER}"))
    if inside:
        raise RunError(f"{folder} holds runs but no {SUMMARY}, so the study did not finish; report on one of its runs: {inside[0]}")
    raise RunError(f"{folder} holds neither a run ({HEADER}), a study ({SUMMARY}) nor an audit ({AUDIT}); give the directory that one of them was written to")


def _read_audit(folder: Path) -> AuditResult | None:
    file = folder / AUDIT
    if not file.exists():
        return None
    try:
        return AuditResult.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ConfigurationError) as error:
        raise RunError(f"{file} is damaged ({error}); run the audit again") from error


def read_run(folder: Path, name: str, lr: float | None = None) -> Run:
    """Read one run directory.

    Raises:
        RunError: it is missing or damaged, or it watches laws and has no records.
    """
    header = read_header(folder)
    if not len(header.laws) and not (folder / TRACE).exists():
        return Run(name, header, _table([], 0, folder), {}, lr)
    records = list(read_records(folder))
    if not records and len(header.laws):
        raise RunError(f"{folder} has no records yet; wait for the first one, or start the run again")
    last = {key: value for key, value in records[-1].items() if isinstance(value, str | int | float)} if records else {}
    return Run(name, header, _table(records, len(header.laws), folder), last, lr)


def _table(records: Sequence[Mapping[str, Any]], number: int, folder: Path) -> pl.DataFrame:
    """Records as a table of lists, every one as long as there are laws."""
    lists = {name: [per_law(folder, record, name, number) for record in records] for name in COLUMNS}
    columns = {"step": pl.Series("step", [record["step"] for record in records], dtype=pl.Int64)}
    columns |= {name: pl.Series(name, values, dtype=pl.List(pl.Float64)) for name, values in lists.items()}
    finite = pl.when(pl.element().is_finite()).then(pl.element())
    return pl.DataFrame(columns).with_columns(pl.col(name).list.eval(finite) for name in COLUMNS)


def _read_study(folder: Path) -> Source:
    file = folder / SUMMARY
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        _require_shape(summary)
        entries = [(str(entry["directory"]), number_or_none(entry.get("lr"))) for entry in summary["runs"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{file} is damaged ({type(error).__name__}: {error}); run the study again, or report on one of its runs") from error
    if not entries:
        raise RunError(f"{file} lists no runs; run the study again")
    runs = []
    for directory, lr in entries:
        if directory in ("", ".", "..") or Path(directory).name != directory:
            raise RunError(f"{file} names the run {directory!r}, which is not a directory beside it; run the study again")
        runs.append(read_run(folder / directory, directory, lr))
        if runs[-1].header.laws != runs[0].header.laws:
            raise RunError(f"{folder}: {directory} watches other laws than {runs[0].name}; report on each run by itself")
    return Source(folder, tuple(runs), summary)


def _require_shape(summary: Any) -> None:
    """Raise TypeError or KeyError unless the parts of summary.json that are used are there and of their kind."""
    for key in ("families", "runs"):
        if not all(isinstance(entry, Mapping) for entry in summary[key]):
            raise TypeError(f"{key!r} must be a list of objects")
    if not all(isinstance(summary.get(key) or {}, Mapping) for key in ("control", "configuration")):
        raise TypeError("'control' and 'configuration' must be objects")
    if any("family" not in entry for entry in summary["families"]):
        raise KeyError("family")


def number_or_none(value: object) -> float | None:
    """A finite number as float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if abs(number) < float("inf") else None
