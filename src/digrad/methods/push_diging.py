"""Push-DIGing: gradient tracking with push-sum, column-stochastic weights only."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, zeros_like
from digrad.methods.defaults import debiased_x, state_w
from digrad.types import Array, Net, StepSize


class PushDIGingState(NamedTuple):
    """State of PushDIGing between two steps."""

    x: Array  # [n, d] biased estimates
    w: Array  # [n, 1] push-sum weights, the same mixing applied to ones
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class PushDIGing:
    r"""Gradient tracking with push-sum (Push-DIGing).

    Needs column-stochastic weights only: the bias that they give the estimates is divided out by the weights
    w.

    .. math::
        x_i^{k+1} &= \sum_j C_{ij} (x_j^k - \alpha\, y_j^k)                                  \qquad (1) \\
        w_i^{k+1} &= \sum_j C_{ij} w_j^k, \qquad z_i^{k+1} = x_i^{k+1} / w_i^{k+1}           \qquad (2) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(z_i^{k+1}) - \nabla f_i(z_i^k)         \qquad (3)

    with C column-stochastic, :math:`w_i^0 = 1`, :math:`z_i^0 = x_i^0` and :math:`y_i^0 = \nabla f_i(x_i^0)`.
    The estimate is z.

    Args:
        step_size: :math:`\alpha > 0`.

    Communication: 2d + 1 numbers per edge and step; 2 dependent rounds in this order of steps (y, then x -
        alpha y with w).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough.
    Invariant: the y_i sum to the local gradients at every step; the w_i are positive and sum to n.
    Also known as: the paper writes u, v and x for x, w and z here. Identical to :class:`SONATA` with a linear
        surrogate.
    Deviations: the index of (3) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the
        same.
    Reference: A. Nedic, A. Olshevsky and W. Shi, "Achieving geometric convergence for distributed
        optimization over time-varying graphs", SIAM Journal on Optimization 27(4):2597-2633, 2017.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.PushDIGing(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"column"})
    converges: ClassVar = "exact"
    reference: ClassVar = "nedic2017achieving"
    estimate = query = debiased_x
    average_weights = state_w
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> PushDIGingState:
        """Start at x0 with weights one and empty trackers."""
        return PushDIGingState(x=x0, w=ones_column(x0), y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: PushDIGingState, grad: Array, net: Net) -> PushDIGingState:
        """Track, then push the stepped estimates and the weights."""
        y = net.push(state.y) + grad - state.g  # (3)
        x, w = net.push((state.x - self.step_size * y, state.w))  # (1), (2)
        return PushDIGingState(x=x, w=w, y=y, g=grad)
