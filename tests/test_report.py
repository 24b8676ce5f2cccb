"""The report: its numbers against the run's, what it refuses, and the page in a real browser."""

import json
import math
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from report_fixture import FLAGS, Page, Visit, classifier, control, decoder_laws, layer_laws, records, write_run, write_study

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

LAWS = decoder_laws()
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
    with Monitor(model, optimizer, log=tmp_path / "run", configuration={"dtype": "float64"}) as monitor:
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
    assert shown.verdict.state == "holds"
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
    ("configuration", "bound", "assumed"),
    [({"dtype": "float64"}, 1e-12, False), ({"dtype": "torch.bfloat16"}, 5e-2, False), ({}, 1e-5, True), ({"dtype": "int8"}, 1e-5, True)],
)
def test_bound_follows_the_precision_that_the_run_names(tmp_path: Path, configuration: dict[str, Any], bound: float, assumed: bool) -> None:
    write_run(tmp_path / "run", LAWS, configuration=configuration)
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


HOSTILE = '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=2">'


def write_hostile(path: Path) -> Path:
    """A run whose every name tries to become markup."""
    laws = [
        replace(law, name=f"{law.name}{HOSTILE}", family=f"{law.family}{HOSTILE}", layer=f"{law.layer}{HOSTILE}", source=HOSTILE, reason=HOSTILE)
        for law in layer_laws(0)
    ]
    run = write_run(path, LawSet.of(laws, [Absence(HOSTILE, HOSTILE, HOSTILE)]), configuration={HOSTILE: [HOSTILE, {"\u2028": "<!--"}], "lone": "LONE"})
    (run / "run.json").write_text((run / "run.json").read_text().replace("LONE", "\\ud800"))  # half a surrogate pair: no UTF-8 has it
    return run


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


