r"""Bounds in expectation for runs with mini-batches, with a floor that more steps do not lower.

Gradients are :math:`\hat g_i = g_i + \xi_i` with :math:`E[\xi_i | \text{past}] = 0` and
:math:`E|\xi_i|^2 \le \sigma_i^2`, independent between agents. Noise leaves every region, so that the curvature
bounds must hold everywhere.

**Theorem S** (AB, convex losses). In :math:`z = y - \hat g` the noise is white. With
:math:`\omega'(I - C) = u' - (u'v/n) 1'`, :math:`\psi = \bar x - (\alpha/n)\, \omega' z` is moved by the mean gradient
alone, and :math:`V = |\psi - \psi_*|^2 + (2 \alpha^2 u'v/n^2)\, \eta' P \eta`, :math:`\eta` the errors of x and z,
falls if :math:`\alpha < \alpha_{circ}`. The mean excess of K steps is at most transient/K plus a floor of O(alpha).

**Theorem M** (clipping). The trackers contain filtered noise :math:`\nu`; of the certificate without noise a share of
its decrease pays for it. What is bounded are the mean steps, not the distance to the minimum: clipping is biased.
"""

import math
import reprlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import linalg

from digrad import checks
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.problems.logistic import Logistic
from digrad.simulation.run_options import make_start
from digrad.theory.arguments import Given
from digrad.theory.bisection import last_step
from digrad.theory.certificates.curvature_bounds import Losses
from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.instance import ROUNDED_UP, Instance, Start
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.prove_step_size import DISTANCE, FLATTEST
from digrad.theory.certificates.storage_function import (
    DEPTH,
    EPS,
    Bounded,
    Supply,
    bases,
    find_storages,
    first_rows,
    form_bound,
    form_of,
    is_negative,
    mean_of,
    prove_storages,
    solution_error,
    stacked,
)
from digrad.theory.certificates.tap_search import TOLERANCE
from digrad.theory.constants.closed_form import OUTWARD, closed_form

Floats = npt.NDArray[np.floating]

STEPS = (1e-6, 10.0)  # times the inverse curvature, between which the largest step lies
SHARES = (0.95, 0.9, 0.7, 0.5, 0.3, 0.1)  # of 1 - alpha/alpha_max that V keeps to fall by


class BatchBound(NamedTuple):
    """A bound of the mean of K steps, in expectation: transient/K + floor.

    Of theorem S it is one of the mean excess :math:`f_i(x_i) - f_i(x_*) - <grad f_i(x_*), x_i - x_*>` over agents and
    steps; of theorem M one of :math:`\\sum_i (u_i/v_i) <p_i, y_i>`, where CGT has :math:`<p, y> = min(|y|^2, c0 |y|)`
    and SoftCGT less.
    """

    theorem: str  # "S" or "M"
    step_size: float
    alpha_max: float  # the largest step of the theorem
    transient: float
    floor: float
    noise: Floats  # [n] sigma_i^2

    def after(self, steps: int) -> float:
        """Return the bound after so many steps."""
        return self.transient / steps + self.floor

    def __str__(self) -> str:
        """Return what is bounded, in a sentence."""
        if self.theorem == "S":
            what = "the excess loss, in the mean over agents and K steps, is"
        else:
            what = "steps stay bounded, which says nothing of accuracy: the mean of sum (u/v) <p, y>, p = clipped y, is"
        return f"theorem {self.theorem}, in expectation: {what} at most {self.transient:.3g}/K + {self.floor:.3g}"


