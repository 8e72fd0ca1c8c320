"""``digrad smoothness`` for a specification of engine ``torch``: the (L0, L1) picture of a network."""

import time

import numpy as np
import numpy.typing as npt

from digrad.simulation import Progress
from digrad.specs.runner import Observer
from digrad.specs.spec import Spec
from digrad.theory import EmpiricalSmoothness

POINTS = 16  # of the training: each takes Hessian-vector products of six losses


def smoothness_of_training(
    spec: Spec, label: str, progress: Observer | None = None
) -> tuple[npt.NDArray[np.int64], EmpiricalSmoothness]:
    """Train the method ``label`` of a specification and measure Hessian norm against gradient norm on the way.

    Returns:
        The iterations measured at, and what was found there.
    """
    from digrad.specs.images.hessian_norms import curvature_along
    from digrad.specs.images.training import TrainingPlan

    built = spec.build()
    plan = TrainingPlan.of(spec, spec.seed)
    # Most of the change is at the beginning: points equally spaced on a logarithmic scale.
    points = np.unique(np.geomspace(1, spec.steps + 1, min(POINTS, spec.steps + 1)).astype(int) - 1)
    began = time.monotonic()

    def tell(k: int, loss: float) -> None:
        left = (spec.steps - k) * (time.monotonic() - began) / k
        if progress:
            progress.on_progress(Progress(label, k, spec.steps, loss, seconds_left=left))

    if progress:
        progress.on_method_start(label, spec.steps)
    return curvature_along(
        built.methods[label], built.problem, built.network, plan, points=points.tolist(), on_step=tell
    )
