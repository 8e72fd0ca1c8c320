"""Problems: the private losses f_i and their gradients."""

from digrad.problems.code import LossCode
from digrad.problems.growth import cosh, quartic
from digrad.problems.logistic import logistic
from digrad.problems.minimum import Minimum
from digrad.problems.polynomial import example_quadratic, example_quartic, quadratic
from digrad.problems.problem import LocalLosses, Problem
from digrad.problems.user import from_loss

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
