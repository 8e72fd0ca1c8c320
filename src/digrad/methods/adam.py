"""Adam with a true average: what a server would do with an adaptive method."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, Net, Positive, StepSize


class AdamState(NamedTuple):
    """State of Adam between two steps."""

    x: Array  # [n, d] the same row for every agent
    m: Array  # [n, d] first moment
    v: Array  # [n, d] second moment
    t: Array  # [n, 1] how many gradients the moments contain


@dataclass(frozen=True, eq=False)
class Adam:
    r"""Adam on the average loss: a centralized yardstick, not a decentralized method.

    All operations are elementwise, t = 1, 2, ..., with :math:`g_t` the average gradient at :math:`x_{t-1}`:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t                          \qquad (1) \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) g_t^2                        \qquad (2) \\
        x_t &= x_{t-1} - \alpha\, \frac{m_t/(1 - \beta_1^t)}
            {\sqrt{v_t/(1 - \beta_2^t)} + \epsilon}                          \qquad (3)

    with :math:`m_0 = v_0 = 0`.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule; 0.001 is usual.
        momentum: :math:`\beta_1` in [0, 1).
        second_momentum: :math:`\beta_2` in [0, 1).
        epsilon: :math:`\epsilon > 0`.

    Communication: one all-reduce of d numbers per step, and one of the starts.
    Converges: to the minimum of simple losses; not always, which is what AMSGrad repairs.
    Invariant: all rows are equal.
    Also known as: none.
    Deviations: starts from the average of the agents' starts.
    Reference: D. P. Kingma and J. Ba, "Adam: A method for stochastic optimization", ICLR 2015,
        arXiv:1412.6980.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.Adam(step_size=0.1), problem, network, steps=2000).verdict
        'converged'
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.999
    epsilon: Positive = 1e-8

    needs = frozenset({"mean"})
    converges: ClassVar = "exact"
    reference: ClassVar = "kingma2015adam"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> AdamState:
        """Start all agents at the average of the starts with empty moments."""
        return AdamState(x=net.mean(x0), m=zeros_like(x0), v=zeros_like(x0), t=0 * ones_column(x0))

    def step(self, state: AdamState, grad: Array, net: Net) -> AdamState:
        """Update both moments, then step."""
        g, t = net.mean(grad), state.t + 1
        m = self.momentum * state.m + (1 - self.momentum) * g  # (1)
        v = self.second_momentum * state.v + (1 - self.second_momentum) * g**2  # (2)
        root = (v / (1 - self.second_momentum**t)) ** 0.5
        x = state.x - self.step_size * m / (1 - self.momentum**t) / (root + self.epsilon)  # (3)
        return AdamState(x=x, m=m, v=v, t=t)
