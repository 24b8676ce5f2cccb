"""For the tests of the report: small synthetic runs written by the real `RunLog`, a reader of pages, and visits in a browser."""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conserved.law import Absence, Law, LawSet, Term
from conserved.monitor.runlog import RunHeader, RunLog
from conserved.symmetry import Symmetry

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "conserved": "0.1"}


def layer_laws(number: int, prefix: str = "layers.") -> tuple[Law, ...]:
    """The laws of one layer of a decoder: rotary, matrix, rescale and an approximate one."""
    path = f"{prefix}{number}"
    q = Term(f"{path}.attention.Q", (2, 8, 4), "h d (i=2 p)")
    k = Term(f"{path}.attention.K", (2, 8, 4), "h d (i=2 p)", -1)
    v, o = Term(f"{path}.attention.V", (2, 8, 4), "h d i"), Term(f"{path}.attention.O", (2, 8, 4), "h d i", -1)
    a, c = Term(f"{path}.mlp.A", (8, 6), "o i"), Term(f"{path}.mlp.C", (6, 8), "i d", -1)
    gain, b = Term(f"{path}.norm.gain", (8,), "i"), Term(f"{path}.mlp.B", (6, 8), "o i", -1)
    paper = "arXiv 2606.17816, Theorem"
    attention = f"{path}.attention"
    eps = "eps = 1e-06 in the normalisation; exact for eps = 0"
    return (
        Law(f"{attention}.rope", "rope", attention, Symmetry.ROTARY, (q, k), ("h",), "i", source=f"{paper} 4.4"),
        Law(f"{attention}.value_output", "value_output", attention, Symmetry.GENERAL_LINEAR, (v, o), ("h",), "i", source=f"{paper} 4.3"),
        Law(f"{path}.mlp.glu", "glu", f"{path}.mlp", Symmetry.RESCALE, (a, c), index="i", source=f"{paper} 4.2"),
        Law(f"{path}.norm.gain", "norm_gain", f"{path}.norm", Symmetry.RESCALE, (gain, b), index="i", exact=False, reason=eps),
    )


def classifier() -> Law:
    """A linear law: plain steps do not move it."""
    return Law("head.classifier", "classifier", "head", Symmetry.TRANSLATION, (Term("U", (7, 8), "v d"),), ("d",), source="Kunin et al. 2021")


def control(layer: int = 0) -> Law:
    """A law that is wrong on purpose: the sign of its second term is flipped."""
    terms = (Term(f"layers.{layer}.mlp.A", (8, 6), "o i"), Term(f"layers.{layer}.mlp.C", (6, 8), "i d"))
    return Law("control", "control", f"layers.{layer}.mlp", Symmetry.RESCALE, terms, index="i", exact=False, reason="The sign of its second term is flipped.")


def decoder_laws(layers: int = 3, with_control: bool = True) -> LawSet:
    """All laws of a small decoder."""
    laws = [law for number in range(layers) for law in layer_laws(number)] + [classifier()]
    absences = (Absence("layers.0.mlp.B", "the gate of a SwiGLU is neither linear nor homogeneous", "arXiv 2606.17816, Theorem 4.2"),)
    return LawSet.of(laws + ([control()] if with_control else []), absences)


def drift_of(law: Law, position: int, step: int, lr: float, work: float) -> dict[str, float | None]:
    """The numbers of a law after so many steps: second order for a law, first order for the control."""
    noise = random.Random(step * 1000 + position)
    rate = (1.0 + 0.4 * position) * (1 + 0.2 * math.sin(step / 40))
    linear = law.symmetry.degree == 1
    rounding = 1e-16 * math.sqrt(step) * noise.uniform(0.5, 1.5) if step else 0.0
    first = lr * step * 0.3 * rate if law.family == "control" else 0.0
    second = 0.0 if linear else lr * lr * step * 0.05 * rate
    parts = {"step_size": second, "decay": -0.02 * second, "work": first + work * second, "rounding": rounding}
    residual = 0.4 if law.family == "control" else (1e-16 if law.exact else 1e-6) * noise.uniform(0.5, 3)
    drift = sum(parts.values())
    mismatch = None if linear or not drift else abs(drift - second) / drift
    return {"drift": drift, "predicted": second, "mismatch": mismatch, "residual": residual, "size": 3.0 + position, "floor": rounding} | parts


def records(laws: LawSet, steps: Sequence[int], lr: float = 0.01, work: float = 0.0) -> list[dict[str, Any]]:
    """The records of a run."""
    out = []
    for step in steps:
        numbers = [drift_of(law, position, step, lr, work) for position, law in enumerate(laws)]
        lists = {name: [entry[name] for entry in numbers] for name in numbers[0]} if numbers else {}
        out.append({"step": step, "time": 0.01 * step, "loss": 2.0 / (1 + 0.01 * step), "lr": lr} | lists)
    return out


