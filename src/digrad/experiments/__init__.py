"""Experiments as data: specifications, the runner, the store of results, presets, and the paper's claims."""

from digrad.experiments.certified import (
    CertifiedRun,
    MeasuredSmoothness,
    certify_spec,
    smoothness_of_spec,
    verify_certificate,
)
from digrad.experiments.claims import Claim, ClaimTable
from digrad.experiments.link_bias import LinkBias, reproduce_links
from digrad.experiments.presets import preset, preset_names
from digrad.experiments.reproduce import Reproduction, reproduce_logistic
from digrad.experiments.reproduce_cifar import reproduce_cifar
from digrad.experiments.runner import Observer, RunResult, run
from digrad.experiments.spec import Built, Spec, load_spec, parse_spec
from digrad.experiments.store import RunDirectory, find_run
from digrad.experiments.sweeping import SweptSpec, TunedSpec, sweep_spec, tune_spec

__all__ = [
    "Built",
    "CertifiedRun",
    "Claim",
    "ClaimTable",
    "LinkBias",
    "MeasuredSmoothness",
    "Observer",
    "Reproduction",
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
    "reproduce_cifar",
    "reproduce_links",
    "reproduce_logistic",
    "run",
    "smoothness_of_spec",
    "sweep_spec",
    "tune_spec",
    "verify_certificate",
]
