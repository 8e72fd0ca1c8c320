"""The rows of a certificate along a run: V falls, F stays below the level, agents stay together."""

import numpy as np
import numpy.typing as npt

from digrad.arrays import clip_factors
from digrad.theory.certificates.certify import first_proven
from digrad.theory.certificates.potential import potentials
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.start import Instance, Start
from digrad.theory.inequality import ESTIMATES, Row, Terms
from digrad.theory.trajectory import Trajectory

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
DRIFT = 1e-9  # of the sum of the trackers, relative to the gradients so far
CHAIN = "certificate"
FALLS = "V falls: V+ + eps alpha <p, D y> <= V"


def certificate_rows(
    instance: Instance, path: Trajectory, start: Start | None
) -> tuple[int | None, Proof | None, list[Row]]:
    """Return the step from which on a run is proven to converge, the proof, and the rows of the certificate.

    Args:
        instance: The losses and the network.
        path: The run.
        start: Its first state, if that is known.
    """
    problem, network, losses = instance.problem, instance.network, instance.losses
    sizes = np.linalg.norm(path.grad, axis=2).sum(axis=1)
    drift = np.linalg.norm(path.y.sum(axis=1) - path.grad.sum(axis=1), axis=1)
    noise = 16 * EPS * (np.abs(path.loss) + np.linalg.norm(path.average, axis=1) * sizes)
    is_proven = instance.constants is None or instance.constants.is_certifiable
    known = Terms("f_inf is proven" if is_proven else ESTIMATES, is_proven)
    lowest = np.full_like(path.loss, losses.lower_bound)
    rows = [
        Row("lower bound: f_inf <= F_k", CHAIN, lowest, path.loss, known, noise),
        Row("invariant: the y_i sum to the gradients", CHAIN, drift, DRIFT * np.maximum.accumulate(sizes)),
    ]
    reason = instance.not_covered if is_proven else ESTIMATES
    found = None
    if not reason:
        start = start or instance.start(path.x[0], path.y[0], np.full(network.n, path.threshold))
        found = first_proven(start, path.x, path.y, path.step_size)
    if found is None:
        needs = Terms(reason or "a state from which the run is proven", is_met=False)
        return None, None, [*rows, Row(FALLS, CHAIN, np.zeros(1), 0.0, needs)]
    k, proof = found
    phases = instance.phases
    x, y, base = path.x[k:], path.y[k:], network.n * losses.lower_bound
    V, rounding = potentials(problem, phases, proof, x, y, path.grad[k:])
    factors = np.asarray(clip_factors(y.reshape(-1, y.shape[2]), path.threshold)).reshape(len(y), -1)
    clipped = factors * np.sum(y**2, axis=2)
    lengths = np.linalg.norm(x - path.average[k:, None], axis=2)
    falls = proof.kept * path.step_size * clipped @ phases[0].ratio
    falls += proof.slack / path.step_size * np.sum(lengths**2, axis=1)
    given = Terms(f"proven from step {k}")
    after, before = V[1:] - base + falls[:-1], V[:-1] - base
    widths = np.maximum(proof.width, np.finfo(float).tiny)
    spread = np.max(lengths / widths, axis=1)
    blur = 16 * EPS * np.linalg.norm(x, axis=2).max(axis=1) / widths.min()
    together = "agents stay together: |x_i - xbar| <= E_i"
    rows += [
        Row(FALLS, CHAIN, after, before, given, rounding[1:] + rounding[:-1], first=k + 1),
        Row("F(xbar_k) <= V_0/n", CHAIN, path.loss[k:], proof.level, given, noise[k:], first=k),
        Row(together, CHAIN, spread, 1.0, given, blur, first=k),
    ]
    return k, proof, rows
