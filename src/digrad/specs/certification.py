"""The theory applied to a specification: a certificate of its step size, a check of its run, its smoothness."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, PositiveFloat

from digrad import plots
from digrad._internal.files import make_folder
from digrad._internal.folders import check_folder
from digrad._internal.json_files import has_record, read_json, write_json
from digrad.errors import ArgumentError, DataError, SpecError
from digrad.methods import AB, CGT, SoftCGT
from digrad.simulation import simulate
from digrad.specs.runner import Observer
from digrad.specs.spec import Built, Spec, parse_spec
from digrad.theory import (
    Certificate,
    EmpiricalSmoothness,
    RunCheck,
    RunDivergedError,
    certify,
    certify_batches,
    check_run,
    empirical_smoothness,
    verify_proof,
)
from digrad.theory import run as run_cgt
from digrad.theory.arguments import uncovered
from digrad.theory.constants.assumptions import INDICATIVE

CHECKED_STEPS = 1500  # of a run that keeps every iterate, unless told otherwise
CERTIFICATE, SMOOTHNESS = "certificate.json", "smoothness.json"
SMOOTHNESS_POINTS = 60  # points of the run at which Hessian norms are computed


@dataclass(frozen=True)
class CertifiedRun:
    """Result of :func:`certify_spec`, and the files it wrote.

    Attributes:
        method: The label of the method that it is about.
        spec: The specification, as TOML.
        certificate: The certificate before the run.
        check: The check of the run with full gradients; None if it diverged, or is not one of CGT or AB with
            one step size and threshold on a fixed network.
        diverged_at: The iteration at which that run left double precision, or None.
        notice: The difference between the checked run and the specified one, or an empty string.
        files: Paths of the files written.
    """

    method: str
    spec: str
    certificate: Certificate
    check: RunCheck | None
    diverged_at: int | None
    notice: str
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``certificate.json``."""
        return {
            "method": self.method,
            "spec": self.spec,
            "notice": self.notice,
            "certificate": self.certificate.to_dict(),
            "diverged_at": self.diverged_at,
            "check": self.check.to_dict() if self.check else None,
        }


