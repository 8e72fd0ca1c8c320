"""Experiments as data: the schema of specifications, the runner, the store of results, and presets."""

from digrad.specs.certification import (
    CertifiedRun,
    MeasuredSmoothness,
    certify_spec,
    smoothness_of_spec,
    verify_certificate,
)
from digrad.specs.presets import preset, preset_names
from digrad.specs.run_directory import RunDirectory, find_run
from digrad.specs.runner import Observer, RunResult, run
from digrad.specs.spec import Built, Spec, load_spec, parse_spec
from digrad.specs.sweep_and_tune import SweptSpec, TunedSpec, sweep_spec, tune_spec

__all__ = [
    "Built",
    "CertifiedRun",
    "MeasuredSmoothness",
    "Observer",
    "RunDirectory",
    "RunResult",
    "Spec",
    "SweptSpec",
    "TunedSpec",
    "certify_spec",
    "find_run",
    "load_spec",
    "parse_spec",
    "preset",
    "preset_names",
    "run",
    "smoothness_of_spec",
    "sweep_spec",
    "tune_spec",
    "verify_certificate",
]
