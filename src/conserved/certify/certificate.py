r"""Certificates: a point and fields at it whose minor is certainly not zero, and laws that fill the rest of the space.

    rank of r words at θ is r        a minor of order r: a ball without zero, a rational or residue that is not zero
    rank of k law gradients is k     in exact rational arithmetic
    r + k = size                     so there are exactly k independent laws near almost every θ

Of a rank found at one point, analytic fields have at least as much almost everywhere; fields that are analytic in pieces, near θ.
That the closed forms are laws is the theorem of the block; their gradients are checked against every word of the certificate.

A certificate is data. `verify` builds the block anew, traces its fields, and computes all of this again: it uses nothing of the
search that found the certificate.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import flint
import numpy as np
import torch
from torch import Tensor

from conserved.catalog import make_block
from conserved.certify.charges import known_gradients
from conserved.certify.elimination import determinant, is_nonzero, may_be_zero
from conserved.certify.flows import Flow
from conserved.certify.interpret import interpret, trace
from conserved.certify.model import Model, Sample, exact_laws, model_of
from conserved.certify.scalars import Array, PrimeField, Rational, RealBalls, Scalars
from conserved.certify.words import rows
from conserved.errors import ConfigurationError, ConservedError

FORMAT = "conserved certificate 1"
ARITHMETICS = ("float64", "ball", "rational", "modular")
PRIME = 2**61 - 1
MOST_BITS = 2**16
"""Largest precision of balls that `verify` computes with; proofs take at most 4096."""

EXACT = re.compile(r"-?[0-9]+(/[0-9]+)?")
"""A fraction as it is written."""


@dataclass(frozen=True)
class Certificate:
    """A proof of a number of laws, as data.

    Attributes:
        block: name of the catalogue block.
        options: its options.
        flow: one of `FLOWS`.
        damping: γ of the momentum flow.
        arithmetic: "ball", "rational" or "modular".
        parameter: bits of the balls, or the prime; 0 for rationals.
        state: the point, numbers that are exact in binary.
        moving: indices of the coordinates that move; the others get no gradient, and are not counted.
        letters: for every depth, one stack of samples for each place of the words.
        columns: of the minor, indices into `moving`.
        laws: k, rank of the closed-form laws.
        determinant: of the minor, as a decimal ball, a fraction or a residue.
    """

    block: str
    options: Mapping[str, Any]
    flow: str
    damping: float
    arithmetic: str
    parameter: int
    state: tuple[float, ...]
    moving: tuple[int, ...]
    letters: tuple[tuple[Sample, ...], ...]
    columns: tuple[int, ...]
    laws: int
    determinant: str

    @property
    def rank(self) -> int:
        """Order r of the minor."""
        return len(self.columns)

    def to_json(self) -> dict[str, Any]:
        """Plain data; every float is exact. The digest tells damage, not dishonesty: for that all is computed again."""
        body = {
            "format": FORMAT,
            "block": self.block,
            "options": {name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()},
            "flow": self.flow,
            "damping": self.damping,
            "arithmetic": self.arithmetic,
            "parameter": self.parameter,
            "state": [_written(x) for x in self.state],
            "moving": list(self.moving),
            "words": [[_sample_to_json(sample) for sample in letters] for letters in self.letters],
            "columns": list(self.columns),
            "laws": self.laws,
            "determinant": self.determinant,
        }
        return body | {"digest": _digest(body)}

    def save(self, path: Path | str) -> None:
        """Write as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path | str) -> "Certificate":
        """Read what `save` wrote.

        Raises:
            ConfigurationError: no such file, no certificate, or one that was altered.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} is no certificate: {_first_line(error)}") from error
        return from_json(data, str(path))


@dataclass(frozen=True)
class Verification:
    """What checking a certificate came to.

    Attributes:
        valid: whether everything holds.
        reason: what was proved, or what failed.
        rank: r of the certificate.
        laws: k.
        size: dimension of the space.
        seconds: of computation.
    """

    valid: bool
    reason: str
    rank: int
    laws: int
    size: int
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"valid": self.valid, "reason": self.reason, "rank": self.rank, "laws": self.laws, "size": self.size, "seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        """One line."""
        return ("valid: " if self.valid else "rejected: ") + self.reason


def from_json(data: Any, where: str = "certificate") -> Certificate:
    """The certificate of plain data.

    Raises:
        ConfigurationError: the data is no certificate, or not as it was written.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigurationError(f"{where} is no certificate: it does not say {FORMAT!r}")
    try:
        found = Certificate(
            str(data["block"]), dict(data["options"]), str(data["flow"]), float(data["damping"]), str(data["arithmetic"]), _whole(data["parameter"]),
            tuple(_read(x) for x in data["state"]), tuple(map(_whole, data["moving"])),
            tuple(tuple(_sample_from_json(sample) for sample in letters) for letters in data["words"]),
            tuple(map(_whole, data["columns"])), _whole(data["laws"]), str(data["determinant"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise ConfigurationError(f"{where} is no certificate: {type(error).__name__} at {_first_line(error)}") from error
    if data.get("digest") != _digest({name: value for name, value in data.items() if name != "digest"}):
        raise ConfigurationError(f"{where} was altered after it was written: its digest does not fit")
    return found


def verify(certificate: Certificate | Path | str) -> Verification:
    """Check a certificate from nothing but itself.

    Args:
        certificate: one, or the file of one.

    Raises:
        ConfigurationError: the file is no certificate, or was altered.
    """
    began = time.perf_counter()
    one = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
    try:
        found = _check(one)
    except ConservedError as error:
        found = Verification(False, str(error), one.rank, one.laws, len(one.moving))
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        reason = f"it cannot be computed ({type(error).__name__}: {_first_line(error)})"
        found = Verification(False, reason, one.rank, one.laws, len(one.moving))
    return replace(found, seconds=time.perf_counter() - began)


def _check(one: Certificate) -> Verification:
    model = model_of(make_block(one.block, one.options))
    flow = Flow(model, one.flow, one.damping)
    size = len(one.moving)
    _require(len(one.state) == flow.size, f"the point has {len(one.state)} coordinates, the state space of {one.block} {flow.size}")
    state, moving, columns = torch.tensor(one.state, dtype=torch.float64), list(one.moving), list(one.columns)
    _require(sorted(set(moving)) == moving and all(0 <= i < flow.size for i in moving), "the moving coordinates are no ascending list of indices")
    _require(len(set(columns)) == one.rank and all(0 <= i < size for i in columns), "the columns of the minor are not different indices")
    _require(bool(one.letters) and all(_fit(letters, model) for letters in one.letters), f"the words are no samples of {one.block}")
    _require_rest(flow, state, moving)
    scalars = scalars_of(one.arithmetic, one.parameter)
    words = np.concatenate([exact_rows(flow, state, word, scalars) for word in one.letters])[:, moving]
    _require(len(words) == one.rank, f"{len(words)} words for a minor of order {one.rank}")
    gradients = law_gradients(flow, state, one.moving)
    with scalars.precision():
        value = determinant(words[:, columns])
        _require(is_nonzero(value), "the minor may be zero")
        _require(agrees(value, one.determinant), "the minor is not the one that the certificate states")
        products = words @ scalars.array(_entries(gradients)).T if gradients.nrows() else words[:, :0]
        _require(all(may_be_zero(x) for x in products.ravel()), "a law is not conserved: its gradient is not orthogonal to a word")
    _require(gradients.rank() == one.laws, f"the closed forms have rank {gradients.rank()} at the point, not {one.laws}")
    _require(one.rank + one.laws == size, f"rank {one.rank} and {one.laws} laws do not fill {size} dimensions")
    reason = f"a minor of order {one.rank} is not zero, {one.laws} laws are independent, together the dimension {size}"
    return Verification(True, reason, one.rank, one.laws, size)


def _require_rest(flow: Flow, state: Tensor, moving: list[int]) -> None:
    """What is left out must not move on fresh data."""
    fixed = torch.ones(flow.size, dtype=torch.bool)
    fixed[moving] = False
    number = max(24, min(1024, 2**21 // flow.size))
    fresh = rows(flow, state, (flow.model.samples(number, torch.Generator().manual_seed(1)),))
    _require(bool(fresh.isfinite().all()), "the fields are not finite at the point")
    moved = fresh[:, fixed].abs() > 1e-12 * fresh.abs().amax(1, keepdim=True)  # as the search tells rounding from motion
    _require(not bool(moved.any()), "coordinates that the certificate leaves out do move")


def _fit(letters: tuple[Sample, ...], model: Model) -> bool:
    """Whether all letters of a stack of words are stacks of one length of samples of the model."""
    like = model.samples(1, torch.Generator().manual_seed(1))
    stacks = [(*sample.inputs, sample.cotangent, sample.drift) for sample in letters]
    wanted = [(part.shape[1:], part.dtype) for part in (*like.inputs, like.cotangent, like.drift)]
    lengths = {part.shape[:1] for stack in stacks for part in stack}
    return len(lengths) == 1 and all([(part.shape[1:], part.dtype) for part in stack] == wanted for stack in stacks)


class _RejectedError(ConservedError):
    """What a certificate fails at."""


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise _RejectedError(otherwise)


def scalars_of(arithmetic: str, parameter: int) -> Scalars:
    """The scalars of a name and its parameter.

    Raises:
        ConfigurationError: an unknown name, or a parameter that does not go with it.
    """
    if arithmetic == "ball" and 2 <= parameter <= MOST_BITS:
        return RealBalls(parameter)
    if arithmetic == "rational" and not parameter:
        return Rational()
    if arithmetic == "modular" and 2 < parameter < 2**64 and flint.fmpz(parameter).is_prime():
        return PrimeField(parameter)
    raise ConfigurationError(
        f"there is no arithmetic {arithmetic!r} with parameter {parameter}; give bits of a ball, 0 of rationals, or an odd prime below 2^64"
    )


def law_gradients(flow: Flow, state: Tensor, moving: tuple[int, ...]) -> flint.fmpq_mat:
    """Gradients of the closed-form laws at the point, exactly.

    The laws are quadratic, so doubles hold them; except for the products of γ and a law in ∂h/∂t, so that is found for γ = 1 first.
    A row counts only once: the matrix may be of lower rank than it has rows.
    """
    laws = exact_laws(flow.model.module)
    entries = [[_fmpq(x) for x in row] for row in known_gradients(flow, laws, state).tolist()]
    if flow.kind == "momentum" and flow.damping:
        rates = known_gradients(replace(flow, damping=1.0), laws, state)[:, 0].tolist()
        entries = [[_fmpq(flow.damping) * _fmpq(rate), *row[1:]] for rate, row in zip(rates, entries, strict=True)]
    return flint.fmpq_mat(len(entries), len(moving), [row[i] for row in entries for i in moving])


def agrees(value: Any, stated: str) -> bool:
    """Whether a determinant is the stated one; balls overlap, and neither holds zero."""
    try:
        if isinstance(value, flint.arb):
            return is_nonzero(flint.arb(stated)) and bool(value.overlaps(flint.arb(stated)))
        return str(value) == stated
    except ValueError:
        return False


def state_determinant(value: Any) -> str:
    """A determinant as text that `agrees` reads."""
    return str(value.str(40)) if isinstance(value, flint.arb) else str(value)


def exact_rows(flow: Flow, state: Tensor, letters: tuple[Sample, ...], scalars: Scalars) -> Array:
    """Values at a point of the words of stacked samples, (number, size), in any scalars."""
    graph = trace(lambda point, *samples: rows(flow, point, samples), state, *letters)
    arguments = [_converted(state, scalars), *(_converted(letter, scalars) for letter in letters)]
    return interpret(graph, arguments, scalars)[0]


def _converted(x: Any, scalars: Scalars) -> Any:
    if isinstance(x, Sample):
        return (tuple(_converted(part, scalars) for part in x.inputs), scalars.array(x.cotangent), scalars.array(x.drift))
    return scalars.array(x) if x.is_floating_point() else x.numpy()


def _entries(matrix: flint.fmpq_mat) -> list[list[Fraction]]:
    return [[Fraction(int(x.p), int(x.q)) for x in row] for row in matrix.tolist()]


def _fmpq(x: float) -> flint.fmpq:
    return flint.fmpq(*x.as_integer_ratio())


def _written(x: float | int) -> str | int:
    return x if isinstance(x, int) else str(Fraction(x))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _whole(x: Any) -> int:
    if type(x) is not int:
        raise ValueError(f"{x!r}, which is no integer")
    return x


def _read(x: Any) -> float:
    if not isinstance(x, str) or not EXACT.fullmatch(x):
        raise ValueError(f"{x!r}, which is no fraction")
    value = Fraction(x)
    if Fraction(float(value)) != value:
        raise ValueError(f"{x}, which is not exact in binary")
    return float(value)


def _tensor_to_json(x: Tensor) -> dict[str, Any]:
    return {"shape": list(x.shape), "values": [_written(v) for v in x.flatten().tolist()]}


def _tensor_from_json(data: Any) -> Tensor:
    values = data["values"]
    whole = bool(values) and all(type(v) is int for v in values)
    flat = torch.tensor(values, dtype=torch.int64) if whole else torch.tensor([_read(v) for v in values], dtype=torch.float64)
    return flat.reshape(data["shape"])


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    return {"inputs": [_tensor_to_json(x) for x in sample.inputs], "cotangent": _tensor_to_json(sample.cotangent), "drift": _tensor_to_json(sample.drift)}


def _sample_from_json(data: Any) -> Sample:
    return Sample(tuple(_tensor_from_json(x) for x in data["inputs"]), _tensor_from_json(data["cotangent"]), _tensor_from_json(data["drift"]))


def _digest(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
