"""Theory as code: certified step sizes before a run, and a check of every inequality along it.

Three chains of constants: ``paper`` (verbatim, for comparison; several constants are not valid), ``repaired`` (the same
proof with every constant put right) and ``sharp`` (a tightened proof, recommended). See the page on the theory.
"""

from digrad.theory import norms, smoothness
from digrad.theory.certificate import Certificate, ChainReport
from digrad.theory.certification import certify
from digrad.theory.check_run import RunCheck, check_run
from digrad.theory.constants import Smoothness
from digrad.theory.empirical import (
    EmpiricalSmoothness,
    Line,
    empirical_smoothness,
    envelope,
    secant_excess,
    tightest_line,
)
from digrad.theory.figures import row_figure, row_figures, smoothness_figure
from digrad.theory.norms import Norms, WeightedNorm, network_norms
from digrad.theory.rows import Row
from digrad.theory.smoothness import closed_form
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
