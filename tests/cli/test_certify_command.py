"""`conserved certify`: what it prints is the Certification; certificates are saved, verified and rejected."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from conserved.catalog import make_block
from conserved.certify import certify_block, polynomial_laws, verify

Run = Callable[..., Any]
Refused = Callable[..., None]

KEYS = {
    "block", "parameters", "rank_span", "rank_lie", "independent_laws", "known_laws", "complete", "verdict", "gap", "arithmetic", "seconds",
}  # fmt: skip
WIDE = ["gelu", "--dim", "1", "--hidden", "96", "--out", "1"]
"""No clear gap in float64, with complex data neither."""


def one_object(text: str) -> dict[str, Any]:
    """The JSON object that a text consists of, in one line."""
    assert text.count("\n") == 1
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert isinstance(data, dict)
    return data


def timeless(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "seconds"}


SAME = {
    "relu": (["--dims", "2,4,3", "--bias"], ["dims=2,4,3", "bias=true"], {"dims": (2, 4, 3), "bias": True}),
    "swiglu": (["--dim", "2", "--hidden", "3"], ["dim=2", "hidden=3"], {"dim": 2, "hidden": 3}),
    "mha": (["--dim", "3", "--heads=1", "--head-dim", "2", "--causal"], ["dim=3", "heads=1", "head-dim=2", "causal=true"], {
        "dim": 3, "heads": 1, "head_dim": 2, "causal": True,
    }),
    "moe": (["--hidden", "1", "--experts", "2", "--gate", "sigmoid"], ["hidden=1", "experts=2", "gate=sigmoid"], {
        "hidden": 1, "experts": 2, "gate": "sigmoid",
    }),
}  # fmt: skip


@pytest.mark.parametrize(("block", "flags", "pairs", "meant"), [(name, *given) for name, given in SAME.items()], ids=SAME)
def test_json_is_the_certification(run: Run, block: str, flags: list[str], pairs: list[str], meant: dict[str, Any]) -> None:
    ran = run("certify", block, *flags, "--json")
    assert (ran.status, ran.err) == (0, "")
    data = one_object(ran.out)
    assert data.keys() >= KEYS
    assert timeless(data) == timeless(json.loads(json.dumps(certify_block(block, meant).to_json())))
    assert timeless(data) == timeless(one_object(run("certify", block, *pairs, "--json").out))
    assert (data["block"], data["verdict"], data["arithmetic"]) == (block, "numerical", "float64")
    assert data["independent_laws"] == data["known_laws"] == data["parameters"] - data["rank_lie"]


def test_flow_damping_and_seed_are_passed_on(run: Run) -> None:
    ran = run("certify", "linear", "--dims", "2,2,1", "--flow", "momentum", "--damping", "0.5", "--seed", "3", "--json")
    expected = certify_block("linear", {"dims": (2, 2, 1)}, flow="momentum", damping=0.5, seed=3).to_json()
    assert timeless(one_object(ran.out)) == timeless(json.loads(json.dumps(expected)))
    assert (expected["size"], expected["independent_laws"]) == (13, 1)


def test_the_text_says_everything(run: Run) -> None:
    ran = run("certify", "swiglu", "--dim", "3", "--hidden", "4", "--out", "2")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("swiglu: 4 independent laws of the gradient flow (4 known, complete)\nnumerical: rank 28 of 32")
    lines = {line.split("  ")[0].strip(): line for line in ran.out.splitlines() if "  " in line}
    for quantity, value in (("parameters", 32), ("rank of the span", 28), ("rank of the algebra", 28), ("independent laws", 4), ("known laws", 4)):
        assert str(value) in lines[quantity].split()
    assert "gap" in lines
    assert "∇h = 0 on B" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_undecided_is_no_success_and_no_count(run: Run) -> None:
    ran = run("certify", *WIDE, "--json")
    assert ran.status == 1
    data = one_object(ran.out)
    assert (data["verdict"], data["independent_laws"], data["complete"]) == ("undecided", None, None)
    assert "try another seed" in data["reason"]
    text = run("certify", *WIDE)
    assert text.status == 1
    assert text.out.startswith("gelu: an undecided number of independent laws")
    assert "part in the laws" not in text.out


# --- polynomials ---


@pytest.mark.parametrize(("flow", "degree"), [("gradient", 2), ("momentum", 3)])
def test_degree_gives_polynomials(run: Run, flow: str, degree: int) -> None:
    words = ["certify", "linear", "--dims", "2,2,1", "--degree", degree, "--flow", flow]
    found = polynomial_laws(make_block("linear", {"dims": (2, 2, 1)}), degree=degree, flow=flow)
    ran = run(*words, "--json")
    assert (ran.status, ran.err) == (0, "")
    data = one_object(ran.out)
    assert data["laws"] == [law.formula for law in found.laws]
    assert (data["independent"], data["proof"], data["matches_catalogue"]) == (found.independent, "identity", flow == "gradient")
    text = run(*words).out
    assert all(law.formula in text for law in found.generators)
    assert ("combinations of the catalogue's laws: linear" in text) is (flow == "gradient")


# --- certificates ---


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A certificate as data."""
    path = tmp_path_factory.mktemp("proof") / "proof.json"
    certificate = certify_block("linear", {"dims": (3, 2, 3)}, arithmetic="rational").certificate
    assert certificate is not None
    certificate.save(path)
    return json.loads(path.read_text(encoding="utf-8"))