def write_run(
    path: Path,
    laws: LawSet,
    steps: Sequence[int] = range(0, 201, 5),
    *,
    lr: float = 0.01,
    work: float = 0.0,
    ledger: str | None = "exact",
    configuration: dict[str, Any] | None = None,
    dtypes: tuple[str, ...] = (),
    change: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Path:
    """Write a run; `change` may edit each record before it is written."""
    settings = {"model": "decoder", "dtype": "float64", "seed": 0, "data": {"tokens": 6, "batch": 32}} if configuration is None else configuration
    optimizer = {"class": "torch.optim.sgd.SGD", "groups": [{"lr": lr, "momentum": 0.0, "weight_decay": 0.01}]}
    log = RunLog.create(path, RunHeader(laws, settings, optimizer, ledger, 5, VERSIONS, "2026-11-30T12:00:00+00:00", dtypes))
    for record in records(laws, steps, lr, work):
        if ledger is None:
            record.update(dict.fromkeys(("step_size", "decay", "work", "rounding", "floor", "predicted", "mismatch")))
        change(record)
        log.append(record)
    log.close()
    return path


def write_study(path: Path, laws: LawSet, rates: Sequence[float] = (0.001, 0.003, 0.01, 0.03), steps: Sequence[int] = range(0, 201, 5)) -> Path:
    """Write a study: a run for each learning rate, and summary.json."""
    for lr in rates:
        write_run(path / f"lr-{lr:g}", laws, steps, lr=lr)
    families = [
        {"family": family, "symmetry": "", "laws": 4, "exact": family != "norm_gain", "worst_residual": 3e-16, "drift": 1e-4, "predicted_drift": 1e-4}
        | {"mismatch": None if family == "classifier" else 2e-13, "floor": 1e-15, "exponent": None if family == "classifier" else 2.0, "note": ""}
        for family in laws.families
        if family != "control"
    ]
    wrong = {"law": "control", "formula": "", "drift": 0.1, "exponent": 1.0, "note": "flipped sign"} if "control" in laws.families else None
    summary = {
        "families": families,
        "control": wrong,
        "runs": [{"directory": f"lr-{lr:g}", "lr": lr} for lr in rates],
        "configuration": {"model": "decoder", "steps": 200, "dtype": "float64"},
        "seconds": 12.5,
    }
    (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return path


LAWS = decoder_laws()
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


# ---------------------------------------------------------------------------------------------- reading a page


class Page(HTMLParser):
    """What a program reads from a page: elements with their attributes, table cells, the embedded JSON."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: list[tuple[dict[str, str], dict[str, str]]] = []
        self.shown: dict[tuple[str, str, str], str] = {}
        self.scripts: list[str] = []
        self.text = ""
        self._cell: tuple[str, str, str] | None = None
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element; a script starts a new text."""
        given = {key: value or "" for key, value in attrs}
        self.elements.append((tag, given))
        if tag == "script":
            self.scripts.append("")
        if tag == "tr":
            self.rows.append((given, {}))
        if "data-column" in given and "data-value" in given:
            row, cells = self.rows[-1]
            cells[given["data-column"]] = given["data-value"]
            self._cell = (row.get("data-run", ""), row.get("data-law", ""), given["data-column"])

    def handle_data(self, data: str) -> None:
        """Text of a script, of a cell, of the page."""
        if self.elements and self.elements[-1][0] == "script" and self.get_starttag_text().startswith("<script"):  # type: ignore[union-attr]
            self.scripts[-1] += data
        else:
            self.text += data
            if self._cell is not None:
                self.shown.setdefault(self._cell, data)
                self._cell = None

    def finals(self, run: int = 0) -> dict[int, dict[str, str]]:
        """The machine-readable numbers of the table of final drifts, by law."""
        return {int(row["data-law"]): cells for row, cells in self.rows if row.get("data-run") == str(run)}

    @property
    def data(self) -> Any:
        """What the figures draw."""
        return json.loads(next(text for (_, given), text in zip(self.script_elements, self.scripts, strict=True) if given.get("id") == "conserved-data"))

    @property
    def script_elements(self) -> list[tuple[str, dict[str, str]]]:
        """All script elements."""
        return [element for element in self.elements if element[0] == "script"]


# ---------------------------------------------------------------------------------------------- visiting a page

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@dataclass
class Visit:
    """An open page, with what it complained about and what it asked for."""

    page: Any
    problems: list[str]
    requests: list[str]

    def check(self) -> None:
        """Fail on errors in the console and on any request but that for the file itself."""
        assert self.problems == []
        outside = [url for url in self.requests if not url.startswith(("file://", "data:", "blob:"))]
        assert outside == []
        assert len([url for url in self.requests if url.startswith("file://")]) == 1

    def plotted(self, figure: str) -> list[dict[str, Any]]:
        """The traces of a figure as Plotly holds them."""
        script = """id => (document.getElementById(id).data ?? []).map(trace => ({
            name: trace.name, x: [...trace.x], y: [...trace.y], visible: trace.visible ?? true, color: trace.line.color, ...trace.meta }))"""
        return list(self.page.evaluate(script, figure))

    def curves(self, figure: str, column: str = "drift") -> dict[str, list[float | None]]:
        """The values of a figure by law."""
        return {trace["law"]: trace["y"] for trace in self.plotted(figure) if trace.get("column") == column}

    def wait_until(self, expression: str) -> None:
        """Ask again and again from outside: the page's policy forbids the eval that Playwright's own wait needs."""
        for _ in range(300):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(30)
        pytest.fail(f"never became true: {expression}")

    def choose(self, what: str, label: str) -> None:
        """Choose from one of the selects."""
        self.page.select_option(f"#select-{what}", label=label)

    def require_no_sideways_scroll(self) -> None:
        """Fail if the page is wider than the window."""
        wide, window = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= window, f"the page is {wide} px wide in a window of {window} px"

    def colors(self) -> tuple[str, ...]:
        """Colours of page, text, figure, figure text and first curve."""
        script = """() => { const body = getComputedStyle(document.body), plot = document.getElementById("plot-drift");
            return [body.backgroundColor, body.color, plot.layout.paper_bgcolor, plot.layout.font.color, plot.data[0].line.color]; }"""
        return tuple(self.page.evaluate(script))
