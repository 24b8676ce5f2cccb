"""The report: its numbers against the run's, what it refuses, and what a program reads from the page."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from report_fixture import HOSTILE, LAWS, Page, classifier, control, decoder_laws, layer_laws, records, write_hostile, write_run, write_study

from conserved import Absence, LawSet, Monitor, load_run
from conserved.catalog import GatedLinearUnit
from conserved.errors import RunError
from conserved.report import write_report
from conserved.report.build import report_of
from conserved.report.curves import step_limit, thin
from conserved.report.data import CURVES, Report
from conserved.report.page import embed, heat, render
from conserved.report.reading import read_source
from conserved.report.study import fit_line
from conserved.report.wording import flatten, number, optimizer_name

NAMES = [law.name for law in LAWS]


def report(path: Path) -> Report:
    """Everything on the page of a run or study."""
    return report_of(read_source(path))


def setting(column: str, law: str, value: object, steps: Callable[[int], bool] = lambda _: True) -> Callable[[dict[str, Any]], None]:
    """A change of one law's number in the records of some steps."""

    def change(record: dict[str, Any]) -> None:
        if steps(record["step"]):
            record[column][NAMES.index(law)] = value

    return change


# ---------------------------------------------------------------------------------------------- data


def test_curves_and_finals_are_the_numbers_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LAWS, work=0.3)
    shown = report(tmp_path / "run").runs[0]
    table = load_run(tmp_path / "run")
    assert shown.steps == tuple(range(0, 201, 5))
    for position, name in enumerate(NAMES):
        of_law = table.filter(pl.col("law") == name)
        for column in CURVES:
            assert list(shown.curves[column][position]) == of_law[column].to_list(), (name, column)
        final, last = shown.finals[position], of_law.row(-1, named=True)
        for column in ("step", "drift", "predicted", "mismatch", "size", "step_size", "decay", "work", "rounding", "floor"):
            assert getattr(final, column) == last[column], (name, column)
        assert final.total == last["step_size"] + last["decay"] + last["work"] + last["rounding"]
        assert shown.residuals[position].worst == of_law["residual"].max()
        assert shown.residuals[position].evaluated == 41


def test_agrees_with_a_run_of_the_monitor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GatedLinearUnit(3, 5, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Monitor(model, optimizer, log=tmp_path / "run") as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 3, dtype=torch.float64)).square().mean()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss.item())
        account = monitor.accounts()[0]
    shown = report(tmp_path / "run")
    final = shown.runs[0].finals[0]
    assert (final.step, final.drift, final.predicted, final.rounding) == (4, account.drift, account.predicted, account.rounding)
    assert (shown.verdict.state, shown.verdict.dtype, shown.verdict.assumed) == ("holds", "float64", False)
    assert shown.runs[0].residuals[0].worst == account.worst_residual
    assert shown.independent == 5
    assert shown.runs[0].optimizer == "SGD"
    assert "5 independent conservation laws in 1 family were watched over 4 steps of SGD." in shown.summary


