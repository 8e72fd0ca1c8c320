"""CDSGD with heavy-ball momentum that stays local."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, StepSize


class CDSGDPolyakState(NamedTuple):
    """State of CDSGDPolyak between two steps."""

    x: Array  # [n, d] estimates
    v: Array  # [n, d] velocities, never sent


@dataclass(frozen=True, eq=False)
class CDSGDPolyak:
    r"""Consensus-based distributed SGD with Polyak momentum (CDSGD-P).

    Each agent keeps a velocity of its own gradients and mixes only the estimate. The limit is that of
    :class:`CDSGD` with the larger step size :math:`\alpha/(1-\mu)`, so momentum also enlarges the bias.

    .. math::
        v_i^{k+1} &= \mu\, v_i^k - \alpha \nabla f_i(x_i^k)   \qquad (1) \\
        x_i^{k+1} &= \sum_j P_{ij} x_j^k + v_i^{k+1}          \qquad (2)

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
    Also known as: CDMSGD.
    Deviations: none. Public codes differ: one uses Nesterov's form under this name, another starts from v =
        x.
    Reference: Z. Jiang, A. Balu, C. Hegde and S. Sarkar, "Collaborative deep learning in fixed topology
        networks", NeurIPS 2017, arXiv:1706.07880 (momentum variant CDMSGD).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> method = dg.CDSGDPolyak(step_size=0.02, momentum=0.3)
        >>> trace = dg.simulate(method, problem, network, steps=1000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.03)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "jiang2017collaborative"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> CDSGDPolyakState:
        """Start at x0, at rest."""
        return CDSGDPolyakState(x=x0, v=zeros_like(x0))

    def step(self, state: CDSGDPolyakState, grad: Array, net: Net) -> CDSGDPolyakState:
        """Accelerate, then mix and move."""
        v = self.momentum * state.v - self.step_size * grad  # (1)
        x = net.mix(state.x) + v  # (2)
        return CDSGDPolyakState(x=x, v=v)
