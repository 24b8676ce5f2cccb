"""The page: a `Report` put into the templates, styles and script of this package, all in one file."""

import json
from base64 import b64encode
from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from math import log10
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from conserved.experiments.claims import ROLES, VERDICTS
from conserved.report.data import CURVES, Report
from conserved.report.wording import exactly, found, full, number, plural
from conserved.tolerance import CONTROL_RESIDUAL

GENERATOR = "conserved"


def render(report: Report) -> str:
    """The page as HTML text."""
    scripts = [_script(get_plotlyjs()), _script(_resource("report.js"))] if report.runs else []  # an audit has no figures
    environment = Environment(loader=FunctionLoader(_resource), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "full": full, "plural": plural, "heat": heat, "found": found, "exactly": exactly}
    return environment.get_template("page.html").render(
        report=report,
        generator=GENERATOR,
        policy=_policy(scripts),
        style=Markup(_resource("style.css")),
        data=Markup(embed(drawn(report))),
        scripts=scripts,
        control_residual=CONTROL_RESIDUAL,
        verdicts=VERDICTS,
        roles=ROLES,
    )


def drawn(report: Report) -> dict[str, Any]:
    """What the script draws, and what a program may read from the page (element `conserved-data`)."""
    laws = [asdict(law) | {"position": position, "control": law.is_control} for position, law in enumerate(report.laws)]
    runs = [
        {"name": run.name, "label": run.label, "lr": run.lr, "ledger": run.ledger, "records": run.records, "steps": run.steps}
        | {"curves": {name: run.curves[name] for name in CURVES}}
        | {"final": [final.drift for final in run.finals], "worst": [residual.worst for residual in run.residuals]}
        for run in report.runs
    ]
    return {
        "format": 1,
        "title": report.title,
        "version": report.version,
        "independent": report.independent,
        "families": report.families,
        "laws": laws,
        "runs": runs,
        "verdict": asdict(report.verdict) | {"state": report.verdict.state},
        "control": asdict(report.control) if report.control else None,
        "study": asdict(report.study) if report.study else None,
        "audit": report.audit.to_json() if report.audit else None,
    }


def heat(residual: float) -> float:
    """Place of a residual on the colour scale: 0 for 1e-17 and below, 1 for 1.

    Example:
        >>> heat(1.0), heat(0.0)
        (1.0, 0.0)
    """
    return round(min(1.0, max(0.0, 1 + log10(residual) / 17)), 4) if residual > 0 else 0.0


def embed(data: object) -> str:
    r"""JSON that cannot leave its script element, whatever its strings hold.

    Example:
        >>> embed(["</script>", "a&b"])
        '["\\u003c/script\\u003e","a\\u0026b"]'
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _script(text: str) -> Markup:
    """A script of ours, made safe to stand between script tags."""
    return Markup(text.replace("\r\n", "\n").replace("</script", "<\\/script"))


def _policy(scripts: list[Markup]) -> str:
    """A content policy under which the browser runs these scripts only, and loads nothing from anywhere."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts) or "'none'"
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


def _resource(name: str) -> str:
    return (files("conserved.report") / "templates" / name).read_text(encoding="utf-8")