def test_null_is_not_evaluated_and_never_zero(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        for column in ("drift", "predicted", "residual"):
            record[column][2] = None
        record["step_size"][5] = None

    write_run(tmp_path / "run", LAWS, change=change)
    shown = report(tmp_path / "run")
    law, partial = shown.runs[0].finals[2], shown.runs[0].finals[5]
    assert (law.step, law.drift, law.predicted, law.total, law.difference, law.is_rounding) == (None, None, None, None, None, False)
    assert partial.drift is not None
    assert partial.total is None
    assert shown.runs[0].curves["drift"][2] == (None,) * 41
    assert shown.verdict.state == "partly"
    assert "not evaluated: the residual of 1 law, the drift of 1 law, the predicted drift of 1 law and the split of the drift of 2 laws." in shown.summary[1]
    page = Page(write_report(tmp_path / "run"))
    assert page.finals()[2]["drift"] == "null"
    assert page.shown["0", "2", "drift"] == "not evaluated"
    assert page.shown["0", "2", "predicted"] == "not evaluated"
    cells = {given["data-law"]: given for row, given in page.elements if row == "tr" and "data-law" in given}
    assert cells
    states = [given["data-state"] for tag, given in page.elements if tag == "td" and "data-state" in given]
    assert states.count("not evaluated") == 1


def test_final_is_the_last_record_that_was_evaluated(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LAWS, change=setting("drift", "head.classifier", None, lambda step: step > 100))
    final = report(tmp_path / "run").runs[0].finals[NAMES.index("head.classifier")]
    assert final.step == 100


def test_nan_and_infinity_in_the_file_are_not_evaluated(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LawSet.of([classifier()]), range(3))
    lines = [
        record | {"drift": [value], "residual": [value]}
        for record, value in zip(records(LawSet.of([classifier()]), range(3)), (0.0, math.nan, math.inf), strict=True)
    ]
    (tmp_path / "run/trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = report(tmp_path / "run").runs[0]
    assert shown.curves["drift"] == ((0.0, None, None),)
    assert (shown.residuals[0].worst, shown.residuals[0].evaluated) == (0, 1)
    json.dumps(Page(write_report(tmp_path / "run")).data, allow_nan=False)


@pytest.mark.parametrize(
    ("change", "state", "sentence"),
    [
        (lambda _: None, "holds", "Every exact law's residual is at rounding level (worst "),
        (
            setting("residual", "layers.1.mlp.glu", 2e-3, lambda step: step == 35),
            "violated",
            "1 of 10 exact laws has a residual above rounding level (worst 0.002 in layers.1.mlp.glu",
        ),
        (setting("residual", "layers.1.mlp.glu", 9e-13), "holds", "worst 9e-13, bound 1e-12 for float64"),
        (setting("residual", "layers.1.mlp.glu", 1.1e-12), "violated", "1 of 10 exact laws has a residual above rounding level (worst 1.1e-12"),
        (setting("residual", "layers.1.mlp.glu", None), "partly", "The residuals of 9 of 10 exact laws are at rounding level"),
        (
            lambda record: record.update(residual=None),
            "not evaluated",
            "No exact law's residual was evaluated, so this page does not say whether the laws hold",
        ),
    ],
)
def test_verdict(tmp_path: Path, change: Callable[[dict[str, Any]], None], state: str, sentence: str) -> None:
    write_run(tmp_path / "run", LAWS, change=change)
    shown = report(tmp_path / "run")
    assert shown.verdict.state == state
    assert sentence in shown.summary[1]


def test_approximate_laws_and_the_control_do_not_count_for_the_verdict(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LAWS, change=setting("residual", "layers.0.norm.gain", 0.3))
    shown = report(tmp_path / "run")
    assert shown.verdict.state == "holds"
    real = LawSet.of(law for law in LAWS if law.family != "control")
    assert shown.independent == real.independent_count
    assert shown.approximate == 3 * 8
    assert shown.families[-1] == "control"


@pytest.mark.parametrize(
    ("configuration", "dtypes", "bound", "assumed"),
    [
        ({"dtype": "float64"}, (), 1e-12, False),
        ({"dtype": "torch.bfloat16"}, (), 5e-2, False),
        ({}, (), 1e-5, True),
        ({"dtype": "int8"}, (), 1e-5, True),
        ({}, ("float64",), 1e-12, False),
        ({}, ("bfloat16", "float64"), 5e-2, False),
        ({"dtype": "bfloat16"}, ("float64",), 5e-2, False),
        ({"dtype": "int8"}, ("float64",), 1e-12, False),
        ({}, ("nonsense",), 1e-5, True),
    ],
    ids=["said", "said-with-prefix", "unknown", "no-float", "recorded", "lowest-of-mixed", "said-before-recorded", "recorded-behind-no-float", "unreadable"],
)
def test_bound_follows_the_precision_that_the_run_names(
    tmp_path: Path, configuration: dict[str, Any], dtypes: tuple[str, ...], bound: float, assumed: bool
) -> None:
    write_run(tmp_path / "run", LAWS, configuration=configuration, dtypes=dtypes)
    shown = report(tmp_path / "run")
    assert (shown.verdict.bound, shown.verdict.assumed) == (bound, assumed)
    assert any("does not say its precision" in notice for notice in shown.notices) is assumed


def test_heat_map_has_every_state(tmp_path: Path) -> None:
    twins = [replace(law, name=f"{law.name}.twin") for law in layer_laws(0)[:1]]
    laws = LawSet.of([*LAWS, *twins])

    def change(record: dict[str, Any]) -> None:
        record["residual"][0] = None  # rope of layer 0, whose twin is evaluated
        record["residual"][2] = None  # glu of layer 0

    write_run(tmp_path / "run", laws, change=change)
    shown = report(tmp_path / "run").heat
    at = {(layer, family): cell for layer, row in zip(shown.layers, shown.rows, strict=True) for family, cell in zip(shown.families, row, strict=True)}
    assert at["layers.0.attention", "rope"].state == "partly"
    assert at["layers.0.attention", "rope"].worst == load_run(tmp_path / "run").filter(pl.col("law") == twins[0].name)["residual"].max()
    assert at["layers.0.mlp", "glu"].state == "not evaluated"
    assert at["layers.1.attention", "rope"].state == "value"
    assert at["head", "rope"].state == "no law"
    assert len(at) == len(shown.layers) * len(shown.families)


def test_long_runs_are_thinned_and_nothing_else_is(tmp_path: Path) -> None:
    laws = LawSet.of([classifier(), control()])

    def change(record: dict[str, Any]) -> None:
        if record["step"] == 2003:
            record["residual"][0] = 0.5

    write_run(tmp_path / "run", laws, range(5001), change=change)
    shown = report(tmp_path / "run")
    run = shown.runs[0]
    assert 1000 < len(run.steps) <= 2000
    assert (run.steps[0], run.steps[-1], run.records) == (0, 5000, 5001)
    assert 2003 not in run.steps
    assert (run.residuals[0].worst, run.residuals[0].step) == (0.5, 2003)
    assert any(f"{len(run.steps):,} of 5,001 recorded steps" in notice for notice in shown.notices)
    assert run.curves["drift"][0][-1] == load_run(tmp_path / "run").filter(pl.col("law") == "head.classifier")["drift"][-1]


def test_thin_and_limits() -> None:
    for size in (1, 2, 100, 2000, 2001, 100_000):
        kept = thin(size, 2000)
        assert len(kept) <= 2000
        assert kept == sorted(set(kept))
        assert (kept[0], kept[-1]) == (0, size - 1)
    assert step_limit(1000, 20) == 200


def test_ledger_none_and_sampled_are_said(tmp_path: Path) -> None:
    write_run(tmp_path / "none", LAWS, ledger=None)
    write_run(tmp_path / "sampled", LAWS, ledger="sampled")
    none, sampled = Page(write_report(tmp_path / "none")), Page(write_report(tmp_path / "sampled"))
    assert "The split was not evaluated: no ledger was kept in this run." in none.text
    assert "not evaluated: the predicted drift and the split of the drift." in report(tmp_path / "none").summary[1]
    assert "the predicted drift and the split of the drift are estimates" in sampled.text
    assert "(an estimate: the ledger was sampled)" in sampled.text
    assert "estimate" not in none.text


def test_empty_set_of_laws_is_stated(tmp_path: Path) -> None:
    write_run(tmp_path / "why", LawSet((), (Absence("mlp", "GELU is not homogeneous", "Theorem 4.1"),)), range(3))
    write_run(tmp_path / "bare", LawSet(), ())
    (tmp_path / "bare/trace.jsonl").unlink()
    why, bare = Page(write_report(tmp_path / "why")), Page(write_report(tmp_path / "bare"))
    assert "No conservation law was watched over 2 steps of SGD: the set of laws is empty." in why.text
    assert "GELU is not homogeneous" in why.text
    assert "No reason was recorded" in bare.text
    assert "This run has no negative control." in bare.text


def test_control_beside_the_exact_law_that_drifted_most(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LAWS)
    shown = report(tmp_path / "run")
    assert shown.control is not None
    assert shown.control.law == NAMES.index("control")
    last = load_run(tmp_path / "run").filter((pl.col("step") == 200) & pl.col("exact"))
    assert shown.control.compared_drift == last["drift"].max()
    assert shown.laws[shown.control.compared or 0].exact
    write_run(tmp_path / "without", decoder_laws(with_control=False))
    assert report(tmp_path / "without").control is None
    assert "This run has no negative control." in Page(write_report(tmp_path / "without")).text


def test_weak_control_is_said_to_prove_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LAWS, change=setting("residual", "control", 1e-9))
    assert "the residuals on this page prove nothing" in Page(write_report(tmp_path / "run")).text


def test_one_law_without_anything_to_compare(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LawSet.of([control()]))
    shown = report(tmp_path / "run")
    assert shown.control is not None
    assert shown.control.compared is None
    assert shown.verdict.exact == 0
    assert shown.summary[0].startswith("No conservation law was watched")
    write_report(tmp_path / "run")


# ---------------------------------------------------------------------------------------------- study


def test_study_slopes_are_those_of_the_runs(tmp_path: Path) -> None:
    shown = report(write_study(tmp_path, LAWS)).study
    assert shown is not None
    assert shown.kept == "steps"
    assert "in 4 runs of SGD at learning rates 0.001 to 0.03, over 200 steps each" in report(tmp_path).summary[0]
    rows = {family.family: family for family in shown.families}
    assert rows["rope"].fit is not None
    assert rows["rope"].fit.slope == pytest.approx(2, abs=1e-6)
    assert rows["control"].fit is not None
    assert rows["control"].fit.slope == pytest.approx(1, abs=0.05)
    assert rows["classifier"].fit is None
    assert rows["classifier"].why == "the drift is rounding"
    assert rows["classifier"].exponent is None
    for (lr, drift), folder in zip(rows["rope"].points, ("lr-0.001", "lr-0.003", "lr-0.01", "lr-0.03"), strict=True):
        last = load_run(tmp_path / folder).filter((pl.col("step") == 200) & (pl.col("family") == "rope"))
        assert drift == pytest.approx(math.sqrt(sum(value**2 for value in last["drift"])))
        assert folder == f"lr-{lr:g}"


def test_null_in_a_study_is_not_evaluated(tmp_path: Path) -> None:
    write_study(tmp_path, LAWS)
    page = Page(write_report(tmp_path))
    row = next(cells for given, cells in page.rows if given.get("data-family") == "classifier")
    assert (row["exponent"], row["mismatch"], row["slope"]) == ("null", "null", "null")
    assert "2 fields of the study's table" in page.text
    assert page.finals(2)[0]["drift"] == repr(report(tmp_path).runs[2].finals[0].drift)


def test_a_family_of_which_one_law_is_missing_has_no_point(tmp_path: Path) -> None:
    write_study(tmp_path, LAWS)
    shutil.rmtree(tmp_path / "lr-0.003")
    write_run(tmp_path / "lr-0.003", LAWS, lr=0.003, change=setting("drift", "layers.1.attention.rope", None))
    shown = report(tmp_path).study
    assert shown is not None
    points = {family.family: [lr for lr, _ in family.points] for family in shown.families}
    assert points["rope"] == [0.001, 0.01, 0.03]
    assert points["glu"] == [0.001, 0.003, 0.01, 0.03]


def test_equal_training_time_is_recognised(tmp_path: Path) -> None:
    for lr, last in ((0.01, 200), (0.02, 100)):
        write_run(tmp_path / f"lr-{lr:g}", LAWS, range(0, last + 1, 50), lr=lr)
    (tmp_path / "summary.json").write_text(
        json.dumps({"families": [{"family": "rope", "rounding": 1e-9}], "runs": [{"directory": "lr-0.01", "lr": 0.01}, {"directory": "lr-0.02", "lr": 0.02}]})
    )
    shown = report(tmp_path).study
    assert shown is not None
    assert next(family for family in shown.families if family.family == "rope").floor == pytest.approx(1e-9)
    assert "over up to 200 steps" in report(tmp_path).summary[0]
    assert shown.kept == "time"
    assert "expect slope 1 for exact quadratic laws and 0 for the control" in Page(write_report(tmp_path)).text


def test_study_control_known_from_the_summary_alone(tmp_path: Path) -> None:
    laws = decoder_laws(with_control=False)
    write_study(tmp_path, laws)
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"control": {"law": "c", "formula": "‖A‖²", "drift": 0.25, "exponent": None, "note": "flipped"}}))
    shown = report(tmp_path).control
    assert shown is not None
    assert (shown.law, shown.drift, shown.exponent) == (None, 0.25, None)
    assert "the numbers above are the study's own" in Page(write_report(tmp_path)).text