def resealed(data: dict[str, Any]) -> dict[str, Any]:
    """With the digest of what it says now."""
    body = {name: value for name, value in data.items() if name != "digest"}
    return body | {"digest": sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def test_a_saved_proof_is_verified(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    ran = run("certify", "linear", "--dims", "3,2,3", "--arithmetic", "rational", "--save", path, "--json")
    assert (ran.status, ran.err) == (0, "")
    data = one_object(ran.out)
    assert (data["verdict"], data["independent_laws"], data["complete"], data["certificate"]) == ("proved", 3, True, str(path))
    checked = run("certify", "--verify", path, "--json")
    assert (checked.status, checked.err) == (0, "")
    assert timeless(one_object(checked.out)) == timeless(verify(path).to_json())
    assert run("certify", "--verify", path).out.startswith(f"{path}: valid: a minor of order 9 is not zero, 3 laws are independent")


def test_the_text_names_the_certificate(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    ran = run("certify", "linear", "--dims", "2,1,2", "--arithmetic", "modular", "--save", path)
    assert (ran.status, ran.err) == (0, "")
    assert "\nproved: a minor of order" in ran.out
    assert ran.out.endswith(f"certificate: {path}\n")
    assert verify(path).valid


def test_without_a_proof_nothing_is_saved(run: Run, tmp_path: Path) -> None:
    """The catalogue knows one of the two laws, so rank and known laws cannot fill the space."""
    path = tmp_path / "proof.json"
    ran = run("certify", "linear", "--dims", "1,2,1", "--flow", "momentum", "--arithmetic", "ball", "--save", path, "--json")
    assert ran.status == 1
    data = one_object(ran.out)
    assert (data["verdict"], data["complete"], data["certificate"]) == ("numerical", False, None)
    assert not path.exists()


def _point(data: dict[str, Any]) -> None:
    data["state"][2] = "0"


def _determinant(data: dict[str, Any]) -> None:
    data["determinant"] = data["determinant"].replace("-", "") + "1"


def _laws(data: dict[str, Any]) -> None:
    data["laws"] += 1


def _column(data: dict[str, Any]) -> None:
    data["columns"][0] = data["columns"][1]


def _word(data: dict[str, Any]) -> None:
    data["words"][0][0]["cotangent"]["values"][0] = "1/2"


def _block(data: dict[str, Any]) -> None:
    data["options"]["dims"] = [2, 3, 3]


ALTERED = [_point, _determinant, _laws, _column, _word, _block]


@pytest.mark.parametrize("change", ALTERED, ids=[change.__name__.strip("_") for change in ALTERED])
def test_an_altered_certificate_is_rejected(run: Run, refused: Refused, tmp_path: Path, proof: dict[str, Any], change: Callable[..., None]) -> None:
    altered = json.loads(json.dumps(proof))
    change(altered)
    assert altered != proof
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(altered), encoding="utf-8")
    refused(run("certify", "--verify", path), "altered", "its digest does not fit")
    path.write_text(json.dumps(resealed(altered)), encoding="utf-8")
    ran = run("certify", "--verify", path)
    assert ran.status == 1
    assert ran.out.startswith(f"{path}: rejected: ")
    assert one_object(run("certify", "--verify", path, "--json").out)["valid"] is False


def test_resealing_alone_changes_nothing(run: Run, tmp_path: Path, proof: dict[str, Any]) -> None:
    """The control of the test above."""
    path = tmp_path / "same.json"
    path.write_text(json.dumps(resealed(proof)), encoding="utf-8")
    assert resealed(proof) == proof
    assert run("certify", "--verify", path).status == 0


# --- bad input ---

BAD = {
    "no-block": ([], ["name a block", "conserved laws lists the blocks"]),
    "unknown-block": (["swigloo"], ["'swigloo'", "choose one of linear"]),
    "unknown-option": (["swiglu", "--width", "3"], ["'width'", "it takes dim, hidden, out"]),
    "option-without-value": (["swiglu", "--hidden"], ["hidden=True", "give int"]),
    "option-without-key": (["swiglu", "extra"], ["'extra'", "KEY=VALUE"]),
    "option-twice": (["swiglu", "--dim", "2", "dim=3"], ["dim", "twice"]),
    "size-zero": (["swiglu", "--hidden", "0"], ["hidden=0", "at least 1"]),
    "odd-head": (["rope", "--head-dim", "3"], ["3 rotary entries", "give an even number"]),
    "top-k": (["moe", "--experts", "2", "--top-k", "3"], ["top_k=3", "give at most 2"]),
    "flow": (["linear", "--flow", "uphill"], ["'uphill'", "choose one of gradient"]),
    "mirror": (["linear", "--flow", "mirror"], ["no metric of its own"]),
    "arithmetic": (["linear", "--arithmetic", "decimal"], ["'decimal'", "choose one of float64"]),
    "rational-gelu": (["gelu", "--dim", "2", "--arithmetic", "rational"], ["rational numbers", "use balls"]),
    "seed": (["linear", "--seed", "x"], ["--seed", "--help"]),
    "degree-zero": (["linear", "--degree", "0"], ["degree=0", "at least degree 1"]),
    "degree-of-gelu": (["gelu", "--degree", "2"], ["not a polynomial"]),
    "degree-and-arithmetic": (["linear", "--degree", "2", "--arithmetic", "ball"], ["--degree", "leave out --arithmetic and --save"]),
    "degree-and-save": (["linear", "--degree", "2", "--save", "new.json"], ["--degree", "leave out --arithmetic and --save"]),
    "save-without-proof": (["linear", "--save", "new.json"], ["--save needs a proof", "--arithmetic ball"]),
    "save-on-a-file": (["linear", "--arithmetic", "rational", "--save", "there.json"], ["there.json exists", "name a new file"]),
    "save-in-no-directory": (["linear", "--arithmetic", "rational", "--save", "nowhere/new.json"], ["lies in no directory", "name a new file"]),
    "verify-and-block": (["linear", "--verify", "there.json"], ["--verify", "leave out 'linear'"]),
    "verify-no-file": (["--verify", "missing.json"], ["missing.json is no certificate"]),
    "verify-no-json": (["--verify", "there.json"], ["there.json is no certificate"]),
    "verify-other-json": (["--verify", "list.json"], ["list.json is no certificate", "it does not say"]),
    "verify-a-directory": (["--verify", "."], ["is no certificate"]),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_bad_input(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: list[str], flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.json").write_text("no JSON", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    refused(run("certify", *arguments, *flags), *said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.json", "there.json"]
    assert (tmp_path / "there.json").read_text(encoding="utf-8") == "no JSON"
