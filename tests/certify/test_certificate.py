"""Certificates: what is saved is what is read, what holds is accepted, and whatever is altered is rejected in one line."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from functools import cache
from hashlib import sha256
from math import inf, nan

import pytest
import torch

from conserved.certify import Certificate, certificate, certify_block, verify
from conserved.certify.certificate import MOST_BITS, PRIME, from_json, scalars_of
from conserved.certify.scalars import PrimeField, Rational, RealBalls
from conserved.errors import ConfigurationError

PROOFS = {
    # block, options, flow, arithmetic: order of the minor, laws, dimension
    "linear-1-1-1-rational": ("linear", {"dims": (1, 1, 1)}, "gradient", "rational", 1, 1, 2),
    "linear-2-1-1-modular": ("linear", {"dims": (2, 1, 1)}, "gradient", "modular", 2, 1, 3),
    "linear-3-2-3-rational": ("linear", {"dims": (3, 2, 3)}, "gradient", "rational", 9, 3, 12),
    "linear-3-2-3-modular": ("linear", {"dims": (3, 2, 3)}, "gradient", "modular", 9, 3, 12),
    "linear-2-1-nesterov": ("linear", {"dims": (2, 1)}, "nesterov", "rational", 5, 0, 5),
    "nmf-2-1-mirror": ("nmf", {"rows": 2, "columns": 1, "rank": 1}, "mirror", "rational", 2, 1, 3),
    "swiglu-1-1-1-ball": ("swiglu", {"dim": 1, "hidden": 1, "out": 1}, "gradient", "ball", 2, 1, 3),
    "swiglu-2-3-2-ball": ("swiglu", {"dim": 2, "hidden": 3, "out": 2}, "gradient", "ball", 15, 3, 18),
    "gelu-1-1-1-ball": ("gelu", {"dim": 1, "hidden": 1, "out": 1}, "gradient", "ball", 2, 0, 2),
    "gelu-1-1-1-ball-bias": ("gelu", {"dim": 1, "hidden": 1, "out": 1, "bias": True}, "gradient", "ball", 4, 0, 4),
}
MODULAR, BALL = "linear-2-1-1-modular", "swiglu-1-1-1-ball"


@cache
def proof(name) -> Certificate:
    block, options, flow, arithmetic = PROOFS[name][:4]
    found = certify_block(block, options, flow=flow, arithmetic=arithmetic)
    assert found.certificate is not None, str(found)
    return found.certificate


def data_of(name):
    """The certificate as JSON has it; a copy."""
    return json.loads(json.dumps(proof(name).to_json()))


def sealed(data):
    """With the digest of what it says."""
    body = {key: value for key, value in data.items() if key != "digest"}
    return body | {"digest": sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def verified(data):
    """What verification says of data with a digest that fits, in one line."""
    found = verify(from_json(sealed(data)))
    assert "\n" not in str(found)
    return found


def refused(call: Callable[[], object], said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- what holds ---


@pytest.mark.parametrize("name", PROOFS)
def test_a_proof_is_accepted(name, tmp_path):
    block, options, flow, arithmetic, rank, laws, size = PROOFS[name]
    path = tmp_path / "proof.json"
    proof(name).save(path)
    found = verify(path)
    assert (found.valid, found.rank, found.laws, found.size) == (True, rank, laws, size)
    assert str(found) == f"valid: a minor of order {rank} is not zero, {laws} laws are independent, together the dimension {size}"
    assert found.to_json() == {"valid": True, "reason": found.reason, "rank": rank, "laws": laws, "size": size, "seconds": round(found.seconds, 3)}
    assert found.seconds > 0
    read = Certificate.load(path)
    assert (read.block, read.flow, read.arithmetic, read.rank, read.laws) == (block, flow, arithmetic, rank, laws)
    assert {key: tuple(value) if isinstance(value, list) else value for key, value in read.options.items()}.items() >= options.items()


@pytest.mark.parametrize("name", ["linear-1-1-1-rational", "linear-2-1-nesterov", "swiglu-2-3-2-ball"])
def test_what_is_read_is_what_was_written(name, tmp_path):
    path = tmp_path / "proof.json"
    given = proof(name)
    given.save(path)
    text = path.read_text(encoding="utf-8")
    read = Certificate.load(str(path))
    assert read.to_json() == given.to_json() == json.loads(text, parse_constant=pytest.fail) | {"options": given.to_json()["options"]}
    assert read.state == given.state
    for letters, again in zip(given.letters, read.letters, strict=True):
        for one, other in zip(letters, again, strict=True):
            pairs = zip((*one.inputs, one.cotangent, one.drift), (*other.inputs, other.cotangent, other.drift), strict=True)
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    read.save(path)
    assert path.read_text(encoding="utf-8") == text


def test_every_number_is_exact_in_the_file():
    data = data_of(BALL)
    numbers = [*data["state"], *(v for word in data["words"] for letter in word for part in (*letter["inputs"], letter["cotangent"]) for v in part["values"])]
    assert all(isinstance(x, str) for x in numbers)
    assert [Fraction(x) for x in data["state"]] == [Fraction(x) for x in proof(BALL).state]
    third = replace(proof(BALL), state=(1 / 3, 0.1, 5e-324))
    assert from_json(json.loads(json.dumps(third.to_json()))).state == third.state


def test_verification_needs_no_search():
    """A certificate that was made by hand, in fractions: x ↦ b·(a₁x₁ + a₂x₂) with gradient c·(b x₁, b x₂, a·x)."""
    (a, b), (x, y), c = ((Fraction(3), Fraction(-1, 2)), Fraction(5, 4)), (Fraction(1), Fraction(7, 2)), Fraction(2)
    words = [(c * b * x, c * b * y), (c * b * y, c * b * -x)]
    minor = words[0][0] * words[1][1] - words[0][1] * words[1][0]
    sample = {
        "inputs": [{"shape": [2, 1, 2], "values": [str(v) for v in (x, y, y, -x)]}],
        "cotangent": {"shape": [2, 1], "values": [str(c)] * 2},
        "drift": {"shape": [2, 1], "values": ["0", "0"]},
    }
    made = data_of(MODULAR) | {"arithmetic": "rational", "parameter": 0, "state": [str(v) for v in (*a, b)], "words": [[sample]], "columns": [0, 1]}
    assert verified(made | {"determinant": str(minor)}).valid
    assert verified(made | {"determinant": str(minor + 1)}).reason == "the minor is not the one that the certificate states"


# --- what is altered ---


def leaves(data, path=()):
    """Places of everything in nested data that is no list and no dictionary."""
    if isinstance(data, (dict, list)):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*path, key))
    else:
        yield path


def at(data, path):
    for key in path:
        data = data[key]
    return data


def put(data, path, value):
    """A copy with another value at a place."""
    changed = deepcopy(data)
    at(changed, path[:-1])[path[-1]] = value(at(data, path)) if callable(value) else value
    return changed


def other(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return str(Fraction(value) + Fraction(1, 1024)) if value.replace("/", "").replace("-", "").isdigit() else value + "x"
    return value + 1


@pytest.mark.parametrize("name", [MODULAR, "swiglu-2-3-2-ball"])
def test_every_single_entry_is_under_the_digest(name):
    data = data_of(name)
    places = list(leaves(data))
    assert len(places) > 30
    for path in places:
        refused(lambda path=path: from_json(put(data, path, other)), r"was altered|does not say|is no certificate")
    assert from_json(data).to_json() == proof(name).to_json()  # the control


@pytest.mark.parametrize("name", [MODULAR, BALL])
def test_every_entry_of_point_and_words_counts(name):
    """Even under a digest that fits: the minor is another one. Only the drift of momentum is not read."""
    data = data_of(name)
    for path in leaves({"state": data["state"], "words": data["words"]}):
        if "shape" in path:
            continue
        found = verified(put(data, path, other))
        unread = "drift" in path or (name == MODULAR and path in (("state", 0), ("state", 1)))  # of ∂/∂a = c b x, which says so at every a
        assert found.valid is unread, path
        assert unread or found.reason == "the minor is not the one that the certificate states"


def shorter(part):
    """A stack without its last row."""
    number = part["shape"][0]
    return {"shape": [number - 1, *part["shape"][1:]], "values": part["values"][: len(part["values"]) // number * (number - 1)]}


def without_last_word(sample):
    return {"inputs": [shorter(x) for x in sample["inputs"]], "cotangent": shorter(sample["cotangent"]), "drift": shorter(sample["drift"])}


SAMPLE = ("words", 0, 0)
X = (*SAMPLE, "inputs", 0)
CLAIMS = {
    # where, what, why it is rejected
    "laws-more": (("laws",), lambda k: k + 1, r"the closed forms have rank 1 at the point, not 2"),
    "laws-fewer": (("laws",), lambda k: k - 1, r"the closed forms have rank 1 at the point, not 0"),
    "laws-negative": (("laws",), -1, r"have rank 1 at the point, not -1"),
    "determinant-zero": (("determinant",), "0", r"the minor is not the one that the certificate states"),
    "determinant-sign": (("determinant",), lambda d: "-" + d, r"the minor is not the one"),
    "determinant-text": (("determinant",), "large", r"the minor is not the one"),
    "determinant-empty": (("determinant",), "", r"the minor is not the one"),
    "determinant-nan": (("determinant",), "nan", r"the minor is not the one"),
    "determinant-anything": (("determinant",), "[0 +/- inf]", r"the minor is not the one"),
    "determinant-wide": (("determinant",), "[+/- 1e10]", r"the minor is not the one"),
    "columns-none": (("columns",), [], r"2 words for a minor of order 0"),
    "columns-one-less": (("columns",), lambda c: c[:-1], r"2 words for a minor of order 1"),
    "columns-same": (("columns",), lambda c: [c[0]] * 2, r"the columns of the minor are not different indices"),
    "columns-outside": (("columns",), lambda c: [c[0], 3], r"not different indices"),
    "columns-negative": (("columns",), lambda c: [c[0], -1], r"not different indices"),
    "columns-turned": (("columns",), lambda c: c[::-1], r"the minor is not the one"),
    "moving-none": (("moving",), [], r"not different indices"),
    "moving-less": (("moving",), [0, 1], r"coordinates that the certificate leaves out do move"),
    "moving-turned": (("moving",), [1, 0, 2], r"no ascending list of indices"),
    "moving-twice": (("moving",), [0, 0, 1], r"no ascending list"),
    "moving-outside": (("moving",), [0, 1, 3], r"no ascending list"),
    "moving-negative": (("moving",), [-1, 0, 1], r"no ascending list"),
    "state-short": (("state",), lambda s: s[:-1], r"the point has 2 coordinates, the state space of \w+ 3"),
    "state-long": (("state",), lambda s: [*s, "1"], r"the point has 4 coordinates"),
    "state-origin": (("state",), ["0", "0", "0"], r"the minor may be zero"),
    "words-none": (("words",), [], r"the words are no samples of"),
    "words-without-letter": (("words",), [[]], r"no samples"),
    "words-twice": (("words",), lambda w: w * 2, r"4 words for a minor of order 2"),
    "word-dropped": (SAMPLE, without_last_word, r"1 words for a minor of order 2"),
    "letter-added": (("words", 0), lambda letters: letters * 2, r"the minor may be zero"),
    "row-dropped": ((*SAMPLE, "cotangent"), shorter, r"no samples"),
    "input-none": ((*SAMPLE, "inputs"), [], r"no samples"),
    "input-twice": ((*SAMPLE, "inputs"), lambda inputs: inputs * 2, r"no samples"),
    "input-scalar": (X, {"shape": [], "values": ["1"]}, r"no samples"),
    "input-wider": (X, {"shape": [2, 1, 4], "values": ["1"] * 8}, r"no samples"),
    "input-integers": ((*X, "values"), lambda v: [1] * len(v), r"no samples"),
    "cotangent-wider": ((*SAMPLE, "cotangent"), {"shape": [2, 2], "values": ["1"] * 4}, r"no samples"),
    "drift-missing-axis": ((*SAMPLE, "drift"), {"shape": [2], "values": ["1", "1"]}, r"no samples"),
    "input-zero": ((*X, "values"), lambda v: ["0"] * len(v), r"the minor may be zero"),
    "block-unknown": (("block",), "swigloo", r"no catalogue block is named 'swigloo'"),
    "block-empty": (("block",), "", r"no catalogue block is named ''"),
    "block-other": (("block",), "gelu", r"has no option 'dims'|the closed forms have rank 0|has no option 'gate'"),
    "option-unknown": (("options",), {"width": 3}, r"has no option 'width'"),
    "option-of-another-type": (("options",), lambda o: o | {"bias": "no"}, r"bias='no' does not fit; give bool"),
    "other-sizes": (("options",), {}, r"the point has 3 coordinates, the state space of \w+ [0-9]+"),
    "flow-unknown": (("flow",), "uphill", r"flow 'uphill' is unknown"),
    "flow-momentum": (("flow",), "momentum", r"the point has 3 coordinates, the state space of \w+ 7"),
    "flow-mirror": (("flow",), "mirror", r"no metric of its own"),
    "damping-nan": (("damping",), nan, r"damping=nan; give a finite number"),
    "arithmetic-float64": (("arithmetic",), "float64", r"no arithmetic 'float64' with parameter"),
    "arithmetic-unknown": (("arithmetic",), "decimal", r"no arithmetic 'decimal'"),
    "arithmetic-rational": (("arithmetic",), "rational", r"no arithmetic 'rational' with parameter [0-9]+"),
    "parameter-zero": (("parameter",), 0, r"no arithmetic '\w+' with parameter 0; give bits of a ball, 0 of rationals, or an odd prime"),
    "parameter-negative": (("parameter",), -5, r"with parameter -5"),
    "parameter-one": (("parameter",), 1, r"with parameter 1;"),
    "parameter-huge": (("parameter",), 10**30, r"with parameter 1000000000000"),
}


IN_BALLS = ("determinant", "parameter", "arithmetic", "state", "laws")
CLAIM_CASES = [(MODULAR, claim) for claim in CLAIMS] + [(BALL, claim) for claim in CLAIMS if claim.startswith(IN_BALLS)]


@pytest.mark.parametrize(("name", "claim"), CLAIM_CASES, ids=[f"{name.rsplit('-', 1)[1]}-{claim}" for name, claim in CLAIM_CASES])
def test_false_claims_are_rejected(name, claim):
    path, value, said = CLAIMS[claim]
    changed = put(data_of(name), path, value)
    assert changed != data_of(name)
    found = verified(changed)
    assert not found.valid
    assert re.search(said, found.reason), found.reason
    assert str(found) == f"rejected: {found.reason}"


def test_what_claims_the_same_is_no_false_claim():
    """The controls: other precision, other primes, and columns in an even order prove the same."""
    data = data_of(BALL)
    assert verified(data | {"parameter": 333}).valid
    made = data_of(MODULAR)
    assert not verified(made | {"parameter": 2**31 - 1}).valid
    assert verified(made | {"parameter": 2**31 - 1, "determinant": str(minor_by_hand(made, 2**31 - 1))}).valid
    assert str(minor_by_hand(made, PRIME)) == made["determinant"]


def words_by_hand(data):
    """Of the certificate about x ↦ b·(a₁x₁ + a₂x₂): (c b x₁, c b x₂, c a·x)."""
    *a, b = map(Fraction, data["state"])
    (letter,) = data["words"][0]
    x = [Fraction(v) for v in letter["inputs"][0]["values"]]
    c = [Fraction(v) for v in letter["cotangent"]["values"]]
    return [[k * b * p, k * b * q, k * (a[0] * p + a[1] * q)] for k, p, q in zip(c, x[::2], x[1::2], strict=True)]


def minor_by_hand(data, prime):
    (p, q), (r, s) = [[word[i] for i in data["columns"]] for word in words_by_hand(data)]
    value = p * s - q * r
    return value.numerator * pow(value.denominator, -1, prime) % prime


def test_a_smaller_minor_does_not_fill_the_space():
    """One word and one column less, with the determinant that fits."""
    data = data_of(MODULAR)
    entry = words_by_hand(data)[0][data["columns"][0]]
    less = put(put(data, SAMPLE, without_last_word), ("columns",), data["columns"][:1])
    less["determinant"] = str(entry.numerator * pow(entry.denominator, -1, PRIME) % PRIME)
    assert verified(less).reason == "rank 1 and 1 laws do not fill 3 dimensions"
    more = less | {"laws": 2}
    assert verified(more).reason == "the closed forms have rank 1 at the point, not 2"


@pytest.mark.parametrize("parameter", [6, 2**61 - 3, 2**62], ids=["6", "2^61-3", "2^62"])
def test_a_modulus_that_is_no_prime_is_no_field(parameter):
    found = verified(data_of(MODULAR) | {"parameter": parameter})
    assert (found.valid, found.reason.startswith(f"there is no arithmetic 'modular' with parameter {parameter}")) == (False, True)


def test_coordinates_cannot_hide_behind_infinity():
    """Where the fields overflow in float64, nothing could be said about what rests."""
    data = data_of("gelu-1-1-1-ball")
    data = data | {"state": [str(2**1023), str(2**1023)], "moving": [0]}
    assert verified(data).reason in ("the fields are not finite at the point", "the columns of the minor are not different indices")
    data = put(data, ("columns",), [0])
    assert verified(data).reason == "the fields are not finite at the point"


def test_laws_that_do_not_hold_are_rejected(monkeypatch):
    """The gradients of a list with a false law in place of the true one: ‖A‖² alone."""
    true = certificate.known_gradients

    def halved(flow, laws, state):
        rows = true(flow, laws, state).clone()
        rows[:, -1] = 0
        return rows

    for name in (MODULAR, BALL):
        assert verify(proof(name)).valid
        with monkeypatch.context() as patched:
            patched.setattr(certificate, "known_gradients", halved)
            assert verify(proof(name)).reason == "a law is not conserved: its gradient is not orthogonal to a word"


def test_an_error_of_the_computation_is_a_rejection(monkeypatch):
    def broken(*_):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(certificate, "exact_rows", broken)
    assert str(verify(proof(MODULAR))) == "rejected: it cannot be computed (RuntimeError: first line)"


# --- what is no certificate ---

MALFORMED = {
    "version": (("format",), "conserved certificate 2", r"does not say 'conserved certificate 1'"),
    "format-none": (("format",), None, r"does not say"),
    "options-none": (("options",), None, r"TypeError"),
    "options-list": (("options",), [1, 2], r"TypeError"),
    "damping-text": (("damping",), "x", r"could not convert string to float"),
    "parameter-fraction": (("parameter",), 2.5, r"2\.5, which is no integer"),
    "parameter-infinite": (("parameter",), inf, r"inf, which is no integer"),
    "laws-fraction": (("laws",), 1.5, r"1\.5, which is no integer"),
    "laws-true": (("laws",), True, r"True, which is no integer"),
    "laws-text": (("laws",), "1", r"'1', which is no integer"),
    "moving-fraction": (("moving", 0), 0.5, r"0\.5, which is no integer"),
    "columns-text": (("columns",), "01", r"'0', which is no integer"),
    "state-third": (("state", 0), "1/3", r"1/3, which is not exact in binary"),
    "state-no-denominator": (("state", 0), "1/0", r"ZeroDivisionError"),
    "state-number": (("state", 0), 0.5, r"0\.5, which is no fraction"),
    "state-nan": (("state", 0), "nan", r"'nan', which is no fraction"),
    "state-power": (("state", 0), "1e999999999", r"'1e999999999', which is no fraction"),
    "state-large": (("state", 0), "1" + "0" * 400, r"OverflowError"),
    "state-list": (("state", 0), ["1"], r"which is no fraction"),
    "words-number": (("words",), 3, r"TypeError"),
    "words-text": (("words",), "words", r"TypeError"),
    "sample-list": (SAMPLE, [], r"TypeError"),
    "value-none": ((*X, "values", 0), None, r"None, which is no fraction"),
    "value-infinite": ((*X, "values", 0), inf, r"inf, which is no fraction"),
    "shape-of-others": ((*X, "shape"), [7], r"RuntimeError at shape '\[7\]' is invalid"),
    "shape-huge": ((*X, "shape"), [10**30], r"is no certificate: \w+Error"),
    "shape-text": ((*X, "shape"), "2", r"TypeError"),
}


@pytest.mark.parametrize(("path", "value", "said"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_data_is_no_certificate(path, value, said):
    refused(lambda: from_json(sealed(put(data_of(MODULAR), path, value))), said)


@pytest.mark.parametrize("key", ["format", "block", "options", "flow", "damping", "arithmetic", "parameter", "state", "moving", "words", "columns", "laws"])
def test_every_part_is_needed(key):
    data = data_of(MODULAR)
    del data[key]
    refused(lambda: from_json(sealed(data)), "does not say" if key == "format" else f"KeyError at '{key}'")


@pytest.mark.parametrize("digest", [None, "", 0, "0" * 64], ids=["none", "empty", "zero", "zeros"])
def test_another_digest_is_refused(digest):
    refused(lambda: from_json(data_of(MODULAR) | {"digest": digest}), r"was altered after it was written: its digest does not fit")


def test_what_was_added_is_refused():
    refused(lambda: from_json(data_of(MODULAR) | {"verdict": "proved"}), r"was altered")
    assert verified(data_of(MODULAR) | {"comment": "read by nobody"}).valid


@pytest.mark.parametrize("data", [None, 3, "text", [], {}, [{"format": certificate.FORMAT}]], ids=str)
def test_other_data_is_no_certificate(data):
    refused(lambda: from_json(data), r"certificate is no certificate: it does not say")


FILES = {
    "empty": b"",
    "text": b"no JSON",
    "not-utf-8": b"\xff\xfe{}",
    "list": b"[1]",
    "nested": b"[" * 100_000,
    "long-number": b"9" * 10_000,
    "two-objects": b"{}{}",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_files_of_something_else(tmp_path, content):
    path = tmp_path / "proof.json"
    path.write_bytes(content)
    refused(lambda: verify(path), r"proof\.json is no certificate: ")


def test_files_that_are_not_there(tmp_path):
    refused(lambda: verify(tmp_path / "missing.json"), r"missing\.json is no certificate: .*No such file")
    refused(lambda: verify(tmp_path), r"is no certificate: .*directory")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "proof.json"
    proof(MODULAR).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 41):
        path.write_bytes(whole[:length])
        refused(lambda: verify(path), r"is no certificate")
    path.write_bytes(whole)
    assert verify(path).valid


# --- arithmetics ---


def test_arithmetics_by_name():
    assert scalars_of("ball", 256) == RealBalls(256)
    assert scalars_of("ball", MOST_BITS) == RealBalls(MOST_BITS)
    assert scalars_of("rational", 0) == Rational()
    assert scalars_of("modular", PRIME) == PrimeField(PRIME)
    for name, parameter in (
        ("ball", 1),
        ("ball", MOST_BITS + 1),
        ("rational", 1),
        ("modular", 2),
        ("modular", 9),
        ("modular", 2**64 + 13),
        ("float64", 0),
        ("", 0),
    ):
        refused(lambda name=name, parameter=parameter: scalars_of(name, parameter), f"no arithmetic '{name}' with parameter {parameter};")
