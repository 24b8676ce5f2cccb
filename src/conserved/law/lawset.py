"""`LawSet`: the laws of a model, and the stated absences of laws."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, overload

from conserved.errors import LawError, UnknownNameError
from conserved.law.law import Law


@dataclass(frozen=True)
class Absence:
    """A statement that something is *not* conserved, and why.

    Args:
        where: path of the block or name of the parameter.
        reason: why there is no law.
        source: paper and theorem, or how it was found.
    """

    where: str
    reason: str
    source: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain data."""
        return {"where": self.where, "reason": self.reason, "source": self.source}


@dataclass(frozen=True)
class LawSet(Sequence[Law]):
    """An immutable sequence of laws with unique names.

    Args:
        laws: the laws.
        absences: what is known not to be conserved, with the reason.

    Raises:
        LawError: two laws share a name.

    Example:
        >>> from conserved.catalog import GatedLinearUnit
        >>> laws = GatedLinearUnit(dim=3, hidden=5, out=2).laws()
        >>> len(laws), laws[0].count, laws.select(family="rope").laws
        (1, 5, ())
        >>> LawSet.from_json(laws.to_json()) == laws
        True
    """

    laws: tuple[Law, ...] = ()
    absences: tuple[Absence, ...] = ()

    def __post_init__(self) -> None:
        """Check that names are unique."""
        seen: set[str] = set()
        for law in self.laws:
            if law.name in seen:
                raise LawError(f"two laws are named {law.name!r}; names in a LawSet are unique")
            seen.add(law.name)

    def __len__(self) -> int:
        """Number of laws (each may hold many independent scalars)."""
        return len(self.laws)

    def __iter__(self) -> Iterator[Law]:
        """Iterate over the laws."""
        return iter(self.laws)

    @overload
    def __getitem__(self, key: int) -> Law: ...
    @overload
    def __getitem__(self, key: slice) -> "LawSet": ...
    def __getitem__(self, key: int | slice) -> "Law | LawSet":
        """A law by position, or a LawSet by slice."""
        return LawSet(self.laws[key], self.absences) if isinstance(key, slice) else self.laws[key]

    def __add__(self, other: "LawSet") -> "LawSet":
        """Both sets one after the other."""
        return LawSet(self.laws + other.laws, self.absences + other.absences)

    def named(self, name: str) -> Law:
        """The law of that name.

        Raises:
            UnknownNameError: there is none.
        """
        for law in self.laws:
            if law.name == name:
                return law
        raise UnknownNameError(f"no law is named {name!r}; names here: {', '.join(law.name for law in self.laws) or 'none'}")

    def select(self, *, family: str = "*", layer: str = "*", name: str = "*", exact: bool | None = None) -> "LawSet":
        """Laws whose family, layer and name match shell-style patterns.

        Args:
            family: such as "rope" or "qk_*".
            layer: such as "layers.0.*".
            name: such as "*.swiglu".
            exact: only exact (True) or only approximate (False) ones.
        """
        return LawSet(
            tuple(
                law
                for law in self.laws
                if fnmatchcase(law.family, family) and fnmatchcase(law.layer, layer) and fnmatchcase(law.name, name) and (exact is None or law.exact is exact)
            ),
            self.absences,
        )

    @property
    def families(self) -> tuple[str, ...]:
        """The families that occur, in order."""
        return tuple(dict.fromkeys(law.family for law in self.laws))

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters that take part in a law, in order."""
        return tuple(dict.fromkeys(name for law in self.laws for name in law.parameters))

    @property
    def independent_count(self) -> int:
        """Number of functionally independent scalars, in closed form (`conserved.law.count`)."""
        from conserved.law.count import independent_count

        return independent_count(self)

    def renamed(self, prefix: str, names: dict[str, str] | None = None) -> "LawSet":
        """The same laws inside a larger model (see `Law.renamed`)."""
        absences = tuple(Absence((prefix + a.where).rstrip("."), a.reason, a.source) for a in self.absences)
        return LawSet(tuple(law.renamed(prefix, names) for law in self.laws), absences)

    def __str__(self) -> str:
        """A table: name, symmetry, count, formula; then the absences."""
        rows = [("law", "symmetry", "count", "formula")]
        for law in self.laws:
            mark = "" if law.exact else "  ≈ " + law.reason
            rows.append((law.name, law.symmetry.value, str(law.count), law.formula + mark))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in rows]
        lines += [f"no law: {a.where or 'model'}: {a.reason}" + (f" ({a.source})" if a.source else "") for a in self.absences]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data: independent total, laws, absences."""
        return {
            "total": self.independent_count,
            "laws": [law.to_json() for law in self.laws],
            "absences": [absence.to_json() for absence in self.absences],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> "LawSet":
        """Read what `to_json` wrote, as plain data or as JSON text."""
        plain = json.loads(data) if isinstance(data, str) else data
        return cls(
            tuple(Law.from_json(law) for law in plain["laws"]),
            tuple(Absence(**absence) for absence in plain.get("absences", ())),
        )

    @classmethod
    def of(cls, laws: Iterable[Law], absences: Iterable[Absence] = ()) -> "LawSet":
        """A LawSet from any iterables."""
        return cls(tuple(laws), tuple(absences))