def test_fit_line_needs_two_learning_rates() -> None:
    assert fit_line([]) is None
    assert fit_line([(0.1, 1.0), (0.1, 2.0)]) is None
    assert fit_line([(0.1, 0.0), (0.2, 2.0)]) is None
    fit = fit_line([(10.0**-k, 7 * 10.0 ** (-1.5 * k)) for k in range(4)])
    assert fit is not None
    assert fit.slope == pytest.approx(1.5)
    assert 10**fit.offset == pytest.approx(7)


# ---------------------------------------------------------------------------------------------- refusals


def damage(file: str, edit: Callable[[str], str]) -> Callable[[Path], None]:
    """A way to spoil a run: a file of it, edited."""

    def spoil(run: Path) -> None:
        (run / file).write_text(edit((run / file).read_text()))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda run: (run / "trace.jsonl").unlink(), "holds no records"),
        (damage("trace.jsonl", lambda _: ""), "has no records yet"),
        (damage("trace.jsonl", lambda text: text.replace("}", "", 1)), "line 1 is damaged"),
        (damage("trace.jsonl", lambda text: text.replace('"drift":[', '"drift":[1.0,', 1)), r"step 0: drift has 15 entries for 14 laws"),
        (damage("trace.jsonl", lambda text: text.replace('"drift":[', '"drift":["a",', 1).replace(",", "", 1)), "damaged"),
        (damage("trace.jsonl", lambda text: text.replace('"residual":[', '"residual":7,"x":[', 1)), "damaged"),
        (damage("trace.jsonl", lambda text: text.replace('"step":5,', '"step":"five",', 1)), "damaged"),
        (damage("run.json", lambda text: text[:100]), "run.json is damaged"),
        (damage("run.json", lambda text: text.replace('"format": 1', '"format": 99')), "format 99"),
        (lambda run: (run / "trace.jsonl").write_bytes(b"\xff\xfe\n"), "damaged"),
    ],
)
def test_damaged_runs_are_refused_in_one_line(tmp_path: Path, spoil: Callable[[Path], None], match: str) -> None:
    run = write_run(tmp_path / "run", LAWS)
    spoil(run)
    with pytest.raises(RunError, match=match) as caught:
        write_report(run)
    assert "\n" not in str(caught.value)
    assert not (run / "report.html").exists()


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LAWS)
    with (run / "trace.jsonl").open("a") as stream:
        stream.write('{"step":205,"drift":[')
    assert report(run).runs[0].last == 200


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a directory"):
        write_report(tmp_path / "missing")
    with pytest.raises(RunError, match="holds neither a run"):
        write_report(tmp_path)
    write_run(tmp_path / "lr-1", LAWS)
    with pytest.raises(RunError, match=r"no summary.json, so the study did not finish; report on one of its runs: .*lr-1"):
        write_report(tmp_path)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("summary", "match"),
    [
        ("{", "summary.json is damaged"),
        ("[]", "summary.json is damaged"),
        ('{"families": [], "runs": []}', "lists no runs"),
        ('{"families": [], "runs": ["lr-1"]}', "summary.json is damaged"),
        ('{"families": [3], "runs": [{"directory": "lr-1"}]}', "'families' must be a list of objects"),
        ('{"families": [{}], "runs": [{"directory": "lr-1"}]}', "family"),
        ('{"families": [], "control": 3, "runs": [{"directory": "lr-1"}]}', "must be objects"),
        ('{"families": [], "runs": [{"directory": "../lr-1"}]}', "not a directory beside it"),
        ('{"families": [], "runs": [{"directory": "/etc"}]}', "not a directory beside it"),
        ('{"families": [], "runs": [{"directory": "gone"}]}', "holds no run"),
        ('{"families": [], "runs": [{"directory": "lr-1"}, {"directory": "other"}]}', "other watches other laws than lr-1"),
    ],
)
def test_damaged_studies_are_refused(tmp_path: Path, summary: str, match: str) -> None:
    write_run(tmp_path / "lr-1", LAWS, range(3))
    write_run(tmp_path / "other", decoder_laws(1), range(3))
    (tmp_path / "summary.json").write_text(summary)
    with pytest.raises(RunError, match=match):
        write_report(tmp_path)