@dataclass(frozen=True)
class MeasuredSmoothness:
    """Result of :func:`smoothness_of_spec`, and the files it wrote.

    Attributes:
        method: The label of the CGT along whose run it was measured.
        iterations: The k of each point, ``[K]``.
        found: Gradient and Hessian norms there.
        files: Paths of the files written.
        gradients: The kind of gradients of the run.
    """

    method: str
    iterations: npt.NDArray[np.int_]
    found: EmpiricalSmoothness
    files: tuple[Path, ...]
    gradients: str = "full gradients"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``smoothness.json``."""
        found = self.found.to_dict()
        points = {"iterations": self.iterations.tolist(), **found["points"]}
        return {"method": self.method, "gradients": self.gradients, **found, "points": points}


class _Verdict(BaseModel):
    verdict: str
    label: str | None
    step_size: float | None
    threshold: float | None
    alpha_max: float | None
    stable: float | None
    K: dict[PositiveFloat, float | None]
    reasons: list[str]
    rate: float | None = None
    proof: dict[str, Any] | None = None
    largest: dict[str, Any] | None = None


class StoredCertificate(BaseModel):
    """Parts of a ``certificate.json`` that are shown or verified; people may have edited it."""

    method: str
    spec: str = ""
    certificate: _Verdict
    notice: str | None
    diverged_at: int | None
    check: dict[str, Any] | None


class Covered(NamedTuple):
    """A method of a specification, as the theory takes it."""

    label: str
    step_size: Any
    threshold: Any

    @property
    def is_constant(self) -> bool:
        """Return whether step size and threshold are one number each."""
        return all(isinstance(value, int | float) for value in (self.step_size, self.threshold))


def certify_spec(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    steps: int | None = None,
    method: str | None = None,
    paper: bool = False,
) -> CertifiedRun:
    """Certify the step size of a method of a specification, and find from which step on its run is proven to converge.

    The check runs with full gradients, as the theory does; a specification with mini-batches gets an indication. A run
    that diverges is a result: the certificate is written, and says when.

    Args:
        spec: Holds a CGT, SoftCGT or AB.
        out: Folder of ``certificate.json`` and a figure per inequality: new, empty, or of an earlier certificate.
        steps: Steps of the checked run; those of the specification, at most 1500, by default.
        method: The label of the method, if there are several; the first CGT by default.
        paper: Whether to check every inequality of the paper's proof too.

    Raises:
        SpecError: There is no such method.
        ArgumentError: ``out`` is a file, or a folder of something else.
    """
    folder = _folder(out, CERTIFICATE)
    covered = covered_method(spec, method)
    if spec.engine == "torch":
        raise SpecError(
            "`engine` must be 'simulation' for a certificate: the constants of a torch network are not known; "
            "`digrad smoothness` estimates them."
        )
    built = spec.build()
    x0 = built.x0
    certificate = certify(
        built.problem,
        built.network,
        threshold=covered.threshold,
        x0=x0,
        step_size=covered.step_size,
        batch_size=spec.batch_size,
        steps=spec.steps,
        explain=True,
    )
    steps = steps or min(spec.steps, CHECKED_STEPS)
    check, diverged_at = None, None
    is_clipped = not isinstance(built.methods[covered.label], SoftCGT)
    if not is_clipped:
        proof = certificate.proof and certificate.proof._replace(contraction=math.inf)
        certificate = replace(certificate, proof=proof, shares=None)  # K(eps), rate: clipped steps are longer
    try:
        if covered.is_constant and is_clipped and not uncovered(built.network):
            check = check_run(
                built.problem,
                built.network,
                step_size=covered.step_size,
                threshold=covered.threshold,
                x0=x0,
                steps=steps,
                paper=paper,
                certificate=certificate,
            )
    except RunDivergedError as error:
        diverged_at = error.k
    make_folder(folder)
    notice = " ".join(filter(None, (_notice(spec), _batches(spec, built, covered, x0))))
    result = CertifiedRun(covered.label, spec.to_toml(), certificate, check, diverged_at, notice, ())
    write_json(folder / CERTIFICATE, result.to_dict())
    drawn = [
        path
        for name, figure in (check.figures() if check else {}).items()
        for path in plots.save_figure(figure, folder / "figures" / name, formats=("png",))
    ]
    return replace(result, files=(folder / CERTIFICATE, *drawn))


def certified_step(spec: Spec, built: Built, label: str) -> float | None:
    """Return the largest step of a method that is proven to converge from the start, with full gradients; or None."""
    method = built.methods[label]
    if not isinstance(method, CGT | SoftCGT | AB) or spec.engine == "torch":
        return None
    threshold = vars(method).get("threshold", math.inf)
    try:
        found = certify(built.problem, built.network, threshold=threshold, x0=built.x0, steps=spec.steps)
    except ArgumentError:  # F has no minimum, for example
        return None
    return found.alpha_max if found.verdict == "holds" else None


def verify_certificate(path: str | os.PathLike[str]) -> dict[str, bool]:
    """Return whether each claim of a stored certificate holds, found again without the search.

    Its proof is that of the step asked for or, where that is not certified, of the largest certified step.

    Args:
        path: A ``certificate.json``.

    Raises:
        DataError: It is none, or holds no proof.
    """
    stored = read_json(Path(path), StoredCertificate)
    found = stored["certificate"]
    asked, largest = found.get("proof"), found.get("largest")
    if not (asked or largest):
        raise DataError(f"{path} holds no proof: nothing was certified there.")
    spec = parse_spec(stored.get("spec", ""), str(path))
    built = spec.build()
    covered = covered_method(spec, stored["method"])
    is_soft = isinstance(built.methods[covered.label], SoftCGT)
    claims = {
        "the verdict is that of the proof": (found["verdict"] == "holds")
        == (asked is not None and spec.batch_size is None),
        "gradients are full ones": spec.batch_size is None,
        "the largest step is that of its proof": found["alpha_max"] == (largest or {}).get("step_size"),
        "the step is that of the run": not covered.is_constant or found["step_size"] == covered.step_size,
        "K(eps) is promised of clipped steps": (asked is not None and not is_soft)
        or not any(found["K"].values()),
        "the rate is that of the proof, of clipped steps": _is_rate(found.get("rate"), asked, is_soft),
    }
    for proof in filter(None, (asked, largest)):
        more = verify_proof(
            built.problem,
            built.network,
            proof,
            threshold=covered.threshold,
            x0=built.x0,
            step_size=covered.step_size,
            steps=spec.steps,
            promised=found["K"] if proof is asked else None,
            largest=proof is largest,
        )
        name = "largest step: " if proof is largest else ""
        claims |= {f"{name}{claim}": holds for claim, holds in more.items()}
    return claims


def _is_rate(rate: float | None, proof: dict[str, Any] | None, is_soft: bool) -> bool:
    kappa = proof.get("contraction") if proof else None
    if not isinstance(kappa, float) or is_soft:
        return rate is None and not (is_soft and kappa)
    return rate is None or rate == 1 - 1 / kappa


def smoothness_of_spec(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    method: str | None = None,
    progress: Observer | None = None,
) -> MeasuredSmoothness:
    """Measure Hessian norm against gradient norm along the run of the CGT of a specification.

    Args:
        spec: Holds a CGT with a constant step size and threshold; its run uses full gradients, with engine ``torch``
            mini-batches.
        out: Folder of the figure and ``smoothness.json``: new, empty, or of an earlier measurement.
        method: The label of the CGT, if there are several; the first by default.
        progress: Observer of a run of engine ``torch``, which takes minutes.

    Raises:
        SpecError: There is no such CGT, or the theory does not cover it.
        ArgumentError: ``out`` is a file, or a folder of something else.
        RunDivergedError: Its run leaves double precision.
    """
    folder = _folder(out, SMOOTHNESS)
    label, step_size, threshold = cgt_of(spec, method)
    built = spec.build()
    if spec.engine == "torch":
        from digrad.specs.images.smoothness import smoothness_of_training

        measured = smoothness_of_training(spec, built, label, progress)
        result = MeasuredSmoothness(label, *measured, (), "mini-batch gradients")
    else:
        steps = min(spec.steps, CHECKED_STEPS)
        x0 = built.x0
        path = run_cgt(
            built.problem, built.network, step_size=step_size, threshold=threshold, x0=x0, steps=steps
        )
        # Most of the change is at the beginning: points equally spaced on a logarithmic scale.
        chosen = np.unique(np.geomspace(1, steps + 1, SMOOTHNESS_POINTS).astype(int) - 1)
        result = MeasuredSmoothness(
            label, chosen, empirical_smoothness(built.problem, path.average[chosen]), ()
        )
    make_folder(folder)
    write_json(folder / SMOOTHNESS, result.to_dict())
    drawn = plots.save_figure(result.found.figure(), folder / "smoothness")
    return replace(result, files=(folder / SMOOTHNESS, *drawn))


def covered_method(spec: Spec, label: str | None = None) -> Covered:
    """Return the method that a certificate is about: the one with ``label``, or the first, CGT before others.

    Raises:
        SpecError: There is none.
    """
    methods = {name: table.build() for name, table in spec.methods.items()}
    labels = [
        name for kind in (CGT, SoftCGT, AB) for name, method in methods.items() if isinstance(method, kind)
    ]
    if label is not None and label not in labels:
        raise SpecError(
            f"`method` must be the label of a CGT, SoftCGT or AB ({', '.join(labels) or 'none here'}), "
            f"but got {label!r}."
        )
    if not labels:
        raise SpecError(
            f"The theory is about CGT, SoftCGT and AB, but `methods` holds {', '.join(methods)}; "
            "add a table [methods.CGT]."
        )
    name = label or labels[0]
    hypers = vars(methods[name])
    return Covered(name, hypers["step_size"], hypers.get("threshold", math.inf))


def cgt_of(spec: Spec, label: str | None = None) -> Covered:
    """Return the same if its run can be followed: one step size and one threshold.

    Raises:
        SpecError: There is none, or its step size or threshold is not one number, or it clips softly.
    """
    covered = covered_method(spec, label)
    if isinstance(spec.methods[covered.label].build(), SoftCGT):
        raise SpecError(
            f"`methods.{covered.label}` is a SoftCGT, but only runs of CGT and AB can be checked."
        )
    for field, value in (("step_size", covered.step_size), ("threshold", covered.threshold)):
        if not isinstance(value, int | float):
            kind = "a schedule" if callable(value) else "a list, one number per agent"
            raise SpecError(
                f"`methods.{covered.label}.{field}` must be one number for a run to be checked, but it is {kind}."
            )
    return covered


def _folder(out: str | os.PathLike[str], record: str) -> Path:
    """Return the directory of the results, refused before anything is computed if it cannot be one."""
    folder = Path(out)
    check_folder(folder, f"an earlier {record}", lambda path: has_record(path / record, "method"))
    return folder


def _notice(spec: Spec) -> str:
    if spec.batch_size is None:
        return ""
    return f"Full gradients were checked, not the specified run with mini-batches of {spec.batch_size}: {INDICATIVE}."


def _batches(spec: Spec, built: Built, covered: Covered, x0: npt.ArrayLike | None) -> str:
    """Return what is proven with mini-batches, beside what a run does; or why nothing is."""
    if spec.batch_size is None or not covered.is_constant:
        return ""
    step_size, threshold, batch_size = covered.step_size, covered.threshold, spec.batch_size
    options = {"x0": x0, "batch_size": batch_size}
    try:
        bound = certify_batches(
            built.problem, built.network, step_size=step_size, threshold=threshold, **options
        )
    except ArgumentError as error:
        return f"Nothing is proven with mini-batches: {error}"
    if bound is None:
        return "Nothing is proven with mini-batches at this step size."
    said = f"With mini-batches, {bound}; with K = {spec.steps} that is {bound.after(spec.steps):.3g}"
    if bound.theorem == "S":
        trace = simulate(
            built.methods[covered.label],
            built.problem,
            built.network,
            steps=spec.steps,
            seed=spec.seed,
            **options,
        )
        measured = float(np.mean(trace.loss)) - built.problem.solve().loss
        said += f", where a run has {measured:.3g} (F at the average above its minimum)"
    return f"{said}."
