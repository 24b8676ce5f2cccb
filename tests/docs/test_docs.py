"""README and docs against the code: names, tables, commands, links. Their examples run as doctests of their own."""

import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
import typer

import conserved
from conserved import errors
from conserved.catalog import BLOCKS
from conserved.cli import app, main
from conserved.experiments.demo import DemoConfig, DemoResult, FamilySummary

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FAST = {"laws", "--help"}
"""Commands whose examples are run as they stand; of the others only the arguments are parsed."""


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def fences(text: str, language: str) -> list[str]:
    """The contents of all code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_cells(text: str) -> list[str]:
    """The code in the first cell of every table row."""
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level."""
    return text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- set-up ---


def test_readme_has_exactly_two_set_up_commands() -> None:
    assert fences(read(ROOT / "README.md"), "sh") == [
        "pip install -c constraints.txt -e . && conserved demo\n",
        "pip install -c constraints.txt -e '.[test]' && pytest\n",
    ]


def _function(name: str, script: str) -> str:
    return re.search(rf"^{name}\(\) {{\n.*?^}}\n", script, re.DOTALL | re.MULTILINE)[0]  # type: ignore[index]


def _bash(script: str) -> str:
    return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = read(ROOT / ".ci" / "run")
    taken = _bash(_function("readme_test_command", script) + "readme_test_command")
    assert taken.strip() == fences(read(ROOT / "README.md"), "sh")[1].strip()
    assert 'test_command=$(readme_test_command)\nsay "$test_command"\nbash -euo pipefail -c "$test_command"\n' in script


def test_ci_runs_every_target_of_make_check() -> None:
    script, makefile = read(ROOT / ".ci" / "run"), read(ROOT / "Makefile")
    targets = re.search(r"^check: (.*)$", makefile, re.MULTILINE)[1].split()  # type: ignore[index]
    in_ci = re.search(r"^for target in (.*); do$", script, re.MULTILINE)[1].split()  # type: ignore[index]
    assert [*in_ci, "test"] == targets  # the tests are the README's command
    for target in in_ci:
        lines = _bash(_function("recipe", script) + f"recipe {target}")
        assert lines.startswith("python ")
        assert f"\n{target}:\n\t" + lines.rstrip().replace("\n", "\n\t") + "\n" in makefile


def test_ci_is_executable_and_stops_at_the_first_failure() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "\nset -euo pipefail\n" in read(ROOT / ".ci" / "run")


def test_extras_and_constraints_agree() -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    pinned = set(re.findall(r"^([\w-]+)==", read(ROOT / "constraints.txt"), re.MULTILINE))
    needed = {re.match(r"[\w-]+", line)[0] for line in (*project["dependencies"], *(name for names in extras.values() for name in names))}  # type: ignore[index]
    assert needed == pinned
    for page in PAGES:
        for names in re.findall(r"'\.\[([\w,]+)\]'", read(page)):
            assert set(names.split(",")) <= set(extras), page.name


def test_version_is_in_changelog_and_citation() -> None:
    assert f"\n## {conserved.__version__}" in read(ROOT / "CHANGELOG.md")
    assert f"\nversion: {conserved.__version__}\n" in read(ROOT / "CITATION.cff")


# --- names ---


def test_api_page_lists_every_public_name() -> None:
    listed = first_cells(read(DOCS / "api.md").split("\n## In modules\n")[0])
    assert listed == list(conserved.__all__)


def test_names_in_modules_exist() -> None:
    for name in first_cells(section(read(DOCS / "api.md"), "## In modules")):
        path, _, attribute = name.rpartition(".")
        module = importlib.import_module(path)
        assert hasattr(module, attribute) or importlib.util.find_spec(name), name


def test_every_error_is_explained() -> None:
    text = read(DOCS / "errors.md")
    classes = {name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ConservedError)}
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, re.MULTILINE))
    assert rows == {name: kind.__bases__[-1].__name__ for name, kind in classes.items()}
    for name in classes.keys() - {"ConservedError"}:
        assert f"conserved.errors.{name}: " in section(text, f"## {name}"), name


def test_messages_on_the_page_are_in_the_code() -> None:
    table = read(DOCS / "errors.md").split("| message says | do |\n| --- | --- |\n")[1]
    phrases = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)
    messages = " ".join(line for path in (ROOT / "src").rglob("*.py") for line in read(path).splitlines() if "RunError(" in line)
    assert len(phrases) == len(table.splitlines())
    assert not [phrase for phrase in phrases if phrase not in messages]


