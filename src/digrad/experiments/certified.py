"""The theory applied to a specification: a certificate of its step size, a check of its run, its smoothness."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import plots
from digrad.algorithms import CGT
from digrad.errors import SpecError
from digrad.experiments.spec import Built, Spec
from digrad.experiments.store import write_json
from digrad.sampling import normal_start
from digrad.theory import (
    Certificate,
    EmpiricalSmoothness,
    RunCheck,
    certify,
    check_run,
    empirical_smoothness,
)
from digrad.theory import run as run_cgt

CHECKED_STEPS = 1500  # of a run that keeps every iterate, unless told otherwise
SMOOTHNESS_POINTS = 60  # points of the run at which Hessian norms are computed


@dataclass(frozen=True)
class CertifiedRun:
    """What :func:`certify_spec` found, and the files it wrote."""

    certificate: Certificate
    check: RunCheck
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``certificate.json``."""
        return {"certificate": self.certificate.to_dict(), "check": self.check.to_dict()}


@dataclass(frozen=True)
class MeasuredSmoothness:
    """What :func:`smoothness_of_spec` found, and the files it wrote."""

    found: EmpiricalSmoothness
    files: tuple[Path, ...]


def certify_spec(spec: Spec, out: str | os.PathLike[str], *, steps: int | None = None) -> CertifiedRun:
    """Certify the step size of the CGT of a specification, and check every inequality along its run.

    The check runs with full gradients, as the theory does; a specification with mini-batches gets an indication.

    Args:
        spec: Holds a CGT with a constant step size and threshold.
        out: Where ``certificate.json`` and a figure per inequality go.
        steps: Of the checked run; those of the specification, at most 1500, by default.
    """
    built, (step_size, threshold) = spec.build(), cgt_of(spec)
    x0 = start_of(spec, built)
    certificate = certify(
        built.problem,
        built.network,
        threshold=threshold,
        x0=x0,
        step_size=step_size,
        batch_size=spec.batch_size,
    )
    steps = steps or min(spec.steps, CHECKED_STEPS)
    check = check_run(
        built.problem, built.network, step_size=step_size, threshold=threshold, x0=x0, steps=steps
    )
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    result = CertifiedRun(certificate, check, ())
    write_json(folder / "certificate.json", result.to_dict())
    drawn = [
        path
        for name, figure in check.figures().items()
        for path in plots.save_figure(figure, folder / "figures" / name, formats=("png",))
    ]
    return CertifiedRun(certificate, check, (folder / "certificate.json", *drawn))


def smoothness_of_spec(spec: Spec, out: str | os.PathLike[str]) -> MeasuredSmoothness:
    """Measure Hessian norm against gradient norm along the run of the CGT of a specification.

    Args:
        spec: Holds a CGT with a constant step size and threshold; its run uses full gradients.
        out: Where the figure and ``smoothness.json`` go.
    """
    built, (step_size, threshold) = spec.build(), cgt_of(spec)
    steps = min(spec.steps, CHECKED_STEPS)
    x0 = start_of(spec, built)
    path = run_cgt(built.problem, built.network, step_size=step_size, threshold=threshold, x0=x0, steps=steps)
    # Most of the change is at the beginning: points equally spaced on a logarithmic scale.
    chosen = np.unique(np.geomspace(1, steps + 1, SMOOTHNESS_POINTS).astype(int) - 1)
    found = empirical_smoothness(built.problem, path.average[chosen])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "smoothness.json", found.table())
    drawn = plots.save_figure(found.figure(), folder / "smoothness")
    return MeasuredSmoothness(found, (folder / "smoothness.json", *drawn))


def cgt_of(spec: Spec) -> tuple[float, float]:
    """Return the step size and the threshold of the CGT of a specification; the theory covers numbers only."""
    found = [
        method for method in (table.build() for table in spec.methods.values()) if isinstance(method, CGT)
    ]
    if not found:
        listed = ", ".join(spec.methods)
        raise SpecError(f"The theory is about CGT, but `methods` holds {listed}; add a table [methods.CGT].")
    step_size, threshold = found[0].step_size, found[0].threshold
    if not (isinstance(step_size, int | float) and isinstance(threshold, int | float)):
        raise SpecError(
            "The theory covers a constant step size and threshold, but a schedule or a list was given."
        )
    return step_size, threshold


def start_of(spec: Spec, built: Built) -> npt.ArrayLike | None:
    """Return the start of a specification as an array."""
    x0 = spec.options(built.problem, spec.seed)["x0"]
    if isinstance(x0, str):
        shape = (built.problem.n_agents, built.problem.dim)
        return normal_start(*shape, spec.seed) if x0 == "normal" else np.zeros(shape)
    return x0
