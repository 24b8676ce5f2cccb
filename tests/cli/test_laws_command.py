"""`conserved laws`: what it prints is the LawSet, as a table or as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from conserved import LawSet
from conserved.catalog import BLOCKS, find_laws, make_block
from conserved.experiments.demo import control_law, demo_model

Run = Callable[..., Any]

LAW_KEYS = {"name", "family", "symmetry", "count", "terms", "formula", "exact", "source"}

OPTIONS = [
    ("swiglu", ["hidden=16"], {"hidden": 16}),
    ("swiglu", ["gate=gelu", "bias=TRUE"], {"gate": "gelu", "bias": True}),
    ("linear", ["dims=3,4,2"], {"dims": (3, 4, 2)}),
    ("mha", ["head-dim=3", "causal=true"], {"head_dim": 3, "causal": True}),
    ("decoder", ["layers=1", "norm=layer", "mlp=gelu"], {"layers": 1, "norm": "layer", "mlp": ("gelu",)}),
    ("decoder", ["mlp=swiglu,moe", "kv-heads=none"], {"mlp": ("swiglu", "moe"), "kv_heads": None}),
    ("decoder", ["eps=0"], {"eps": 0}),
]


def one_object(text: str) -> dict[str, Any]:
    """The JSON object that a text consists of, in one line."""
    assert text.count("\n") == 1
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize("name", BLOCKS)
def test_json_is_the_law_set(run: Run, name: str) -> None:
    ran = run("laws", name, "--json")
    assert (ran.status, ran.err) == (0, "")
    data, block = one_object(ran.out), make_block(name)
    laws = find_laws(block)
    assert LawSet.from_json(data) == laws
    assert data["total"] == laws.independent_count
    assert (data["completeness"], data["conditions"]) == (block.statement.completeness, block.statement.conditions)
    for entry, law in zip(data["laws"], laws, strict=True):
        assert entry.keys() >= LAW_KEYS
        assert (entry["name"], entry["family"], entry["symmetry"], entry["count"]) == (law.name, law.family, law.symmetry.value, law.count)
        assert (entry["formula"], entry["exact"], entry["source"], len(entry["terms"])) == (law.formula, law.exact, law.source, len(law.terms))


@pytest.mark.parametrize(("name", "given", "meant"), OPTIONS, ids=[" ".join([name, *given]) for name, given, _ in OPTIONS])
def test_options_are_those_of_the_block(run: Run, name: str, given: list[str], meant: dict[str, Any]) -> None:
    expected = find_laws(make_block(name, meant))
    assert LawSet.from_json(one_object(run("laws", name, *given, "--json").out)) == expected
    assert expected != find_laws(make_block(name))  # the options matter


def test_demo_is_the_model_that_is_trained(run: Run, text_size: int) -> None:
    laws = LawSet.from_json(one_object(run("laws", "demo", "--json").out))
    assert laws == find_laws(demo_model(text_size))
    assert laws.independent_count == 625
    assert control_law(laws).family not in laws.families


@pytest.fixture(scope="module")
def text_size() -> int:
    """Number of different characters in the demonstration's text."""
    from conserved.experiments.text import python_topics

    return len(python_topics().alphabet)


@pytest.mark.parametrize(
    "words", [[], *([name, *flags] for name in ("demo", *BLOCKS) for flags in ([], ["--latex"]))], ids=lambda words: " ".join(words) or "all"
)
def test_tables_fit_80_columns(run: Run, words: list[str]) -> None:
    ran = run("laws", *words)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "…" not in ran.out.replace("{…}", "")  # folded, never cut


def test_the_table_says_everything(run: Run) -> None:
    out = run("laws", "swiglu", "hidden=16").out
    assert out.startswith("swiglu: 16 independent conserved scalars")
    for part in ("‖A[:,i]‖² − ‖C[i,:]‖²", "rescale", "16", "hold for: any gate", "list: complete (Theorem 4.2)", "glu: arXiv 2606.17816, Theorem 4.2"):
        assert part in out
    assert "\\lVert" not in out
    assert "\\lVert" in run("laws", "swiglu", "--latex").out


def test_an_absence_and_an_approximate_law_are_said(run: Run) -> None:
    assert run("laws", "gelu").out.startswith("gelu: 0 independent conserved scalars\nno law")
    assert "≈ eps" in run("laws", "batch-norm").out


def test_without_a_target_every_block_is_listed(run: Run) -> None:
    lines = run("laws").out.splitlines()
    listed = [line.split()[0] for line in lines[3:] if line[1:2].strip()]
    assert [name for name in listed if name[0] != "─"] == list(BLOCKS)
    data = one_object(run("laws", "--json").out)
    assert [entry["block"] for entry in data["blocks"]] == list(BLOCKS)
    assert all(entry["statement"] for entry in data["blocks"])
    assert "gate" in next(entry["options"] for entry in data["blocks"] if entry["block"] == "swiglu")


FILTERS = [
    (["--family", "rope"], {"family": "rope"}),
    (["--family", "*o*"], {"family": "*o*"}),
    (["--layer", "layers.1*"], {"layer": "layers.1*"}),
    (["--family", "glu", "--layer", "layers.0*"], {"family": "glu", "layer": "layers.0*"}),
]


@pytest.mark.parametrize(("flags", "selection"), FILTERS, ids=[" ".join(flags) for flags, _ in FILTERS])
def test_filters_are_those_of_select(run: Run, flags: list[str], selection: dict[str, str]) -> None:
    whole = find_laws(make_block("decoder"))
    chosen = whole.select(**selection)  # type: ignore[arg-type]
    assert 0 < len(chosen) < len(whole)
    data = one_object(run("laws", "decoder", *flags, "--json").out)
    assert LawSet.from_json(data) == chosen
    assert data["total"] == chosen.independent_count < whole.independent_count
    assert f"decoder: {chosen.independent_count} independent" in run("laws", "decoder", *flags).out


def test_sizes_need_no_memory(run: Run) -> None:
    sizes = ["dim=4096", "layers=32", "heads=32", "kv-heads=8", "hidden=11008", "vocab=32000"]
    data = one_object(run("laws", "decoder", *sizes, "--json").out)
    rope = [law for law in data["laws"] if law["family"] == "rope"]
    assert [law["count"] for law in rope] == [8 * 64] * 32  # key–value heads × frequencies
