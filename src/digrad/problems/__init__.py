"""Problems: the private losses f_i and their gradients."""

from digrad.problems.analytic import cosh, example_quadratic, example_quartic, quadratic, quartic
from digrad.problems.compiled_loss import LossCode
from digrad.problems.exact_minimum import Minimum
from digrad.problems.from_loss import from_loss
from digrad.problems.logistic import logistic
from digrad.problems.problem import LocalLosses, Problem

__all__ = [
    "LocalLosses",
    "LossCode",
    "Minimum",
    "Problem",
    "cosh",
    "example_quadratic",
    "example_quartic",
    "from_loss",
    "logistic",
    "quadratic",
    "quartic",
]
