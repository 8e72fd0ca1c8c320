"""AB with normalized trackers: what CGT becomes when it always clips."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import normalize_rows, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize


class NormalizedABState(NamedTuple):
    """State of NormalizedAB between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class NormalizedAB:
    r"""Gradient tracking with two matrices and normalized steps.

    An ablation of :class:`CGT`: the limit of a threshold going to 0 with alpha times threshold fixed. Every
    agent moves the same distance at every step, so it is as safe as clipping far away but cannot settle.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} x_j^k - \alpha\, y_i^k / \|y_i^k\|                 \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)  \qquad (2)

    with R row-stochastic, C column-stochastic, :math:`y_i^0 = \nabla f_i(x_i^0)` and 0/0 = 0.

    Args:
        step_size: :math:`\alpha > 0`, the distance of one step, or a schedule.

    Communication: 2d numbers per edge and step; 1 dependent round (both messages are known before the
        gradient).
    Converges: to a neighbourhood of a stationary point proportional to alpha.
    Invariant: the y_i sum to the local gradients at every step; the Perron average moves by at most alpha.
    Also known as: normalized push-pull; our ablation, not a published method.
    Deviations: the index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the
        same.
    Reference: Y. Bo and Y. Wang, "Provably convergent decentralized optimization over directed graphs under
        generalized smoothness", 2026, arXiv:2601.03566 (the method that it is an ablation of).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.NormalizedAB(step_size=0.01), problem, network, steps=3000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.02)
        True
    """

    step_size: StepSize

    needs = frozenset({"row", "column"})
    connectivity: ClassVar = "common root"
    converges: ClassVar = "neighbourhood"
    reference: ClassVar = "bo2026provably"
    attribution: ClassVar = "this library (ablation of CGT)"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> NormalizedABState:
        """Start at x0 with empty trackers."""
        return NormalizedABState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: NormalizedABState, grad: Array, net: Net) -> NormalizedABState:
        """Track, then move a fixed distance along the tracker."""
        y = net.push(state.y) + grad - state.g  # (2)
        x = net.pull(state.x) - self.step_size * normalize_rows(y)  # (1)
        return NormalizedABState(x=x, y=y, g=grad)
