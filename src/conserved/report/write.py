"""Writing the page: nowhere but where we may, and all or nothing."""

import os
import re
from contextlib import suppress
from pathlib import Path

from conserved.errors import RunError
from conserved.report.build import report_of
from conserved.report.page import GENERATOR, render
from conserved.report.reading import read_source

NAME = "report.html"
_OURS = re.compile(rb'<meta name="generator" content="' + GENERATOR.encode() + rb' [^"]*">')


def write_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write a self-contained HTML page on a run, a study or an audit.

    The page needs no network and opens from disk. An earlier report is replaced as a whole; any
    other file is left alone.

    Args:
        run: a run directory, or a directory of runs with summary.json, as `conserved demo` writes it, or one with audit.json, as
            `conserved audit -o` does.
        out: the file to write; `report.html` inside the run if None.

    Returns:
        The path of the page.

    Raises:
        RunError: the run is missing, damaged or without records; `out` is a file that is not a report,
            a directory, or cannot be written.

    Example:
        >>> write_report("runs/a", "a.html")     # doctest: +SKIP
        PosixPath('a.html')
    """
    target = Path(run) / NAME if out is None else Path(out)
    _require_ours(target)  # before reading: a long run is not read for nothing
    page = render(report_of(read_source(run)))
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(page.encode("utf-8", "replace"))  # bytes: a translated line end would break the hashes of the scripts
        draft.replace(target)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise RunError(f"cannot write {target} ({error.strerror or error}); choose another file with -o") from error
    return target


def _require_ours(target: Path) -> None:
    try:
        if target.is_dir():
            raise RunError(f"{target} is a directory; give the name of a file with -o")
        if not target.exists():
            return
        with target.open("rb") as stream:
            start = stream.read(2048)
    except OSError as error:
        raise RunError(f"cannot read {target} ({error.strerror or error}); choose another file with -o") from error
    if not _OURS.search(start):
        raise RunError(f"{target} exists and is not a report of {GENERATOR}; choose another file with -o")
