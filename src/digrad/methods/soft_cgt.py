"""CGT with smooth clipping."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import row_norm, soft_clip_factors, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize, Threshold


class SoftCGTState(NamedTuple):
    """State of SoftCGT between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class SoftCGT:
    r"""Clipped gradient tracking with a smooth clip factor.

    As :class:`CGT`, with :math:`c_0/(c_0 + \|y\|)` in place of :math:`\min(1, c_0/\|y\|)`: no kink, a little
    shorter everywhere, and between one half of the clipped step and all of it.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} x_j^k - \alpha \frac{c_0}{c_0 + \|y_i^k\|}\, y_i^k      \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)       \qquad (2)

    with R row-stochastic, C column-stochastic and :math:`y_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`.
        threshold: :math:`c_0 > 0`, the norm at which a tracker is halved; ``inf`` gives :class:`AB`.

    Communication: 2d numbers per edge and step; 1 dependent round (both messages are known before the
        gradient).
    Converges: to a stationary point of the average loss under (L0, L1)-smoothness when alpha is small enough:
        the factor lies between 0 and 1, which is all that :func:`digrad.theory.certify` uses of clipping.
    Invariant: the y_i sum to the local gradients at every step; the Perron average moves by at most alpha c0.
    Also known as: none; a variant of CGT of this library.
    Deviations:
        1. The clip factor, see above.
        2. The index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the same.
    Reference: Y. Bo and Y. Wang, "Provably convergent decentralized optimization over directed graphs under
        generalized smoothness", 2026, arXiv:2601.03566 (the method that it is a variant of).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.SoftCGT(step_size=0.05, threshold=2.0), problem, network, steps=1000).verdict
        'converged'
    """

    step_size: StepSize
    threshold: Threshold

    needs = frozenset({"row", "column"})
    connectivity: ClassVar = "common root"
    converges: ClassVar = "exact"
    reference: ClassVar = "bo2026provably"
    attribution: ClassVar = "this library (variant of CGT)"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> SoftCGTState:
        """Start at x0 with empty trackers."""
        return SoftCGTState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: SoftCGTState, grad: Array, net: Net) -> SoftCGTState:
        """Track, then move along the softly clipped tracker."""
        y = net.push(state.y) + grad - state.g  # (2)
        x = net.pull(state.x) - self.step_size * (y * soft_clip_factors(y, self.threshold))  # (1)
        return SoftCGTState(x=x, y=y, g=grad)

    def diagnostics(self, state: SoftCGTState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the norm that is halved."""
        return {"clip_ratio": row_norm(state.y) / self.threshold}
