"""Momentum tracking: heavy-ball momentum that does not suffer from heterogeneous losses."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, StepSize


class MomentumTrackingState(NamedTuple):
    """State of MomentumTracking between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average momentum
    u: Array  # [n, d] momenta that y already contains


@dataclass(frozen=True, eq=False)
class MomentumTracking:
    r"""Tracking of the average momentum (Momentum Tracking).

    Local momenta differ as much as the local losses do; here the agents track their average instead, so that the limit
    does not depend on how different the losses are.

    .. math::
        u_i^{k+1} &= \beta u_i^k + \nabla f_i(x_i^k)                           \qquad (1) \\
        y_i^{k+1} &= \sum_j P_{ij} y_j^k + u_i^{k+1} - u_i^k                   \qquad (2) \\
        x_i^{k+1} &= \sum_j P_{ij} x_j^k - \alpha\, y_i^{k+1}                  \qquad (3)

    with P doubly stochastic and :math:`u_i^0 = y_i^0 = 0`.

    Args:
        step_size: :math:`\alpha > 0`; the effective one is :math:`\alpha/(1 - \beta)`.
        momentum: :math:`\beta` in [0, 1); 0 gives gradient tracking (DIGing).
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which minimises
            the Perron-weighted loss instead of the average. With R and C:
            ``Tracking(step_size, estimator=momentum(0.9))``.

    Communication: 2d numbers per edge and step; 1 dependent round (both messages are known before the gradient).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha small enough.
    Invariant: the mean of y is the mean of u (with ``"row"``: both weighted by u of R).
    Also known as: DSGTm with the momentum before the network; for constant P a heavy ball on the trackers is the same.
    Deviations: the reference starts from the average gradient of all agents, found by an all-reduce; here all memories
        start at zero, which changes the transient and not the limit.
    Reference: Y. Takezawa, H. Bao, K. Niwa, R. Sato and M. Yamada, "Momentum tracking: Momentum acceleration for
        decentralized deep learning on heterogeneous data", Transactions on Machine Learning Research, 2023.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.MomentumTracking(step_size=0.02, momentum=0.5), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "exact"
    reference: ClassVar = "takezawa2023momentum"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> MomentumTrackingState:
        """Start at x0, at rest, with empty trackers."""
        return MomentumTrackingState(x=x0, y=zeros_like(x0), u=zeros_like(x0))

    def step(self, state: MomentumTrackingState, grad: Array, net: Net) -> MomentumTrackingState:
        """Update the momentum, track it, then move along the tracker."""
        u = self.momentum * state.u + grad  # (1)
        y = net.mix(state.y) + u - state.u  # (2)
        x = net.mix(state.x) - self.step_size * y  # (3)
        return MomentumTrackingState(x=x, y=y, u=u)
