"""Decentralized AdaGrad: as DAMSGrad, with the running average of the squared gradients as second moment."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import maximum, ones_column, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, Positive, StepSize


class DAdaGradState(NamedTuple):
    """State of DAdaGrad between two steps."""

    x: Array  # [n, d] estimates
    m: Array  # [n, d] first moments
    vhat: Array  # [n, d] averages of the squared gradients so far
    u: Array  # [n, d] trackers of the average vhat
    t: Array  # [n, 1] how many gradients vhat is the average of


@dataclass(frozen=True, eq=False)
class DAdaGrad:
    r"""Decentralized AdaGrad with a tracked second moment.

    As :class:`DAMSGrad`, with another second moment. All operations are elementwise, t = 1, 2, ...:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t                                   \qquad (1) \\
        \hat v_t &= \tfrac{t-1}{t} \hat v_{t-1} + \tfrac1t g_t^2                     \qquad (2) \\
        \tilde u_t &= P\, u_{t-1}                                                    \qquad (3) \\
        x_{t+1} &= P x_t - \alpha\, m_t / \sqrt{\max(\tilde u_t, \epsilon)}          \qquad (4) \\
        u_t &= \tilde u_t - \hat v_{t-1} + \hat v_t                                  \qquad (5)

    with P doubly stochastic, :math:`m_0 = 0` and :math:`\hat v_0 = u_0 = \epsilon`. With ``delayed=False``
    (5) is moved ahead of (3): :math:`u_t = \tilde u_t = P (u_{t-1} - \hat v_{t-1} + \hat v_t)`. In the
    delayed form the first step divides by :math:`\sqrt\epsilon`; see :class:`DAMSGrad`.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        momentum: :math:`\beta_1` in [0, 1); 0 switches momentum off.
        epsilon: :math:`\epsilon > 0`, the smallest second moment.
        delayed: Whether the second moment enters one step late, as in the reference.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: 2d numbers per edge and step; 1 dependent round (both known before the gradient when
        delayed).
    Converges: to no point: it stays at distance O(alpha/sqrt(u)) from the minimum (with ``mixing="row"``: of the
        Perron-weighted loss), which grows with the steps, because the average u decreases while the gradients do.
    Invariant: the u_i sum to the vhat_i at every step (with ``"row"``: both weighted by u of R).
    Also known as: D-AdaGrad.
    Deviations: no symmetry of P is asked for. A public code under this name weights with (t-2)/t, which is
        wrong.
    Reference: X. Chen, B. Karimi, W. Zhao and P. Li, "On the convergence of decentralized adaptive gradient
        methods", ACML 2022, PMLR 189:217-232, Algorithm 4, arXiv:2109.03194. The undelayed form is the
        authors' remark there.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> method = dg.DAdaGrad(step_size=0.1, delayed=False)
        >>> trace = dg.simulate(method, problem, network, steps=3000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    epsilon: Positive = 1e-6
    delayed: bool = True
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "drifting"
    reference: ClassVar = "chen2023convergence"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DAdaGradState:
        """Start at x0 with empty moments."""
        start = zeros_like(x0) + self.epsilon
        return DAdaGradState(x=x0, m=zeros_like(x0), vhat=start, u=1 * start, t=0 * ones_column(x0))

    def step(self, state: DAdaGradState, grad: Array, net: Net) -> DAdaGradState:
        """Update the moments, agree on the second, then step."""
        t = state.t + 1
        m = self.momentum * state.m + (1 - self.momentum) * grad  # (1)
        vhat = (t - 1) / t * state.vhat + grad**2 / t  # (2)
        news = vhat - state.vhat
        x, u = net.mix((state.x, state.u if self.delayed else state.u + news))  # (3)
        x = x - self.step_size * m / maximum(u, self.epsilon) ** 0.5  # (4)
        return DAdaGradState(x=x, m=m, vhat=vhat, u=u + news if self.delayed else u, t=t)  # (5)