def test_fields_of_the_demo_are_those_on_the_page() -> None:
    page = section(read(DOCS / "cli.md"), "## conserved demo")
    rows = {key: re.findall(r"`(\w+)`", rest) for key, rest in re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)}
    names = [name for line in re.findall(r"^\| (`[^|]*) \|", page.split("JSON keys:")[1], re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]
    assert names == [field.name for field in fields(DemoResult)]
    assert rows["families"] == [field.name for field in fields(FamilySummary)]
    assert rows["configuration"] == [*(field.name for field in fields(DemoConfig)), "text", "characters", "model"]


# --- generated parts ---


def test_generated_parts_are_up_to_date(generate: ModuleType) -> None:
    outdated = [page.name for page in generate.outdated()]
    assert not outdated, f"{outdated} out of date; run: python docs/generate.py"


def test_every_generated_part_is_used_once_and_not_empty(generate: ModuleType) -> None:
    parts = [match["name"] for page in PAGES for match in generate.PART.finditer(read(page))]
    assert sorted(parts) == sorted(generate.PARTS)
    assert first_cells(generate.catalogue()) == list(BLOCKS)


def test_a_stale_part_is_noticed(generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    text = read(DOCS / "catalogue.md")
    stale = text.replace("| `swiglu` | ", "| `swiglu` | not ", 1)
    (tmp_path / "docs" / "catalogue.md").write_text(stale, encoding="utf-8")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert stale != text
    assert list(generate.outdated().values()) == [text]


# --- the command line ---


def test_every_command_and_option_is_on_the_page() -> None:
    text = read(DOCS / "cli.md")
    assert re.findall(r"^## conserved (\w+)$", text, re.MULTILINE) == list(COMMANDS)
    for name, command in COMMANDS.items():
        part = section(text, f"## conserved {name}")
        for parameter in command.params:
            shown = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
            assert all(f"`{flag}`" in part for flag in shown), (name, parameter.name)


def _shown_commands() -> Iterator[tuple[str, str]]:
    """Every `conserved …` line in a shell block, and every inline `conserved …` whose first word is a command."""
    for page in PAGES:
        text = read(page)
        for block in (*fences(text, "sh"), *fences(text, "console")):
            for line in block.splitlines():
                for command in line.removeprefix("$ ").split("&&"):
                    if command.strip().startswith("conserved"):
                        yield page.name, command.strip()
        for code in re.findall(r"`(conserved [^`]+)`", prose(text)):
            if code.split()[1] in (*COMMANDS, "--help"):
                yield page.name, code


SHOWN = sorted({command for _, command in _shown_commands()})


def test_some_commands_are_shown() -> None:
    assert {command.split()[1] for command in SHOWN} == {*COMMANDS, "--help"}


@pytest.mark.parametrize("command", SHOWN)
def test_shown_commands_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, *arguments = shlex.split(command)
    if "BLOCK" in arguments:
        arguments[arguments.index("BLOCK")] = "swiglu"
    if arguments[0] in FAST:
        assert main(arguments) == 0
    elif len(arguments) > 1 or arguments[0] == "demo":
        COMMANDS[arguments[0]].make_context(arguments[0], arguments[1:])
    else:
        assert main([*arguments, "--help"]) == 0
    assert not capsys.readouterr().err


# --- links ---


def _links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(page))):
            yield page, target


@pytest.mark.parametrize(("page", "target"), list(_links()), ids=lambda value: value.name if isinstance(value, Path) else value)
def test_links_resolve(page: Path, target: str) -> None:
    assert "://" not in target, "pages link to files of this repository only"
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.is_file()
    if anchor:
        assert anchor in anchors(read(file))


def test_index_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w.]+\.md)\)", read(DOCS / "index.md")))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_files_that_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w/.]+)`", read(page)):
            assert "NAME" in name or (ROOT / name).exists(), (page.name, name)


@pytest.mark.parametrize("check", [anchors, first_cells], ids=["anchors", "first cells"])
def test_the_readers_of_pages_read(check: Callable[[str], object]) -> None:
    assert check("## A claim, so `x`\n\n| `a` | b |\n") == ({"a-claim-so-x"} if check is anchors else ["a"])


def test_picture_is_there_and_small() -> None:
    picture = DOCS / "images" / "report.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size <= 300_000
