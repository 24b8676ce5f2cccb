"""Laws: frozen values, their counts, and their evaluation on tensors."""

from conserved.law.axes import View as View
from conserved.law.count import gradient_rank as gradient_rank
from conserved.law.count import independent_count as independent_count
from conserved.law.evaluate import Evaluator as Evaluator
from conserved.law.evaluate import Forms as Forms
from conserved.law.law import Law as Law
from conserved.law.law import Term as Term
from conserved.law.lawset import Absence as Absence
from conserved.law.lawset import LawSet as LawSet
from conserved.law.quantities import gradient as gradient
from conserved.law.quantities import jacobian as jacobian
from conserved.law.quantities import rate as rate
from conserved.law.quantities import residual as residual
from conserved.law.quantities import step_terms as step_terms
from conserved.law.quantities import value as value
from conserved.law.quantities import worst as worst

__all__ = [
    # values
    "Law", "LawSet", "Term", "Absence", "View",
    # on tensors
    "value", "gradient", "rate", "residual", "step_terms", "worst", "jacobian", "Evaluator", "Forms",
    # how many
    "independent_count", "gradient_rank",
]  # fmt: skip
