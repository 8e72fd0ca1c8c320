r"""The potential V along a run, which a certificate says never rises.

.. math::
    V_k = \sum_j c_j \sum_{l<j} \sum_i f_i(x_i^{k-l}) - \sum_j c_j \sum_{l<j} \langle g^{k-l}, e_x^{k-l}\rangle
        + \sum_l C_l \sum_{m<l} n \langle \bar y^{k-m}, \bar x^{k-m} - \bar x^{k-m-1}\rangle
        + \alpha\, \sigma_k' P \sigma_k

with :math:`c_j = a_j - b_j`, :math:`C_l = \sum_{j>l} c_j`, and a constant history before the first state. For
nonconvex losses there is one tap with :math:`c_1 = 1`.
"""

import numpy as np
import numpy.typing as npt

from digrad.problems import Problem
from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.proof import Proof

Floats = npt.NDArray[np.floating]

ROUNDING = 1e-13  # of V, relative to the magnitudes of its terms


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
