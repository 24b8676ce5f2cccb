"""`conserved report`: the page it writes is that of `write_report`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report_fixture import decoder_laws, write_run

from conserved.report import write_report

Run = Callable[..., Any]


def test_report_writes_the_page(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", decoder_laws(1), range(3))
    ran = run("report", folder)
    assert (ran.status, ran.out, ran.err) == (0, f"report: {folder / 'report.html'}\n", "")
    assert (folder / "report.html").read_bytes() == write_report(folder, tmp_path / "same.html").read_bytes()


def test_report_as_json(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", decoder_laws(1), range(3))
    ran = run("report", folder, "-o", tmp_path / "new" / "page.html", "--json")
    assert (ran.status, ran.err) == (0, "")
    assert json.loads(ran.out) == {"report": str(tmp_path / "new" / "page.html")}
    assert (tmp_path / "new" / "page.html").exists()
    assert not (folder / "report.html").exists()
