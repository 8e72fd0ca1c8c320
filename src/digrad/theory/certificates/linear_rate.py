r"""The linear rate of a certified run, where F grows like a square around its minimum.

Let :math:`|\nabla F|^2 \ge 2 m \min(F - F_*, h)`: F is convex, and m-strongly convex where :math:`F \le F_* + h`. What
V exceeds :math:`n F_*` by is then at most :math:`\kappa` times what an unclipped step lowers V by:

.. math::
    V - n F(\bar x) \le \alpha\, q(\sigma), \qquad
    n (F(\bar x) - F_*) \le \frac1{2mn} \Big(|1'y| + \sum_i L_i |e_i|\Big)^2,

and both right sides are quadratic forms in y and the states of the storage, as the decrease is. Hence
:math:`b_k = V_k - n F_*` falls by at least :math:`\min(b_k/\kappa,\ n h/\kappa,\ \beta)` in a step, :math:`\beta` being
the smallest decrease of a step in which a tracker is clipped (section 1.10 of the page on the theory).
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import linalg

from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.storage_function import (
    Bounded,
    Term,
    bases,
    first_rows,
    form_of,
    history,
    is_negative_form,
    mean_of,
    stacked,
)

Floats = npt.NDArray[np.floating]

ROOM = 1e-3  # by which kappa is above what was computed, relatively, so that it can be proved


def contraction(phases: tuple[Matrices, ...], proof: Proof, shares: Floats, *, relative: float) -> float:
    """Return kappa, proved; infinite if there is none.

    Args:
        phases: The matrices of each step of a period.
        proof: With its storages, m and h.
        shares: The step of each agent relative to the largest, ``[n]``.
        relative: How far the entries of R, C, u and v may be from exact ones, relatively.
    """
    if not _is_known(proof):
        return math.inf
    found = _least(phases, proof, shares)
    for phase, P in zip(phases, proof.storages, strict=True):
        above, falls = _forms(phase, proof, P, shares)
        try:
            found = max(found, linalg.eigh(above.value, falls.value, eigvals_only=True)[-1])
        except linalg.LinAlgError:
            return math.inf
    found = float((1 + ROOM) * found)
    return found if is_contraction(phases, proof, shares, found, relative=relative) else math.inf


def is_contraction(
    phases: tuple[Matrices, ...], proof: Proof, shares: Floats, kappa: float, *, relative: float
) -> bool:
    """Return whether kappa is proved to bound what V exceeds n inf F by, in units of the decrease of a step."""
    if not _is_known(proof) or kappa < (1 + ROOM / 2) * _least(phases, proof, shares):
        return False
    for phase, P in zip(phases, proof.storages, strict=True):
        above, falls = _forms(phase, proof, P, shares)
        scale = np.exp2(np.round(-np.log2(np.diag(falls.value)) / 2))
        if not is_negative_form(above - falls.times(kappa), scale, relative=relative):
            return False
    return True


def _is_known(proof: Proof) -> bool:
    return min(proof.modulus, proof.kept, proof.slack, proof.past) > 0


def _parts(matrices: Matrices, proof: Proof, shares: Floats) -> tuple[float, float]:
    """Return what n (F - inf F) is at most times the decreases by <p, D y> and by |e_x|^2: their sum is enough."""
    unit = 1 / (2 * proof.modulus * matrices.n * proof.step_size)
    moved = float(np.sum(1 / (matrices.ratio * shares))) / proof.kept
    apart = proof.step_size**2 * float(np.sum(proof.curvature**2)) / proof.slack if matrices.n > 1 else 0.0
    return unit * moved, unit * apart


def _least(phases: tuple[Matrices, ...], proof: Proof, shares: Floats) -> float:
    return max(sum(_parts(phase, proof, shares)) for phase in phases)


def _forms(matrices: Matrices, proof: Proof, P: Floats, shares: Floats) -> tuple[Bounded, Bounded]:
    """Return forms in (y, a, d, h), in units of alpha: what V - n inf F does not exceed, and what V falls by."""
    n, k, taps, alpha = matrices.n, matrices.n - 1, proof.taps, proof.step_size
    count, L, later = len(taps.a), Bounded.exact(np.diag(proof.curvature)), proof.later.tolist()
    size = float(np.arange(1, count + 1) @ (taps.a + taps.b)) if proof.convex else 1.0
    y, a, *past = stacked([n, k, *[n] * (2 * count - 2)])
    d, h = past[: count - 1], past[count - 1 :]
    u, one = Bounded.exact(matrices.u[None]), Bounded.exact(np.ones((1, n)))
    ex = bases(matrices)[0] @ a
    ey = (Bounded.exact(np.eye(n)) - mean_of(matrices.v).T) @ y
    sigma = Bounded.stack([a, first_rows(ey, k), *past])
    above: list[Term] = [(sigma, Bounded.exact(P) @ sigma, 1.0, 0.0)]
    above += [(one @ h[j], u @ d[j], later[j + 1] / n, size / n) for j in range(count - 1)]
    for j in range(count - 2):
        above.append((one @ h[j], u @ (d[j + 1] - d[j]), -sum(later[j + 2 :]) / n, count * size / n))
    for away, weight in zip([ex, *(ex - each for each in d)], later, strict=True):
        negative = -weight if proof.convex else 1.0  # convex losses lie above their tangents
        if negative > 0:
            above.append((away, L @ away, negative * alpha / 2, size * alpha / 2))
    moved, apart = _parts(matrices, proof, shares)
    ratio, unit = apart / moved, 1 / (2 * proof.modulus * n * alpha)
    above.append((one @ y, one @ y, (1 + ratio) * unit, 0.0))
    if k:
        grown = float(np.sum(proof.curvature**2))
        above.append((ex, ex, (1 + 1 / ratio) * unit * alpha**2 * grown, 0.0))
    weighted = Bounded.exact(np.diag(matrices.ratio * shares))
    falls: list[Term] = [(y, weighted @ y, proof.kept, 0.0), (ex, ex, proof.slack, 0.0)]
    return form_of(above), form_of([*falls, *history(d, h, proof)])
