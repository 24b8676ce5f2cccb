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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from conserved.errors import ConfigurationError, ConservedError, UnknownNameError

if TYPE_CHECKING:
    from conserved.catalog import Block, Statement
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

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Args:
        arguments: without the program's name; None takes those of the process. None at all ask for help.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        result = app(args=given or ["--help"], standalone_mode=False)
    except ConservedError as error:
        return _bad_input(str(error))
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return _bad_input("interrupted; nothing written so far was lost")
    except OSError as error:
        return _bad_input(f"{error.filename or 'file'}: {error.strerror or error}; check the path and its permissions")
    except Exception as error:
        if isinstance(error, _usage_error()):
            return _bad_input(f"{error.format_message()}; see --help")  # type: ignore[attr-defined]
        raise
    return result if isinstance(result, int) else 0


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


@app.command()
def laws(
    target: Annotated[str | None, typer.Argument(help="A catalogue block, or 'demo' for the demonstration's model. Without it: the catalogue.")] = None,
    options: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Sizes and choices of the block, such as dim=8 causal=true.")] = None,
    family: Annotated[str, typer.Option(help="Only families that match this pattern.")] = "*",
    layer: Annotated[str, typer.Option(help="Only layers that match this pattern, such as 'layers.0*'.")] = "*",
    latex: Annotated[bool, typer.Option("--latex", help="Print formulas as LaTeX.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the conservation laws of a catalogue block or of the demonstration's model.

    Examples: `conserved laws`, `conserved laws swiglu hidden=16`, `conserved laws decoder layers=1 norm=layer mlp=gelu`, `conserved laws demo`.

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


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run directory (run.json, trace.jsonl), or the directory that `conserved demo` wrote.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The HTML file; default: report.html in the directory.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a self-contained HTML page about a run: it opens from disk and needs no network."""
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


def _free_directory(base: Path) -> Path:
    """The directory itself, or the first of base-2, base-3, … that does not exist."""
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _parse_options(pairs: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key or not value:
            raise UnknownNameError(f"cannot read {pair!r} as an option; write KEY=VALUE, such as hidden=16 or dims=3,4,2")
        key = key.replace("-", "_")
        if key in options:
            raise ConfigurationError(f"the option {key} is given twice, the second time in {pair!r}; give it once")
        several = key in ("dims", "outs", "mlp")
        parsed = tuple(_parse_value(part) for part in value.split(","))
        options[key] = parsed if several else parsed[0] if len(parsed) == 1 else parsed
    return options


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
