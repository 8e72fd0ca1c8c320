"""Stochastic gradient push: push-sum averaging with the gradient at the de-biased estimate."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column
from digrad.methods.defaults import debiased_x, state_w
from digrad.types import Array, Net, StepSize


class SGPState(NamedTuple):
    """State of SGP between two steps."""

    x: Array  # [n, d] biased estimates
    w: Array  # [n, 1] push-sum weights, the same mixing applied to ones


@dataclass(frozen=True, eq=False)
class SGP:
    r"""Stochastic gradient push (SGP).

    Column-stochastic weights need no agreement between the agents but do not average; dividing by a weight w
    that went through the same mixing does. The gradient is taken at the de-biased z, the step applied to the
    biased x.

    .. math::
        x_i^{k+1} &= \sum_j C_{ij} (x_j^k - \alpha \nabla f_j(z_j^k))                     \qquad (1) \\
        w_i^{k+1} &= \sum_j C_{ij} w_j^k, \qquad z_i^{k+1} = x_i^{k+1} / w_i^{k+1}        \qquad (2)

    with C column-stochastic, :math:`w_i^0 = 1` and :math:`z_i^0 = x_i^0`. The estimate is z.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.

    Communication: d + 1 numbers per edge and step; 1 dependent round (after the gradient).
    Converges: to a point at distance O(alpha) from the minimum; for decreasing alpha to the minimum itself.
    Invariant: the w_i are positive and sum to n; the sum of x moves by alpha times the sum of the gradients.
    Also known as: push-sum SGD. With C doubly stochastic it is :class:`DGDATC`.
    Deviations: none. The authors' code applies momentum and weight decay to x, not z, and leaves w out on
        regular graphs.
    Reference: M. Assran, N. Loizou, N. Ballas and M. Rabbat, "Stochastic gradient push for distributed deep
        learning", ICML 2019, arXiv:1811.10792.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.SGP(step_size=0.05), problem, network, steps=500)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize

    needs = frozenset({"column"})
    converges: ClassVar = "biased"
    reference: ClassVar = "assran2019stochastic"
    estimate = query = debiased_x
    average_weights = state_w
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> SGPState:
        """Start at x0 with weights one."""
        return SGPState(x=x0, w=ones_column(x0))

    def step(self, state: SGPState, grad: Array, net: Net) -> SGPState:
        """Step, then push estimates and weights."""
        x, w = net.push((state.x - self.step_size * grad, state.w))  # (1), (2)
        return SGPState(x=x, w=w)
