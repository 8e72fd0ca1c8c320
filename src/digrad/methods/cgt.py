"""Clipped gradient tracking, the method this library is built around."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import clip_rows, row_norm, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize, Threshold


class CGTState(NamedTuple):
    """State of CGT between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains


@dataclass(frozen=True, eq=False)
class CGT:
    r"""Clipped gradient tracking for directed graphs (CGT).

    Agents average their estimates with the weights of their in-neighbours, pass gradient information on with
    the weights of their out-neighbours, and clip the *tracker* y of the average gradient, not their local
    gradient. A long tracker then cannot throw the iterates far away, and because all trackers vanish together
    at a minimum of the average loss, clipping causes no bias.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} x_j^k - \alpha \min(1, c_0/\|y_i^k\|)\, y_i^k           \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)       \qquad (2)

    with R row-stochastic, C column-stochastic and :math:`y_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`.
        threshold: :math:`c_0 > 0`, the longest tracker that is applied in full; ``inf`` gives :class:`AB`. A
            column ``[n, 1]`` gives each agent its own, see :func:`scaled_thresholds`.

    Communication: 2d numbers per edge and step; 1 dependent round (both messages are known before the
        gradient).
    Converges: to a stationary point of the average loss under (L0, L1)-smoothness when alpha is small enough.
    Invariant: the y_i sum to the local gradients at every step; the Perron average moves by at most alpha c0.
    Also known as: Algorithm 1 of the reference.
    Deviations:
        1. The index of (2) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences x and y are the
           same.
        2. With mini-batches the *stored* previous gradient is subtracted, which keeps the invariant exact;
           the reference does not say which is.
    Reference: Y. Bo and Y. Wang, "Provably convergent decentralized optimization over directed graphs under
        generalized smoothness", 2026, Algorithm 1, arXiv:2601.03566.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.CGT(step_size=0.05, threshold=2.0), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize
    threshold: Threshold

    needs = frozenset({"row", "column"})
    connectivity: ClassVar = "common root"
    converges: ClassVar = "exact"
    reference: ClassVar = "bo2026provably"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> CGTState:
        """Start at x0 with empty trackers."""
        return CGTState(x=x0, y=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: CGTState, grad: Array, net: Net) -> CGTState:
        """Track, then move along the clipped tracker."""
        y = net.push(state.y) + grad - state.g  # (2)
        x = net.pull(state.x) - self.step_size * clip_rows(y, self.threshold)  # (1)
        return CGTState(x=x, y=y, g=grad)

    def diagnostics(self, state: CGTState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the threshold."""
        return {"clip_ratio": row_norm(state.y) / self.threshold}


def scaled_thresholds(threshold: float, v: Array) -> Array:
    r"""Return the agents' thresholds :math:`c_i = v_i c_0` as a column for :class:`CGT`.

    Near consensus the tracker of agent i is v_i times the average gradient, so a common threshold clips
    agents with a large v_i first. With :math:`c_i = v_i c_0` all clip at the same average gradient: the
    effective step sizes :math:`\min(1, c_0/\|\nabla F\|)` coincide, and the largest v_i no longer enters the
    rate.

    Args:
        threshold: :math:`c_0 > 0`.
        v: ``[n]``, positive, the right Perron vector of C with sum n. An agent obtains its own entry by
            applying C repeatedly to ones.

    Returns:
        A column ``[n, 1]``.

    Raises:
        ArgumentError: If ``threshold`` or an entry of ``v`` is not positive.

    Example:
        >>> import numpy as np
        >>> scaled_thresholds(2.0, np.array([1.5, 0.5]))
        array([[3.], [1.]])
    """
    checks.positive(threshold, "threshold", "scaled_thresholds", allow_inf=True)
    checks.positive(v, "v", "scaled_thresholds")
    return threshold * v.reshape(-1, 1)
