"""How numbers, names and findings are put into words."""

from collections.abc import Iterable, Mapping
from typing import Any

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
