"""Run directories survive being killed, are never overwritten, and resume exactly."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import polars as pl
import pytest
import torch
from monitor_training import make_model, recipe, snapshot, train

from conserved import load_run
from conserved.errors import RunError
from conserved.monitor import Monitor, read_header, read_records


def _run(directory: Path, steps: range = range(5), **options: object) -> Monitor:
    model = make_model()
    optimizer = recipe("sgd").optimizer(model.parameters())
    with Monitor(model, optimizer, log=directory, configuration={"note": "<b>"}, **options) as monitor:  # type: ignore[arg-type]
        train(model, optimizer, recipe("sgd"), steps, monitor)
        monitor.accounts()
    return monitor


def test_a_run_reads_back_as_a_table(tmp_path: Path) -> None:
    monitor = _run(tmp_path / "a")
    header = read_header(tmp_path / "a")
    assert header.laws == monitor.laws
    assert (header.ledger, header.every, header.configuration) == ("exact", 1, {"note": "<b>"})
    assert header.optimizer["class"] == "SGD"
    assert header.versions.keys() == {"conserved", "torch", "python"}
    assert header.dtypes == ("float64",)
    table = load_run(tmp_path / "a")
    assert table.height == 6 * len(monitor.laws)
    assert table["step"].unique().sort().to_list() == [0, 1, 2, 3, 4, 5]
    last = table.filter(pl.col("step") == 5)
    for row, account in zip(last.iter_rows(named=True), monitor.accounts(), strict=True):
        assert row["law"] == account.name
        for column in ("drift", "predicted", "mismatch", "residual", "step_size", "decay", "work", "rounding", "floor", "size"):
            assert row[column] == getattr(account, column)
    assert table.filter(pl.col("step") == 0)["loss"].null_count() == len(monitor.laws)
    assert table["loss"].drop_nulls().min() > 0
    assert table["lr"].unique().to_list() == [0.05]


def test_every_and_modes(tmp_path: Path) -> None:
    _run(tmp_path / "a", range(10), every=4, ledger=None)
    assert [record["step"] for record in read_records(tmp_path / "a")] == [0, 4, 8]
    assert load_run(tmp_path / "a")["work"].null_count() == load_run(tmp_path / "a").height


def test_a_directory_in_use_is_refused_and_untouched(tmp_path: Path) -> None:
    _run(tmp_path / "a")
    held = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with pytest.raises(RunError, match="already holds a run"):
        _run(tmp_path / "a")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == held
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file; give a directory"):
        _run(tmp_path / "file")


def test_resuming_a_run_directory(tmp_path: Path) -> None:
    _run(tmp_path / "whole", range(8))
    model = make_model()
    optimizer = recipe("sgd").optimizer(model.parameters())
    with Monitor(model, optimizer, log=tmp_path / "cut") as monitor:
        train(model, optimizer, recipe("sgd"), range(5), monitor)
        state, weights = monitor.state_dict(), snapshot(model)
        train(model, optimizer, recipe("sgd"), range(5, 7), monitor)  # steps after the checkpoint, lost in the crash
    with (tmp_path / "cut" / "trace.jsonl").open("a") as stream:
        stream.write('{"step": 8, "drift": [0.')  # killed while writing
    again = make_model()
    again.load_state_dict(weights)
    optimizer = recipe("sgd").optimizer(again.parameters())
    with Monitor(again, optimizer, log=tmp_path / "cut", resume=state) as monitor:
        train(again, optimizer, recipe("sgd"), range(5, 8), monitor)
    assert load_run(tmp_path / "cut").drop("time").equals(load_run(tmp_path / "whole").drop("time"))


def test_a_killed_run_loses_at_most_its_last_line(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from monitor_training import *
        model = make_model()
        optimizer = recipe("sgd").optimizer(model.parameters())
        with Monitor(model, optimizer, log={str(tmp_path / "a")!r}) as monitor:
            print("ready", flush=True)
            train(model, optimizer, recipe("sgd"), range(10**6), monitor)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    trace = tmp_path / "a" / "trace.jsonl"
    deadline = time.monotonic() + 60
    while trace.read_bytes().count(b"\n") < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    complete = trace.read_bytes().count(b"\n")
    assert complete >= 5
    records = list(read_records(tmp_path / "a"))
    assert [record["step"] for record in records] == list(range(complete))


def test_all_precisions_among_the_watched_parameters_are_recorded(tmp_path: Path) -> None:
    model = make_model()
    model.norm.float()
    with Monitor(model, torch.optim.SGD(model.parameters(), lr=0.1), log=tmp_path / "a"):
        pass
    assert read_header(tmp_path / "a").dtypes == ("float32", "float64")


def test_a_run_of_before_precisions_were_recorded_is_readable(tmp_path: Path) -> None:
    _run(tmp_path / "a")
    file = tmp_path / "a" / "run.json"
    data = json.loads(file.read_text())
    del data["dtypes"]
    file.write_text(json.dumps(data))
    assert read_header(tmp_path / "a").dtypes == ()
    assert load_run(tmp_path / "a").height > 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", None, "holds no run"),
        ("run.json", b"{", "run.json is damaged"),
        ("run.json", b"{}", "run.json is damaged"),
        ("run.json", b'{"format": 99}', "has format 99"),
        ("run.json", b"\xff\xfe", "run.json is damaged"),
        ("trace.jsonl", None, "trace.jsonl is missing"),
        ("trace.jsonl", b'{"step": 0}\nnonsense\n{"step": 2}\n', r"line 2 is damaged .*; remove that line"),
        ("trace.jsonl", b'{"no": 0}\n', r"line 1 is damaged .*; remove that line"),
        ("trace.jsonl", b'{"step": 0}\n{"step": 1, "note": "\xff"}\n', r"line 2 is damaged .*; remove that line"),
        ("trace.jsonl", b'{"step": 0}\n{"step": "1"}\n', r"line 2 is damaged \(TypeError: step '1' is no step number\); remove that line"),
        ("trace.jsonl", b'{"step": 1.5}\n', r"line 1 is damaged .* 1\.5 is no step number"),
        ("trace.jsonl", b'{"step": null}\n', r"line 1 is damaged .* None is no step number"),
        ("trace.jsonl", b'{"step": true}\n', r"line 1 is damaged .* True is no step number"),
        ("trace.jsonl", b'{"step": [1]}\n', r"line 1 is damaged .* \[1\] is no step number"),
        ("trace.jsonl", b'{"step": -1}\n', r"line 1 is damaged .* -1 is no step number"),
        ("trace.jsonl", b"[0]\n", r"line 1 is damaged .*; remove that line"),
        ("trace.jsonl", b'{"step": 3, "drift": [1.0]}\n', r"trace.jsonl, step 3: drift has 1 entries for \d+ laws; remove that line"),
        ("trace.jsonl", b'{"step": 3, "drift": []}\n', r"trace.jsonl, step 3: drift has 0 entries for \d+ laws; remove that line"),
        ("trace.jsonl", b'{"step": 3, "work": 7}\n', r"trace.jsonl, step 3: work is damaged, it is no list; remove that line"),
        ("trace.jsonl", b'{"step": 3, "work": [WORDS]}\n', r"trace.jsonl, step 3: work is damaged, it has entries that are not numbers; remove that line"),
    ],
    ids=[
        *("no-header", "half-header", "empty-header", "future-format", "header-not-utf8", "no-trace", "bad-line", "no-step", "not-utf8"),
        *("step-text", "step-fraction", "step-null", "step-bool", "step-list", "step-negative", "no-object"),
        *("too-few-entries", "no-entries", "no-list", "entries-of-text"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    monitor = _run(tmp_path / "a")
    file = tmp_path / "a" / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content.replace(b"WORDS", b",".join([b'"1.0"'] * len(monitor.laws))))
    with pytest.raises(RunError, match=message) as caught:
        load_run(tmp_path / "a")
    assert str(file.parent) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_quantity_that_no_record_has_is_null(tmp_path: Path) -> None:
    monitor = _run(tmp_path / "a")
    (tmp_path / "a" / "trace.jsonl").write_text('{"step": 4}\n{"step": 9, "drift": null}\n')
    table = load_run(tmp_path / "a")
    assert table.height == 2 * len(monitor.laws)
    assert table["drift"].null_count() == table["work"].null_count() == table.height


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    _run(tmp_path / "a")
    with (tmp_path / "a" / "trace.jsonl").open("a") as stream:
        stream.write('{"step": 6, "dr')
    assert [record["step"] for record in read_records(tmp_path / "a")] == list(range(6))


def test_not_a_number_is_null(tmp_path: Path) -> None:
    _run(tmp_path / "a")
    lines = (tmp_path / "a" / "trace.jsonl").read_text().splitlines()
    first = json.loads(lines[0], parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert first["residual"][0] is None  # no gradient was seen yet
