"""Clipped gradient descent with a true average: what a server would do under (L0, L1)-smoothness."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import clip_rows, row_norm
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize, Threshold


class ClippedGDState(NamedTuple):
    """State of ClippedGD between two steps."""

    x: Array  # [n, d] the same row for every agent


@dataclass(frozen=True, eq=False)
class ClippedGD:
    r"""Clipped gradient descent on the average loss: a centralized yardstick, not a decentralized method.

    .. math::
        x^{k+1} &= x^k - \alpha \min(1, c_0/\|g^k\|)\, g^k  \qquad (1) \\
        g^k &= \frac1N \sum_i \nabla f_i(x^k)

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        threshold: :math:`c_0 > 0`; ``inf`` gives :class:`GD`.

    Communication: one all-reduce of d numbers per step, and one of the starts.
    Converges: to a stationary point under (L0, L1)-smoothness when alpha and alpha c0 are small enough.
    Invariant: all rows are equal; a step is at most alpha c0 long.
    Also known as: GClip; CGT with one agent.
    Deviations: starts from the average of the agents' starts; h = min(eta, gamma eta/||g||) of the reference
        is alpha = eta, c0 = gamma.
    Reference: J. Zhang, T. He, S. Sra and A. Jadbabaie, "Why gradient clipping accelerates training: a
        theoretical justification for adaptivity", ICLR 2020, arXiv:1905.11881.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quartic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.ClippedGD(step_size=0.05, threshold=5.0), problem, network, steps=300).verdict
        'converged'
    """

    step_size: StepSize
    threshold: Threshold

    needs = frozenset({"mean"})
    converges: ClassVar = "exact"
    reference: ClassVar = "zhang2020why"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> ClippedGDState:
        """Start all agents at the average of the starts."""
        return ClippedGDState(x=net.mean(x0))

    def step(self, state: ClippedGDState, grad: Array, net: Net) -> ClippedGDState:
        """Step along the clipped average gradient."""
        return ClippedGDState(x=state.x - self.step_size * clip_rows(net.mean(grad), self.threshold))  # (1)

    def diagnostics(self, state: ClippedGDState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the threshold."""
        return {"clip_ratio": row_norm(net.mean(grad)) / self.threshold}
