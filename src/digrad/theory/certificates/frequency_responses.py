r"""The largest step size that a quadratic storage certifies, from the frequency responses of R and C.

With :math:`W(z) = (z-1)(zI-R)^{-1}`, :math:`Y(z) = (z-1)(zI-C)^{-1}` and :math:`D = \mathrm{diag}(u_i/v_i)`, taps
:math:`a_j, b_j \ge 0` with :math:`\sum_j j(a_j - b_j) = 1` and
:math:`M(z) = \sum_j a_j (1 - z^{-j}) + b_j (1 - z^j)`, every step size below :math:`\alpha_{\max}` is certified:

.. math::
    \frac1{\alpha_{\max}} = \sup_\omega
        \frac{\|L^{1/2}\,[Y(z)^* D - \tfrac{M(z)}{z-1} W(z)]\,D^{-1/2}\|^2}{4\,\mathrm{Re}\,M(z)},
        \qquad z = e^{i\omega},

for convex losses; for nonconvex ones, with one scalar :math:`\tau > 0`,

.. math::
    \frac1{\alpha_{\max}} = \sup_\omega \lambda_{\max}\Big(D^{-1/2}\Big[
        \frac{(Y^*D - W)^* L (Y^*D - W)}{4\tau |z-1|^2} + (\tfrac12 + \tau) W^* L W\Big] D^{-1/2}\Big).

Both suprema are convex functions of the taps: a norm squared over a positive linear function, and its like. The best
taps are found by cutting planes, each a linear program. Nothing here is a proof: frequencies form a grid. What is found
is a proposal, which :mod:`~digrad.theory.certificates.storage_function` verifies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import optimize

from digrad.network import Network

Floats = npt.NDArray[np.floating]

LOW, HIGH = np.geomspace(1e-3, 0.1, 12), np.linspace(0.1, np.pi - 1e-6, 90)[1:]  # frequencies of the grid
REFINED = 5  # frequencies added around every peak, in a round of refinement
REFINEMENTS = 4
PEAKS = 6  # of which cuts are added in a round
ROUNDS = 80
GAP = 5e-4  # relative, between the best taps and the bound of the linear program: when to stop
LARGEST_TAP = 50.0
LEAST_REAL = 1e-3  # of 4 Re M/|z - 1|^2: taps whose M vanishes somewhere certify nothing
TAUS = (-7.0, 4.0)  # logarithms between which the scalar of nonconvex losses is sought


class Taps(NamedTuple):
    """Multipliers of the interpolation inequalities, and the step size that they promise."""

    a: Floats  # [J] of f(x_k) - f(x_{k-j}) <= ...; for nonconvex losses (0,)
    b: Floats  # [J] of the reverse inequality; for nonconvex losses (tau,)
    step_size: float  # the supremum of certified steps, as far as the grid of frequencies knows


@dataclass(frozen=True, eq=False)
class Matrices:
    """R and C of one step as dense arrays, with the weights of the averages before and after it, all of sum n.

    They obey :math:`u' = u_+' R` and :math:`v_+ = C v`; on a fixed network both are Perron vectors and stay.
    """

    R: Floats
    C: Floats
    u: Floats
    v: Floats
    next_u: Floats
    next_v: Floats

    @classmethod
    def of(cls, network: Network) -> "tuple[Matrices, ...]":
        """Return the matrices of every step of a period; a fixed network has one."""
        members = [network.at(k) for k in range(network.period or 1)]
        R, C = [one.R.toarray() for one in members], [one.C.toarray() for one in members]
        u, v = [_perron(product(R).T)], [_perron(product(C))]
        for pull, push in zip(reversed(R), C, strict=True):
            u.append(pull.T @ u[-1])
            v.append(push @ v[-1])
        u.reverse()
        return tuple(cls(R[k], C[k], u[k], v[k], u[k + 1], v[k + 1]) for k in range(len(members)))

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.u)

    @cached_property
    def ratio(self) -> Floats:
        """u_i/v_i, the diagonal of D: how an agent's step moves the average, and its share of the tracked gradient."""
        return self.next_u / self.v

    @cached_property
    def project_R(self) -> Floats:  # noqa: N802
        """P_R = I - 1 u'/n, after the step."""
        return np.eye(self.n) - self.next_u / self.n


