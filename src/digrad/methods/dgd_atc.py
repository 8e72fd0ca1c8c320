"""Decentralized gradient descent in the other order: step, then mix."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.methods.defaults import state_x
from digrad.types import Array, MixingChoice, Net, StepSize


class DGDATCState(NamedTuple):
    """State of DGDATC between two steps."""

    x: Array  # [n, d] estimates


@dataclass(frozen=True, eq=False)
class DGDATC:
    r"""Decentralized gradient descent, adapt then combine (diffusion).

    As :class:`DGD`, but the neighbours receive the estimate that has already been moved, so that the local steps
    are averaged too. Biased like DGD, with half the spread among the agents on the example graph.

    .. math::
        x_i^{k+1} = \sum_j P_{ij} (x_j^k - \alpha \nabla f_j(x_j^k))  \qquad (1)

    with P doubly stochastic.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: d numbers per edge and step; 1 dependent round (after the gradient).
    Converges: to a point at distance O(alpha) from the minimum; for decreasing alpha to the minimum itself
        (with ``mixing="row"``: of the Perron-weighted loss).
    Invariant: the mean estimate moves by alpha times the mean local gradient (with ``"row"``: both weighted
        by u).
    Also known as: diffusion; DSGD-ATC.
    Deviations: none.
    Reference: F. S. Cattivelli and A. H. Sayed, "Diffusion LMS strategies for distributed estimation", IEEE
        Transactions on Signal Processing 58(3):1035-1048, 2010 (adapt-then-combine).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.DGDATC(step_size=0.05), problem, network, steps=500)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "cattivelli2010diffusion"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DGDATCState:
        """Start at x0."""
        return DGDATCState(x=x0)

    def step(self, state: DGDATCState, grad: Array, net: Net) -> DGDATCState:
        """Step along the local gradient, then mix."""
        x = net.mix(state.x - self.step_size * grad)  # (1)
        return DGDATCState(x=x)
