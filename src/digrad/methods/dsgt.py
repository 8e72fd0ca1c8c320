"""Gradient tracking with one doubly stochastic matrix."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, MixingChoice, Net, StepSize


class DSGTState(NamedTuple):
    """State of DSGT between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class DSGT:
    r"""Distributed stochastic gradient tracking (DSGT).

    Gradient tracking with the same doubly stochastic matrix for estimates and trackers, the form of
    undirected graphs. It finds the exact minimum only if the matrix is doubly stochastic.

    .. math::
        x_i^{k+1} &= \sum_j P_{ij} (x_j^k - \alpha\, y_j^k)                           \qquad (1) \\
        y_i^{k+1} &= \sum_j P_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)  \qquad (2)

    with P doubly stochastic and :math:`y_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, a misuse
            found in practice, which ends at the minimum of the Perron-weighted loss.

    Communication: 2d numbers per edge and step; 2 dependent rounds in this order of steps (y, then x - alpha
        y).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex and alpha
        small enough (with ``mixing="row"``: of the Perron-weighted loss).
    Invariant: the mean of y is the mean of the stored gradients (with ``"row"``: both weighted by u).
    Also known as: GT; DSGT with mini-batches; its "combine then adapt" form is DIGing.
    Deviations: the index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the
        same.
    Reference: S. Pu and A. Nedic, "Distributed stochastic gradient tracking methods", Mathematical
        Programming 187:409-457, 2021.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.DSGT(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "exact"
    reference: ClassVar = "pu2021distributed"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DSGTState:
        """Start at x0 with empty trackers."""
        return DSGTState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: DSGTState, grad: Array, net: Net) -> DSGTState:
        """Track, then mix the stepped estimates."""
        y = net.mix(state.y) + grad - state.g  # (2)
        x = net.mix(state.x - self.step_size * y)  # (1)
        return DSGTState(x=x, y=y, g=grad)
