"""The command line, run inside the test's own process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from conserved.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command line gave."""

    status: int
    out: str
    err: str


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`run("laws", "swiglu")`, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def ran(*arguments: object) -> Ran:
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ran(status, *capfd.readouterr())

    return ran


def require_bad_input(ran: Ran, *said: str) -> None:
    """Fail unless it was refused with status 2 in exactly one line that says this, and nothing else was printed."""
    assert ran.status == 2
    assert not ran.out
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("conserved: ")
    for part in said:
        assert part in ran.err


@pytest.fixture
def refused() -> Callable[..., None]:
    """`refused(run(…), "what", "where", "what to do")`."""
    return require_bad_input
