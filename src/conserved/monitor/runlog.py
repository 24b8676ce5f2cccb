"""Run directories: `run.json` says what was run, `trace.jsonl` what happened, record by record.

    run.json      {"format", "created", "versions", "configuration", "optimizer", "dtypes", "ledger", "every", "laws"}
    trace.jsonl   one object a logged step:
                  {"step", "time", "drift": […], "residual": […], …, and scalars such as "loss", "lr"}

Lists run over the laws in the order of `run.json`; null stands for "not evaluated". Records are
appended and flushed one at a time, so a killed run loses at most its last line. Nothing written is
ever changed: a resumed run repeats steps after its checkpoint, and of two records of a step the later counts.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from conserved.errors import RunError
from conserved.law import LawSet

if TYPE_CHECKING:
    import polars

FORMAT = 1
HEADER, TRACE = "run.json", "trace.jsonl"

COLUMNS = ("drift", "predicted", "mismatch", "residual", "size", "step_size", "decay", "work", "rounding", "floor")
"""Per-law quantities of a record, in the units of h; `residual` has none. See `conserved.monitor.ledger`."""


@dataclass(frozen=True)
class RunHeader:
    """What `run.json` holds.

    Args:
        laws: the laws that were watched.
        configuration: the user's own description of the run.
        optimizer: class and parameter groups' options of the optimiser.
        ledger: "exact", "sampled" or None.
        every: steps between records.
        versions: of Python, torch and this package.
        created: ISO time in UTC.
        dtypes: of the watched parameters, such as ("float32",); empty for runs of before it was recorded.
    """

    laws: LawSet
    configuration: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    ledger: str | None
    every: int
    versions: Mapping[str, str]
    created: str = ""
    dtypes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data as written to the file."""
        return {
            "format": FORMAT,
            "created": self.created or datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": dict(self.versions),
            "configuration": dict(self.configuration),
            "optimizer": dict(self.optimizer),
            "dtypes": list(self.dtypes),
            "ledger": self.ledger,
            "every": self.every,
            "laws": self.laws.to_json(),
        }


