"""Muon without a server: orthogonalized tracking of momenta."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import parameter_shapes, state_x
from digrad.methods.directions import orthogonal_factors
from digrad.types import Array, Count, Fraction, MixingChoice, Net, StepSize


class DeMuonState(NamedTuple):
    """State of DeMuon between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average momentum
    m: Array  # [n, d] momenta, never sent


@dataclass(frozen=True, eq=False)
class DeMuon:
    r"""Decentralized Muon (DeMuon).

    The agents track the average of their momenta and step along the orthogonal factor of the tracker of every weight
    matrix: all its singular values become one.

    .. math::
        M_i^{k+1} &= \beta M_i^k + (1 - \beta) \nabla f_i(X_i^k)                             \qquad (1) \\
        Y_i^{k+1} &= \sum_j P_{ij} (Y_j^k + M_j^{k+1} - M_j^k)                               \qquad (2) \\
        X_i^{k+1} &= \sum_j P_{ij} (X_j^k - \alpha\, U_j V_j^T), \quad Y_j^{k+1} = U_j \Sigma_j V_j^T  \qquad (3)

    with P doubly stochastic and :math:`M_i^0 = Y_i^0 = 0`, for each matrix among the parameters.

    Args:
        step_size: :math:`\alpha > 0`, the spectral norm of one step, or a schedule.
        momentum: :math:`\beta` in [0, 1).
        iterations: None for singular value decompositions, or a number of Newton-Schulz iterations with the
            coefficients of Muon, as in :class:`digrad.directions.orthogonalize`.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which minimises
            the Perron-weighted loss instead of the average. With R and C:
            ``Tracking(step_size, estimator=momentum(0.9, dampening=0.9), direction=orthogonalize())``.

    Communication: 2d numbers per edge and step; 2 dependent rounds (y after the gradient, then x).
    Converges: to a neighbourhood of a stationary point proportional to alpha; for decreasing alpha to the point.
    Invariant: the mean of y is the mean of m (with ``"row"``: both weighted by u).
    Also known as: GT-NSGDm where all parameters are one vector.
    Deviations:
        1. A parameter with more than two axes is a matrix of its first axis by all others; a vector is normalized.
        2. The published code orthogonalizes in bfloat16; here it is done in the precision of the run.
    Reference: C. He, S. Ren, J. Mao and E. G. Larsson, "DeMuon: A decentralized Muon for matrix optimization over
        graphs", 2025, arXiv:2510.01377 (as its published code has it).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.DeMuon(step_size=0.01), problem, network, steps=3000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.02)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    iterations: Count | None = None
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "neighbourhood"
    reference: ClassVar = "he2025demuon"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DeMuonState:
        """Start at x0, at rest, with empty trackers."""
        return DeMuonState(x=x0, y=zeros_like(x0), m=zeros_like(x0))

    def step(self, state: DeMuonState, grad: Array, net: Net) -> DeMuonState:
        """Update the momentum, track it, then step along the orthogonal factors."""
        m = self.momentum * state.m + (1 - self.momentum) * grad  # (1)
        y = net.mix(state.y + m - state.m)  # (2)
        factors = orthogonal_factors(y, parameter_shapes(y, net), self.iterations)
        x = net.mix(state.x - self.step_size * factors)  # (3)
        return DeMuonState(x=x, y=y, m=m)
