"""The parts of the documentation that are written from the code, so that they cannot drift from it.

    python docs/generate.py             write them
    python docs/generate.py --check     change nothing; exit status 1 if a part is out of date

A part stands in a page between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import typer

import conserved
from conserved.catalog import BLOCKS, Block, make_block
from conserved.cli import app

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ASSEMBLED = ("decoder", "layernorm-stream", "vit")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def catalogue() -> str:
    """One row for each block: what is claimed about it."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name in BLOCKS:
            block = make_block(name)
            said = block.statement
            yield f"`{name}`", said.theorem, str(block.laws().independent_count), said.conditions, said.source, said.completeness

    return table(("block", "statement", "count", "holds for", "source", "completeness"), rows())


def formulas() -> str:
    """One row for each law of the single blocks, then the stated absences."""
    blocks = {name: make_block(name) for name in BLOCKS if name not in ASSEMBLED}

    def rows() -> Iterator[tuple[str, ...]]:
        for name, block in blocks.items():
            for law in block.laws():
                yield f"`{name}`", f"`{law.name}`", law.symmetry.value, str(law.count), f"`{law.formula}`" + ("" if law.exact else f" ≈ {law.reason}")

    return table(("block", "law", "symmetry", "count", "formula"), rows()) + "\n" + _absences(blocks)


def _absences(blocks: dict[str, Block]) -> str:
    lines = [f"- `{name}`: {absence.reason}." for name, block in blocks.items() for absence in block.laws().absences]
    return "Stated absences:\n\n" + "\n".join(lines) + "\n"


def families() -> str:
    """One row for each family of laws of the assembled transformers."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name in ASSEMBLED:
            laws = make_block(name).laws()
            for family in laws.families:
                chosen = laws.select(family=family)
                nature = "exact" if all(law.exact for law in chosen) else "approximate"
                yield f"`{name}`", f"`{family}`", chosen[0].symmetry.value, str(len(chosen)), str(chosen.independent_count), nature

    return table(("block", "family", "symmetry", "laws", "count", "holds"), rows())


def options() -> str:
    """One row for each block: the options it takes."""
    from conserved.catalog.registry import block_options

    same: dict[tuple[str, ...], list[str]] = {}
    for name in BLOCKS:
        same.setdefault(tuple(block_options(name)), []).append(f"`{name}`")
    return table(("block", "options"), ((", ".join(names), " ".join(f"`{key}`" for key in keys)) for keys, names in same.items()))


def command(name: str) -> str:
    """The help of one command: its text, arguments and options."""
    found = COMMANDS[name]

    def rows() -> Iterator[tuple[str, ...]]:
        for parameter in found.params:
            is_option = parameter.param_type_name == "option"
            shown = ", ".join(f"`{flag}`" for flag in sorted(parameter.opts, key=len)) if is_option else f"`{parameter.metavar or parameter.name.upper()}`"
            default = "required" if parameter.required else "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"
            yield shown, parameter.help, default

    return f"{found.help.strip()}\n\n" + table(("argument or option", "meaning", "default"), rows())


PARTS: dict[str, Callable[[], str]] = {
    "catalogue": catalogue,
    "formulas": formulas,
    "families": families,
    "options": options,
    **{f"command-{name}": partial(command, name) for name in COMMANDS},
}


def rewritten(text: str) -> str:
    """A page with its generated parts written anew.

    Raises:
        KeyError: the page asks for a part that is not one of `PARTS`.
    """
    return PART.sub(lambda match: match[1] + PARTS[match["name"]]() + match[3], text)


def outdated() -> dict[Path, str]:
    """The pages whose generated parts differ from the code, with what they should hold."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
    return {page: new for page, text in pages.items() if (new := rewritten(text)) != text}


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=f"Generated parts of the documentation of conserved {conserved.__version__}.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a part is out of date")
    checking = parser.parse_args().check
    pages = outdated()
    for page, text in pages.items():
        if checking:
            print(f"{page.relative_to(ROOT)} is out of date; run: python docs/generate.py", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return int(checking and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
