"""The command line: each command is one library call and its rendering.

Exit status: 0 it holds, 1 a law is violated, 2 bad input (one line on stderr: what, why, what to do).
"""

import json
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from conserved.errors import ConfigurationError, ConservedError, UnknownNameError

if TYPE_CHECKING:
    from conserved.catalog import Block, Statement
    from conserved.certify import Certification
    from conserved.experiments.claims import AuditResult, Claim
    from conserved.experiments.demo import DemoResult
    from conserved.law import LawSet

app = typer.Typer(
    help="""Find, prove, watch and use the conservation laws of neural-network training.

    Start with `conserved laws swiglu`, then `conserved demo`, which takes about 15 seconds.

    Exit status: 0 it holds, 1 a law is violated, 2 bad input.""",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

BLOCK_OPTIONS: dict[str, Any] = {"ignore_unknown_options": True}
"""Context settings of commands that take the options of a block, `--hidden 16` or `hidden=16`, among their own."""

OptionsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[--KEY VALUE | KEY=VALUE]...", help="Sizes and choices of the block, such as --dim 8 --causal.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Args:
        arguments: without the program's name; None takes those of the process. None at all ask for help.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        result = app(args=given or ["--help"], standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except Exception as error:
        if (message := _what_to_do(error)) is None:
            raise
        return _bad_input(message)
    return result if isinstance(result, int) else 0


def _what_to_do(error: Exception) -> str | None:
    """The message about an error of the user's; None for one of ours."""
    if isinstance(error, ConservedError):
        return str(error)
    if isinstance(error, typer.Abort):
        return "interrupted; nothing written so far was lost"
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}; check the path and its permissions"
    if isinstance(error, _usage_error()):
        return f"{error.format_message()}; see --help"  # type: ignore[attr-defined]
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "not enough memory for these sizes; give smaller ones"
    return None


@app.callback(invoke_without_command=True)
def _common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from conserved.version import __version__

        print(__version__)
        raise typer.Exit


def _usage_error() -> type[Exception]:
    """The class of usage errors, wherever this version of typer keeps it."""
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


def _bad_input(message: str) -> int:
    print(f"conserved: {' '.join(message.split())}", file=sys.stderr)
    return 2


