"""FROST: gradient tracking with row-stochastic weights only; every agent learns its Perron weight."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import cast_like, zeros_like
from digrad.methods.defaults import state_x
from digrad.types import Array, Net, StepSize


class FROSTState(NamedTuple):
    """State of FROST between two steps."""

    x: Array  # [n, d] estimates
    y: Array  # [n, d] trackers of the average gradient
    g: Array  # [n, d] the scaled gradients that y already contains
    z: Array  # [n, n] row i: agent i's estimate of the Perron vector of R


@dataclass(frozen=True, eq=False)
class FROST:
    r"""Fast row-stochastic optimization (FROST).

    Row-stochastic weights are the easiest to choose (the receiver decides alone), but they weigh the
    gradients by the Perron vector u. Each agent estimates its entry of u and divides its gradient by it.

    .. math::
        x_i^{k+1} &= \sum_j R_{ij} x_j^k - \alpha\, y_i^k                              \qquad (1) \\
        z_i^{k+1} &= \sum_j R_{ij} z_j^k                                               \qquad (2) \\
        y_i^{k+1} &= \sum_j R_{ij} y_j^k + \frac{\nabla f_i(x_i^{k+1})}{z_{ii}^{k+1}}
            - \frac{\nabla f_i(x_i^k)}{z_{ii}^k}                                       \qquad (3)

    with R row-stochastic, :math:`z_i^0` the i-th unit vector and :math:`y_i^0 = \nabla f_i(x_i^0)`.

    Args:
        step_size: :math:`\alpha > 0`; a column ``[n, 1]`` gives each agent its own.

    Communication: 2d + n numbers per edge and step; 1 dependent round (all known before the gradient).
    Converges: linearly to the exact minimum when each f_i is smooth, their mean strongly convex, the graph
        strongly connected and alpha small enough.
    Invariant: weighted by u, the y_i sum to the scaled local gradients at every step; n z_ii tends to u_i.
    Also known as: Pull-Diag gradient tracking (its "combine then adapt" form).
    Deviations:
        1. The index of (3) is shifted by one, with :math:`y^{-1} = g^{-1} = 0`; the sequences are the same.
        2. Refuses more than 1000 agents, because each carries n numbers.
        3. Refuses networks that change with the iteration, lose packets or delay them: z does not settle there.
    Reference: R. Xin, C. Xi and U. A. Khan, "FROST - Fast row-stochastic optimization with uncoordinated
        step-sizes", EURASIP Journal on Advances in Signal Processing 2019:1, 2019.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> dg.simulate(dg.FROST(step_size=0.02), problem, network, steps=1500).verdict
        'converged'
    """

    step_size: StepSize

    needs = frozenset({"row"})
    converges: ClassVar = "exact"
    connectivity: ClassVar = "strong"
    learns: ClassVar = "the Perron vector of R"
    max_agents: ClassVar = 1000  # each carries and sends n numbers: n^2 in memory, and n per edge and step
    reference: ClassVar = "xin2019frost"
    estimate = query = state_x
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> FROSTState:
        """Start at x0 with empty trackers, every agent certain of itself."""
        return FROSTState(x=x0, y=zeros_like(x0), g=zeros_like(x0), z=cast_like(net.one_hot, x0))

    def step(self, state: FROSTState, grad: Array, net: Net) -> FROSTState:
        """Divide the gradient by the Perron weight, track, then move along the tracker."""
        scaled = grad / (state.z * cast_like(net.one_hot, state.z)).sum(-1)[:, None]  # z_ii
        y, x, z = net.pull((state.y, state.x, state.z))  # (2)
        y = y + scaled - state.g  # (3)
        x = x - self.step_size * y  # (1)
        return FROSTState(x=x, y=y, g=scaled, z=z)
