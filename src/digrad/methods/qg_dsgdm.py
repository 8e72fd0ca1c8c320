"""Quasi-global momentum: a momentum of what the network did, not of the local gradients."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, StepSize


class QGDSGDmState(NamedTuple):
    """State of QGDSGDm between two steps."""

    x: Array  # [n, d] estimates
    m: Array  # [n, d] quasi-global momenta, never sent


@dataclass(frozen=True, eq=False)
class QGDSGDm:
    r"""Decentralized SGD with quasi-global momentum (QG-DSGDm).

    The momentum of an agent is made of the difference between two of its estimates, which contains what its neighbours
    did, so that it needs no message of its own. It speeds up the way there; the limit is that of :class:`DGDATC`.

    .. math::
        x_i^{k+1} &= \sum_j P_{ij} \big(x_j^k - \alpha (\beta m_j^k + \nabla f_j(x_j^k))\big)    \qquad (1) \\
        m_i^{k+1} &= \beta m_i^k + (1 - \beta) (x_i^k - x_i^{k+1})/\alpha                        \qquad (2)

    with P doubly stochastic and :math:`m_i^0 = 0`.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule; (2) divides by that of the same step.
        momentum: :math:`\beta` in [0, 1); 0 gives :class:`DGDATC`.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which minimises
            the Perron-weighted loss instead of the average.

    Communication: d numbers per edge and step; 1 dependent round.
    Converges: to a point at a distance proportional to alpha from the minimum, the same for every beta; to the minimum
        for decreasing alpha.
    Invariant: the mean of x moves by -alpha times the mean of beta m + grad (with ``"row"``: weighted by u).
    Also known as: none.
    Deviations: none; published code keeps a second factor in (2), which the paper sets to beta.
    Reference: T. Lin, S. P. Karimireddy, S. U. Stich and M. Jaggi, "Quasi-global momentum: Accelerating decentralized
        deep learning on heterogeneous data", International Conference on Machine Learning, 2021, arXiv:2102.04761.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.QGDSGDm(step_size=0.005), problem, network, steps=3000)
        >>> bool(abs(trace.final_x - problem.solve().x).max() < 0.02)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "lin2021quasi"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> QGDSGDmState:
        """Start at x0, at rest."""
        return QGDSGDmState(x=x0, m=zeros_like(x0))

    def step(self, state: QGDSGDmState, grad: Array, net: Net) -> QGDSGDmState:
        """Mix the stepped estimates, then remember how they moved."""
        x = net.mix(state.x - self.step_size * (self.momentum * state.m + grad))  # (1)
        m = self.momentum * state.m + (1 - self.momentum) * (state.x - x) / self.step_size  # (2)
        return QGDSGDmState(x=x, m=m)
