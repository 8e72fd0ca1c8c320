"""Gradient descent with a true average: what a server would do."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize


class GDState(NamedTuple):
    """State of GD between two steps."""

    x: Array  # [n, d] the same row for every agent


@dataclass(frozen=True, eq=False)
class GD:
    r"""Gradient descent on the average loss: a centralized yardstick, not a decentralized method.

    .. math::
        x^{k+1} = x^k - \alpha \frac1N \sum_i \nabla f_i(x^k)  \qquad (1)

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.

    Communication: one all-reduce of d numbers per step, and one of the starts.
    Converges: to the minimum when the loss is smooth and alpha below 2/L; explodes when the gradient grows
        faster.
    Invariant: all rows are equal.
    Also known as: gradient descent; SGD with mini-batches (of every agent, averaged).
    Deviations: starts from the average of the agents' starts.
    Reference: A. Cauchy, "Methode generale pour la resolution des systemes d'equations simultanees", Comptes
        Rendus 25:536-538, 1847.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.GD(step_size=0.05), problem, network, steps=300).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"mean"})
    converges: ClassVar = "exact"
    reference: ClassVar = "cauchy1847methode"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> GDState:
        """Start all agents at the average of the starts."""
        return GDState(x=net.mean(x0))

    def step(self, state: GDState, grad: Array, net: Net) -> GDState:
        """Step along the average gradient."""
        return GDState(x=state.x - self.step_size * net.mean(grad))  # (1)
