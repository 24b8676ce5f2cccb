"""The demonstration, run once for each precision; short runs of it for everything that needs no numbers."""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import conserved.experiments.demo as module
from conserved.cli import main
from conserved.experiments.demo import DemoConfig, DemoResult, FamilySummary, run_demo

SHORT = {"learning_rates": (0.001, 0.002), "steps": 2, "warmup": 0, "batch": 2}
"""Choices for a demonstration of half a second."""


@dataclass(frozen=True)
class Shown:
    """A demonstration that the command line ran."""

    status: int
    out: str
    err: str
    directory: Path

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object on stdout."""
        return json.loads(self.out)  # type: ignore[no-any-return]

    @property
    def result(self) -> DemoResult:
        """The same as a value."""
        return DemoResult(**self.data | {"families": tuple(FamilySummary(**row) for row in self.data["families"])})


@pytest.fixture(scope="session")
def float64(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """`conserved demo --json` with its own choices."""
    directory = tmp_path_factory.mktemp("demo") / "float64"
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(["demo", "--output", str(directory), "--json"])
    return Shown(status, out.getvalue(), err.getvalue(), directory)


LOW = {"float32": {"steps": 30, "warmup": 100}, "bfloat16": {"steps": 30, "warmup": 100}}


@pytest.fixture(scope="session", params=LOW)
def low(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """The demonstration in low precision, somewhat shorter."""
    return run_demo(tmp_path_factory.mktemp("demo") / request.param, DemoConfig(dtype=request.param, **LOW[request.param]))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make `conserved demo` a demonstration of half a second."""

    def shorten(**changes: Any) -> None:
        given = {key: value for key, value in (SHORT | changes).items() if key != "steps"}
        monkeypatch.setattr(module, "DemoConfig", partial(DemoConfig, **given))

    return shorten
