r"""The symmetries of an index space, and what each one conserves.

A weight tensor has legs, one for each axis. A symmetry acts on the index space of a leg:
a leg that produces the index transforms covariantly (coefficient +1), one that consumes it
contravariantly (coefficient −1). Noether's argument in its gradient-flow form says that the
projection of

    H = Σ_t c_t · W_t W_tᵀ        (all other axes of the term contracted)

on the symmetric part of the symmetry's Lie algebra is constant along θ̇ = −∇L(θ), for every
data set and every loss. Translations act by addition and conserve h = Σ_t c_t · ΣW_t.

Source: Marcotte, Gribonval, Peyré 2023 (arXiv 2307.00144); "Conservation Laws for Modern
Neural Architectures" (arXiv 2606.17816).
"""

from enum import StrEnum


class Symmetry(StrEnum):
    """A group acting on an index space of size n, with the projection that it conserves.

    | member | acts by | conserved part of H |
    | --- | --- | --- |
    | `GENERAL_LINEAR` | any invertible matrix | the symmetric n × n matrix |
    | `RESCALE` | a positive diagonal matrix | the diagonal, n numbers |
    | `ROTARY` | one scale for each rotary pair | one number for each pair |
    | `SCALE` | one positive number | the trace, 1 number |
    | `TRANSLATION` | adding a constant | the sum along the shifted axes (linear) |

    Example:
        >>> Symmetry("rescale").degree, Symmetry.TRANSLATION.degree
        (2, 1)
        >>> Symmetry.GENERAL_LINEAR.independent(index=3, rank=2)
        5
    """

    GENERAL_LINEAR = "general_linear"
    RESCALE = "rescale"
    ROTARY = "rotary"
    SCALE = "scale"
    TRANSLATION = "translation"

    def __repr__(self) -> str:
        """Readable and, as the rest of a law's repr, Python."""
        return f"Symmetry.{self.name}"

    @property
    def degree(self) -> int:
        """Degree of the conserved quantity in θ: 1 for translations, otherwise 2."""
        return 1 if self is Symmetry.TRANSLATION else 2

    @property
    def is_matrix(self) -> bool:
        """Whether the conserved part is a symmetric matrix rather than a diagonal."""
        return self is Symmetry.GENERAL_LINEAR

    @property
    def has_index(self) -> bool:
        """Whether the law is indexed by the space that the symmetry acts on."""
        return self not in (Symmetry.SCALE, Symmetry.TRANSLATION)

    def independent(self, index: int, rank: int) -> int:
        """Number of independent scalars conserved for one copy of the index space.

        Args:
            index: n, the size of the index space (for `ROTARY`: the number of pairs).
            rank: generic rank k ≤ n of the stacked factors, [W_1 W_2 …] seen as n rows.
                A symmetric S with S·[W_1 W_2 …] = 0 gives no equation, so the matrix law
                counts n(n+1)/2 − (n−k)(n−k+1)/2 = k·n − k(k−1)/2.

        Returns:
            The closed form; `Symmetry` of one number (scale, translation) gives 1.
        """
        if self is Symmetry.GENERAL_LINEAR:
            return rank * index - rank * (rank - 1) // 2
        return index if self.has_index else 1