def product(matrices: Sequence[Floats]) -> Floats:
    """Return what the matrices do one after the other: the last one stands first."""
    return reduce(lambda before, one: one @ before, matrices)


def _perron(M: Floats) -> Floats:
    """Return the solution of M u = u with sum n."""
    n = len(M)
    bordered = M - np.eye(n)
    bordered[-1] = 1.0
    return np.linalg.solve(bordered, np.append(np.zeros(n - 1), n))


class _Responses:
    """Responses at some frequencies, divided by |z - 1|, with the cancellation at z = 1 done by hand."""

    def __init__(self, matrices: Matrices, curvature: Floats, taps: int, w: Floats) -> None:
        n, R, C, u, v = matrices.n, matrices.R, matrices.C, matrices.u, matrices.v
        z, phase = np.exp(1j * w), 1j * np.exp(0.5j * w)  # phase = (z - 1)/|z - 1|
        left, right = np.sqrt(curvature)[:, None], 1 / np.sqrt(matrices.ratio)
        identity = z[:, None, None] * np.eye(n)
        pull = np.linalg.solve(identity - (R - u / n), matrices.project_R[None] + 0j)
        project_C = np.eye(n) - matrices.next_v[:, None] / n
        push = np.linalg.solve(identity - (C - v[:, None] / n), project_C[None] + 0j)
        self.w, self.z, self.taps = w, z, taps
        self.mean = left * np.tile(u / n, (n, 1)) * right
        self.pull = left * (phase[:, None, None] * pull) * right
        self.push = left * (phase[:, None, None] * push).conj().swapaxes(1, 2) * matrices.ratio * right
        past = [sum(z**-i for i in range(1, j + 1)) for j in range(taps + 1)]  # (1 - z^-j)/(z - 1)
        ahead = [sum(z**i for i in range(j)) if j else 0 * z for j in range(taps + 1)]  # -(1 - z^j)/(z - 1)
        some = range(1, taps + 1)
        # M/(z - 1), and (1 - M/(z - 1))/|z - 1|, which is linear in the taps because sum_j j (a_j - b_j) = 1.
        self.m = np.array([past[j] for j in some] + [-ahead[j] for j in some])
        self.gap = phase * np.array(
            [sum(past[i] for i in range(1, j + 1)) for j in some]
            + [sum(ahead[i] for i in range(j)) for j in some]
        )
        real = np.array([2 * (np.sin(j * w / 2) / np.sin(w / 2)) ** 2 for j in some])
        self.real = np.concatenate([real, real])  # 4 Re M/|z - 1|^2

    def numerator(self, taps: Floats) -> Any:
        """Return L^.5 [Y^* D - M/(z - 1) W] D^-.5/|z - 1| at all frequencies."""
        gap, m = (taps @ self.gap)[:, None, None], (taps @ self.m)[:, None, None]
        return gap * self.mean + self.push - m * self.pull

    def nonconvex(self, tau: float) -> Floats:
        """Return 1/alpha_max at all frequencies."""
        numerator = self.push - self.pull
        W = self.mean + np.abs(self.z - 1)[:, None, None] * self.pull
        form = _adjoint(numerator) @ numerator / (4 * tau) + (0.5 + tau) * _adjoint(W) @ W
        return np.linalg.eigvalsh(form)[:, -1]


