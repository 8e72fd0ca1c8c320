"""Losses on a network, and a state of a run from which a certificate begins: what is computed of them, once."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.run_options import check_setting
from digrad.theory.arguments import CHANGES, Given, as_smoothness, check_start, uncovered
from digrad.theory.certificates.curvature_bounds import Losses
from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.storage_function import EPS, form_bound, perron_error
from digrad.theory.certificates.tap_search import TapSearch
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.closed_form import OUTWARD, has_closed_form
from digrad.theory.constants.norms import Norms, network_norms

Floats = npt.NDArray[np.floating]

TAPS = ((30, 4), (100, 2), (200, 1))  # up to so many agents, so many taps
LARGEST_NETWORK = TAPS[-1][0]
SPREADING = 20_000  # powers of R that are summed
TAIL = 0.05  # of the series of powers of R, which is bounded instead of summed
ROUNDED_UP = 1e-9  # relative, of V_0 - n f_inf, E_i and L_i, so that another machine finds no more
DRIFT = 1e-6  # by which trackers may miss the sum of the gradients, relatively: rounding, not a mistake
UNKNOWN = (
    "nothing is known of the smoothness of {!r}; pass smoothness=L, a bound of every Hessian norm, or "
    "smoothness=Smoothness(...)"
)


@dataclass(frozen=True, eq=False)
class Instance:
    """Losses on a network: what certificates, checks of runs and the paper's bound use of them, computed when asked.

    Attributes:
        problem: The losses.
        network: The network.
        constants: Smoothness of losses that are not built in; None for built-in ones.
        taps: J; None for as many as the size of the network allows.
    """

    problem: Problem
    network: Network
    constants: Smoothness | None = None
    taps: int | None = None
    _moved: dict[bytes, Floats] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, problem: Problem, network: Network, smoothness: Given, owner: str) -> "Instance":
        """Return the instance that a user describes, checked."""
        check_setting(problem, network, owner)
        return cls(problem, network, as_smoothness(smoothness, problem, owner))

    @cached_property
    def losses(self) -> Losses:
        """The losses."""
        return Losses.of(self.problem, self.constants)

    @cached_property
    def phases(self) -> tuple[Matrices, ...]:
        """The matrices of each step of a period."""
        return Matrices.of(self.network)

    @cached_property
    def search(self) -> TapSearch:
        """The search of taps: 1 where the network changes, as the history of the average would need more states."""
        most = (
            next(taps for largest, taps in TAPS if self.network.n <= largest) if len(self.phases) == 1 else 1
        )
        return TapSearch(self.phases, self.taps or most, self.losses.convex)

    @cached_property
    def relative(self) -> float:
        """A bound of the relative errors of u, v and the matrices."""
        return max(perron_error(self.phases), 4 * EPS)

    @cached_property
    def norms(self) -> Norms:
        """The norms of the paper's proof."""
        return network_norms(self.network)

    def moved(self, reach: Floats) -> Floats:
        """Return a bound of what clipped steps add to |e_x|, in units of alpha, ``[n]``: sum of |R^k - 1u'/n| reach."""
        if reach.tobytes() not in self._moved:
            self._moved[reach.tobytes()] = self._sum_of_powers(reach)
        return self._moved[reach.tobytes()]

    def _sum_of_powers(self, reach: Floats) -> Floats:
        matrices, n = self.phases[0], self.network.n
        if len(self.phases) > 1 or not np.isfinite(reach).all():
            return np.full(n, np.inf)  # the slack bounds e_x then
        reduced, power = matrices.R - matrices.u / n, matrices.project_R
        total, unit = np.zeros(n), 8 * ((n + 3) * EPS + self.relative)
        for count in range(1, SPREADING):
            total += np.abs(power) @ reach
            power = reduced @ power
            # Rows of |R^k - 1u'/n| sum to at most 2, so that the errors of a power add up to count + 1 units in a row.
            left = np.abs(power).sum(axis=1) + (count + 1) * unit
            if left.max() <= TAIL:  # |R^(K + k)| <= |R^K| |R^k| adds up to at most this
                total += count * (count + 1) / 2 * unit * float(reach.max())
                return (total + left * total.max() / (1 - float(left.max()))) * (1 + ROUNDED_UP)
        return np.full(n, np.inf)

    @cached_property
    def not_covered(self) -> str:
        """Why nothing can be said of the network, or an empty string."""
        reason, period = uncovered(self.network), self.network.period
        if reason and not (reason == CHANGES and period is not None):
            return reason
        if self.network.n * (period or 1) > LARGEST_NETWORK:
            phases = f" in {period} phases" if period != 1 else ""
            return (
                f"certificates are dense and computed for at most {LARGEST_NETWORK} agents, those of a network that "
                f"changes counted in every phase, but the network has {self.network.n}{phases}; certify a smaller one "
                "of the same kind"
            )
        if not all((phase.u > 0).all() and (phase.v > 0).all() for phase in self.phases):
            return "R or C is not strongly connected: the theorem divides by every u_i and v_i"
        return ""

    def not_certifiable(self, threshold: float) -> str:
        """Return why nothing can be said of the network or of the losses, or an empty string."""
        if self.not_covered:
            return self.not_covered
        if self.constants is None:
            return "" if has_closed_form(self.problem) else UNKNOWN.format(self.problem.name)
        if math.isinf(threshold) and self.constants.L1.any():
            return "an infinite threshold is covered only if all L1 are 0, or the losses are built in; clip"
        return ""

    def check_covered(self, owner: str) -> None:
        """Raise unless certificates are about networks like this one."""
        if self.not_covered:
            raise ArgumentError(f"`network` of {owner} is not covered: {self.not_covered}.")

    def start(self, x: Floats, y: Floats | None, reach: Floats) -> "Start":
        """Return the state from which a certificate begins, checked; without y the trackers are the gradients."""
        average = self.phases[0].u @ x / self.network.n
        _, gradients = check_start(self.problem, self.losses.lower_bound, average, x)
        if y is not None:
            drift = np.linalg.norm(y.sum(axis=0) - gradients.sum(axis=0))
            if drift > DRIFT * (np.linalg.norm(y, axis=1).sum() + np.linalg.norm(gradients, axis=1).sum()):
                raise ArgumentError(
                    "`y` of certify_state must sum to the gradients at x, as the trackers of a run do, but misses by "
                    f"{drift:.3g}."
                )
        return Start(self, x, gradients if y is None else y, reach)


