"""Many runs and what to choose from them: grids and random draws, searches, the first guess of a threshold."""

from digrad.sweeps.minimization import minimize
from digrad.sweeps.search import Search, Trial, best_value, largest_stable
from digrad.sweeps.space import LogUniform, Uniform
from digrad.sweeps.sweep import Sweep, SweepProgress, sweep
from digrad.sweeps.threshold import ThresholdAdvice, recommend_threshold
from digrad.sweeps.tune import Tuning, tune

__all__ = [
    "LogUniform",
    "Search",
    "Sweep",
    "SweepProgress",
    "ThresholdAdvice",
    "Trial",
    "Tuning",
    "Uniform",
    "best_value",
    "largest_stable",
    "minimize",
    "recommend_threshold",
    "sweep",
    "tune",
]