def test_writes_where_it_was_told_and_replaces_its_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LAWS)
    assert write_report(run) == run / "report.html"
    out = tmp_path / "new/page.html"
    assert write_report(str(run), str(out)) == out
    first = out.read_text()
    assert first.startswith("<!DOCTYPE html>")
    write_run(tmp_path / "second", decoder_laws(1))
    write_report(tmp_path / "second", out)
    assert out.read_text() != first
    assert sorted(file.name for file in out.parent.iterdir()) == ["page.html"]
    assert write_report(run).read_text() == (run / "report.html").read_text()  # the same run gives the same page


@pytest.mark.parametrize(
    "content", ["", "precious", '<meta name="generator" content="other 1">', '<!-- <meta name="generator" content="conservedish 1"> -->', " " * 3000]
)
def test_never_replaces_a_file_of_others(tmp_path: Path, content: str) -> None:
    run = write_run(tmp_path / "run", LAWS, range(3))
    out = tmp_path / "notes.html"
    out.write_text(content)
    with pytest.raises(RunError, match=r"exists and is not a report of conserved; choose another file with -o"):
        write_report(run, out)
    assert out.read_text() == content


def test_refuses_a_directory_and_leaves_no_draft_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", LAWS, range(3))
    with pytest.raises(RunError, match="is a directory"):
        write_report(run, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot (read|write)"):
        write_report(run, tmp_path / "file/page.html")
    page = write_report(run)
    before = page.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RunError, match="No space left on device"):
        write_report(run)
    assert page.read_bytes() == before
    assert not list(run.glob(".*part"))


