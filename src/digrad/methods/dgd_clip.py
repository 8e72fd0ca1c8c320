"""Decentralized gradient descent with clipped local gradients, the CGT paper's clipping baseline."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import clip_rows, row_norm
from digrad.methods.defaults import state_x
from digrad.types import Array, MixingChoice, Net, StepSize, Threshold


class DGDClipState(NamedTuple):
    """State of DGDClip between two steps."""

    x: Array  # [n, d] estimates


@dataclass(frozen=True, eq=False)
class DGDClip:
    r"""Decentralized gradient descent with clipping of the local gradients.

    Stable from any start, but biased: by a constant step size, as :class:`DGD`, and also by clipping if the threshold
    is below the local gradients at the minimum, because clipped gradients need not cancel where the true ones do.

    .. math::
        x_i^{k+1} = \sum_j P_{ij} x_j^k
            - \alpha \min(1, c_0/\|\nabla f_i(x_i^k)\|)\, \nabla f_i(x_i^k)  \qquad (1)

    with P doubly stochastic.

    Args:
        step_size: :math:`\alpha > 0`, or a schedule.
        threshold: :math:`c_0 > 0`; ``inf`` gives :class:`DGD`.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, as the
            CGT paper may have run it, which minimises a Perron-weighted loss.

    Communication: d numbers per edge and step; 1 dependent round.
    Converges: to a biased point; as alpha goes to 0, to a root of the sum of the clipped local gradients, which is the
        minimum if the threshold is above them there.
    Invariant: the mean estimate moves by alpha times the mean clipped gradient (with ``"row"``: both weighted
        by u).
    Also known as: "DGD with gradient clipping" in the CGT paper.
    Deviations: the paper that the CGT paper cites for it could not be found; this is the form it describes.
    Reference: Y. Bo and Y. Wang, "Provably convergent decentralized optimization over directed graphs under
        generalized smoothness", 2026, Section V, arXiv:2601.03566.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.DGDClip(step_size=0.05, threshold=2.0), problem, network, steps=1000)
        >>> bool(0.01 < abs(trace.final_x.mean(axis=0) - problem.solve().x).max() < 0.1)
        True
    """

    step_size: StepSize
    threshold: Threshold
    mixing: MixingChoice = "sinkhorn"

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "bo2026provably"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> DGDClipState:
        """Start at x0."""
        return DGDClipState(x=x0)

    def step(self, state: DGDClipState, grad: Array, net: Net) -> DGDClipState:
        """Mix, then step along the clipped local gradient."""
        x = net.mix(state.x) - self.step_size * clip_rows(grad, self.threshold)  # (1)
        return DGDClipState(x=x)

    def diagnostics(self, state: DGDClipState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the threshold."""
        return {"clip_ratio": row_norm(grad) / self.threshold}
