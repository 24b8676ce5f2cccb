"""Bad input: status 2, one line that says what, where and what to do, nothing on stdout, nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_fixture import decoder_laws, write_run

import conserved.experiments.demo
from conserved.cli import main

Run = Callable[..., Any]
Refused = Callable[..., None]

CASES = {
    "unknown-block": (["laws", "swigloo"], ["'swigloo'", "choose demo or one of linear, relu"]),
    "unknown-command": (["lawz"], ["'lawz'", "laws", "--help"]),
    "unknown-flag": (["laws", "--nonsense"], ["--nonsense", "--help"]),
    "unknown-flag-of-certify": (["certify", "--nonsense", "swiglu"], ["--nonsense", "--help"]),
    "seed-of-certify-too-large": (["certify", "swiglu", "--seed", str(10**30)], ["--seed", "9223372036854775807", "--help"]),
    "seed-of-certify-negative": (["certify", "swiglu", "--seed", "-1"], ["--seed", "0", "--help"]),
    "too-large-to-count": (["certify", "swiglu", "--hidden", "100000"], ["800000 parameters", "memory", "give smaller sizes"]),
    "verify-with-options": (["certify", "--verify", "x.json", "--arithmetic", "ball"], ["--verify", "leave out", "--arithmetic"]),
    "flag-without-value": (["laws", "swiglu", "--family"], ["--family", "--help"]),
    "unknown-option": (["laws", "swiglu", "hiden=3"], ["'hiden'", "'swiglu'", "it takes dim, hidden, out"]),
    "option-without-value": (["laws", "swiglu", "hidden="], ["'hidden='", "write --KEY VALUE or KEY=VALUE"]),
    "option-without-key": (["laws", "swiglu", "=3"], ["'=3'", "write --KEY VALUE or KEY=VALUE"]),
    "option-without-sign": (["laws", "swiglu", "hidden"], ["'hidden'", "write --KEY VALUE or KEY=VALUE"]),
    "option-twice": (["laws", "mha", "head-dim=3", "head_dim=4"], ["head_dim", "twice", "'head_dim=4'", "give it once"]),
    "text-for-int": (["laws", "swiglu", "hidden=many"], ["hidden='many'", "'swiglu'", "give int"]),
    "float-for-int": (["laws", "swiglu", "hidden=1.5"], ["hidden=1.5", "give int"]),
    "bool-for-int": (["laws", "swiglu", "hidden=true"], ["hidden=True", "give int"]),
    "nan-for-int": (["laws", "swiglu", "hidden=nan"], ["hidden=nan", "give int"]),
    "list-for-int": (["laws", "swiglu", "hidden=3,4"], ["hidden=(3, 4)", "give int"]),
    "int-for-bool": (["laws", "mha", "causal=1"], ["causal=1", "give bool"]),
    "text-in-list": (["laws", "linear", "dims=3,x"], ["dims=(3, 'x')", "'linear'", "give tuple[int"]),
    "size-zero": (["laws", "swiglu", "hidden=0"], ["hidden=0", "at least 1"]),
    "size-negative": (["laws", "swiglu", "hidden=-1"], ["hidden=-1", "at least 1"]),
    "size-beyond-tensors": (["laws", "swiglu", f"hidden={10**18}"], [str(10**18), "'swiglu'", "give smaller ones"]),
    "size-beyond-integers": (["laws", "swiglu", f"hidden={10**30}"], [str(10**30), "'swiglu'", "give smaller ones"]),
    "sizes-contradict": (["laws", "decoder", "dim=7"], ["heads=2 does not divide dim=7", "give head_dim"]),
    "unknown-choice": (["laws", "decoder", "mlp=foo"], ["'foo'", "choose one of swiglu"]),
    "demo-takes-no-options": (["laws", "demo", "dim=3"], ["'dim=3'", "use the block 'decoder'"]),
    "unknown-family": (["laws", "swiglu", "--family", "ropee"], ["'ropee'", "swiglu", "its families: glu"]),
    "unknown-layer": (["laws", "decoder", "--layer", "layer.0"], ["'layer.0'", "decoder", "its layers: layers.0.attention"]),
    "filter-without-block": (["laws", "--family", "glu"], ["--family", "name one"]),
    "latex-without-block": (["laws", "--latex"], ["--latex", "name one"]),
    "negative-eps": (["laws", "decoder", "eps=-1"], ["eps=-1", "at least 0"]),
    "nan-slope": (["laws", "relu", "slope=nan"], ["slope=nan", "finite number"]),
    "control-characters": (["laws", "a\nb\x1b[31m"], ["'a\\nb", "choose demo or one of"]),
    "unknown-dtype": (["demo", "--dtype", "int8"], ["dtype='int8'", "choose one of float64, float32, bfloat16"]),
    "steps-zero": (["demo", "--steps", "0"], ["steps=0", "give at least 1"]),
    "steps-text": (["demo", "--steps", "many"], ["--steps", "--help"]),
    "seed-negative": (["demo", "--seed", "-1"], ["seed=-1", "from 0 to"]),
    "seed-too-large": (["demo", "--seed", str(2**64)], [f"seed={2**64}", "from 0 to"]),
    "demo-given-options": (["demo", "dim=3"], ["dim=3", "--help"]),
    "report-without-run": (["report"], ["run", "--help"]),
    "report-of-nothing": (["report", "missing"], ["missing", "not a directory", "give the directory of a run"]),
    "report-of-another-directory": (["report", "."], ["holds neither a run", "give the directory"]),
}


@pytest.mark.parametrize(("arguments", "said"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_bad_input_is_one_line(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: list[str], flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run(arguments[0], *flags, *arguments[1:]), *said)
    assert list(tmp_path.iterdir()) == []


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["other-files", "a-run", "a-file", "below-a-file"])
def test_demo_leaves_what_is_there_alone(run: Run, refused: Refused, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "a-run":
        write_run(target, decoder_laws(1), range(3))
    elif kind == "other-files":
        target.mkdir()
        (target / "notes.txt").write_text("precious")
    else:
        target.write_text("precious")
        target = target if kind == "a-file" else target / "demo"
    held = contents(tmp_path)
    refused(run("demo", "-o", target), str(target), "choose" if kind != "below-a-file" else "check the path")
    assert contents(tmp_path) == held


DAMAGE = {
    "no-records": ("trace.jsonl", None, "trace.jsonl"),
    "empty-records": ("trace.jsonl", b"", "no records yet"),
    "half-header": ("run.json", b'{"format": 1, ', "run.json is damaged"),
    "future-format": ("run.json", b'{"format": 99}', "format 99"),
    "header-no-text": ("run.json", b"\xff\xfe", "run.json is damaged"),
    "header-of-lists": ("run.json", b'{"format": 1, "configuration": [], "optimizer": {}, "versions": {}, "laws": {"laws": []}}', "run.json is damaged"),
    "bad-line": ("trace.jsonl", b"nonsense\n{}\n", "line 1 is damaged"),
    "bad-encoding": ("trace.jsonl", b'{"step": 0}\n\xff\n', "line 2 is damaged"),
    "bad-step": ("trace.jsonl", b'{"step": "0"}\n', "line 1 is damaged"),
    "bad-length": ("trace.jsonl", b'{"step": 0, "drift": [1.0]}\n', "drift has 1 entries for 6 laws"),
    "bad-entries": ("trace.jsonl", b'{"step": 0, "drift": ["a", 1, 1, 1, 1, 1]}\n', "not numbers"),
}


@pytest.mark.parametrize(("name", "content", "said"), DAMAGE.values(), ids=DAMAGE)
def test_report_on_a_damaged_run(run: Run, refused: Refused, tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    folder = write_run(tmp_path / "run", decoder_laws(1), range(3))
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    held = contents(tmp_path)
    refused(run("report", folder), str(folder), said)
    assert contents(tmp_path) == held


def test_report_never_replaces_a_file_of_others(run: Run, refused: Refused, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", decoder_laws(1), range(3))
    (tmp_path / "notes.html").write_text("precious")
    held = contents(tmp_path)
    refused(run("report", folder, "-o", tmp_path / "notes.html"), "notes.html", "choose another file with -o")
    refused(run("report", folder, "-o", tmp_path), "is a directory", "-o")
    assert contents(tmp_path) == held


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(conserved.experiments.demo, "run_demo", broken)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


def test_the_check_for_one_line_can_fail(run: Run, refused: Refused) -> None:
    with pytest.raises(AssertionError):
        refused(run("laws", "swiglu"))
    with pytest.raises(AssertionError):
        refused(run("laws", "swigloo"), "something else")
