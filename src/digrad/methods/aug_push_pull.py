"""Push-pull gradient tracking in which estimates and trackers are both mixed after their update."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize


class AugPushPullState(NamedTuple):
    """State of AugPushPull between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class AugPushPull:
    r"""Push-pull gradient tracking with both mixings after the update (x-ATC, y-ATC).

    As :class:`PushPull`, and the new gradient difference is passed on at once instead of one step later. With
    one doubly stochastic matrix for both mixings it is the augmented gradient method Aug-DGM; with ``sampling="saga"``
    it is AB-SAGA (Qureshi et al., arXiv 2202.03346).

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} (x_j^k - \alpha\, y_j^k)                                   \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} (y_j^k + \nabla f_j(x_j^{k+1}) - \nabla f_j(x_j^k))        \qquad (2)

    with R row-stochastic, C column-stochastic and :math:`y_i^0 = \sum_j C_{ij} \nabla f_j(x_j^0)`.

    Args:
        step_size: :math:`\alpha > 0`; a column ``[n, 1]`` gives each agent its own.

    Communication: 2d numbers per edge and step; 2 dependent rounds (y after the gradient, then x - alpha y).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough.
    Invariant: the y_i sum to the local gradients at every step.
    Also known as: ATC push-pull; AB-SAGA with gradients of SAGA; Aug-DGM or ATC-DIGing when R = C is doubly stochastic.
    Deviations: the index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`, so that y starts from
        :math:`C \nabla f(x^0)` and not from :math:`\nabla f(x^0)`: the transient differs, the limit does not.
    Reference: J. Xu, S. Zhu, Y. C. Soh and L. Xie, "Augmented distributed gradient methods for multi-agent
        optimization under uncoordinated constant stepsizes", IEEE Conference on Decision and Control, 2015
        (for one doubly stochastic matrix).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.AugPushPull(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"row", "column"})
    connectivity: ClassVar = "common root"
    converges: ClassVar = "exact"
    reference: ClassVar = "xu2015augmented"
    attribution: ClassVar = "after Xu et al. 2015"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> AugPushPullState:
        """Start at x0 with empty trackers."""
        return AugPushPullState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: AugPushPullState, grad: Array, net: Net) -> AugPushPullState:
        """Mix the updated trackers, then the stepped estimates."""
        y = net.push(state.y + grad - state.g)  # (2)
        x = net.pull(state.x - self.step_size * y)  # (1)
        return AugPushPullState(x=x, y=y, g=grad)
