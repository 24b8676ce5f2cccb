"""What an audit says: claims, each with the checks that it rests on. Plain frozen values, to and from JSON."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from conserved.errors import ConfigurationError

if TYPE_CHECKING:
    from conserved.certify import Certificate

T = TypeVar("T")

AUDIT = "audit.json"
"""The file of an audit in its directory."""

FORMAT = "conserved audit 1"
VERDICTS = ("proved", "numerical", "refuted", "undecided")
AGREES = ("proved", "numerical")

ROLES = {
    "claim": "what the paper claims",
    "beside": "what holds beside it, as far as we know",
    "control": "a case with another outcome, which shows that the check can tell the difference",
}

Value = int | float | Fraction
"""A count, a measured number, or an exact one."""


@dataclass(frozen=True)
class Check:
    """One quantity, as the theory has it and as it was found.

    Attributes:
        block: name of the catalogue block, or of what else was looked at.
        sizes: its options.
        quantity: what was counted or measured, in words.
        method: in which arithmetic, and how.
        expected: by a formula written down from the theorem.
        found: by computation; None if there is no number.
        verdict: one of `VERDICTS`: whether they agree, and how surely.
        evidence: what the verdict rests on, in words.
        role: a key of `ROLES`. Only "claim" says something about the paper.
        parameters: D, where parameters were counted.
        rank: of the Lie algebra, or of what else was found by a rank.
        complete: whether the catalogue's closed forms are all laws that were found; None where that was not asked, or not decided.
        seconds: of computation; 0 where an earlier check had it done.
        file: of the certificate, relative to the audit's directory; empty if it was not saved.
        certificate: of a proof; it is not part of the JSON.
    """

    block: str
    sizes: Mapping[str, Any]
    quantity: str
    method: str
    expected: Value
    found: Value | None
    verdict: str
    evidence: str
    role: str = "claim"
    parameters: int | None = None
    rank: int | None = None
    complete: bool | None = None
    seconds: float = 0.0
    file: str = ""
    certificate: "Certificate | None" = field(default=None, repr=False, compare=False)

    @property
    def agrees(self) -> bool:
        """Whether what was found is what was expected."""
        return self.verdict in AGREES

    @property
    def subject(self) -> str:
        """The block with its sizes, as on the command line.

        Example:
            >>> Check("moe", {"dim": 2, "gate": "sigmoid"}, "independent laws", "ball", 4, 2, "refuted", "").subject
            'moe dim=2 gate=sigmoid'
        """
        return " ".join([self.block, *(f"{name}={_plain(value)}" for name, value in self.sizes.items())])

    def to_json(self) -> dict[str, Any]:
        """Plain data; an exact fraction is text."""
        return {
            "block": self.block,
            "sizes": {name: list(value) if isinstance(value, tuple) else value for name, value in self.sizes.items()},
            "role": self.role,
            "quantity": self.quantity,
            "method": self.method,
            "parameters": self.parameters,
            "rank": self.rank,
            "expected": _to_json(self.expected),
            "found": _to_json(self.found),
            "verdict": self.verdict,
            "complete": self.complete,
            "evidence": self.evidence,
            "certificate": self.file or None,
            "seconds": round(self.seconds, 3),
        }

    @staticmethod
    def from_json(data: Any) -> "Check":
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the data has another shape.
        """
        if data["verdict"] not in VERDICTS or data["role"] not in ROLES:
            raise ValueError(f"a check with the verdict {data['verdict']!r} and the role {data['role']!r}")
        sizes = {str(name): tuple(value) if isinstance(value, list) else value for name, value in data["sizes"].items()}
        block, quantity, method, verdict, evidence, role = (_text(data[name]) for name in ("block", "quantity", "method", "verdict", "evidence", "role"))
        expected, found = _value(data["expected"]), _optional(_value, data["found"])
        parameters, rank = (_optional(_whole, data[name]) for name in ("parameters", "rank"))
        complete, file = _optional(_flag, data["complete"]), _optional(_text, data["certificate"]) or ""
        seconds = float(data["seconds"])
        return Check(block, sizes, quantity, method, expected, found, verdict, evidence, role, parameters, rank, complete, seconds, file)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what became of it.

    Attributes:
        id: number of the theorem, or a word.
        statement: the claim, in our words.
        source: where it is made.
        checks: in the order in which they were done.
        note: what the checks beside the claim say, in words.
    """

    id: str
    statement: str
    source: str
    checks: tuple[Check, ...]
    note: str = ""

    @property
    def verdict(self) -> str:
        """What the checks come to.

        - refuted: one of the claim's own checks found something else;
        - undecided: one of them has no result, or a control did not come out as it must, so that the checks tell nothing;
        - proved: all agree, and every quantity of the claim is proved in at least one of them. A proof is one for its sizes, never for all;
        - numerical: all agree.
        """
        own = [check for check in self.checks if check.role == "claim"]
        verdicts = {check.verdict for check in own}
        if "refuted" in verdicts:
            return "refuted"
        if not own or "undecided" in verdicts or not all(check.agrees for check in self.checks if check.role == "control"):
            return "undecided"
        proved = {check.quantity for check in own if check.verdict == "proved"}
        return "proved" if proved == {check.quantity for check in own} else "numerical"

    @property
    def summary(self) -> str:
        """How many of the claim's checks came to what."""
        own = [check for check in self.checks if check.role == "claim"]
        counts = {verdict: sum(check.verdict == verdict for check in own) for verdict in VERDICTS}
        return ", ".join(f"{verdict} in {count}" for verdict, count in counts.items() if count) + f" of {len(own)} checks"

    @property
    def beside(self) -> str:
        """The note, if everything beside the claim came out as the note says; else nothing."""
        return self.note if all(check.agrees for check in self.checks if check.role == "beside") else ""

    @property
    def evidence(self) -> tuple[str, ...]:
        """A line for every check."""
        return tuple(f"{check.subject}: {check.evidence}" for check in self.checks)

    @property
    def seconds(self) -> float:
        """Of computation."""
        return sum(round(check.seconds, 3) for check in self.checks)  # of rounded numbers, as a file has them

    @property
    def troubles(self) -> tuple[str, ...]:
        """What keeps the audit from holding: no decision, or something that our catalogue or a control says and that was not found."""
        lines = [f"{self.id}: undecided"] if self.verdict == "undecided" else []
        for check in self.checks:
            if check.role != "claim" and not check.agrees:
                lines.append(f"{self.id}: {check.subject}: {check.quantity}: {check.found}, not {check.expected} ({check.role})")
            if check.complete is False:
                lines.append(f"{self.id}: {check.subject}: the laws of the catalogue are not those that were found; {check.evidence}")
        return tuple(dict.fromkeys(lines))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id,
            "statement": self.statement,
            "source": self.source,
            "verdict": self.verdict,
            "summary": self.summary,
            "note": self.beside,
            "checks": [check.to_json() for check in self.checks],
            "evidence": list(self.evidence),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class AuditResult:
    """Every claim with its verdict.

    Attributes:
        paper: what was audited.
        claims: in the order of the paper.
        seed: of everything random.
        versions: of the programs.
        seconds: of computation.
    """

    paper: str
    claims: tuple[Claim, ...]
    seed: int
    versions: Mapping[str, str]
    seconds: float

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is undecided, and where the catalogue or a control fails."""
        return tuple(line for claim in self.claims for line in claim.troubles)

    @property
    def holds(self) -> bool:
        """Whether every claim is decided, one way or the other, and the catalogue and all controls came out as they must."""
        return not self.troubles

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "paper": self.paper,
            "holds": self.holds,
            "troubles": list(self.troubles),
            "claims": [claim.to_json() for claim in self.claims],
            "seed": self.seed,
            "versions": dict(self.versions),
            "seconds": round(self.seconds, 3),
        }

    @staticmethod
    def from_json(data: Any) -> "AuditResult":
        """The inverse of `to_json`. Verdicts of claims are drawn from the checks anew.

        Raises:
            ConfigurationError: the data is no audit.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ConfigurationError(f"this is no audit: it does not say {FORMAT!r}")
        try:
            claims = tuple(
                Claim(
                    _text(claim["id"]),
                    _text(claim["statement"]),
                    _text(claim["source"]),
                    tuple(Check.from_json(check) for check in claim["checks"]),
                    _text(claim["note"]),
                )
                for claim in data["claims"]
            )
            versions = {str(name): str(version) for name, version in data["versions"].items()}
            return AuditResult(_text(data["paper"]), claims, _whole(data["seed"]), versions, float(data["seconds"]))
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise ConfigurationError(f"the audit is damaged ({type(error).__name__}: {error})") from error


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)


def _to_json(value: Value | None) -> int | float | str | None:
    return str(value) if isinstance(value, Fraction) else value


def _optional(read: Callable[[Any], T], data: Any) -> T | None:
    return None if data is None else read(data)


def _value(data: Any) -> Value:
    if isinstance(data, str):
        return Fraction(data)
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise TypeError(f"{data!r} is no number")
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is no text")
    return data


def _whole(data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise TypeError(f"{data!r} is no whole number")
    return data


def _flag(data: Any) -> bool:
    if not isinstance(data, bool):
        raise TypeError(f"{data!r} is neither true nor false")
    return data
