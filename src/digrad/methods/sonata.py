"""SONATA with a linear surrogate: gradient tracking whose push-sum weights multiply what is sent."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, zeros_like
from digrad.methods.defaults import state_w, state_x
from digrad.types import Array, Net, StepSize


class SONATAState(NamedTuple):
    """State of SONATA between two steps."""

    x: Array  # [n, d] estimates
    w: Array  # [n, 1] push-sum weights (phi in the paper)
    s: Array  # [n, d] weighted trackers: w times y of the same iteration
    g: Array  # [n, d] the gradients that s already contains


@dataclass(frozen=True, eq=False)
class SONATA:
    r"""Successive convex approximation over digraphs (SONATA), unconstrained, with a linear surrogate.

    Each agent minimises a convex surrogate of the loss around its estimate and averages with weights that
    undo the bias of the digraph. With the linear surrogate the local problem is a gradient step along the
    tracker y = s/w.

    .. math::
        s_i^{k+1} &= \sum_j C_{ij} s_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k), \qquad
            y_i^{k+1} = s_i^{k+1} / w_i^{k+1}                                                \qquad (1) \\
        w_i^{k+1} &= \sum_j C_{ij} w_j^k                                                     \qquad (2) \\
        x_i^{k+1} &= \frac{1}{w_i^{k+1}} \sum_j C_{ij} w_j^k (x_j^k - \alpha\, y_j^k)        \qquad (3)

    with C column-stochastic, :math:`w_i^0 = 1` and :math:`s_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`; for a surrogate with proximal weight tau and a step gamma, gamma/tau.

    Communication: 2d + 1 numbers per edge and step; 2 dependent rounds in this order of steps (s, then x with
        w).
    Converges: to the exact minimum when each f_i is smooth, their mean strongly convex and alpha small
        enough.
    Invariant: the w_i y_i sum to the local gradients at every step; the w_i are positive and sum to n.
    Also known as: SONATA-L. Identical to :class:`PushDIGing`: w x and s are its x and y.
    Deviations:
        1. Stores s = w y instead of y, and shifts the index of (1) by one, with :math:`s^{-1} = g^{-1} = 0`;
           the sequence x is the same.
        2. Only the linear surrogate, and no constraint set.
    Reference: G. Scutari and Y. Sun, "Distributed nonconvex constrained optimization over time-varying
        digraphs", Mathematical Programming 176:497-544, 2019.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.SONATA(step_size=0.05), problem, network, steps=500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"column"})
    converges: ClassVar = "exact"
    reference: ClassVar = "scutari2019distributed"
    estimate = query = state_x
    average_weights = state_w
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> SONATAState:
        """Start at x0 with weights one and empty trackers."""
        return SONATAState(x=x0, w=ones_column(x0), s=zeros_like(x0), g=zeros_like(x0))

    def step(self, state: SONATAState, grad: Array, net: Net) -> SONATAState:
        """Track, solve the local problem, then push its weighted solution."""
        s = net.push(state.s) + grad - state.g  # (1)
        half = state.x - self.step_size * s / state.w
        weighted, w = net.push((state.w * half, state.w))  # (2)
        return SONATAState(x=weighted / w, w=w, s=s, g=grad)  # (3)