@app.command()
def demo(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="New directory for runs and report; default: runs/demo, or the next free name.")] = None,
    dtype: Annotated[str, typer.Option(help="float64, float32 or bfloat16. Lower precision shows rounding's share of the drift.")] = "float64",
    steps: Annotated[int, typer.Option(help="Watched steps at each learning rate.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    as_json: JsonFlag = False,
) -> int:
    """Train a small decoder on real text, watch every law, and write a report.

    The model has grouped-query attention with rotary encoding, RMSNorm, one SwiGLU layer and one sparse mixture of experts; the text is
    Python's own help. After a warm-up it is trained with plain mini-batch SGD at three learning rates from the same weights.

    What to look for: exact laws have a residual at rounding level; their drift is what Σ τ²h(g) predicts and grows with exponent 2 in the
    learning rate; the negative control, a law written for the wrong matrix, drifts with exponent 1.

    Exit status 1 if an exact law is violated.
    """
    from conserved.experiments.demo import DemoConfig, run_demo

    config = DemoConfig(dtype=dtype, steps=steps, seed=seed)
    with _progress("training", quiet=as_json) as report_progress:
        result = run_demo(_free_directory(Path("runs/demo")) if output is None else output, config, report_progress)
    if as_json:
        _print_json(result.to_json())
    else:
        _print_demo(result)
    return 0 if result.holds else 1


@app.command(context_settings=BLOCK_OPTIONS)
def laws(
    target: Annotated[str | None, typer.Argument(help="A catalogue block, or 'demo' for the demonstration's model. Without it: the catalogue.")] = None,
    options: OptionsArgument = None,
    family: Annotated[str, typer.Option(help="Only families that match this pattern.")] = "*",
    layer: Annotated[str, typer.Option(help="Only layers that match this pattern, such as 'layers.0*'.")] = "*",
    latex: Annotated[bool, typer.Option("--latex", help="Print formulas as LaTeX.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the conservation laws of a catalogue block or of the demonstration's model.

    Examples: `conserved laws`, `conserved laws swiglu --hidden 16`, `conserved laws decoder layers=1 norm=layer mlp=gelu`, `conserved laws demo`.

    'count' is the number of functionally independent scalars of a law; the total above the table ("total" in JSON) takes overlaps between
    laws into account.
    """
    from conserved.catalog import BLOCKS, find_laws

    if target is None:
        if (family, layer, latex) != ("*", "*", False):
            raise UnknownNameError("--family, --layer and --latex choose among the laws of a block; name one, as in: conserved laws decoder --family rope")
        _print_catalogue(as_json)
        return
    if target == "demo":
        from conserved.experiments.demo import demo_model
        from conserved.experiments.text import python_topics

        if options:
            raise UnknownNameError(f"the demo model takes no options, got {options[0]!r}; use the block 'decoder' to choose")
        model: Block = demo_model(len(python_topics().alphabet))
    elif target not in BLOCKS:
        _refuse_option(target, "laws")
        raise UnknownNameError(f"no catalogue block is named {target!r}; choose demo or one of {', '.join(BLOCKS)}")
    else:
        model = _build(target, _parse_options(options or []))
    found = find_laws(model)
    chosen = found.select(family=family, layer=layer)
    if found and not chosen:
        layers = dict.fromkeys(law.layer or "''" for law in found)
        raise UnknownNameError(
            f"{target} has no law with --family {family!r} and --layer {layer!r}; its families: {', '.join(found.families)}; its layers: {', '.join(layers)}"
        )
    if as_json:
        statement = model.statement
        _print_json(chosen.to_json() | {"completeness": statement.completeness, "conditions": statement.conditions})
        return
    _print_laws(target, chosen, model.statement, latex)


@app.command(context_settings=BLOCK_OPTIONS)
def certify(
    block: Annotated[str | None, typer.Argument(help="A catalogue block; `conserved laws` lists them. Not needed with --verify.")] = None,
    options: OptionsArgument = None,
    flow: Annotated[str, typer.Option(help="gradient, momentum, nesterov, mirror or mirror-momentum.")] = "gradient",
    damping: Annotated[float, typer.Option(help="Damping of the momentum flows.")] = 1.0,
    arithmetic: Annotated[str, typer.Option(help="float64 counts numerically; ball, rational and modular look for a proof.")] = "float64",
    degree: Annotated[int | None, typer.Option(help="Instead of the count: all polynomial laws up to this degree, as formulas.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random point and data.")] = 0,
    save: Annotated[Path | None, typer.Option(help="New file for the certificate of a proof.")] = None,
    verify: Annotated[Path | None, typer.Option(help="Check a saved certificate, from nothing but itself.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Count the conservation laws of a block, and tell whether its list is complete.

    The laws are the functions that every gradient leaves alone; near a random point there are exactly D − dim Lie of them, where D counts the
    parameters and Lie is the algebra that the gradient fields of all inputs span with their brackets.

    Examples: `conserved certify swiglu --dim 3 --hidden 5`, `conserved certify relu --dims 2,4,3 --bias`,
    `conserved certify linear --dims 2,2,2 --flow momentum`, `conserved certify linear --dims 2,2,1 --degree 2`,
    `conserved certify mha --dim 2 --heads 1 --head-dim 2 --arithmetic ball --save proof.json`, `conserved certify --verify proof.json`.

    'proved' rests on a determinant that is certainly not zero; 'numerical' on a gap between singular values, which is printed; 'refuted' says
    that a listed law is not conserved; 'undecided' that no gap was clear: a guess is never printed as a count.

    Exit status 1 if a listed law is refuted, the count is undecided, the proof asked for was not found, or the certificate is rejected.
    """
    if verify is not None:
        if block is not None:
            raise ConfigurationError(f"--verify takes everything from the certificate; leave out {block!r}")
        if (flow, damping, arithmetic, degree, save) != ("gradient", 1.0, "float64", None, None):
            raise ConfigurationError("--verify takes everything from the certificate; leave out --flow, --damping, --arithmetic, --degree and --save")
        return _verify(verify, as_json)
    if block is None:
        raise ConfigurationError("name a block, as in: conserved certify swiglu --dim 3 --hidden 5; conserved laws lists the blocks")
    _refuse_option(block, "certify")
    given = _parse_options(options or [])
    if degree is not None:
        if (arithmetic, save) != ("float64", None):
            raise ConfigurationError("--degree is exact by itself and has no certificate; leave out --arithmetic and --save")
        return _polynomial(block, given, degree, flow, damping, seed, as_json)
    if save is not None:
        if arithmetic == "float64":
            raise ConfigurationError("--save needs a proof; give --arithmetic ball, rational or modular")
        if save.exists() or not save.absolute().parent.is_dir():
            raise ConfigurationError(f"{save} {'exists' if save.exists() else 'lies in no directory'}; name a new file for the certificate")
    from conserved.certify import certify_block

    with _waiting(f"certifying {block}", as_json):
        found = certify_block(block, given, flow=flow, damping=damping, arithmetic=arithmetic, seed=seed)
    saved = save is not None and found.certificate is not None
    if save is not None and found.certificate is not None:
        found.certificate.save(save)
    if as_json:
        _print_json(found.to_json() | ({"certificate": str(save) if saved else None} if save else {}))
    else:
        _print_certification(found, save, saved)
    return 0 if found.verdict == "proved" or (found.verdict == "numerical" and arithmetic == "float64") else 1


@app.command()
def audit(
    claims: Annotated[list[str] | None, typer.Argument(metavar="[CLAIM]...", help="Only these, such as 4.2 4.7 level-sets; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random points, data and weights.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Directory for audit.json, the certificates and report.html.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Check every claim of arXiv 2606.17816 on conservation laws, with a verdict and its evidence.

    A theorem says how many independent laws a block has. That number, a formula of the sizes, is compared with the number that is found
    without the theorem. All claims take about 25 seconds.

    Examples: `conserved audit`, `conserved audit 4.7`, `conserved audit -o runs/audit`.

    What to look for: 'expected' and 'found' in the table. 'proved' rests on exact arithmetic at one size at least, 'numerical' on a clear gap
    between singular values; 'refuted' is Theorem 4.7, where the sum of the router's rows moves at the rate 9/250 in an example with
    rational numbers. Rows marked control must show another number than the claim does, or the claim is 'undecided'; rows marked beside
    say what does hold next to it.

    With -o, `conserved report` and `conserved certify --verify FILE` read what was written. The directory may be that of a run or a demo: its
    report then has the audit as one more section.

    Exit status 0 if every claim is decided, refuted or not; 1 if one is undecided, or if the laws of the catalogue or a control are not
    what was found.
    """
    from conserved.experiments.audit import audit as audited

    with _progress("auditing", quiet=as_json) as report_progress:
        result = audited(claims, seed=seed, directory=output, progress=report_progress)
    written = {"directory": str(output), "report": str(output / "report.html")} if output else {}
    if as_json:
        _print_json(result.to_json() | written)
    else:
        _print_audit(result)
        for name, path in written.items():
            print(f"{name}: {path}")
    return 0 if result.holds else 1


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run directory (run.json, trace.jsonl), or what `conserved demo` or `conserved audit -o DIR` wrote.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The HTML file; default: report.html in the directory.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a self-contained HTML page about a run or an audit: it opens from disk and needs no network."""
    from conserved.report import write_report

    path = write_report(run, output)
    if as_json:
        _print_json({"report": str(path)})
    else:
        print(f"report: {path}")


@contextmanager
def _progress(title: str, quiet: bool) -> Generator[Callable[[int, int], None] | None]:
    """A progress bar on stderr from the first step on, so that bad input leaves its one line alone; nothing when quiet."""
    if quiet:
        yield None
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(title, total=None)

    def show(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def _waiting(title: str, quiet: bool) -> Generator[None]:
    """A spinner on stderr for work without countable steps; it leaves no trace."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(title):
        yield


def _free_directory(base: Path) -> Path:
    """The directory itself, or the first of base-2, base-3, … that does not exist."""
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _refuse_option(target: str, command: str) -> None:
    """What is unknown before the block cannot be one of the block's options."""
    if target.startswith("-"):
        raise UnknownNameError(f"{command} has no option {target}; options of a block follow its name; see conserved {command} --help")


def _parse_options(words: list[str]) -> dict[str, Any]:
    """Options of a block: `--key value`, `--key` alone for true, `key=value`."""
    options: dict[str, Any] = {}
    for pair in _pairs(words):
        key, separator, value = pair.partition("=")
        if not separator or not key or not value:
            raise UnknownNameError(f"cannot read {pair!r} as an option; write --KEY VALUE or KEY=VALUE, such as --hidden 16 or dims=3,4,2")
        key = key.replace("-", "_")
        if key in options:
            raise ConfigurationError(f"the option {key} is given twice, the second time in {pair!r}; give it once")
        several = key in ("dims", "outs", "mlp")
        parsed = tuple(_parse_value(part) for part in value.split(","))
        options[key] = parsed if several else parsed[0] if len(parsed) == 1 else parsed
    return options


def _pairs(words: list[str]) -> list[str]:
    """Every option as key=value."""
    out: list[str] = []
    waiting = False
    for word in words:
        if word.startswith("--"):
            out.append(word[2:] if "=" in word else f"{word[2:]}=true")
            waiting = "=" not in word
        elif waiting and "=" not in word:
            out[-1] = f"{out[-1].removesuffix('=true')}={word}"
            waiting = False
        else:
            out.append(word)
            waiting = False
    return out


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _build(name: str, options: dict[str, Any] | None = None) -> "Block":
    """A catalogue block without memory for its weights: laws need their shapes alone, so any size will do."""
    import torch

    from conserved.catalog import make_block

    try:
        with torch.device("meta"):
            return make_block(name, options)
    except ConservedError:
        raise
    except (RuntimeError, OverflowError, TypeError) as error:  # torch raises any of them where a size, or their product, is no 64-bit integer
        raise ConfigurationError(f"no tensor can have the sizes of block {name!r} with {options}; give smaller ones") from error


def _print_json(data: dict[str, Any]) -> None:
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, ensure_ascii=not utf8))


def _print_catalogue(as_json: bool) -> None:
    from conserved.catalog import BLOCKS
    from conserved.catalog.registry import block_options

    rows = [(name, _build(name)) for name in BLOCKS]
    if as_json:
        _print_json({"blocks": [{"block": name, "statement": block.statement.theorem, "options": list(block_options(name))} for name, block in rows]})
        return
    console = Console(markup=False, highlight=False)
    console.print("catalogue; print the laws of a block with: conserved laws BLOCK [KEY=VALUE]...")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("block", "statement", "options"):
        table.add_column(column, overflow="fold")
    for name, block in rows:
        table.add_row(name, block.statement.theorem, " ".join(block_options(name)))
    console.print(table)


def _print_laws(target: str, laws: "LawSet", statement: "Statement", latex: bool) -> None:
    console = Console(markup=False, highlight=False)
    console.print(f"{target}: {laws.independent_count} independent conserved scalars")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("law", overflow="fold")
    table.add_column("symmetry", overflow="fold")
    table.add_column("count", justify="right")
    table.add_column("formula", overflow="fold")
    for law in laws:
        formula = law.latex if latex else law.formula
        table.add_row(law.name, law.symmetry.value, str(law.count), formula if law.exact else f"{formula}\n≈ {law.reason}")
    if laws:
        console.print(table)
    for absence in laws.absences:
        console.print(f"no law{f' at {absence.where}' if absence.where else ''}: {absence.reason}" + (f" ({absence.source})" if absence.source else ""))
    console.print(f"hold for: {statement.conditions}\nlist: {statement.completeness}")
    for source in dict.fromkeys(law.source for law in laws):
        console.print(f"{', '.join(dict.fromkeys(law.family for law in laws if law.source == source))}: {source}")


def _verify(path: Path, as_json: bool) -> int:
    from conserved.certify import verify

    with _waiting(f"verifying {path}", as_json):
        found = verify(path)
    if as_json:
        _print_json(found.to_json())
    else:
        print(f"{path}: {found}")
    return 0 if found.valid else 1


def _polynomial(block: str, options: dict[str, Any], degree: int, flow: str, damping: float, seed: int, as_json: bool) -> int:
    from fractions import Fraction

    from conserved.catalog import make_block
    from conserved.certify import polynomial_laws

    with _waiting(f"polynomial laws of {block}", as_json):
        found = polynomial_laws(make_block(block, options), degree=degree, flow=flow, damping=Fraction(damping), seed=seed)
    if as_json:
        _print_json({
            "block": block,
            "flow": flow,
            "degree": degree,
            "laws": [law.formula for law in found.laws],
            "generators": [law.formula for law in found.generators],
            "independent": found.independent,
            "proof": found.proof,
            "matches_catalogue": found.matches is not None,
            "unmoved": list(found.unmoved),
        })
    else:
        print(found)
        if found.matches:
            print(f"those of degree ≤ 2 are combinations of the catalogue's laws: {', '.join(found.matches.families)}")
    return 0


def _print_certification(found: "Certification", save: Path | None, saved: bool) -> None:
    from conserved.certify.rank import CLEAR_GAP

    console = Console(markup=False, highlight=False)
    console.print(str(found))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("quantity")
    table.add_column("value", justify="right")
    table.add_column("meaning", overflow="fold")
    state = "D, parameters that move" if found.size == found.parameters else f"D, parameters that move; the state (t, θ, θ̇) has {found.size}"
    for quantity, value, meaning in (
        ("parameters", found.parameters, state),
        ("rank of the span", found.rank_span, "of the gradients of all inputs at one point"),
        ("rank of the algebra", found.rank_lie, f"with brackets of up to {found.depth} fields; {found.sampling} data"),
        ("independent laws", "?" if found.independent_laws is None else found.independent_laws, "the dimensions that the algebra leaves"),
        ("known laws", found.known_laws, "independent closed forms of the catalogue"),
        ("gap", format(found.gap, ".0e"), f"between singular values kept and dropped; below {CLEAR_GAP:.0e} nothing is decided"),
        ("seconds", format(found.seconds, ".1f"), f"in {found.arithmetic} arithmetic"),
    ):
        table.add_row(quantity, str(value), meaning)
    console.print(table)
    if found.verdict != "undecided":
        console.print("part in the laws: " + "; ".join(map(str, found.shares)))
    if found.unmoved:
        console.print(f"no gradient moves: {', '.join(found.unmoved)}; they are not counted")
    if save is not None:
        console.print(f"certificate: {save}" if saved else "no proof, so no certificate was saved", soft_wrap=True)


VERDICT_STYLES = {"proved": "green", "numerical": "cyan", "refuted": "bold red", "undecided": "yellow"}


def _print_audit(result: "AuditResult") -> None:
    from conserved.report.wording import found

    console = Console(markup=False, highlight=False)
    table = Table(title=f"audit of {result.paper}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("claim, block and sizes", overflow="fold")
    for name in ("D", "rank", "expected", "found"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for claim in result.claims:
        table.add_section()
        table.add_row(Text(claim.id, "bold"), "", "", "", "", Text(claim.verdict, VERDICT_STYLES[claim.verdict]))
        for check in claim.checks:
            counted = check.quantity == "independent laws"
            subject = check.subject + ("" if check.role == "claim" else f" [{check.role}]") + ("" if counted else f"\n{check.quantity}")
            numbers = ("–" if value is None else found(value) for value in (check.parameters, check.rank, check.expected, check.found))
            table.add_row(Padding(subject, (0, 0, 0, 2)), *numbers, Text(check.verdict, VERDICT_STYLES[check.verdict]))
    console.print(table)
    for claim in result.claims:
        console.print(Text.assemble((f"{claim.id} ", "bold"), (claim.verdict, VERDICT_STYLES[claim.verdict]), f" ({claim.summary}): {claim.statement}"))
        for line in _telling(claim):
            console.print(f"  {line}")
    console.print(
        "expected: by the theorem. found: without it; independent laws where nothing else is said. D: parameters. rank: of the Lie algebra.\n"
        "control: another number must come out here. beside: what holds next to the claim, as far as we know."
    )
    for trouble in result.troubles:
        console.print(f"TROUBLE: {trouble}")
    if result.holds:
        console.print("every claim is decided, and the laws of the catalogue are those that were found")


def _telling(claim: "Claim") -> list[str]:
    """The evidence that the verdict rests on: all of it against a claim, the first of each strength for it; then what holds beside it."""
    own = [check for check in claim.checks if check.role == "claim"]
    if claim.verdict in ("refuted", "undecided"):
        shown = [check for check in own if check.verdict == claim.verdict]
    else:
        shown = list({check.verdict: check for check in reversed(own)}.values())[::-1]
    return [f"{check.subject}: {check.evidence}" for check in shown] + ([claim.beside] if claim.beside else [])


def _number(value: float | None, digits: str = ".1e", missing: str = "not eval.") -> str:
    return missing if value is None else format(value, digits)


def _print_demo(result: "DemoResult") -> None:
    console = Console(markup=False, highlight=False)
    rates = sorted(result.configuration["learning_rates"])
    table = Table(title="conservation laws in training", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("family", no_wrap=True)
    for name in ("laws", "residual", "drift", "predicted", "mismatch", "rounding", "exponent"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.families:
        cells = (_number(row.worst_residual), _number(row.drift), _number(row.predicted_drift))
        explained = (_number(row.mismatch, missing="–"), _number(row.floor), _number(row.exponent, ".3f", "–"))
        table.add_row(row.family if row.exact else f"{row.family} ≈", str(row.laws), *cells, *explained)
    table.add_section()
    control = result.control
    table.add_row("control ✗", "–", _number(control["worst_residual"]), _number(control["drift"]), "–", "–", "–", _number(control["exponent"], ".3f", "–"))
    console.print(table)
    console.print(
        f"residual: worst over all steps. drift, predicted (Σ τ²h(g)) and rounding: in units of h, at learning rate {rates[-1]:g} "
        f"after {result.configuration['steps']} steps.\nexponent: of the drift in the learning rate, over {', '.join(f'{rate:g}' for rate in rates)}."
    )
    for row in result.families:
        if row.note:
            console.print(f"{row.family}: {row.note}")
    console.print(f"control: {control['note']}")
    console.print("every exact law holds to rounding" if result.holds else "an exact law is VIOLATED: its residual exceeds what rounding explains")
    console.print(f"runs: {result.directory}\nreport: {result.report}", soft_wrap=True)


def entry() -> None:
    """Entry point of the installed command."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly, as it ends any other tool
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a console without ‖ shows its number
    sys.exit(main())


if __name__ == "__main__":
    entry()