# ---------------------------------------------------------------------------------------------- a real browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One headless Chromium with an empty profile."""
    executable = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip("no chromium is installed")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser (extra [test])")
    with driver.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=executable, headless=True, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Callable[..., Any]:
    """Open a page from disk: `with visit(path, width=360) as seen`."""

    @contextmanager
    def opened(path: Path, width: int = 1200, scheme: str = "light") -> Generator[Visit, None, None]:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        seen = Visit(page, [], [])
        page.on("console", lambda message: seen.problems.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        try:
            page.goto(path.resolve().as_uri())
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            yield seen
        finally:
            context.close()

    return opened


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of every kind."""
    root = tmp_path_factory.mktemp("pages")

    def partly(record: dict[str, Any]) -> None:
        record["residual"][2] = record["predicted"][2] = None

    runs = {
        "run": write_run(root / "run", LAWS, work=0.3, change=partly),
        "study": write_study(root / "study", LAWS),
        "hostile": write_hostile(root / "hostile"),
        "empty": write_run(root / "empty", LawSet(), range(3)),
        "single": write_run(root / "single", LawSet.of([classifier()]), range(3), ledger=None),
        "silent": write_run(root / "silent", LAWS, range(3), change=lambda record: record.update(dict.fromkeys(CURVES))),
        "large": write_run(root / "large", decoder_laws(12), range(0, 50, 10)),
    }
    return {name: write_report(run) for name, run in runs.items()}


KINDS = ("run", "study", "hostile", "empty", "single", "silent", "large")


@pytest.mark.parametrize("kind", KINDS)
def test_renders_on_phone_and_desktop_without_errors_or_requests(visit: Any, pages: dict[str, Path], kind: str) -> None:
    with visit(pages[kind], width=360) as seen:
        seen.require_no_sideways_scroll()
        if kind not in ("empty", "silent"):
            assert seen.page.locator("#plot-drift .scatterlayer path.js-line").count() >= 1
            assert seen.page.locator("#plot-drift .xtitle").text_content() == "training step k (steps)"
            assert "units of h" in seen.page.locator("#plot-drift .ytitle").text_content()
        seen.page.set_viewport_size({"width": 1200, "height": 800})
        seen.wait_until("[...document.querySelectorAll('.main-svg')].every(figure => figure.clientWidth === 0 || figure.clientWidth > 900)")
        seen.require_no_sideways_scroll()
        seen.check()


def test_plotted_numbers_are_the_runs(visit: Any, pages: dict[str, Path]) -> None:
    table = load_run(pages["run"].parent)
    with visit(pages["run"]) as seen:
        seen.choose("family", "rope")
        for column in ("drift", "predicted"):
            drawn = seen.curves("plot-drift", column)
            assert list(drawn) == [f"layers.{layer}.attention.rope" for layer in range(3)]
            for law, values in drawn.items():
                recorded = table.filter(pl.col("law") == law)[column].to_list()
                assert values == [value if value else None for value in recorded]  # step 0 has no place on a logarithmic axis
        parts = {trace["column"]: trace["y"] for trace in seen.plotted("plot-split")}
        assert set(parts) == {"drift", "step_size", "decay", "work", "rounding"}
        largest = table.filter((pl.col("step") == 200) & (pl.col("family") == "rope")).sort("drift")["law"][-1]
        for column, values in parts.items():
            assert values == table.filter(pl.col("law") == largest)[column].to_list()
        assert (
            seen.curves("plot-residual", "residual")["layers.0.attention.rope"]
            == table.filter(pl.col("law") == "layers.0.attention.rope")["residual"].to_list()
        )
        assert set(seen.curves("plot-control")) == {"control", "layers.2.mlp.glu"}


def test_choosing_changes_what_is_plotted(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        assert list(seen.curves("plot-drift")) == [f"layers.{layer}.attention.rope" for layer in range(3)]
        seen.choose("family", "glu")
        assert list(seen.curves("plot-drift")) == [f"layers.{layer}.mlp.glu" for layer in range(3)]
        assert seen.page.locator("#select-layer option").all_text_contents() == ["all layers", "layers.0.mlp", "layers.1.mlp", "layers.2.mlp"]
        seen.choose("layer", "layers.1.mlp")
        assert list(seen.curves("plot-drift")) == ["layers.1.mlp.glu"]
        assert list(seen.curves("plot-residual", "residual")) == ["layers.1.mlp.glu"]
        assert {trace["law"] for trace in seen.plotted("plot-split")} == {"layers.1.mlp.glu"}
        assert seen.page.locator("#table-final tbody tr:visible th").all_text_contents() == ["layers.1.mlp.glu"]
        seen.choose("family", "all families")
        seen.choose("layer", "layers.0.mlp")
        assert set(seen.curves("plot-drift")) == {"layers.0.mlp.glu", "control"}
        assert "1 law: predicted drift not evaluated" in seen.page.locator("#plot-drift-note").text_content()
        seen.choose("layer", "all layers")
        assert "the law with the largest final drift of each of 6 families, of 14 laws" in seen.page.locator("#plot-drift-note").text_content()
        assert len(seen.curves("plot-drift")) == 6
        seen.check()


def test_selects_work_by_keyboard(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        seen.page.focus("#select-family")
        seen.page.keyboard.press("ArrowDown")
        assert all(law.endswith("value_output") for law in seen.curves("plot-drift"))
        seen.page.keyboard.press("Tab")
        seen.page.keyboard.press("ArrowDown")
        assert list(seen.curves("plot-drift")) == ["layers.0.attention.value_output"]


def test_study_changes_with_the_run(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["study"]) as seen:
        before = seen.curves("plot-drift")["layers.0.attention.rope"]
        seen.choose("run", "learning rate 0.03 (lr-0.03)")
        after = seen.curves("plot-drift")["layers.0.attention.rope"]
        assert after[-1] == load_run(pages["study"].parent / "lr-0.03").filter(pl.col("law") == "layers.0.attention.rope")["drift"][-1]
        assert after != before
        points = {trace["family"]: trace for trace in seen.plotted("plot-scaling") if trace["column"] == "drift"}
        assert points["rope"]["x"] == [0.001, 0.003, 0.01, 0.03]
        assert points["rope"]["name"] == "rope (slope 2.00)"
        assert points["classifier"]["visible"] == "legendonly"
        assert seen.page.locator("#table-final tbody tr:visible").count() == 3
        seen.check()


def test_negative_parts_are_dotted_on_a_logarithmic_axis(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        assert min(value for trace in seen.plotted("plot-split") for value in trace["y"]) < 0
        seen.choose("scale", "absolute value, logarithmic")
        names = [trace["name"] for trace in seen.plotted("plot-split")]
        assert "weight decay, negative" in names
        assert seen.page.evaluate("document.getElementById('plot-split').layout.yaxis.type") == "log"


def test_legend_hides_curves(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        toggles = seen.page.locator("#plot-drift .legendtoggle")
        toggles.first.click()
        seen.wait_until("document.getElementById('plot-drift').data[0].visible === 'legendonly'")
        toggles.last.click()  # "predicted"
        hidden = "document.getElementById('plot-drift').data.filter(trace => trace.meta.column === 'predicted').every(trace => trace.visible === false)"
        seen.wait_until(hidden)
        seen.check()


def test_hover_tells_the_number(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        box = seen.page.locator("#plot-residual .nsewdrag").first.bounding_box()
        seen.page.locator("#plot-residual").scroll_into_view_if_needed()
        box = seen.page.locator("#plot-residual .nsewdrag").first.bounding_box()
        for part in range(20, 100, 4):
            seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * part / 100)
            if seen.page.locator("#plot-residual .hoverlayer .hovertext").count():
                break
        assert "step" in seen.page.locator("#plot-residual .hoverlayer .hovertext").first.text_content()


def test_dark_mode_changes_page_and_figures(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        light = seen.colors()
        seen.page.emulate_media(color_scheme="dark")
        seen.wait_until(f"document.getElementById('plot-drift').layout.paper_bgcolor !== '{light[2]}'")
        assert all(before != after for before, after in zip(light, seen.colors(), strict=True))
    with visit(pages["run"], scheme="dark") as dark:
        assert all(before != after for before, after in zip(light, dark.colors(), strict=True))


def contrast(first: str, second: str) -> float:
    """WCAG contrast of two CSS colours rgb(…)."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_have_contrast(visit: Any, pages: dict[str, Path], scheme: str) -> None:
    script = """() => { const probe = document.body.appendChild(document.createElement("i"));
        const rgb = name => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
        return Object.fromEntries(["card", "ground", "ink", "quiet", "accent", "good", "good-ground", "bad", "bad-ground", "warn", "warn-ground",
            ...Array.from({ length: 10 }, (_, index) => `c${index}`)].map(name => [name, rgb(name)])); }"""
    with visit(pages["run"], scheme=scheme) as seen:
        colors = seen.page.evaluate(script)
    for text, ground in [("ink", "card"), ("ink", "ground"), ("quiet", "card"), ("quiet", "ground"), ("accent", "ground"), ("warn", "card"), ("bad", "card")]:
        assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for tag in ("good", "bad", "warn"):
        assert contrast(colors[tag], colors[f"{tag}-ground"]) >= 4.5, tag
    for curve in range(10):
        assert contrast(colors[f"c{curve}"], colors["card"]) >= 3, curve
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)