@dataclass(frozen=True, eq=False)
class Start:
    """A state of a run: where a certificate begins.

    Attributes:
        instance: The losses and the network.
        x: ``[n, d]``.
        y: ``[n, d]``, whose sum is that of the gradients at x.
        reach: How far each agent moves by itself in one step, in units of alpha, ``[n]``: its threshold.
    """

    instance: Instance = field(repr=False)
    x: Floats = field(repr=False)
    y: Floats = field(repr=False)
    reach: Floats

    @property
    def losses(self) -> Losses:
        """The losses."""
        return self.instance.losses

    @property
    def phases(self) -> tuple[Matrices, ...]:
        """The matrices of each step of a period."""
        return self.instance.phases

    @property
    def matrices(self) -> Matrices:
        """R and C of the first step, with u and v."""
        return self.phases[0]

    @cached_property
    def consensus(self) -> Floats:
        """e_x, ``[n, d]``."""
        return self.x - self.matrices.u @ self.x / self.matrices.n

    @cached_property
    def tracking(self) -> Floats:
        """e_y, ``[n, d]``."""
        return self.y - np.outer(self.matrices.v, self.y.mean(axis=0))

    @cached_property
    def errors(self) -> tuple[Floats, Floats]:
        """Bounds of the rounding errors of the losses and gradients at x, ``[n]`` each."""
        return self.losses.rounding(self.x)

    @cached_property
    def base(self) -> tuple[float, float]:
        """Sum of f_i(x_i) minus <g, e_x>, and what rounding can do to it."""
        problem = self.instance.problem
        losses, gradients = problem.local_losses(self.x), problem.local_gradients(self.x)
        loss_error, grad_error = self.errors
        lengths = np.linalg.norm(self.consensus, axis=1)
        steep = np.linalg.norm(gradients, axis=1)
        slips = self.rounding(self.x)
        error = loss_error.sum() + np.sum(grad_error * (lengths + slips) + steep * slips)
        error += OUTWARD * float(np.abs(losses).sum() + steep @ lengths)
        return float(losses.sum() - np.sum(gradients * self.consensus)), float(error)

    @cached_property
    def level(self) -> float:
        """F at the average, rounded up: twice what rounding of the average and of F can do, for the second order."""
        n, problem = self.matrices.n, self.instance.problem
        average = np.tile(self.matrices.u @ self.x / n, (n, 1))
        losses, steep = (
            problem.local_losses(average),
            np.linalg.norm(problem.local_gradients(average), axis=1),
        )
        error = self.losses.rounding(average)[0] + steep * self.rounding(self.x)
        return float(losses.mean()) + 2 * float(error.mean()) + OUTWARD * float(np.abs(losses).mean())

    @cached_property
    def spread(self) -> Floats:
        """The largest |e_x| of each agent in a run without steps on a fixed network, ``[n]``."""
        error, worst, n = self.consensus, np.zeros(self.matrices.n), self.matrices.n
        longest, count = np.linalg.norm(error, axis=1).max(), 0
        while count < SPREADING:
            lengths = np.linalg.norm(error, axis=1)
            worst = np.maximum(worst, lengths)
            if lengths.max() <= worst.min() or lengths.max() <= EPS * longest:
                break
            error, count = self.matrices.R @ error, count + 1
        else:
            worst = np.maximum(worst, np.linalg.norm(error, axis=1).max())  # which never grows
        return worst * (1 + OUTWARD) + float(self.rounding(self.x).max()) + count * (n + 4) * EPS * longest

    @property
    def moved(self) -> Floats:
        """A bound of what clipped steps add to |e_x|, in units of alpha, ``[n]``."""
        return self.instance.moved(self.reach)

    def width(self, proof: Proof) -> Floats:
        """Return E_i, ``[n]``: clipped steps are short, and V - n F(xbar) >= s |e_x|^2/alpha where there is slack.

        The second counts for built-in losses, which are continued beyond the region, and not below where agents are.
        """
        clipped = self.spread + proof.step_size * self.moved
        if proof.slack <= 0 or self.losses.constants is not None:
            return clipped
        together = math.sqrt(proof.step_size / proof.slack * proof.budget) * (1 + OUTWARD)
        return np.minimum(clipped, np.maximum(together, self.spread))

    def needed(self, proof: Proof) -> Floats:
        """Return the curvature of the losses on the region of a proof, ``[n]``."""
        moved = len(proof.taps.a) * proof.step_size * float(self.reach.max())
        return self.losses.curvature(proof.level, proof.width, moved)

    def potential(self, step_size: float, P: Floats) -> float:
        """Return an upper bound of V_0."""
        k, v = self.matrices.n - 1, self.matrices.v
        value, error = self.base
        eta = np.vstack([self.consensus[:k] / step_size, self.tracking[:k]])
        x_slips = self.rounding(self.x) / step_size
        y_slips = self.rounding(self.y) + (1 + v) * self.errors[1].max()  # of gradients and of their mean
        slips = np.concatenate([x_slips[:k], y_slips[:k]])
        return value + error + step_size * form_bound(P[: 2 * k, : 2 * k], eta, slips)

    def rounding(self, rows: Floats) -> Floats:
        """Return what rounding can do to each agent's distance from the average, ``[n]``."""
        size = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
        unit = self.instance.relative + 4 * self.matrices.n * EPS
        return np.full(self.matrices.n, unit * size * float(max(self.matrices.v.max(), 1.0)))
