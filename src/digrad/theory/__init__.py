"""Theory as code: certified step sizes before a run, and a check of every inequality along it.

Three chains of constants: ``paper`` (verbatim, for comparison; several constants are not valid), ``repaired`` (the same
proof with every constant put right) and ``sharp`` (a tightened proof, recommended). See the page on the theory.
"""

from digrad.theory.chains.certificate import Certificate, ChainReport
from digrad.theory.chains.certification import certify
from digrad.theory.constants import norms, smoothness
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.empirical import (
    EmpiricalSmoothness,
    Line,
    empirical_smoothness,
    envelope,
    secant_excess,
    tightest_line,
)
from digrad.theory.constants.norms import Norms, WeightedNorm, network_norms
from digrad.theory.constants.smoothness import closed_form
from digrad.theory.drawing import row_figure, row_figures, smoothness_figure
from digrad.theory.inequalities.check_run import RunCheck, check_run
from digrad.theory.inequalities.rows import Row
from digrad.theory.trajectory import RunDivergedError, Trajectory, run

__all__ = [
    "Certificate",
    "ChainReport",
    "EmpiricalSmoothness",
    "Line",
    "Norms",
    "Row",
    "RunCheck",
    "RunDivergedError",
    "Smoothness",
    "Trajectory",
    "WeightedNorm",
    "certify",
    "check_run",
    "closed_form",
    "empirical_smoothness",
    "envelope",
    "network_norms",
    "norms",
    "row_figure",
    "row_figures",
    "run",
    "secant_excess",
    "smoothness",
    "smoothness_figure",
    "tightest_line",
]
