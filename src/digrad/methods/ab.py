"""Plain gradient tracking with two matrices, the method that CGT protects."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize


class ABState(NamedTuple):
    """State of AB between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class AB:
    r"""Gradient tracking with a row- and a column-stochastic matrix (AB).

    The estimates are averaged with row-stochastic weights, the trackers passed on with column-stochastic
    ones; together they remove the bias that a single matrix has on an unbalanced digraph. The step is applied
    after mixing ("combine then adapt"). It explodes when the gradient grows faster than linearly and the
    start is far away.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} x_j^k - \alpha\, y_i^k                             \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)  \qquad (2)

    with R row-stochastic, C column-stochastic and :math:`y_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`.

    Communication: 2d numbers per edge and step; 1 dependent round.
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough.
    Invariant: the y_i sum to the local gradients at every step.
    Also known as: GT or DGT in the CGT paper; the x-CTA, y-CTA form of push-pull. :class:`PushPull` mixes the
        stepped iterate instead and tolerates a step size about 2.5 times larger.
    Deviations: the index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the
        same.
    Reference: R. Xin and U. A. Khan, "A linear algorithm for optimization over directed graphs with geometric
        convergence", IEEE Control Systems Letters 2(3):315-320, 2018, arXiv:1803.02503. That the original
        adds the gradient difference outside the mixing was inferred from later papers of the authors.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.AB(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"row", "column"})
    connectivity: ClassVar = "common root"
    converges: ClassVar = "exact"
    reference: ClassVar = "xin2018linear"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> ABState:
        """Start at x0 with empty trackers."""
        return ABState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: ABState, grad: Array, net: Net) -> ABState:
        """Track, then move along the tracker."""
        y = net.push(state.y) + grad - state.g  # (2)
        x = net.pull(state.x) - self.step_size * y  # (1)
        return ABState(x=x, y=y, g=grad)
