"""Subgradient-push: push-sum averaging first, then a step along the gradient at the average."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column
from digrad.methods.defaults import debiased_x, state_w
from digrad.types import Array, Net, StepSize


class SubgradientPushState(NamedTuple):
    """State of SubgradientPush between two steps."""

    x: Array  # [n, d] biased estimates, already mixed
    w: Array  # [n, 1] push-sum weights, the same mixing applied to ones


@dataclass(frozen=True, eq=False)
class SubgradientPush:
    r"""Subgradient-push: mix with push-sum, then step.

    The ancestor of :class:`SGP`: the agents mix first and take the gradient at the de-biased result. From the
    second mixing on the two recursions are the same; they differ in the start only.

    .. math::
        x_i^{k+1} &= \sum_j C_{ij} (x_j^k - \alpha \nabla f_j(z_j^k))                     \qquad (1) \\
        w_i^{k+1} &= \sum_j C_{ij} w_j^k, \qquad z_i^{k+1} = x_i^{k+1} / w_i^{k+1}        \qquad (2)

    with C column-stochastic, started from the mixed :math:`x^0 \leftarrow C x^0` and :math:`w^0 = C 1`.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule; the reference asks for one whose sum is infinite and
            whose squares are summable.

    Communication: d + 1 numbers per edge and step; 1 dependent round (after the gradient), and one before the
        start.
    Converges: to a point at distance O(alpha) from the minimum; for decreasing alpha to the minimum itself.
    Invariant: the w_i are positive and sum to n; the sum of x moves by alpha times the sum of the gradients.
    Also known as: push-sum (sub)gradient; the CGT paper calls the family SGP.
    Deviations: (1) is written from one mixing to the next, so x here is the mixed iterate (w in the paper)
        and the state before the first step is already mixed; the sequence z is the paper's from its first
        element on.
    Reference: A. Nedic and A. Olshevsky, "Distributed optimization over time-varying directed graphs", IEEE
        Transactions on Automatic Control 60(3):601-615, 2015.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.SubgradientPush(step_size=0.05), problem, network, steps=500)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize

    needs = frozenset({"column"})
    converges: ClassVar = "biased"
    reference: ClassVar = "nedic2015distributed"
    estimate = query = debiased_x
    average_weights = state_w
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> SubgradientPushState:
        """Mix the starts and the weights once."""
        x, w = net.push((x0, ones_column(x0)))
        return SubgradientPushState(x=x, w=w)

    def step(self, state: SubgradientPushState, grad: Array, net: Net) -> SubgradientPushState:
        """Step at the de-biased estimate, then mix for the next."""
        x, w = net.push((state.x - self.step_size * grad, state.w))  # (1), (2)
        return SubgradientPushState(x=x, w=w)
