r"""The norms in which mixing contracts: explicit, with every constant computed from the matrix itself.

A norm here is :math:`\|z\| = \|T z\|_2` with T symmetric positive definite, scaled so that
:math:`\|z\|_2 \le \|z\|`; of a stacked array it is :math:`\|T X\|_F`. The paper only asserts that such norms
exist ("sigma arbitrarily close to rho"); being close to rho is a bad choice, because the equivalence constant
delta explodes, so the norm is selected by what the theory needs: the smallest :math:`\kappa/(1 - \sigma)`.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError, MixingError
from digrad.network import Network
from digrad.theory.arguments import check_covered

Floats = npt.NDArray[np.floating]

LARGEST_NETWORK = 500  # agents up to which the dense linear algebra of all norms takes a minute or two
DOUBLINGS = 60
SVD_LIMIT = 64  # beyond it the largest eigenvalue of the Gram matrix is several times faster
LARGEST_WEIGHT = 1e12  # a norm more distorted than this is useless, and its factor inaccurate
LYAPUNOV_FRACTIONS = (0.02, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.0, 1.3, 1.8, 3.0)  # of the gap 1 - rho


@dataclass(frozen=True, eq=False)
class WeightedNorm:
    r"""The norm :math:`\|T z\|_2` together with what a mixing matrix does in it.

    Attributes:
        factor: T, ``[n, n]``, symmetric positive definite, smallest eigenvalue 1.
        kind: ``"diagonal"`` or ``"lyapunov"``.
        sigma: Induced norm of the mixing matrix without its Perron part; below 1.
        tau: Induced norm of the projection :math:`I - 1u^T/N` (or :math:`I - v1^T/N`).
        kappa: Norm of the same projection from the Euclidean norm to this one; at most tau times delta.
        delta: :math:`\|T\|_2`, so that the norm is at most delta times the Euclidean one.
        rho: Spectral radius of the mixing matrix without its Perron part; a lower bound of sigma.
    """

    factor: Floats = field(repr=False)
    kind: str
    sigma: float
    tau: float
    kappa: float
    delta: float
    rho: float

    def of(self, stacked: npt.ArrayLike) -> Floats:
        """Return the norm of stacked arrays ``[..., n, d]``, one number for each."""
        return np.linalg.norm(self.factor @ np.asarray(stacked, np.float64), axis=(-2, -1))

    def induced(self, matrix: npt.ArrayLike) -> float:
        """Return the induced norm of a matrix ``[n, n]``."""
        return _spectral(self.factor @ np.asarray(matrix) @ np.linalg.inv(self.factor))


@dataclass(frozen=True, eq=False)
class Norms:
    """The norms of a network, with its Perron vectors and the figures that the chains of constants share."""

    u: Floats = field(repr=False)
    v: Floats = field(repr=False)
    R: WeightedNorm
    C: WeightedNorm

    @property
    def n(self) -> int:
        """Number of agents N."""
        return len(self.u)

    @property
    def uv(self) -> float:
        """u'v, positive whatever the zeros of u, because v has none."""
        return float(self.u @ self.v)

    def consensus(self, x: npt.ArrayLike) -> Floats:
        """Return e_x = x - 1 xbar' for stacked x ``[..., n, d]``, xbar the average weighted by u."""
        x = np.asarray(x, np.float64)
        return x - self.average(x)[..., None, :]

    def average(self, x: npt.ArrayLike) -> Floats:
        """Return xbar = u'x/N ``[..., d]``."""
        return np.einsum("i,...id->...d", self.u / self.n, np.asarray(x, np.float64))

    def tracking(self, y: npt.ArrayLike) -> Floats:
        """Return e_y = y - v ybar' for stacked y ``[..., n, d]``, ybar the plain mean."""
        y = np.asarray(y, np.float64)
        return y - self.v[:, None] * y.mean(axis=-2, keepdims=True)


