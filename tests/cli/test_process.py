"""The command as a process: what cannot be seen from inside."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from conserved.cli import main
from conserved.version import __version__

Run = Callable[..., Any]

COMMAND = [sys.executable, "-m", "conserved"]


def environment(**changes: str) -> dict[str, str]:
    """The test's environment with one thread and 80 columns."""
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | changes


def test_json_from_a_process() -> None:
    done = subprocess.run([*COMMAND, "laws", "swiglu", "--json"], capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    data = json.loads(done.stdout)
    assert data["total"] == 4
    assert data["laws"][0]["formula"] == "‖A[:,i]‖² − ‖C[i,:]‖²"


IN_ASCII = """
import sys
from conserved.cli import entry
for arguments in (["laws", "swiglu"], ["laws", "swiglu", "--json"], ["laws", "‖"]):
    sys.argv[1:] = arguments
    try:
        entry()
    except SystemExit as end:
        print("status", end.code, flush=True)
"""


def test_a_console_without_unicode() -> None:
    done = subprocess.run([sys.executable, "-c", IN_ASCII], capture_output=True, env=environment(PYTHONIOENCODING="ascii"), check=False)
    table, data, end, nothing = done.stdout.decode("ascii").split("status ")
    assert "\\u2016A[:,i]\\u2016" in table
    assert json.loads(data.removeprefix("0\n"))["laws"][0]["formula"] == "‖A[:,i]‖² − ‖C[i,:]‖²"
    assert (end, nothing) == ("0\n", "2\n")
    assert done.stderr.startswith(b"conserved: no catalogue block is named '\\u2016'; choose")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="pipes break otherwise on Windows")
def test_a_reader_that_goes_away_is_no_violation() -> None:
    process = subprocess.Popen([*COMMAND, "laws"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # as `| head -1` does, once it has its line
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() < 0  # ended by the pipe's signal; 1 would say that a law is violated


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["nothing", "help"])
def test_help_teaches(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.status, ran.err) == (0, "")
    words = " ".join(ran.out.replace("│", " ").split())
    for part in ("conservation laws of neural-network training", "Start with", "conserved demo", "0 it holds, 1 a law is violated, 2 bad input"):
        assert part in words
    for command in ("demo", "laws", "report"):
        assert f" {command} " in words


def test_help_of_the_commands_teaches(run: Run) -> None:
    demo = " ".join(run("demo", "--help").out.split())
    for part in ("What to look for", "exponent 2", "negative control", "exponent 1", "Exit status 1 if an exact law is violated"):
        assert part in demo
    laws = " ".join(run("laws", "--help").out.split())
    for part in ("conserved laws swiglu --hidden 16", "functionally independent", "KEY=VALUE"):
        assert part in laws


def test_interrupted_is_neither_violated_nor_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conserved.experiments.demo.run_demo", interrupt)
    assert main(["demo"]) not in (0, 1)


def test_the_version_is_printed(run: Run) -> None:
    ran = run("--version")
    assert (ran.status, ran.out.strip(), ran.err) == (0, __version__, "")