def certify_batches(
    problem: Problem,
    network: Network,
    *,
    step_size: float,
    batch_size: int | None = None,
    threshold: float = math.inf,
    x0: npt.ArrayLike | None = None,
    smoothness: Given = None,
    noise: npt.ArrayLike | None = None,
) -> BatchBound | None:
    """Return what is proven of AB, or of CGT if there is a threshold, with mini-batches; None above its largest step.

    Args:
        problem: Losses whose curvature is bounded everywhere: quadratics, logistic regression with powers of 2, or with
            given constants without L1.
        network: A fixed network.
        step_size: alpha.
        batch_size: Samples per agent and step, drawn with replacement; bounds the noise of logistic regression.
        threshold: c0; without one this is AB, which needs convex losses.
        x0: The start.
        smoothness: Smoothness of losses that are not built in.
        noise: Bounds of :math:`E|\\xi_i|^2`, one for all agents or one each, where they are not known.

    Raises:
        ArgumentError: An argument is malformed, or the theorems do not cover the losses or the network.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import logistic
        >>> problem = logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=2)
        >>> found = certify_batches(problem, Network(example5()), step_size=0.03, batch_size=32)
        >>> found.theorem, found.floor < 0.05
        ('S', True)
    """
    instance = Instance.of(problem, network, smoothness, "certify_batches")
    checks.positive(step_size, "step_size", "certify_batches")
    checks.positive(threshold, "threshold", "certify_batches", allow_inf=True)
    instance.check_covered("certify_batches")
    if network.period != 1:
        raise ArgumentError("`network` of certify_batches is not covered: it changes with time.")
    x, reach = make_start(x0, problem, 0), np.full(network.n, float(threshold))
    start = instance.start(x, None, reach)
    curvature, variance = _curvature(start.losses), _noise(problem, batch_size, noise)
    if math.isfinite(threshold):
        return _clipped(start, curvature, variance, float(step_size))
    if not start.losses.convex:
        raise ArgumentError(
            "`smoothness` of certify_batches must assert convex=True for AB: theorem S is about convex losses."
        )
    return _unclipped(start, curvature, variance, float(step_size))


def _curvature(losses: Losses) -> Floats:
    constants = losses.constants or closed_form(losses.problem)
    if constants.L1.any():
        raise ArgumentError(
            f"`problem` of certify_batches must have curvature that is bounded everywhere, which {losses.problem.name} "
            "has not: noise may lead anywhere; use regularisers of power 2, or full gradients."
        )
    return np.maximum(constants.L0, FLATTEST * constants.L0.max())


def _noise(problem: Problem, batch_size: int | None, given: npt.ArrayLike | None) -> Floats:
    """Return sigma_i^2 ``[n]``: as given, or of logistic regression the mean of |h|^2 over the batch size."""
    if given is not None:
        try:
            found = np.broadcast_to(np.asarray(given, float), (problem.n_agents,))
        except (TypeError, ValueError):
            found = np.full(1, np.nan)
        if not (np.isfinite(found).all() and (found >= 0).all()):
            raise ArgumentError(
                "`noise` of certify_batches must be finite and at least 0, for all agents or one each, but got "
                f"{reprlib.repr(given)}."
            )
        return found
    if not isinstance(problem.local, Logistic) or batch_size is None:
        raise ArgumentError(
            "`noise` of certify_batches must be given, a bound of E|xi_i|^2: it is known only of logistic regression "
            "with a `batch_size`."
        )
    checks.count(batch_size, "batch_size", "certify_batches")
    squares = [
        block.multiply(block) if hasattr(block, "multiply") else block**2 for block in problem.local.features
    ]
    return np.array([each.sum() / each.shape[0] for each in squares]) / batch_size


def _unclipped(start: Start, curvature: Floats, noise: Floats, step_size: float) -> BatchBound | None:
    matrices, unit, losses = start.matrices, float(curvature.max()), start.losses
    n, k = matrices.n, matrices.n - 1
    omega, inexact = _omega(matrices, start.instance.relative)

    def prove(step: float) -> Floats | None:
        form = _circle(matrices, curvature / unit, step, omega, inexact)
        found = find_storages([form])
        return (
            found[0]
            if found and is_negative(form, found[0], found[0], relative=start.instance.relative)
            else None
        )

    scaled = last_step(lambda step: prove(step) is not None, *STEPS, tolerance=TOLERANCE)
    P, share = prove(scaled), step_size * unit / scaled
    if P is None or share >= 1:
        return None
    minimum = losses.problem.solve(tolerance=1e-6)
    there = np.broadcast_to(minimum.x, start.x.shape)
    gradients, (_, grad_error) = losses.problem.local_gradients(there), losses.rounding(there)
    # The minimum is within |grad F|/m of the computed one, and the gradients there are within L times that.
    away = (minimum.grad_norm + grad_error.mean()) / losses.modulus if losses.modulus else 0.0
    slips = grad_error + curvature * away
    uv = float(matrices.u @ matrices.v)
    moved, weight = step_size * uv / n, 2 * step_size**2 * uv / n**2
    psi = float(np.linalg.norm(matrices.u @ start.x / n - minimum.x - step_size / n * omega @ gradients))
    lengths = np.linalg.norm(gradients, axis=1)
    psi += away + float(start.rounding(start.x).max()) + OUTWARD * float(np.linalg.norm(minimum.x))
    off = np.abs(omega) @ (slips + OUTWARD * lengths) + inexact * (lengths + slips).sum()
    psi += step_size / n * float(off)
    eta = np.vstack([start.consensus[:k] / step_size, gradients[:k]])
    off = np.concatenate([start.rounding(start.x)[:k] / step_size, slips[:k]])
    potential = psi**2 + weight * form_bound(P, eta, off)
    kick = _circle(matrices, curvature / unit, scaled, omega, inexact).step.value[:, 2 * k :]
    spread = np.einsum("si,st,ti->i", kick, P, kick)
    spread += OUTWARD * np.einsum("si,st,ti->i", *map(np.abs, (kick, P, kick)))
    gained = moved**2 * noise.sum() / n**2 + weight * float(spread @ noise)
    rate = 2 * moved * (1 - share) / (1 + ROUNDED_UP)
    return BatchBound("S", step_size, float(scaled) / unit, potential / rate, float(gained / rate), noise)


