"""DiLoCo with gossip: an outer Nesterov step over many local ones."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, where
from digrad.methods.defaults import parameter_shapes, state_x
from digrad.methods.directions import CheckedDirection, plain
from digrad.types import Array, Count, Fraction, MixingChoice, Net, Positive, StepSize


class DiLoCoState(NamedTuple):
    """State of DiLoCo between two steps."""

    x: Array  # [n, d] fast estimates, on which local steps work
    z: Array  # [n, d] slow estimates, with which the round began
    h: Array  # [n, d] the outer step of the round before, without momentum
    t: Array  # [n, 1] local steps of the round so far
    memory: Array  # [n, m] what the direction remembers


@dataclass(frozen=True, eq=False)
class DiLoCo:
    r"""Local steps whose sum is a gradient for an outer Nesterov step, mixed by gossip (DiLoCo).

    Agents communicate once in H steps. On the complete graph, where W averages, this is DiLoCo; on a sparse graph it is
    the form of GASLoC in which the momentum is mixed too, with the same messages.

    .. math::
        x_i^{k+1} &= x_i^k - \alpha\, D(\nabla f_i(x_i^k)) \quad \text{in every step; at the end of a round, with} \\
        h_i^+ &= z_i + \eta\, (x_i - z_i),                                                           \qquad (1) \\
        z_i^+ = x_i^+ &= \sum_j P_{ij} \big(h_j^+ + \mu (h_j^+ - h_j)\big)                           \qquad (2)

    with P doubly stochastic and :math:`z_i = h_i = x_i^0` at first. The estimate is z.

    Args:
        step_size: :math:`\alpha > 0`, of the local steps.
        local_steps: H, the steps of a round. The first round has one, so that rounds end when
            :func:`digrad.graphs.every` mixes: use it on ``Network(every(H, graph))``, which then counts no other
            messages. Another number there is refused; on a plain graph H - 1 of H messages are not used.
        outer_step: :math:`\eta > 0`, how much of the way of the local steps counts.
        momentum: :math:`\mu` in [0, 1), of the outer steps. Where P is not symmetric its eigenvalues are complex, and a
            large momentum lets the agents drift apart: on the example from about 0.75 on.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which weights the
            agents by u.
        direction: D, the optimizer of the local steps (:mod:`digrad.methods.directions`), such as
            ``from_torch(...)`` or ``from_optax(...)``; a plain gradient step by default. What it remembers is not sent.

    Communication: d numbers per edge and round; 1 dependent round.
    Converges: to a point that is biased by what the agents do between two messages, proportional to alpha (H - 1), and
        on a sparse graph to alpha H. Gradient tracking under the same messages (:class:`AB` on ``every(H, graph)``) is
        exact.
    Invariant: at the end of a round the mean of x is that of h + mu (h - h before) (with ``"row"``: weighted by u).
    Also known as: local SGD or FedAvg with server momentum, for a complete graph.
    Deviations:
        1. Local steps are gradient steps by default; the reference takes AdamW (``direction``).
        2. The first round has one step, see above.
    Reference: A. Douillard et al., "DiLoCo: Distributed low-communication training of language models", 2023,
        arXiv:2311.08105.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.every(5, dg.graphs.complete(5)))
        >>> trace = dg.simulate(dg.DiLoCo(step_size=0.02, local_steps=5), problem, network, steps=2000)
        >>> bool(abs(trace.final_x - problem.solve().x).max() < 0.2)
        True
    """

    step_size: StepSize
    local_steps: Count = 1
    outer_step: Positive = 0.7
    momentum: Fraction = 0.9
    mixing: MixingChoice = "sinkhorn"
    direction: CheckedDirection = field(default_factory=plain)

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "douillard2023diloco"
    query = state_x
    __post_init__ = checks.fields

    def estimate(self, state: DiLoCoState) -> Array:
        """Return the slow estimates, which the last round ended with."""
        return state.z

    def init(self, x0: Array, net: Net) -> DiLoCoState:
        """Start at x0, before a round of one step."""
        memory = self.direction.init(x0, parameter_shapes(x0, net))
        return DiLoCoState(x=x0, z=x0, h=x0, t=0 * ones_column(x0), memory=memory)

    def step(self, state: DiLoCoState, grad: Array, net: Net) -> DiLoCoState:
        """Take a local step, and at the end of a round the outer one."""
        direction, memory = self.direction.update(grad, state.memory, state.x, parameter_shapes(state.x, net))
        x = state.x - self.step_size * direction
        h = state.z + self.outer_step * (x - state.z)  # (1)
        z = net.mix(h + self.momentum * (h - state.h))  # (2)
        ends = state.t == 0
        return DiLoCoState(
            x=where(ends, z, x),
            z=where(ends, z, state.z),
            h=where(ends, h, state.h),
            t=(state.t + 1) % self.local_steps,
            memory=memory,
        )
