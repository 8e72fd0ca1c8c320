"""Decentralized AMSGrad: the agents agree on the adaptive step sizes by tracking the second moment."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import maximum, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Fraction, MixingChoice, Net, Positive, StepSize


class DAMSGradState(NamedTuple):
    """State of DAMSGrad between two steps."""

    x: Array  # [n, d] estimates
    m: Array  # [n, d] first moments
    v: Array  # [n, d] second moments
    vhat: Array  # [n, d] largest second moments so far
    u: Array  # [n, d] trackers of the average vhat


@dataclass(frozen=True, eq=False)
class DAMSGrad:
    r"""Decentralized AMSGrad with a tracked second moment.

    Adaptive step sizes that differ between the agents would move the limit to a wrong point; here the agents
    agree on the average of their second moments. All operations are elementwise, t = 1, 2, ...:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t                                   \qquad (1) \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) g_t^2, \quad
            \hat v_t = \max(\hat v_{t-1}, v_t)                                       \qquad (2) \\
        \tilde u_t &= P\, u_{t-1}                                                    \qquad (3) \\
        x_{t+1} &= P x_t - \alpha\, m_t / \sqrt{\max(\tilde u_t, \epsilon)}          \qquad (4) \\
        u_t &= \tilde u_t - \hat v_{t-1} + \hat v_t                                  \qquad (5)

    with P doubly stochastic, :math:`m_0 = v_0 = 0` and :math:`\hat v_0 = u_0 = \epsilon`. With
    ``delayed=False`` (5) is moved ahead of (3):
    :math:`u_t = \tilde u_t = P (u_{t-1} - \hat v_{t-1} + \hat v_t)`.

    In the delayed form the first step divides by :math:`\sqrt\epsilon`, because the first gradient enters u
    only at t = 2: with the default epsilon the step is 1000 alpha (1 - beta_1) g long, and AMSGrad never
    forgets a large gradient met there. The undelayed form is safe.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        momentum: :math:`\beta_1` in [0, 1).
        second_momentum: :math:`\beta_2` in [0, 1).
        epsilon: :math:`\epsilon > 0`, the smallest second moment.
        delayed: Whether the second moment enters one step late, as in the reference.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: 2d numbers per edge and step; 1 dependent round (both known before the gradient when
        delayed).
    Converges: to a point at distance O(alpha/sqrt(u)) from the minimum (with ``mixing="row"``: of the
        Perron-weighted loss).
    Invariant: the u_i sum to the vhat_i at every step (with ``"row"``: both weighted by u of R); vhat never
        decreases.
    Also known as: D-AMSGrad.
    Deviations: v_0 = 0, which the reference does not state; no symmetry of P is asked for.
    Reference: X. Chen, B. Karimi, W. Zhao and P. Li, "On the convergence of decentralized adaptive gradient
        methods", ACML 2022, PMLR 189:217-232, Algorithm 3, arXiv:2109.03194. The undelayed form is the
        authors' remark there.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> method = dg.DAMSGrad(step_size=0.05, delayed=False)
        >>> trace = dg.simulate(method, problem, network, steps=2000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.99
    epsilon: Positive = 1e-6
    delayed: bool = True
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "chen2023convergence"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DAMSGradState:
        """Start at x0 with empty moments."""
        start = zeros_like(x0) + self.epsilon
        return DAMSGradState(x=x0, m=zeros_like(x0), v=zeros_like(x0), vhat=start, u=1 * start)

    def step(self, state: DAMSGradState, grad: Array, net: Net) -> DAMSGradState:
        """Update the moments, agree on the second, then step."""
        m = self.momentum * state.m + (1 - self.momentum) * grad  # (1)
        v = self.second_momentum * state.v + (1 - self.second_momentum) * grad**2  # (2)
        vhat = maximum(state.vhat, v)  # (2)
        news = vhat - state.vhat
        x, u = net.mix((state.x, state.u if self.delayed else state.u + news))  # (3)
        x = x - self.step_size * m / maximum(u, self.epsilon) ** 0.5  # (4)
        return DAMSGradState(x=x, m=m, v=v, vhat=vhat, u=u + news if self.delayed else u)  # (5)
