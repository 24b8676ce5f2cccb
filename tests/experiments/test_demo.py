"""The demonstration holds what it says: residuals, predicted drifts, exponents, and a control that fails."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import conserved.experiments.demo as module
from conserved import LawSet, load_run, residual, worst
from conserved.catalog import Decoder, find_laws
from conserved.cli import main
from conserved.errors import ConfigurationError, RunError
from conserved.experiments.demo import DemoConfig, DemoResult, FamilySummary, control_law, demo_model, run_demo
from conserved.monitor import read_header
from conserved.symmetry import Symmetry
from conserved.tolerance import CONTROL_RESIDUAL, residual_bound

MISMATCH = 1e-6
"""Largest ‖observed − predicted‖/‖observed‖ of exact quadratic laws in float64."""

SHORT = DemoConfig(learning_rates=(0.001, 0.002), steps=2, warmup=0, batch=2)

LINEAR = ("router", "classifier")
QUADRATIC = ("rope", "value_output", "glu", "norm_gain", "expert")


def by_family(result: DemoResult) -> dict[str, FamilySummary]:
    """The rows by family."""
    return {row.family: row for row in result.families}


# ---------------------------------------------------------------------------------------------- float64


def test_json_is_one_object_and_nothing_else(float64: Any) -> None:
    assert (float64.status, float64.err) == (0, "")
    assert float64.out.count("\n") == 1
    data = json.loads(float64.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert data.keys() == {"families", "control", "runs", "configuration", "directory", "report", "seconds"}
    assert [row["family"] for row in data["families"]] == [*QUADRATIC, *LINEAR, "stream_scale"]
    assert sum(row["laws"] for row in data["families"]) == 625


@pytest.mark.parametrize("family", [*QUADRATIC, *LINEAR])
def test_exact_laws_keep_their_identity(float64: Any, family: str) -> None:
    row = by_family(float64.result)[family]
    assert row.exact
    assert row.worst_residual is not None
    assert 0 < row.worst_residual <= residual_bound(torch.float64)


@pytest.mark.parametrize("family", QUADRATIC)
def test_drift_is_the_predicted_one_of_second_order(float64: Any, family: str) -> None:
    row = by_family(float64.result)[family]
    assert row.drift is not None
    assert row.floor is not None
    assert row.drift > 1e6 * row.floor  # far above rounding, or the rest would say nothing
    assert row.predicted_drift == pytest.approx(row.drift, rel=MISMATCH)
    assert row.mismatch is not None
    assert row.mismatch <= MISMATCH
    assert row.exponent == pytest.approx(2, abs=0.1)
    assert not row.note


@pytest.mark.parametrize("family", LINEAR)
def test_linear_laws_do_not_drift(float64: Any, family: str) -> None:
    row = by_family(float64.result)[family]
    assert (row.symmetry, row.predicted_drift, row.mismatch, row.exponent) == ("translation", 0, None, None)
    assert row.drift is not None
    assert row.drift <= 60 * torch.finfo(torch.float64).eps * 100
    assert row.note == "linear: plain SGD does not move it, what is seen is rounding"


def test_the_approximate_law_is_marked_and_close(float64: Any) -> None:
    row = by_family(float64.result)["stream_scale"]
    assert not row.exact
    assert "eps = 1e-06" in row.note
    assert row.worst_residual is not None
    assert residual_bound(torch.float64) < row.worst_residual < CONTROL_RESIDUAL


def test_the_control_fails_at_first_order(float64: Any) -> None:
    control = float64.data["control"]
    assert control["worst_residual"] > CONTROL_RESIDUAL
    assert control["exponent"] == pytest.approx(1, abs=0.2)
    exact = by_family(float64.result)["glu"]
    assert control["drift"] > 10 * (exact.drift or math.inf)
    assert "deliberately wrong" in control["note"]


def test_runs_hold_the_same_numbers(float64: Any) -> None:
    assert [run["lr"] for run in float64.data["runs"]] == [0.001, 0.002, 0.004]
    tables = {run["lr"]: load_run(float64.directory / run["directory"]) for run in float64.data["runs"]}
    for table in tables.values():
        assert sorted(table["step"].unique()) == list(range(61))
        assert table["loss"].drop_nulls().is_finite().all()
    last = tables[0.004].filter(pl.col("step") == 60)
    for row in float64.data["families"]:
        of_family = last.filter(pl.col("family") == row["family"])
        assert row["drift"] == pytest.approx(math.hypot(*of_family["drift"]), rel=1e-12)
        assert row["predicted_drift"] == pytest.approx(math.hypot(*of_family["predicted"]), rel=1e-12)
        assert row["floor"] == pytest.approx(math.hypot(*of_family["floor"]), rel=1e-12)
        assert row["worst_residual"] == max(table.filter(pl.col("family") == row["family"])["residual"].max() for table in tables.values())
    control = last.filter(pl.col("family") == "control")
    assert float64.data["control"]["drift"] == control["drift"][0]


def test_summary_header_and_report_are_written(float64: Any) -> None:
    summary = json.loads((float64.directory / "summary.json").read_text(encoding="utf-8"))
    assert {key: summary[key] for key in summary if key != "seconds"} == {key: float64.data[key] for key in summary if key != "seconds"}
    assert sorted(path.name for path in float64.directory.iterdir()) == ["lr-0.001", "lr-0.002", "lr-0.004", "report.html", "summary.json"]
    page = (float64.directory / "report.html").read_text(encoding="utf-8")
    assert float64.data["report"] == str(float64.directory / "report.html")
    assert "625 independent conservation laws in 8 families were watched in 3 runs of SGD" in page
    assert "Every exact law&#39;s residual is at rounding level" in page
    header = read_header(float64.directory / "lr-0.002")
    assert header.dtypes == ("float64",)
    assert [header.configuration["lr"], header.optimizer["groups"][0]["lr"]] == pytest.approx([0.002, 0.002])


def test_the_table_fits_80_columns_with_nothing_cut(float64: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from conserved.cli import _print_demo

    monkeypatch.setenv("COLUMNS", "80")
    _print_demo(replace(float64.result, directory="runs/demo", report="runs/demo/report.html"))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    for word in ("family", "laws", "residual", "drift", "predicted", "mismatch", "rounding", "exponent"):
        assert word in out.splitlines()[2]
    for row in float64.result.families:
        line = next(line for line in out.splitlines() if line.strip().startswith(row.family))
        assert f"{row.worst_residual:.1e}" in line
        assert f"{row.drift:.1e}" in line
    assert "every exact law holds to rounding" in out
    assert out.endswith("runs: runs/demo\nreport: runs/demo/report.html\n")


# ---------------------------------------------------------------------------------------------- low precision


def test_low_precision_keeps_the_identity(low: DemoResult) -> None:
    bound = residual_bound(getattr(torch, low.configuration["dtype"]))
    for row in low.families:
        assert row.worst_residual is not None
        if row.exact:
            assert residual_bound(torch.float64) < row.worst_residual <= bound, row.family
    assert low.control["worst_residual"] > CONTROL_RESIDUAL
    assert low.control["worst_residual"] > bound  # so the bound tells a law from what is none
    assert low.holds


def test_low_precision_drift_is_prediction_and_rounding(low: DemoResult) -> None:
    """‖observed − predicted‖ is the reported floor, and the floor is what rounding of the weights explains."""
    epsilon, steps = torch.finfo(getattr(torch, low.configuration["dtype"])).eps, low.configuration["steps"]
    checked = 0
    for run in low.runs:
        table = load_run(Path(low.directory) / run["directory"])
        last = table.filter((pl.col("step") == steps) & pl.col("exact"))
        for row in last.iter_rows(named=True):
            assert row["floor"] <= steps * epsilon * row["size"], row["law"]
            if row["mismatch"] is not None:
                assert row["mismatch"] * row["drift"] == pytest.approx(row["floor"], rel=1e-6), row["law"]
                checked += 1
        control = table.filter((pl.col("step") == steps) & (pl.col("family") == "control"))
        if control["mismatch"][0] is not None and low.configuration["dtype"] == "float32":
            assert control["mismatch"][0] * control["drift"][0] > 10 * control["floor"][0]  # rounding does not explain a false law
    assert checked > len(low.runs)


def test_drift_at_rounding_level_has_no_exponent(low: DemoResult) -> None:
    rows = by_family(low)
    for family in QUADRATIC:
        row = rows[family]
        assert (row.exponent is None) == ("no exponent: half of its drift may be rounding at lr 0.001" in row.note)
        assert row.exponent is None or row.exponent == pytest.approx(2, abs=0.3)
    assert rows["rope"].exponent is None  # the smallest drift of all
    if low.configuration["dtype"] == "float32":
        assert low.control["exponent"] == pytest.approx(1, abs=0.2)
        assert "drifts at first order" in low.control["note"]
    else:
        assert all(rows[family].exponent is None for family in QUADRATIC)
        assert low.control["exponent"] is None
        assert "no exponent" in low.control["note"]


def test_low_precision_is_recorded(low: DemoResult) -> None:
    dtype = low.configuration["dtype"]
    assert all(read_header(Path(low.directory) / run["directory"]).dtypes == (dtype,) for run in low.runs)
    assert f"for {dtype}" in Path(low.report).read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------- violations


def backward_bug(model: Decoder, parameter: str, factor: float) -> Decoder:
    """The model with a backward pass that scales the gradient of one parameter, as a wrong fused kernel would."""
    installed: list[Any] = []

    def install(*_: object) -> None:
        if not installed:
            installed.append(model.get_parameter(parameter).register_hook(lambda gradient: factor * gradient))

    model.register_forward_pre_hook(install)
    return model


BUGS = [("layers.0.mlp.C", "glu"), ("layers.1.attention.K", "rope"), ("layers.1.mlp.A", "expert"), ("norm.gamma", "norm_gain")]


@pytest.mark.parametrize(("parameter", "family"), BUGS, ids=[parameter for parameter, _ in BUGS])
def test_a_backward_bug_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameter: str, family: str) -> None:
    monkeypatch.setattr(module, "demo_model", lambda *given: backward_bug(demo_model(*given), parameter, 1.01))
    result = run_demo(tmp_path / "demo", SHORT)
    assert not result.holds
    bound = residual_bound(torch.float64)
    broken = {row.family for row in result.families if row.exact and (row.worst_residual or 0) > bound}
    assert family in broken
    assert broken <= {family, "norm_gain"}  # a gain is also a partner of every map that it feeds
    assert "so the gradient identity does not hold there" in Path(result.report).read_text(encoding="utf-8")


def test_a_backward_pass_scaled_by_one_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook itself is harmless: what the tests above see is its factor."""
    monkeypatch.setattr(module, "demo_model", lambda *given: backward_bug(demo_model(*given), "layers.0.mlp.C", 1.0))
    assert run_demo(tmp_path / "demo", SHORT).holds


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.01, 1)], ids=["right", "wrong"])
def test_exit_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    short: Callable[..., None],
    flags: list[str],
    factor: float,
    status: int,
) -> None:
    short()
    monkeypatch.setattr(module, "demo_model", lambda *given: backward_bug(demo_model(*given), "layers.0.mlp.C", factor))
    assert main(["demo", "--steps", "2", "-o", str(tmp_path / "demo"), *flags]) == status
    out, err = capfd.readouterr()
    if flags:
        assert not err
        assert len(json.loads(out)["families"]) == 8
    else:
        assert ("VIOLATED" in out) == bool(status)
        assert ("every exact law holds" in out) == (not status)


