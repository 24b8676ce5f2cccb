"""How numbers, names and findings are put into words."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from conserved.experiments.claims import VERDICTS, AuditResult, Value

MISSING = "not evaluated"


def number(value: float | None) -> str:
    """Three digits for reading; the full number goes into a data attribute.

    Example:
        >>> number(0.0), number(12.3456), number(1e-12), number(None)
        ('0', '12.3', '1e-12', 'not evaluated')
    """
    if value is None:
        return MISSING
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def full(value: float | None) -> str:
    """The number that reads back to the same float; "null" where not evaluated."""
    return "null" if value is None else repr(value)


def found(value: Value | None) -> str:
    """A number of an audit for reading: counts and fractions exactly, measured numbers with three digits.

    Example:
        >>> found(1504), found(Fraction(9, 250)), found(1.99953), found(None)
        ('1,504', '9/250', '2', 'none')
    """
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else str(value) if isinstance(value, Fraction) else number(value)


def exactly(value: Value | None) -> str:
    """The same for machines.

    Example:
        >>> exactly(1504), exactly(Fraction(9, 250)), exactly(0.1), exactly(None)
        ('1504', '9/250', '0.1', 'null')
    """
    return "null" if value is None else repr(value) if isinstance(value, float) else str(value)


def audit_sentences(audit: AuditResult) -> tuple[str, str]:
    """What an audit came to, and whether the catalogue agrees."""
    ids = {verdict: [claim.id for claim in audit.claims if claim.verdict == verdict] for verdict in VERDICTS}
    counted = listed(f"{len(names)} {verdict} ({', '.join(names)})" for verdict, names in ids.items() if names)
    first = f"{plural(len(audit.claims), 'claim')} of {audit.paper} {'was' if len(audit.claims) == 1 else 'were'} audited: {counted or 'none'}."
    if audit.holds:
        return first, "Every claim is decided, and the laws of the catalogue are those that were found."
    return first, f"The audit does not hold, for {plural(len(audit.troubles), 'reason')} listed below."


def plural(count: int, noun: str) -> str:
    """Count and noun.

    Example:
        >>> plural(1, "law"), plural(2000, "family")
        ('1 law', '2,000 families')
    """
    plurals = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plurals}"


def listed(parts: Iterable[str]) -> str:
    """Joined with commas and a last "and".

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    items = list(parts)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def optimizer_name(optimizer: Mapping[str, Any]) -> str:
    """The class of the optimiser without its module, whatever key it is stored under."""
    for key in ("class", "name", "type"):
        if isinstance(optimizer.get(key), str) and optimizer[key]:
            return str(optimizer[key]).rpartition(".")[2]
    return "an unnamed optimiser"


def flatten(value: object, path: str = "") -> list[tuple[str, str]]:
    """Nested plain data as (path, text) pairs.

    Example:
        >>> flatten({"groups": [{"lr": 0.1}], "betas": [0.9, 0.99], "seed": None})
        [('groups.0.lr', '0.1'), ('betas', '0.9, 0.99'), ('seed', 'none')]
    """
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in flatten(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            return [pair for index, item in enumerate(value) for pair in flatten(item, f"{path}.{index}" if path else str(index))]
        return [(path, ", ".join(map(_plain, value)) or "none")]
    return [(path, _plain(value))]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
