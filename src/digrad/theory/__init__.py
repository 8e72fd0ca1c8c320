"""Theory as code: certified step sizes before a run, from a state of it, and a check along it.

The certificate is a potential that contains F and falls along every run; the paper's own inequalities, with its printed
constants, are checked on request. See the page on the theory.
"""

from digrad.plots.inequalities import row_figure, row_figures, smoothness_figure
from digrad.theory.certificates.certificate import Certificate
from digrad.theory.certificates.certify import certify, certify_state, verify_proof
from digrad.theory.certificates.mini_batches import BatchBound, certify_batches
from digrad.theory.certificates.proof import Proof
from digrad.theory.check_run import RunCheck, check_run
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.closed_form import closed_form
from digrad.theory.constants.empirical_smoothness import (
    EmpiricalSmoothness,
    Line,
    empirical_smoothness,
    envelope,
    tightest_line,
)
from digrad.theory.constants.norms import Norms, WeightedNorm, network_norms
from digrad.theory.inequality import Row
from digrad.theory.paper.inequalities import PaperCheck
from digrad.theory.trajectory import RunDivergedError, Trajectory, run

__all__ = [
    "BatchBound",
    "Certificate",
    "EmpiricalSmoothness",
    "Line",
    "Norms",
    "PaperCheck",
    "Proof",
    "Row",
    "RunCheck",
    "RunDivergedError",
    "Smoothness",
    "Trajectory",
    "WeightedNorm",
    "certify",
    "certify_batches",
    "certify_state",
    "check_run",
    "closed_form",
    "empirical_smoothness",
    "envelope",
    "network_norms",
    "row_figure",
    "row_figures",
    "run",
    "smoothness_figure",
    "tightest_line",
    "verify_proof",
]
