"""ADD-OPT: gradient tracking with push-sum, with the step after mixing."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, zeros_like
from digrad.methods.defaults import debiased_x, state_w
from digrad.types import Array, Net, StepSize


class ADDOPTState(NamedTuple):
    """State of ADDOPT between two steps."""

    x: Array  # [n, d] biased estimates
    w: Array  # [n, 1] push-sum weights, the same mixing applied to ones
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class ADDOPT:
    r"""Accelerated distributed directed optimization (ADD-OPT).

    The "combine then adapt" sibling of :class:`PushDIGing`: the step is applied after mixing. All messages
    are known before the gradient, but the stable step sizes are smaller (0.11 instead of 0.38 on the
    example).

    .. math::
        x_i^{k+1} &= \sum_j C_{ij} x_j^k - \alpha\, y_i^k                                    \qquad (1) \\
        w_i^{k+1} &= \sum_j C_{ij} w_j^k, \qquad z_i^{k+1} = x_i^{k+1} / w_i^{k+1}           \qquad (2) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(z_i^{k+1}) - \nabla f_i(z_i^k)         \qquad (3)

    with C column-stochastic, :math:`w_i^0 = 1`, :math:`z_i^0 = x_i^0` and :math:`y_i^0 = \nabla f_i(x_i^0)`.
    The estimate is z.

    Args:
        step_size: :math:`\alpha > 0`.

    Communication: 2d + 1 numbers per edge and step; 1 dependent round (all known before the gradient).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough.
    Invariant: the y_i sum to the local gradients at every step; the w_i are positive and sum to n.
    Also known as: S-ADDOPT with mini-batches. The CGT paper names it together with Push-DIGing.
    Deviations: the index of (3) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the
        same.
    Reference: C. Xi, R. Xin and U. A. Khan, "ADD-OPT: Accelerated distributed directed optimization", IEEE
        Transactions on Automatic Control 63(5):1329-1339, 2018.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.ADDOPT(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"column"})
    converges: ClassVar = "exact"
    reference: ClassVar = "xi2018addopt"
    estimate = query = debiased_x
    average_weights = state_w
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> ADDOPTState:
        """Start at x0 with weights one and empty trackers."""
        return ADDOPTState(x=x0, w=ones_column(x0), y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: ADDOPTState, grad: Array, net: Net) -> ADDOPTState:
        """Push everything, track, then move along the tracker."""
        y, x, w = net.push((state.y, state.x, state.w))
        y = y + grad - state.g  # (3)
        x = x - self.step_size * y  # (1), (2)
        return ADDOPTState(x=x, w=w, y=y, g=grad)