def test_unevaluated_cells_look_different(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        look = "element => getComputedStyle(element).backgroundImage"
        unseen = seen.page.locator("#table-residuals td[data-state='not evaluated']")
        assert unseen.count() == 1
        assert "repeating-linear-gradient" in unseen.first.evaluate(look)
        value = seen.page.locator("#table-residuals td[data-state='value']").first
        assert value.evaluate(look) == "none"
        color = "element => getComputedStyle(element).backgroundColor"
        assert value.evaluate(color) != seen.page.locator("#table-residuals td[data-family='control']").first.evaluate(color)


def test_nothing_to_draw_is_said(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["silent"]) as seen:
        for figure in ("plot-drift", "plot-split", "plot-residual", "plot-control"):
            assert not seen.page.locator(f"#{figure}").is_visible()
            assert seen.page.locator(f"#{figure}-empty").is_visible()
        assert "drift not evaluated" in seen.page.locator("#plot-drift-empty").text_content()


def test_hostile_names_do_nothing(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["hostile"]) as seen:
        for option in seen.page.locator("#select-family option").all_text_contents():
            seen.choose("family", option)
        assert seen.page.evaluate("window.pwned") is None
        assert seen.page.locator("img").count() == 0
        assert "<script>window.pwned=1</script>" in seen.page.locator("#plot-drift .legendtext").first.text_content()
        seen.check()


def test_printing_is_light_whatever_the_screen(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"], scheme="dark") as seen:
        dark = seen.colors()
        seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        printed = seen.colors()
        assert printed[2] == "#ffffff"
        seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert seen.colors() == dark


# ---------------------------------------------------------------------------------------------- the helpers must be able to fail


@pytest.mark.parametrize(
    "body",
    [
        "<script>undefinedFunction()</script>",
        "<script>console.error('broken')</script>",
        "<script>Promise.reject(new Error('late'))</script>",
        "<img src='http://127.0.0.1:9/pixel.png'>",
        "<link rel='stylesheet' href='file:///nonexistent.css'>",
    ],
)
def test_check_sees_errors_and_requests(visit: Any, tmp_path: Path, body: str) -> None:
    file = tmp_path / "bad.html"
    file.write_text(f"<!DOCTYPE html><title>bad</title>{body}")
    with visit(file) as seen:
        seen.page.wait_for_timeout(100)
        with pytest.raises(AssertionError):
            seen.check()


def test_check_passes_a_good_page(visit: Any, tmp_path: Path) -> None:
    file = tmp_path / "good.html"
    file.write_text("<!DOCTYPE html><title>good</title><link rel='icon' href='data:,'><p>good")
    with visit(file) as seen:
        seen.check()
        seen.require_no_sideways_scroll()


def test_sideways_scroll_is_seen(visit: Any, tmp_path: Path) -> None:
    file = tmp_path / "wide.html"
    file.write_text("<!DOCTYPE html><meta name='viewport' content='width=device-width'><div style='width:500px'>wide</div>")
    with visit(file, width=360) as seen, pytest.raises(AssertionError, match="px wide"):
        seen.require_no_sideways_scroll()


def test_a_broken_report_is_flagged_and_injected_code_is_not_run(visit: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    text = pages["run"].read_text(encoding="utf-8")
    injected = tmp_path / "injected.html"
    injected.write_text(text.replace("</main>", "<script>window.pwned = 1</script></main>"), encoding="utf-8")
    with visit(injected) as seen:
        assert seen.page.evaluate("window.pwned") is None  # the page's policy runs no script but its own
        with pytest.raises(AssertionError):
            seen.check()
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace('id="select-family"', 'id="select-other"'), encoding="utf-8")
    with visit(broken) as seen, pytest.raises(AssertionError):
        seen.check()
