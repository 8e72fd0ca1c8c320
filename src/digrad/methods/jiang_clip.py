"""Decentralized gradient descent in which one common clip factor comes from the true average gradient."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import clip_factors, row_norm
from digrad.methods.defaults import state_x
from digrad.types import Array, MixingChoice, Net, StepSize, Threshold


class JiangClipState(NamedTuple):
    """State of JiangClip between two steps."""

    x: Array  # [n, d] estimates


@dataclass(frozen=True, eq=False)
class JiangClip:
    r"""Decentralized gradient descent with globally averaged clipping (after Jiang et al., interpretation).

    All agents shrink their gradients by the same factor, which is computed from the true average of the
    gradients: no clipping bias, but an all-reduce at every step, so the method is not decentralized.

    .. math::
        x_i^{k+1} = \sum_j P_{ij} x_j^k - \alpha \min(1, c_0/\|\bar g^k\|)\, \nabla f_i(x_i^k), \qquad
            \bar g^k = \frac1N \sum_i \nabla f_i(x_i^k)  \qquad (1)

    with P doubly stochastic.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        threshold: :math:`c_0 > 0`; ``inf`` gives :class:`DGD`.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which
            minimises the Perron-weighted loss instead of the average.

    Communication: d numbers per edge and step, and one all-reduce of d numbers; 1 dependent round.
    Converges: to the biased limit of :class:`DGD`, once the average gradient is below the threshold.
    Invariant: the mean estimate moves by the common step times the mean gradient (with ``"row"``: weighted by
        u).
    Also known as: none.
    Deviations: the reference's step size is adaptive and needs no threshold; only its abstract and the CGT
        paper's description of it (a global average at each iteration) were available. Cite it as "after Jiang
        et al.".
    Reference: Z. Jiang, A. Balu and S. Sarkar, "Decentralized relaxed smooth optimization with gradient
        descent methods", 2025, arXiv:2508.08413.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.JiangClip(step_size=0.05, threshold=2.0), problem, network, steps=1000)
        >>> bool(abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.05)
        True
    """

    step_size: StepSize
    threshold: Threshold
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly", "mean"})
    converges: ClassVar = "biased"
    reference: ClassVar = "jiang2025decentralized"
    attribution: ClassVar = "after Jiang et al. 2025, interpretation"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> JiangClipState:
        """Start at x0."""
        return JiangClipState(x=x0)

    def step(self, state: JiangClipState, grad: Array, net: Net) -> JiangClipState:
        """Mix, then step along the local gradient with the common clip factor."""
        factor = clip_factors(net.mean(grad), self.threshold)
        x = net.mix(state.x) - self.step_size * factor * grad  # (1)
        return JiangClipState(x=x)

    def diagnostics(self, state: JiangClipState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the threshold."""
        return {"clip_ratio": row_norm(net.mean(grad)) / self.threshold}
