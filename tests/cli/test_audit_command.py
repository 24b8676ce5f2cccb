"""`conserved audit`: the table, one JSON object, the files, and the exit status."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import conserved.experiments.audit as module
from conserved.certify import verify
from conserved.experiments.audit import audit
from conserved.experiments.claims import AuditResult, Check

Run = Callable[..., Any]
Refused = Callable[..., None]


@pytest.fixture(scope="session")
def audited() -> AuditResult:
    """Two claims, one of them false."""
    return audit(["4.2", "4.7"])


@pytest.fixture
def served(audited: AuditResult, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the command give this audit, with every check changed."""

    def serve(change: Callable[[Check], Check] = lambda check: check) -> None:
        claims = tuple(replace(claim, checks=tuple(map(change, claim.checks))) for claim in audited.claims)
        monkeypatch.setattr(module, "audit", lambda *_, **__: replace(audited, claims=claims))

    return serve


def test_a_refuted_theorem_is_a_result(run: Run) -> None:
    ran = run("audit", "4.7", "4.2")
    assert ran.status == 0
    words = " ".join(ran.out.split())
    for part in (
        "audit of arXiv 2606.17816",
        "9/250 refuted",
        "4.7 refuted (refuted in 4 of 4 checks): Under a normalised sigmoid gate",
        "d/dt W₁₁ = 9/125, d/dt W₂₁ = -9/250, their sum 9/250",
        "What holds are the laws of the experts alone",
        "4.2 proved (proved in 2, numerical in 1 of 3 checks)",
        "every claim is decided",
    ):
        assert part in words, part
    assert ran.out.index("4.2") < ran.out.index("4.7")
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert "auditing" in ran.err


def test_json_is_one_object_and_nothing_else(run: Run, served: Callable[..., None], audited: AuditResult) -> None:
    served()
    ran = run("audit", "--json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("\n") == 1
    assert json.loads(ran.out) == json.loads(json.dumps(audited.to_json()))


def test_json_is_quiet_while_it_works(run: Run) -> None:
    ran = run("audit", "4.2", "--json", "--seed", 3)
    data = json.loads(ran.out)
    assert (ran.status, ran.err) == (0, "")
    assert (data["seed"], data["holds"], [claim["id"] for claim in data["claims"]]) == (3, True, ["4.2"])


def test_output_has_all_files(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "audit"
    ran = run("audit", "4.7", "-o", folder)
    assert ran.status == 0
    assert ran.out.endswith(f"directory: {folder}\nreport: {folder / 'report.html'}\n")
    data = json.loads((folder / "audit.json").read_text())
    saved = {check["certificate"] for check in data["claims"][0]["checks"]} - {None}
    assert saved
    assert {str(path.relative_to(folder)) for path in (folder / "certificates").iterdir()} == saved
    assert all(verify(folder / name).valid for name in saved)
    again = run("report", folder, "-o", tmp_path / "again.html")
    assert again.status == 0
    assert (tmp_path / "again.html").read_bytes() == (folder / "report.html").read_bytes()
    checked = run("certify", "--verify", folder / sorted(saved)[0])
    assert checked.status == 0
    told = run("audit", "discretization", "-o", folder, "--json")
    assert json.loads(told.out)["report"] == str(folder / "report.html")


UNSOUND = {
    "undecided": (lambda check: replace(check, verdict="undecided"), "4.2: undecided"),
    "catalogue-short": (lambda check: replace(check, complete=None if check.complete is None else False), "the laws of the catalogue are not those"),
    "control-fails": (lambda check: replace(check, verdict="refuted") if check.role == "control" else check, "(control)"),
    "beside-fails": (lambda check: replace(check, verdict="refuted") if check.role == "beside" else check, "(beside)"),
}


@pytest.mark.parametrize(("change", "said"), UNSOUND.values(), ids=UNSOUND)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_exit_status_of_what_is_not_sound(run: Run, served: Callable[..., None], change: Callable[[Check], Check], said: str, flags: list[str]) -> None:
    served(change)
    ran = run("audit", *flags)
    assert ran.status == 1
    if flags:
        data = json.loads(ran.out)
        assert not data["holds"]
        assert any(said in line for line in data["troubles"])
    else:
        words = " ".join(ran.out.split())
        assert "TROUBLE: " in words
        assert said in words
        assert "every claim is decided" not in words


def test_the_exit_status_of_a_sound_audit_is_zero(run: Run, served: Callable[..., None]) -> None:
    """The other side of the test above: the same audit, unchanged."""
    served()
    assert run("audit").status == 0


CASES = {
    "unknown-claim": (["4.8"], ["'4.8'", "choose among 4.1"]),
    "seed-negative": (["--seed", "-1"], ["seed=-1", "from 0 to"]),
    "seed-text": (["--seed", "many"], ["--seed", "--help"]),
    "directory-of-others": (["4.2", "-o", "."], ["is in use", "new or empty directory"]),
    "unknown-flag": (["--quick"], ["--quick", "--help"]),
}


@pytest.mark.parametrize(("arguments", "said"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_bad_input(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: list[str], flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("precious")
    refused(run("audit", *flags, *arguments), *said)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_help_teaches(run: Run) -> None:
    words = " ".join(run("audit", "--help").out.replace("│", " ").split())
    for part in ("What to look for", "9/250", "conserved audit 4.7", "beside", "control", "Exit status 0 if every claim is decided"):
        assert part in words, part