class RunLog:
    """Append-only writer of a run directory. Use `create` or `resume`."""

    def __init__(self, path: Path, stream: IO[str]) -> None:
        self.path, self._stream = path, stream

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: RunHeader) -> "RunLog":
        """Start a run in a new or empty directory.

        Raises:
            RunError: the directory already holds a run, or is a file.
        """
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file; give a directory for the run")
        for name in (HEADER, TRACE):
            if (folder / name).exists():
                raise RunError(f"{folder} already holds a run ({name}); choose another directory, or pass resume= to go on with it")
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(header.to_json(), indent=1, ensure_ascii=False)
        draft = folder / (HEADER + ".part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / HEADER)  # a run directory never holds half a header
        return cls(folder, (folder / TRACE).open("x", encoding="utf-8"))

    @classmethod
    def resume(cls, path: str | os.PathLike[str], laws: LawSet) -> "RunLog":
        """Go on with a run; an unfinished last line is dropped.

        Raises:
            RunError: no run is there, it is damaged, or it watched other laws.
        """
        folder = Path(path)
        if read_header(folder).laws != laws:
            raise RunError(f"{folder} holds a run of other laws; resume it with the model and laws it was started with")
        trace = folder / TRACE
        if trace.exists():
            raw = trace.read_bytes()
            keep = raw.rfind(b"\n") + 1
            if keep < len(raw):
                with trace.open("r+b") as stream:
                    stream.truncate(keep)
        return cls(folder, trace.open("a", encoding="utf-8"))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and flush it."""
        self._stream.write(json.dumps(_plain(record), ensure_ascii=False, separators=(",", ":")) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _plain(value: Any) -> Any:
    """JSON has no NaN: not evaluated is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def read_header(path: str | os.PathLike[str]) -> RunHeader:
    """Read `run.json`.

    Raises:
        RunError: it is missing, damaged, or of another format.
    """
    file = Path(path) / HEADER
    if not file.exists():
        raise RunError(f"{path} holds no run ({HEADER} is missing); give the directory that Monitor(log=…) or `conserved demo` wrote")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise RunError(f"{file} has format {data['format']}, this version reads {FORMAT}; use the version of conserved that wrote it")
        for key in ("configuration", "optimizer", "versions"):
            if not isinstance(data[key], dict):
                raise TypeError(f"{key!r} must be an object")
        return RunHeader(
            LawSet.from_json(data["laws"]),
            data["configuration"],
            data["optimizer"],
            data["ledger"],
            data["every"],
            data["versions"],
            data["created"],
            tuple(map(str, data.get("dtypes", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{file} is damaged ({type(error).__name__}: {error}); restore it from a copy, the records in {TRACE} are untouched") from error


def read_records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a run in order of steps; the last line may be unfinished and is then left out.

    Raises:
        RunError: the file is missing, or a finished line is damaged: no JSON in UTF-8, or no whole number as its step.
    """
    file = Path(path) / TRACE
    if not file.exists():
        raise RunError(f"{path} holds no records ({TRACE} is missing); the run was not started or its file was moved")
    records: dict[int, dict[str, Any]] = {}
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                record = json.loads(line.decode("utf-8"))
                step = record["step"]
                if type(step) is not int or not 0 <= step < 2**63:
                    raise TypeError(f"step {step!r} is no step number")
                records[step] = record
            except (ValueError, KeyError, TypeError) as error:
                if line.endswith(b"\n"):
                    cause = f"{type(error).__name__}: {error}"
                    raise RunError(f"{file}, line {number} is damaged ({cause}); remove that line to read the others") from error
    yield from (records[step] for step in sorted(records))


def per_law(path: str | os.PathLike[str], record: Mapping[str, Any], name: str, number: int) -> list[float | None]:
    """The entries of a record for each of so many laws; all None if it has none of that name.

    Raises:
        RunError: they are not a list of as many numbers.
    """
    values = record.get(name)
    if values is None:
        return [None] * number
    where = f"{Path(path) / TRACE}, step {record['step']}: {name}"
    if not isinstance(values, list):
        raise RunError(f"{where} is damaged, it is no list; remove that line to read the others")
    if len(values) != number:
        raise RunError(f"{where} has {len(values)} entries for {number} laws; remove that line to read the others")
    try:
        if any(isinstance(value, str | bool) for value in values):
            raise TypeError("text or truth values")
        return [None if value is None else float(value) for value in values]
    except (TypeError, OverflowError) as error:
        raise RunError(f"{where} is damaged, it has entries that are not numbers; remove that line to read the others") from error


def load_run(path: str | os.PathLike[str]) -> "polars.DataFrame":
    """A run as a table: one row for each logged step and law.

    Args:
        path: the run directory.

    Returns:
        A polars DataFrame with columns step, law, family, layer, exact, those of `COLUMNS`, and every
        scalar of the records (loss, lr, time, …); null where not evaluated.

    Raises:
        RunError: the run is missing or damaged, or a record is not of as many laws as `run.json` lists.

    Example:
        >>> conserved.load_run("runs/a").filter(pl.col("family") == "rope")     # doctest: +SKIP
    """
    import polars as pl

    laws = read_header(path).laws
    number = len(laws)
    columns: dict[str, list[Any]] = {"step": [], "law": [], "family": [], "layer": [], "exact": []} | {name: [] for name in COLUMNS}
    records = list(read_records(path))
    scalars = sorted({key for record in records for key, value in record.items() if key not in columns and not isinstance(value, list)})
    columns |= {name: [] for name in scalars}
    for record in records:
        columns["step"] += [record["step"]] * number
        columns["law"] += [law.name for law in laws]
        columns["family"] += [law.family for law in laws]
        columns["layer"] += [law.layer for law in laws]
        columns["exact"] += [law.exact for law in laws]
        for name in COLUMNS:
            columns[name] += per_law(path, record, name, number)
        for name in scalars:
            columns[name] += [record.get(name)] * number
    schema = {"step": pl.Int64, "law": pl.String, "family": pl.String, "layer": pl.String, "exact": pl.Boolean} | dict.fromkeys(COLUMNS, pl.Float64)
    return pl.DataFrame(columns, schema_overrides=schema, strict=False)
