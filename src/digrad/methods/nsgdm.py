"""Normalized gradient descent with momentum and a true average."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import normalize_rows, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, Net, StepSize


class NSGDmState(NamedTuple):
    """State of NSGDm between two steps."""

    x: Array  # [n, d] the same row for every agent
    m: Array  # [n, d] momentum, the same row for every agent


@dataclass(frozen=True, eq=False)
class NSGDm:
    r"""Normalized SGD with momentum on the average loss: a centralized yardstick, not a decentralized method.

    .. math::
        m^{k+1} &= \beta m^k + (1 - \beta) \frac1N \sum_i \nabla f_i(x^k)   \qquad (1) \\
        x^{k+1} &= x^k - \alpha\, m^{k+1} / \|m^{k+1}\|                     \qquad (2)

    with :math:`m^0 = 0` and 0/0 = 0.

    Args:
        step_size: :math:`\alpha > 0`, the distance of one step, or a schedule.
        momentum: :math:`\beta` in [0, 1).

    Communication: one all-reduce of d numbers per step, and one of the starts.
    Converges: to a neighbourhood of a stationary point proportional to alpha; for decreasing alpha to the
        point.
    Invariant: all rows are equal; a step is alpha long.
    Also known as: NSGD-m; the one-agent case of :class:`GTNSGDm`.
    Deviations: starts from the average of the agents' starts, and from m = 0.
    Reference: A. Cutkosky and H. Mehta, "Momentum improves normalized SGD", ICML 2020.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.NSGDm(step_size=0.01, momentum=0.9), problem, network, steps=3000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.1)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9

    needs = frozenset({"mean"})
    converges: ClassVar = "neighbourhood"
    reference: ClassVar = "cutkosky2020momentum"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> NSGDmState:
        """Start all agents at the average of the starts, at rest."""
        return NSGDmState(x=net.mean(x0), m=zeros_like(x0))

    def step(self, state: NSGDmState, grad: Array, net: Net) -> NSGDmState:
        """Update the momentum, then move a fixed distance along it."""
        m = self.momentum * state.m + (1 - self.momentum) * net.mean(grad)  # (1)
        return NSGDmState(x=state.x - self.step_size * normalize_rows(m), m=m)  # (2)
