"""``digrad smoothness`` for a specification of engine ``torch``: the (L0, L1) picture of a network."""

import numpy as np
import numpy.typing as npt

from digrad.experiments.image_table import ImagesTable
from digrad.experiments.spec import Spec
from digrad.theory import EmpiricalSmoothness

POINTS = 16  # of the training: each takes Hessian-vector products of six losses


def smoothness_of_training(spec: Spec, label: str) -> tuple[npt.NDArray[np.int64], EmpiricalSmoothness]:
    """Train the method ``label`` of a specification and measure Hessian norm against gradient norm on the way.

    Returns:
        The iterations measured at, and what was found there.
    """
    from digrad.torch.curvature import curvature_along

    assert isinstance(spec.problem, ImagesTable)
    built = spec.build()
    plan = spec.problem.plan(**spec.options(built.problem, spec.seed))
    # Most of the change is at the beginning: points equally spaced on a logarithmic scale.
    points = np.unique(np.geomspace(1, spec.steps + 1, min(POINTS, spec.steps + 1)).astype(int) - 1)
    found = curvature_along(built.methods[label], built.problem, built.network, plan, points=points.tolist())
    return found.k, EmpiricalSmoothness(
        grad_norms=found.grad_norms,
        hessian_norms=found.hessian_norms,
        grad_norms_F=found.grad_norms_F,
        hessian_norms_F=found.hessian_norms_F,
        dissimilarity=found.dissimilarity,
        lower_bound=float(found.losses.min()),
    )
