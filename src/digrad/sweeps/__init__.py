"""Many runs and what to choose from them: grids and random draws, searches, the first guess of a threshold."""

from digrad.sweeps.largest_stable import Search, Trial, best_value, largest_stable
from digrad.sweeps.minimize import minimize
from digrad.sweeps.recommend_threshold import ThresholdAdvice, recommend_threshold
from digrad.sweeps.space import LogUniform, Uniform
from digrad.sweeps.sweep import SweepProgress, sweep
from digrad.sweeps.sweep_results import Sweep
from digrad.sweeps.tune import Tuning, tune
from digrad.sweeps.workers import Workers

__all__ = [
    "LogUniform",
    "Search",
    "Sweep",
    "SweepProgress",
    "ThresholdAdvice",
    "Trial",
    "Tuning",
    "Uniform",
    "Workers",
    "best_value",
    "largest_stable",
    "minimize",
    "recommend_threshold",
    "sweep",
    "tune",
]
