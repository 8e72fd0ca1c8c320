"""Decentralized gradient descent: mix, then step along the local gradient."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.methods.defaults import state_x
from digrad.types import Array, MixingChoice, Net, StepSize


class DGDState(NamedTuple):
    """State of DGD between two steps."""

    x: Array  # [n, d] estimates


@dataclass(frozen=True, eq=False)
class DGD:
    r"""Decentralized gradient descent (DGD), combine then adapt.

    Each agent averages what it receives and steps along its own gradient, evaluated before mixing. The local
    gradients do not vanish at the common minimum, so a constant step size leaves a bias of order alpha.

    .. math::
        x_i^{k+1} = \sum_j P_{ij} x_j^k - \alpha \nabla f_i(x_i^k)  \qquad (1)

    with P doubly stochastic.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, as the
            CGT paper may have run it, which minimises the Perron-weighted loss instead of the average.

    Communication: d numbers per edge and step; 1 dependent round.
    Converges: to a point at distance O(alpha) from the minimum; for decreasing alpha to the minimum itself
        (with ``mixing="row"``: of the Perron-weighted loss).
    Invariant: the mean estimate moves by alpha times the mean local gradient (with ``"row"``: both weighted
        by u).
    Also known as: DSGD and D-PSGD with mini-batches; CDSGD (Jiang et al. 2017) on deep networks, the name under
        which the CGT paper compares it: ``digrad.CDSGD`` is this class.
    Deviations: none.
    Reference: A. Nedic and A. Ozdaglar, "Distributed subgradient methods for multi-agent optimization", IEEE
        Transactions on Automatic Control 54(1):48-61, 2009.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.DGD(step_size=0.05), problem, network, steps=500)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "nedic2009distributed"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DGDState:
        """Start at x0."""
        return DGDState(x=x0)

    def step(self, state: DGDState, grad: Array, net: Net) -> DGDState:
        """Mix, then step along the local gradient."""
        x = net.mix(state.x) - self.step_size * grad  # (1)
        return DGDState(x=x)


CDSGD = DGD  # the name of the deep-learning literature, and of the CGT paper
