"""conserved: find, prove, watch and use the conservation laws of neural-network training."""

from conserved import catalog as catalog
from conserved.catalog import find_laws as find_laws
from conserved.certify import Certification as Certification
from conserved.certify import PolynomialLaws as PolynomialLaws
from conserved.certify import certify as certify
from conserved.certify import certify_block as certify_block
from conserved.certify import polynomial_laws as polynomial_laws
from conserved.certify import verify as verify
from conserved.errors import ConservedError as ConservedError
from conserved.law import Absence as Absence
from conserved.law import Law as Law
from conserved.law import LawSet as LawSet
from conserved.law import Term as Term
from conserved.law import gradient as gradient
from conserved.law import rate as rate
from conserved.law import residual as residual
from conserved.law import step_terms as step_terms
from conserved.law import value as value
from conserved.law import worst as worst
from conserved.monitor import Monitor as Monitor
from conserved.monitor import load_run as load_run
from conserved.symmetry import Symmetry as Symmetry
from conserved.version import __version__ as __version__

__all__ = [
    # what laws are
    "Law", "LawSet", "Term", "Absence", "Symmetry",
    # find them
    "find_laws", "catalog",
    # evaluate them
    "value", "gradient", "rate", "residual", "worst", "step_terms",
    # count and prove them
    "certify", "certify_block", "Certification", "verify", "polynomial_laws", "PolynomialLaws",
    # watch them
    "Monitor", "load_run",
    # the rest
    "ConservedError", "__version__",
]  # fmt: skip