def test_a_residual_that_was_not_evaluated_does_not_hold() -> None:
    row = FamilySummary("rope", "rotary", 4, True, None, None, None, None, None, None, "")
    result = DemoResult((row,), {}, (), {"dtype": "float64"}, "", "", 0.0)
    assert not result.holds
    assert replace(result, families=(replace(row, worst_residual=1e-15),)).holds
    assert replace(result, families=(replace(row, worst_residual=1.0, exact=False),)).holds
    assert not replace(result, families=(replace(row, worst_residual=1.0),)).holds


def test_the_control_law_is_no_law() -> None:
    model = demo_model(12).double()
    laws = find_laws(model)
    wrong, right = control_law(laws), laws.select(family="glu")[0]
    (tokens,) = model.example(2, torch.Generator().manual_seed(0))
    loss = nn.functional.nll_loss(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    parameters = dict(model.named_parameters())
    gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    assert (wrong.symmetry, wrong.exact, wrong.layer) == (Symmetry.RESCALE, False, right.layer)
    assert wrong.parameters == tuple(name.replace(".C", ".B") for name in right.parameters)
    seen = [worst(residual(law, parameters, gradients)) for law in (right, wrong)]
    assert seen[0] is not None
    assert seen[1] is not None
    assert seen[0] <= residual_bound(torch.float64)
    assert seen[1] > CONTROL_RESIDUAL
    with pytest.raises(IndexError):
        control_law(LawSet())


# ---------------------------------------------------------------------------------------------- running it


def test_progress_counts_every_step(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    run_demo(tmp_path / "demo", replace(SHORT, warmup=3), lambda done, total: seen.append((done, total)))
    assert seen == [(done, 7) for done in range(1, 8)]


def numbers(folder: Path) -> dict[str, Any]:
    """All that a demonstration recorded but times and places."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {key: summary[key] for key in ("families", "control", "configuration")} | {
        run["directory"]: load_run(folder / run["directory"]).drop("time").to_dicts() for run in summary["runs"]
    }


def test_a_seed_determines_everything(tmp_path: Path) -> None:
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        torch.rand(3)  # the global generator's state must not matter
        run_demo(tmp_path / name, replace(SHORT, warmup=2, seed=seed))
    first, again, other = (numbers(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first["families"] != other["families"]


def test_batches_and_weights_are_those_of_the_seed_at_every_rate(tmp_path: Path) -> None:
    run_demo(tmp_path / "demo", SHORT)
    losses = [load_run(tmp_path / "demo" / name).filter(pl.col("step") == 1)["loss"][0] for name in ("lr-0.001", "lr-0.002")]
    assert losses[0] == losses[1]  # the loss of step 1 is that before the first update


def test_the_seed_draws_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    batch = module.CharacterText.batch

    def spy(*given: Any) -> torch.Tensor:
        drawn.append(batch(*given))
        return drawn[-1]

    monkeypatch.setattr(module.CharacterText, "batch", spy)
    for seed in (0, 1):
        run_demo(tmp_path / str(seed), replace(SHORT, steps=1, seed=seed))
    first, second, other, _ = drawn  # two rates for each seed
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_names_without_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], short: Callable[..., None]) -> None:
    short()
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "demo-2"):
        assert main(["demo", "--steps", "1", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["directory"] == f"runs/{name}"
        assert (tmp_path / "runs" / name / "summary.json").exists()


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file under a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["other-files", "a-demonstration", "a-file"])
def test_a_directory_in_use_is_refused_before_any_training(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "demo"
    if kind == "a-demonstration":
        run_demo(target, replace(SHORT, steps=1))
    elif kind == "other-files":
        target.mkdir()
        (target / ".hidden").write_text("precious")
    else:
        target.write_text("precious")
    held, steps = contents(tmp_path), list[int]()
    with pytest.raises(RunError, match=r"is in use; choose a new or empty directory"):
        run_demo(target, replace(SHORT, warmup=2), lambda done, _: steps.append(done))
    assert not steps
    assert contents(tmp_path) == held


def test_an_empty_directory_is_fine(tmp_path: Path) -> None:
    assert run_demo(tmp_path, replace(SHORT, steps=1)).holds


def test_a_place_that_cannot_be_written_is_told_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    held, steps = contents(tmp_path), list[int]()
    with pytest.raises(OSError, match="directory"):
        run_demo(tmp_path / "file" / "demo", replace(SHORT, warmup=2), lambda done, _: steps.append(done))
    assert not steps
    assert contents(tmp_path) == held


def test_a_demonstration_without_one_of_its_runs_is_not_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_demo(tmp_path / "demo", replace(SHORT, steps=1))
    (tmp_path / "demo" / "lr-0.002" / "run.json").unlink()
    capfd.readouterr()
    held = contents(tmp_path)
    assert main(["report", str(tmp_path / "demo")]) == 2
    assert contents(tmp_path) == held
    out, err = capfd.readouterr()
    assert not out
    assert err.startswith("conserved: ")
    assert "lr-0.002 holds no run" in err
    assert err.count("\n") == 1


CHOICES = [
    ({"dtype": "int8"}, r"dtype='int8' is unknown; choose one of float64, float32, bfloat16"),
    ({"learning_rates": (0.1,)}, r"at least two positive rates, all different"),
    ({"learning_rates": (0.1, 0.1, 0.2)}, r"all different"),
    ({"learning_rates": (0.1, 0.1000000001)}, r"all different"),
    ({"learning_rates": (0.0, 0.1)}, r"positive"),
    ({"learning_rates": (math.nan, 0.1)}, r"positive"),
    ({"learning_rates": (math.inf, 0.1)}, r"positive"),
    ({"steps": 0}, r"steps=0.*give at least 1"),
    ({"batch": 0}, r"batch=0.*give at least 1"),
    ({"warmup": -1}, r"warmup=-1.*give at least 1, 1 and 0"),
    ({"seed": -1}, r"seed=-1; give a whole number from 0"),
    ({"seed": 2**63}, r"seed=9223372036854775808; give a whole number from 0"),
]


@pytest.mark.parametrize(("given", "match"), CHOICES, ids=[f"{key}={value}" for given, _ in CHOICES for key, value in given.items()])
def test_impossible_choices_are_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        DemoConfig(**given)


def test_the_largest_seed_works() -> None:
    demo_model(5, DemoConfig(seed=2**63 - 1).seed)
    torch.Generator().manual_seed(DemoConfig(seed=2**63 - 1).seed + 1)
