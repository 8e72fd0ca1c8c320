"""Push-SAGA: gradient tracking with push-sum, in which trackers are mixed after their update."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, zeros_like
from digrad.methods.defaults import debiased_x, state_w
from digrad.types import Array, Net, StepSize


class PushSAGAState(NamedTuple):
    """State of PushSAGA between two steps."""

    x: Array  # [n, d] biased estimates
    w: Array  # [n, 1] push-sum weights, the same mixing applied to ones
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class PushSAGA:
    r"""Gradient tracking with push-sum, x-ATC and y-ATC: Push-SAGA, if its gradients are those of SAGA.

    As :class:`PushDIGing`, and the new gradient difference is passed on at once. With ``sampling="saga"`` each
    :math:`s_i` is the gradient of one sample, corrected by a table, and the method reaches the exact minimum with one
    sample per step. With other gradients it is Push-DIGing with both mixings after the update.

    .. math::
        x_i^{k+1} &= \sum_j C_{ij} (x_j^k - \alpha\, y_j^k)                                  \qquad (1) \\
        w_i^{k+1} &= \sum_j C_{ij} w_j^k, \qquad z_i^{k+1} = x_i^{k+1} / w_i^{k+1}           \qquad (2) \\
        y_i^{k+1} &= \sum_j C_{ij} (y_j^k + s_j^{k+1} - s_j^k)                               \qquad (3)

    with C column-stochastic, :math:`w_i^0 = 1`, :math:`z_i^0 = x_i^0`, :math:`s_i^k` an estimate of
    :math:`\nabla f_i(z_i^k)` and :math:`y_i^0 = \sum_j C_{ij} s_j^0`. The estimate is z.

    Args:
        step_size: :math:`\alpha > 0`.

    Communication: 2d + 1 numbers per edge and step; 2 dependent rounds (y after the gradient, then x - alpha y with w).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough.
    Invariant: the y_i sum to the stored gradients at every step; the w_i are positive and sum to n.
    Also known as: Push-DIGing with both mixings after the update, for full gradients.
    Deviations:
        1. The index of (3) is shifted by one, with :math:`y^{-1} = s^{-1} = 0`, so that y starts from
           :math:`C s^0` and not from :math:`s^0`: the transient differs, the limit does not.
        2. The table of SAGA starts at zero, the authors' code fills it by a pass over all samples.
    Reference: M. I. Qureshi, R. Xin, S. Kar and U. A. Khan, "Push-SAGA: A decentralized stochastic algorithm with
        variance reduction over directed graphs", IEEE Control Systems Letters 6, 2022.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.PushSAGA(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"column"})
    converges: ClassVar = "exact"
    reference: ClassVar = "qureshi2022push"
    estimate = query = debiased_x
    average_weights = state_w
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> PushSAGAState:
        """Start at x0 with weights one and empty trackers."""
        return PushSAGAState(x=x0, w=ones_column(x0), y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: PushSAGAState, grad: Array, net: Net) -> PushSAGAState:
        """Push the updated trackers, then the stepped estimates and the weights."""
        y = net.push(state.y + grad - state.g)  # (3)
        x, w = net.push((state.x - self.step_size * y, state.w))  # (1), (2)
        return PushSAGAState(x=x, w=w, y=y, g=grad)
