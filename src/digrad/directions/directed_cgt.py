"""Clipped gradient tracking whose step is chosen by an optimizer."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from digrad import checks
from digrad.arrays import clip_rows, row_norm, zeros_like
from digrad.errors import ArgumentError
from digrad.methods.defaults import state_x
from digrad.types import Array, Hyper, Net


class Direction(Protocol):
    """An optimizer as a pure function of stacked rows; each agent's row is treated on its own."""

    def init(self, x: Array) -> Array:
        """Return the memory before the first step, ``[rows, m]``."""
        ...

    def update(self, tracked: Array, memory: Array, x: Array) -> tuple[Array, Array]:
        """Return the move ``[rows, d]``, which is added to x, and the memory after it."""
        ...


class DirectedCGTState(NamedTuple):
    """What DirectedCGT carries from one step to the next."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the gradients that y already contains
    memory: Array  # [n, m] what the optimizer remembers


@dataclass(frozen=True, eq=False)
class DirectedCGT:
    r"""Clipped gradient tracking with an optimizer as local direction.

    The tracker is mixed and clipped as in :class:`digrad.CGT`; the clipped tracker takes the place of the gradient in
    an optimizer that each agent runs for itself.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} x_j^k + D_i\big(\min(1, c_0/\|y_i^k\|)\, y_i^k\big)  \qquad (1) \\
        y_i^{k+1} &= \sum_j C_{ij} y_j^k + \nabla f_i(x_i^{k+1}) - \nabla f_i(x_i^k)    \qquad (2)

    where :math:`D_i` is the optimizer of agent i with its memory. Plain gradient descent with step size alpha gives
    CGT.

    Args:
        direction: :func:`from_optax` for the simulator, :func:`from_torch` for the torch engines; the step size is the
            optimizer's own.
        threshold: :math:`c_0 > 0`, or infinity.

    Communication: 2d numbers per edge and step; 1 dependent round. The memory is not sent.
    Converges: measured, not proved. Without noise it ends at the exact minimum where CGT does, with momentum and with
        Adam too (to rounding on the quadratic example); with mini-batches a constant step size leaves the agents
        around the minimum.
    Invariant: the y_i sum to the local gradients at every step, whatever the direction.

    Example:
        >>> import optax
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> method = dg.directions.DirectedCGT(dg.directions.from_optax(optax.sgd(0.02, momentum=0.5)), threshold=5.0)
        >>> dg.simulate(method, problem, network, steps=1000).verdict
        'converged'
    """

    direction: Direction
    threshold: Hyper

    needs: ClassVar = frozenset({"row", "column"})
    converges: ClassVar = "measured"
    estimate = query = state_x

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        if not hasattr(self.direction, "update"):
            raise ArgumentError(
                f"`direction` of DirectedCGT must be made by from_optax or from_torch, but got "
                f"{type(self.direction).__name__}."
            )
        checks.positive(self.threshold, "threshold", "DirectedCGT", allow_inf=True)

    def init(self, x0: Array, net: Net) -> DirectedCGTState:
        """Start at x0 with empty trackers and an optimizer that remembers nothing."""
        return DirectedCGTState(x=x0, y=zeros_like(x0), g=zeros_like(x0), memory=self.direction.init(x0))

    def step(self, state: DirectedCGTState, grad: Array, net: Net) -> DirectedCGTState:
        """Track, then move as the optimizer says."""
        y = net.push(state.y) + grad - state.g  # (2)
        move, memory = self.direction.update(clip_rows(y, self.threshold), state.memory, state.x)
        return DirectedCGTState(x=net.pull(state.x) + move, y=y, g=grad, memory=memory)  # (1)

    def diagnostics(self, state: DirectedCGTState, grad: Array, net: Net) -> dict[str, Array]:
        """Return what was clipped in the step that led to ``state``, relative to the threshold."""
        return {"clip_ratio": row_norm(state.y) / self.threshold}