def network_norms(network: Network) -> Norms:
    """Return the norms of a network with the smallest kappa/(1 - sigma), for R and for C.

    Args:
        network: With R (a root suffices) and C (strongly connected), both checked by its constructor.

    Raises:
        ArgumentError: The theory does not cover it, or it has over 500 agents.

    Example:
        >>> from digrad.graphs import example5
        >>> norms = network_norms(Network(example5()))
        >>> round(norms.R.sigma, 3), round(norms.C.sigma, 3)
        (0.762, 0.705)
    """
    check_covered(network, "network_norms")
    if not (network.v > 0).all():
        raise ArgumentError(
            "`network` of network_norms is not covered: C is not strongly connected, and the proof divides by v_i."
        )
    if network.n > LARGEST_NETWORK:
        raise ArgumentError(
            f"`network` of network_norms must have at most {LARGEST_NETWORK} agents, because norms are dense, "
            f"but got {network.n}; certify a smaller network of the same kind."
        )
    u, v, one = network.u, network.v, np.ones(network.n)
    pull = candidate_norms(network.R.toarray(), np.outer(one, u) / network.n, u)
    push = candidate_norms(network.C.toarray(), np.outer(v, one) / network.n, 1 / v)
    return Norms(u=u, v=v, R=_best(pull, "R"), C=_best(push, "C"))


def candidate_norms(matrix: Floats, perron: Floats, weights: Floats) -> list[WeightedNorm]:
    """Return the diagonal norm, unless weights vanish, and the Lyapunov norms of a matrix, by growing target rate."""
    reduced, projector = matrix - perron, np.eye(len(matrix)) - perron
    radius = float(np.abs(np.linalg.eigvals(reduced)).max())
    factors = [("lyapunov", _lyapunov_factor(reduced, radius + f * (1 - radius))) for f in LYAPUNOV_FRACTIONS]
    if (weights > 0).all():
        factors.insert(0, ("diagonal", np.diag(np.sqrt(weights / weights.min()))))
    return [
        _measure(factor, kind, reduced, projector, radius) for kind, factor in factors if factor is not None
    ]


def _measure(factor: Floats, kind: str, reduced: Floats, projector: Floats, radius: float) -> WeightedNorm:
    inverse = np.linalg.inv(factor)
    return WeightedNorm(
        factor=factor,
        kind=kind,
        sigma=_spectral(factor @ reduced @ inverse),
        tau=_spectral(factor @ projector @ inverse),
        kappa=_spectral(factor @ projector),
        delta=_spectral(factor),
        rho=radius,
    )


def _lyapunov_factor(reduced: Floats, rate: float) -> Floats | None:
    """Return T with T'T = P = I + (M/s)'P(M/s), scaled to a smallest eigenvalue of one; None if P is enormous.

    P is summed by doubling, a sum of nonnegative matrices: solvers of the linear equation lose definiteness on matrices
    with Jordan blocks, such as those of a path.
    """
    weight, power = np.eye(len(reduced)), reduced / rate
    for _ in range(DOUBLINGS):
        added = power.T @ weight @ power
        weight, power = weight + added, power @ power
        if np.abs(weight).max() > LARGEST_WEIGHT:
            return None
        if np.abs(added).max() < 1e-16 * np.abs(weight).max():
            break
    values, vectors = np.linalg.eigh((weight + weight.T) / 2)
    return (vectors * np.sqrt(values / values[0])) @ vectors.T


def _best(candidates: list[WeightedNorm], name: str) -> WeightedNorm:
    usable = [norm for norm in candidates if norm.sigma < 1]
    if not usable:
        raise MixingError(
            f"`{name}` does not contract in any of {len(candidates)} norms tried; the network mixes "
            "too slowly for double precision, so use weights that mix faster."
        )
    return min(usable, key=lambda norm: norm.kappa / (1 - norm.sigma))


def _spectral(matrix: Floats) -> float:
    if len(matrix) <= SVD_LIMIT:
        return float(np.linalg.norm(matrix, 2))
    return float(np.sqrt(np.linalg.eigvalsh(matrix.T @ matrix)[-1]))
