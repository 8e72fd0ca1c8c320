r"""The potential V of a certificate along a run, and the rows: V falls, F stays below the level, agents together.

.. math::
    V_k = \sum_j c_j \sum_{l<j} \sum_i f_i(x_i^{k-l}) - \sum_j c_j \sum_{l<j} \langle g^{k-l}, e_x^{k-l}\rangle
        + \sum_l C_l \sum_{m<l} n \langle \bar y^{k-m}, \bar x^{k-m} - \bar x^{k-m-1}\rangle
        + \alpha\, \sigma_k' P \sigma_k

with :math:`c_j = a_j - b_j`, :math:`C_l = \sum_{j>l} c_j`, and a constant history before the first state. For
nonconvex losses there is one tap with :math:`c_1 = 1`.
"""

import numpy as np
import numpy.typing as npt

from digrad.arrays import clip_factors
from digrad.problems import Problem
from digrad.theory.certificates.certify import first_proven
from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.instance import Instance, Start
from digrad.theory.certificates.proof import Proof
from digrad.theory.inequality import ESTIMATES, Row, Terms
from digrad.theory.trajectory import Trajectory

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
ROUNDING = 1e-13  # of V, relative to the magnitudes of its terms
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


def potentials(
    problem: Problem, phases: tuple[Matrices, ...], proof: Proof, x: Floats, y: Floats, grad: Floats
) -> tuple[Floats, Floats]:
    """Return V and what rounding can do to it for each state, ``[K]`` each.

    Args:
        problem: The losses.
        phases: The matrices of each step of a period, of which the first follows the first state.
        proof: With its storages.
        x: Iterates from the state of the proof on, ``[K, n, d]``.
        y: Trackers.
        grad: Gradients of f_i at x_i.
    """
    n, count, steps = phases[0].n, len(proof.taps.a), len(x)
    phase = np.arange(steps) % len(phases)
    u, v = np.array([one.u for one in phases])[phase], np.array([one.v for one in phases])[phase]  # [K, n]
    later = proof.later

    def before(array: Floats, lag: int) -> Floats:
        return array[np.maximum(np.arange(steps) - lag, 0)]

    average, mean = np.einsum("ki,kid->kd", u / n, x), y.mean(axis=1)
    e_x, e_y = x - average[:, None], y - v[:, :, None] * mean[:, None]
    losses = np.array([problem.local_losses(one) for one in x])  # [K, n]
    values, sizes = losses.sum(axis=1), np.abs(losses).sum(axis=1)
    slopes = np.sum(grad * e_x, axis=(1, 2))
    work = n * np.sum(mean * (average - before(average, 1)), axis=1)
    total, size = np.zeros(steps), np.zeros(steps)
    for lag in range(count):  # sum_j c_j sum_{l<j} counts lag l as often as C_l does
        total += later[lag] * before(values - slopes, lag)
        size += abs(later[lag]) * before(sizes + np.abs(slopes), lag)
    for lag in range(count - 1):  # and sum_l C_l sum_{m<l} counts m as often as the sum of C_l over l > m
        weight = later[lag + 1 :].sum()
        total += weight * before(work, lag)
        size += abs(weight) * np.abs(before(work, lag))
    state = [e_x[:, :-1] / proof.step_size, e_y[:, :-1]]
    state += [(x - before(x, j)) / proof.step_size for j in range(1, count)]
    state += [grad - before(grad, j) for j in range(1, count)]
    sigma = np.concatenate(state, axis=1)  # [K, states, d]
    length = np.linalg.norm(sigma, axis=2)
    for k, P in enumerate(proof.storages):
        at, longest = sigma[k :: len(phases)], length[k :: len(phases)]
        total[k :: len(phases)] += proof.step_size * np.sum(at * (P @ at), axis=(1, 2))
        size[k :: len(phases)] += proof.step_size * np.sum(longest * (longest @ np.abs(P)), axis=1)
    return total, ROUNDING * size
