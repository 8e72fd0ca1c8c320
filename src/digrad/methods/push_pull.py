"""Push-pull gradient tracking: the step is mixed together with the estimate."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize


class PushPullState(NamedTuple):
    """State of PushPull between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class PushPull:
    r"""Push-pull gradient tracking for directed graphs.

    As :class:`AB`, but an agent sends the estimate it has already moved ("adapt then combine"), so that the
    neighbours' steps are averaged too.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} (x_j^k - \alpha\, y_j^k)                           \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)  \qquad (2)

    with R row-stochastic, C column-stochastic and :math:`y_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`; a column ``[n, 1]`` gives each agent its own.

    Communication: 2d numbers per edge and step; 2 dependent rounds in this order of steps (y, then
        x - alpha y).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough.
    Invariant: the y_i sum to the local gradients at every step.
    Also known as: push-pull, x-ATC y-CTA. Public code under this name often implements :class:`AB`.
    Deviations: the index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the
        same.
    Reference: S. Pu, W. Shi, J. Xu and A. Nedic, "Push-pull gradient methods for distributed optimization in
        networks", IEEE Transactions on Automatic Control 66(1):1-16, 2021, arXiv:1810.06653.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.PushPull(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"row", "column"})
    connectivity: ClassVar = "common root"
    converges: ClassVar = "exact"
    reference: ClassVar = "pu2021push"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> PushPullState:
        """Start at x0 with empty trackers."""
        return PushPullState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: PushPullState, grad: Array, net: Net) -> PushPullState:
        """Track, then mix the stepped estimates."""
        y = net.push(state.y) + grad - state.g  # (2)
        x = net.pull(state.x - self.step_size * y)  # (1)
        return PushPullState(x=x, y=y, g=grad)