def largest_step(
    matrices: Matrices, curvature: Floats, *, taps: int, convex: bool = True, start: Taps | None = None
) -> Taps:
    """Return the multipliers that promise the largest step size.

    Args:
        matrices: Of the network.
        curvature: L_i, ``[n]``, positive.
        taps: J, at least 1; nonconvex losses have one.
        convex: Whether all losses are convex.
        start: Taps of a similar problem, from which the search begins.

    Example:
        >>> from digrad.graphs import complete
        >>> from digrad.network import Network
        >>> (matrices,) = Matrices.of(Network(complete(4)))
        >>> round(largest_step(matrices, np.full(4, 2.0), taps=1).step_size, 3)
        0.25
    """
    w, unit = np.concatenate([LOW, HIGH]), float(curvature.max())  # linear programs have absolute tolerances
    found = None
    for _ in range(REFINEMENTS):
        responses = _Responses(matrices, curvature / unit, taps if convex else 1, w)
        new, values = _best_taps(responses, found or start) if convex else _best_tau(responses)
        is_settled = found is not None and new.step_size >= (1 - GAP) * found.step_size
        found, w = new, _refined(w, values)
        if is_settled:
            break
    assert found is not None
    return found._replace(step_size=found.step_size / unit)


def _best_tau(responses: _Responses) -> tuple[Taps, Floats]:
    """Return the best scalar of nonconvex losses: the supremum is a convex function of it."""
    found = optimize.minimize_scalar(
        lambda s: responses.nonconvex(np.exp(s)).max(), bounds=TAUS, method="bounded", options={"xatol": GAP}
    )
    tau = float(np.exp(found.x))
    values = responses.nonconvex(tau)
    return Taps(np.zeros(1), np.array([tau]), float(1 / values.max())), values


def _best_taps(responses: _Responses, start: Taps | None) -> tuple[Taps, Floats]:
    """Return the best taps by Kelley's cutting planes: s^2/y >= 2 t s - t^2 y with equality at t = s/y."""
    count = responses.taps
    taps = np.zeros(2 * count)
    taps[0], taps[count] = 2.0, 1.0
    if start is not None:
        taps = np.concatenate([start.a, start.b])
    balance = np.concatenate([np.arange(1, count + 1), -np.arange(1, count + 1), [0]])
    rows, limits = [np.append(-column, 0) for column in responses.real.T], [-LEAST_REAL] * len(responses.w)
    best, best_taps, values, low = np.inf, taps, np.zeros(0), 0.0
    for i in range(ROUNDS):
        numerator, real = responses.numerator(taps), taps @ responses.real
        U, S, V = np.linalg.svd(numerator)
        now = S[:, 0] ** 2 / real
        if now.max() < best:
            best, best_taps, values = float(now.max()), taps, now
        if best - low <= GAP * best:
            break
        for k in _peaks(now):
            left, right, t = U[k, :, 0].conj(), V[k, 0].conj(), S[k, 0] / real[k]
            slope = responses.gap[:, k] * (left @ responses.mean @ right) - responses.m[:, k] * (
                left @ responses.pull[k] @ right
            )
            rows.append(np.append(2 * t * slope.real - t**2 * responses.real[:, k], -1))
            limits.append(-2 * t * (left @ responses.push[k] @ right).real)
        found = optimize.linprog(
            np.append(np.zeros(2 * count), 1), A_ub=np.array(rows), b_ub=limits, A_eq=balance[None], b_eq=[1],
            bounds=[(0, LARGEST_TAP)] * (2 * count) + [(0, None)],
        )  # fmt: skip
        if not found.success:
            break
        low = found.fun
        taps = found.x[:-1] if i % 2 == 0 else (found.x[:-1] + best_taps) / 2  # every other round half way
    taps = np.maximum(best_taps, 0)
    taps = taps / float(balance[:-1] @ taps)  # linear programs end near 1
    return Taps(taps[:count], taps[count:], 1 / best), values


def _peaks(values: Floats) -> list[int]:
    before, after = np.append(-np.inf, values[:-1]), np.append(values[1:], -np.inf)
    peaks = np.flatnonzero((values >= before) & (values >= after))
    return [int(k) for k in sorted(peaks, key=lambda k: -values[k])[:PEAKS]]


def _refined(w: Floats, values: Floats) -> Floats:
    """Return the grid with more frequencies around its peaks: on long rings these are narrow."""
    last = len(w) - 1
    around = [np.linspace(w[max(k - 1, 0)], w[min(k + 1, last)], 2 * REFINED + 1) for k in _peaks(values)]
    return np.unique(np.concatenate([w, *around]))


def _adjoint(matrices: Any) -> Any:
    return matrices.conj().swapaxes(1, 2)
