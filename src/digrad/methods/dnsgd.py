"""Decentralized normalized SGD: tracking, normalized steps and accelerated gossip."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import normalize_rows, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Count, Fraction, MixingChoice, Net, StepSize


class DNSGDState(NamedTuple):
    """State of DNSGD between two steps."""

    x: Array  # [n, d] estimates
    v: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that v already contains


@dataclass(frozen=True, eq=False)
class DNSGD:
    r"""Decentralized normalized stochastic gradient descent (DNSGD), with Chebyshev gossip.

    Gradient tracking in which an agent moves a fixed distance along its tracker, and every mixing is K rounds
    of accelerated gossip :math:`\mathrm{Mix}_K`.

    .. math::
        v^k &= \mathrm{Mix}_K(v^{k-1} + g^k - g^{k-1}), \qquad g_i^k = \nabla f_i(x_i^k)       \qquad (1) \\
        x^{k+1} &= \mathrm{Mix}_K(x^k - \alpha\, v^k / \|v^k\|_{\mathrm{row}})                 \qquad (2) \\
        \mathrm{Mix}_K(z) &= z^{(K)}, \quad z^{(l+1)} = (1 + e) P z^{(l)} - e z^{(l-1)}, \quad
            z^{(0)} = z^{(-1)} = z                                                             \qquad (3)

    with P doubly stochastic, :math:`v^{-1} = g^{-1} = 0` and 0/0 = 0.

    Args:
        step_size: :math:`\alpha > 0`, the distance of one step, or a schedule.
        gossip_rounds: :math:`K \ge 1`.
        chebyshev: :math:`e` in [0, 1) of (3), see :func:`chebyshev_momentum`. Acceleration needs a symmetric
            P; on a digraph keep 0, plain gossip.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: 2Kd numbers per edge and step; 2K dependent rounds.
    Converges: to a neighbourhood of a stationary point proportional to alpha; for decreasing alpha to the
        point.
    Invariant: the mean of v is the mean of the stored gradients (with ``"row"``: both weighted by u); Mix_K
        preserves the mean for every K and e.
    Also known as: normalized gradient tracking.
    Deviations: only abstract and introduction of the reference were available: this is its method as
        described there, and batch size, K and the line-by-line form were not verified. The reference has
        undirected graphs.
    Reference: L. Luo, X. Cui, T. Jia and C. Chen, "Decentralized stochastic nonconvex optimization under the
        relaxed smoothness", 2025, arXiv:2509.08726.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.DNSGD(step_size=0.01), problem, network, steps=3000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.02)
        True
    """

    step_size: StepSize
    gossip_rounds: Count = 1
    chebyshev: Fraction = 0.0
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "neighbourhood"
    reference: ClassVar = "luo2025decentralized"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DNSGDState:
        """Start at x0 with empty trackers."""
        return DNSGDState(x=x0, v=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: DNSGDState, grad: Array, net: Net) -> DNSGDState:
        """Track, then move a fixed distance; gossip after both."""
        v = self._gossip(state.v + grad - state.g, net)  # (1)
        x = self._gossip(state.x - self.step_size * normalize_rows(v), net)  # (2)
        return DNSGDState(x=x, v=v, g=grad)

    def _gossip(self, z: Array, net: Net) -> Array:
        previous = z
        for _ in range(self.gossip_rounds):
            mixed = net.mix(z)
            previous, z = z, (1 + self.chebyshev) * mixed - self.chebyshev * previous  # (3)
        return z


def chebyshev_momentum(second_eigenvalue: float) -> float:
    """Return the e of Chebyshev gossip for a symmetric matrix, (1 - s)/(1 + s) with s = sqrt(1 - l2^2).

    Args:
        second_eigenvalue: l2, the second largest absolute eigenvalue of the mixing matrix, in [0, 1).

    Returns:
        A number e in [0, 1), which is 0 for l2 = 0.

    Raises:
        ArgumentError: If ``second_eigenvalue`` is not in [0, 1).

    Example:
        >>> chebyshev_momentum(0.6)
        0.111...
    """
    checks.fraction(second_eigenvalue, "second_eigenvalue", "chebyshev_momentum")
    root = (1 - second_eigenvalue**2) ** 0.5
    return (1 - root) / (1 + root)