# ---------------------------------------------------------------------------------------------- the page as text


def test_names_from_the_run_cannot_become_markup(tmp_path: Path) -> None:
    page = Page(write_report(write_hostile(tmp_path / f"run {HOSTILE.replace('/', ':')}"), tmp_path / "page.html"))
    assert len(page.script_elements) == 3
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe", "object", "embed", "form")]
    assert not [key for _, given in page.elements for key in given if key.startswith("on")]
    assert page.data["laws"][0]["name"] == f"layers.0.attention.rope{HOSTILE}"
    assert f"{HOSTILE}" in page.text


def test_embedded_json_cannot_end_its_element() -> None:
    text = embed({"a": HOSTILE, "b": "<!-- & \u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": HOSTILE, "b": "<!-- & \u2028\u2029"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        embed(math.nan)


def test_page_is_marked_and_loads_nothing(tmp_path: Path) -> None:
    page = Page(write_report(write_study(tmp_path, LAWS)))
    metas = {given.get("name", given.get("http-equiv")): given["content"] for tag, given in page.elements if tag == "meta" and "content" in given}
    assert metas["generator"].startswith("conserved ")
    assert metas["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
    links = [given[key] for tag, given in page.elements for key in ("src", "href", "action", "data") if key in given]
    assert links
    assert all(link.startswith("#") or link == "data:," for link in links)
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert anchors <= {given["id"] for _, given in page.elements if "id" in given}


def test_table_cells_and_json_hold_the_full_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LAWS, work=0.3)
    page, table = Page(write_report(run)), load_run(run)
    for position, name in enumerate(NAMES):
        last = table.filter(pl.col("law") == name).row(-1, named=True)
        cells = page.finals()[position]
        for column in ("drift", "predicted", "size", "step_size", "decay", "work", "rounding", "floor"):
            assert cells[column] == repr(last[column])
            assert float(page.shown["0", str(position), column]) == pytest.approx(last[column], rel=6e-3)
        assert float(cells["total"]) == pytest.approx(last["drift"])
        assert page.data["runs"][0]["curves"]["drift"][position] == table.filter(pl.col("law") == name)["drift"].to_list()
    formulas = {given["data-law"]: cells["formula"] for given, cells in page.rows if "formula" in cells}
    assert formulas == {law.name: law.formula for law in LAWS}


def test_every_law_and_absence_is_listed(tmp_path: Path) -> None:
    page = Page(write_report(write_run(tmp_path / "run", LAWS)))
    for law in LAWS:
        assert law.source in page.text
        assert law.reason in page.text
    assert "the gate of a SwiGLU is neither linear nor homogeneous" in page.text
    assert "‖A[:,i]‖² − ‖C[i,:]‖²" in page.text  # names relative to the layer


def test_formula_is_shortened_at_whole_names_only(tmp_path: Path) -> None:
    laws = LawSet.of([replace(layer_laws(0, "x.layers.")[2], layer="layers.0.mlp")])
    view = report(write_run(tmp_path / "run", laws)).laws[0]
    assert view.short == view.formula


def test_render_is_pure(tmp_path: Path) -> None:
    shown = report(write_run(tmp_path / "run", LAWS, range(3)))
    assert render(shown) == render(shown)


def test_words() -> None:
    assert [number(value) for value in (None, 0, 12345.6, 0.00012, -3.0, 1e-300)] == ["not evaluated", "0", "1.23e4", "1.2e-4", "-3", "1e-300"]
    assert [heat(value) for value in (0.0, 1e-30, 1e-17, 1.0, 5.0)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert optimizer_name({"name": "torch.optim.AdamW"}) == "AdamW"
    assert optimizer_name({}) == "an unnamed optimiser"
    assert flatten({"a": {"b": True}, "c": []}) == [("a.b", "yes"), ("c", "none")]
