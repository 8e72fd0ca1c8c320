"""CDSGD with Nesterov momentum: the gradient is taken where the velocity leads."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, StepSize


class CDSGDNesterovState(NamedTuple):
    """State of CDSGDNesterov between two steps."""

    x: Array  # [n, d] estimates
    v: Array  # [n, d] velocities, never sent


@dataclass(frozen=True, eq=False)
class CDSGDNesterov:
    r"""Consensus-based distributed SGD with Nesterov momentum (CDSGD-N).

    As :class:`CDSGDPolyak`, with the gradient at the local look-ahead point. At a fixed point the velocities
    do not vanish, so the two methods stop at different points.

    .. math::
        v_i^{k+1} &= \mu\, v_i^k - \alpha \nabla f_i(x_i^k + \mu\, v_i^k)   \qquad (1) \\
        x_i^{k+1} &= \sum_j P_{ij} x_j^k + v_i^{k+1}                        \qquad (2)

    with P doubly stochastic and :math:`v_i^0 = 0`.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        momentum: :math:`\mu` in [0, 1); 0 gives :class:`CDSGD`.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: d numbers per edge and step; 1 dependent round.
    Converges: to a point at distance O(alpha/(1 - mu)) from the minimum (with ``mixing="row"``: of the
        Perron-weighted loss).
    Invariant: the mean estimate moves by the mean velocity (with ``"row"``: both weighted by u).
    Also known as: CDSGD with Nesterov momentum.
    Deviations: the momentum form was not compared with the text of the reference; this is the standard
        look-ahead form. A public code under this name replaces the look-ahead gradient by another expression.
    Reference: Z. Jiang, A. Balu, C. Hegde and S. Sarkar, "On consensus-optimality trade-offs in collaborative
        deep learning", Frontiers in Artificial Intelligence 4:573731, 2021, arXiv:1805.12120.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> method = dg.CDSGDNesterov(step_size=0.02, momentum=0.3)
        >>> trace = dg.simulate(method, problem, network, steps=1000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.03)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "jiang2021consensus"
    estimate = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> CDSGDNesterovState:
        """Start at x0, at rest."""
        return CDSGDNesterovState(x=x0, v=zeros_like(x0))

    def query(self, state: CDSGDNesterovState) -> Array:
        """Return the look-ahead point."""
        return state.x + self.momentum * state.v

    def step(self, state: CDSGDNesterovState, grad: Array, net: Net) -> CDSGDNesterovState:
        """Accelerate, then mix and move."""
        v = self.momentum * state.v - self.step_size * grad  # (1)
        x = net.mix(state.x) + v  # (2)
        return CDSGDNesterovState(x=x, v=v)
