"""Normalized gradient tracking of momenta, made for heavy-tailed gradient noise."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import normalize_rows, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, StepSize


class GTNSGDmState(NamedTuple):
    """State of GTNSGDm between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average momentum
    v: Array  # [n, d] momenta, never sent


@dataclass(frozen=True, eq=False)
class GTNSGDm:
    r"""Gradient-tracking normalized SGD with momentum (GT-NSGDm).

    The agents track the average of their momenta and move a fixed distance along the tracker, so that a
    single huge gradient cannot do harm.

    .. math::
        v_i^{k+1} &= \beta v_i^k + (1 - \beta) \nabla f_i(x_i^k)                             \qquad (1) \\
        y_i^{k+1} &= \sum_j P_{ij} (y_j^k + v_j^{k+1} - v_j^k)                               \qquad (2) \\
        x_i^{k+1} &= \sum_j P_{ij} (x_j^k - \alpha\, y_j^{k+1} / \|y_j^{k+1}\|)              \qquad (3)

    with P doubly stochastic, :math:`v_i^0 = y_i^0 = 0` and 0/0 = 0.

    Args:
        step_size: :math:`\alpha > 0`, the distance of one step, or a schedule.
        momentum: :math:`\beta` in [0, 1); the reference takes 1 - beta = T^(-p/(3p-2)) for T steps and noise
            with p moments.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: 2d numbers per edge and step; 2 dependent rounds (y after the gradient, then x).
    Converges: to a neighbourhood of a stationary point proportional to alpha; for decreasing alpha to the
        point.
    Invariant: the mean of y is the mean of v (with ``"row"``: both weighted by u).
    Also known as: none.
    Deviations: none; the norm is that of the whole parameter vector of an agent, not of each tensor.
    Reference: S. Yu, D. Jakovetic and S. Kar, "Decentralized nonconvex optimization under heavy-tailed noise:
        Normalization and optimal convergence", 2025, arXiv:2505.03736.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.GTNSGDm(step_size=0.01, momentum=0.9), problem, network, steps=3000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.02)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "neighbourhood"
    reference: ClassVar = "yu2025decentralized"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> GTNSGDmState:
        """Start at x0, at rest, with empty trackers."""
        return GTNSGDmState(x=x0, y=zeros_like(x0), v=zeros_like(x0))

    def step(self, state: GTNSGDmState, grad: Array, net: Net) -> GTNSGDmState:
        """Update the momentum, track it, then move a fixed distance."""
        v = self.momentum * state.v + (1 - self.momentum) * grad  # (1)
        y = net.mix(state.y + v - state.v)  # (2)
        x = net.mix(state.x - self.step_size * normalize_rows(y))  # (3)
        return GTNSGDmState(x=x, y=y, v=v)