def _omega(matrices: Matrices, relative: float) -> tuple[Floats, float]:
    """Return the solution of omega'(I - C) = u' - (u'v/n) 1' with omega'v = 0, and what its entries are off by."""
    n, u, v = matrices.n, matrices.u, matrices.v
    A, right = np.eye(n) - matrices.C.T + v / n, u - u @ v / n
    omega = np.linalg.solve(A, right)
    size = np.abs(A) @ np.abs(omega) + np.abs(u) + u @ v / n
    residual = np.abs(A @ omega - right) + (4 * relative + 4 * n * EPS) * size
    return omega, solution_error(A, residual, 4 * relative)


def _circle(matrices: Matrices, curvature: Floats, step_size: float, omega: Floats, inexact: float) -> Supply:
    """Return the form whose storage proves theorem S up to a step, and one step of eta = (a, b) driven by g."""
    n, k = matrices.n, matrices.n - 1
    a, b, g = stacked([k, k, n])
    to_x, to_y = bases(matrices)
    R, C, unit = (Bounded.exact(each) for each in (matrices.R, matrices.C, np.eye(n)))
    onto, one = unit - mean_of(matrices.u), Bounded.exact(np.ones((1, n)))
    # A form allows for errors of 16 units of the sizes of its entries at least.
    mixed = Bounded(omega[None], np.abs(omega[None]) + inexact / (DEPTH * EPS))
    ex, z = to_x @ a, to_y @ b
    form = form_of(
        [
            (g, ex, 1.0, 0.0),
            (one @ g, mixed @ z, 1 / n, 0.0),
            (one @ g, one @ g, float(matrices.u @ matrices.v) / (2 * n**2), 0.0),
            (g, Bounded.exact(np.diag(1 / curvature)) @ g, -1 / step_size, 0.0),
        ]
    )
    after = [first_rows(R @ ex - onto @ (z + g), k), first_rows(C @ z + (C - unit) @ g, k)]
    return Supply(Bounded.stack(after), form, np.ones(2 * k + n))


def _clipped(start: Start, curvature: Floats, noise: Floats, step_size: float) -> BatchBound | None:
    phases, convex, losses = start.phases, start.losses.convex, start.losses
    taps = start.instance.search.best(curvature)
    room = 1 - step_size / ((1 - DISTANCE) * taps.step_size)
    matrices, n = start.matrices, start.matrices.n
    reduced = matrices.C - matrices.v[:, None] / n
    mixed = linalg.solve_discrete_lyapunov(reduced, np.diag(noise))
    drift = matrices.C - np.eye(n)
    energy = float(matrices.ratio @ (noise + np.diag(drift @ mixed @ drift.T)))
    found = []
    for kept in (share * room for share in SHARES if room > 0):
        asked = Proof(step_size, taps, curvature, convex, kept)
        if storages := prove_storages(phases, asked, relative=start.instance.relative):
            budget = max(0.0, start.potential(step_size, storages[0]) - n * losses.lower_bound)
            transient, floor = 2 * budget / (kept * step_size), energy / kept**2
            found.append(BatchBound("M", step_size, taps.step_size, transient, floor, noise))
    return min(found, key=lambda bound: bound.floor) if found else None
