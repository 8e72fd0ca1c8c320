"""NoLoCo: an outer step over many local ones that needs no all-reduce."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from digrad import checks
from digrad.arrays import ones_column, where, zeros_like
from digrad.methods.defaults import parameter_shapes, state_x
from digrad.methods.directions import CheckedDirection, plain
from digrad.types import Array, Count, Fraction, MixingChoice, Net, Positive, StepSize


class NoLoCoState(NamedTuple):
    """State of NoLoCo between two steps."""

    x: Array  # [n, d] fast estimates, on which local steps work
    z: Array  # [n, d] slow estimates, with which the round began
    m: Array  # [n, d] momenta of the outer steps
    t: Array  # [n, 1] local steps of the round so far
    memory: Array  # [n, m] what the direction remembers


@dataclass(frozen=True, eq=False)
class NoLoCo:
    r"""Local steps with an outer momentum step towards the neighbours' average (NoLoCo).

    Agents communicate once in H steps, with their neighbours only; the momentum pulls the slow estimates together.

    .. math::
        x_i^{k+1} &= x_i^k - \alpha\, D(\nabla f_i(x_i^k)) \quad \text{in every step; at the end of a round, with} \\
        m_i^+ &= \mu m_i + \eta \big({\textstyle\sum_j P_{ij} x_j} - z_i\big),                       \qquad (1) \\
        z_i^+ = x_i^+ &= z_i + m_i^+                                                               \qquad (2)

    with P doubly stochastic, :math:`z_i = x_i^0` and :math:`m_i = 0` at first. The estimate is z.

    Args:
        step_size: :math:`\alpha > 0`, of the local steps.
        local_steps: H, the steps of a round. The first round has one, so that rounds end when
            :func:`digrad.graphs.every` mixes: use it on ``Network(every(H, graph))``, which then counts no other
            messages. Another number there is refused; on a plain graph H - 1 of H messages are not used.
        outer_step: :math:`\eta > 0`, of the way to the average of the neighbours.
        momentum: :math:`\mu` in [0, 1), of the outer steps.
        mixing: ``"sinkhorn"``: P is doubly stochastic on the edges of the digraph; ``"row"``: P = R, which weights the
            agents by u.
        direction: D, the optimizer of the local steps (:mod:`digrad.methods.directions`), such as
            ``from_torch(...)`` or ``from_optax(...)``; a plain gradient step by default. What it remembers is not sent.

    Communication: d numbers per edge and round; 1 dependent round.
    Converges: to a point that is biased by what the agents do between two messages, proportional to alpha H. Gradient
        tracking under the same messages (:class:`AB` on ``every(H, graph)``) is exact.
    Invariant: at the end of a round the mean of m is mu times the one before plus eta times that of x - z (with
        ``"row"``: weighted by u).
    Also known as: none.
    Deviations:
        1. The reference averages with one random agent in a round; here P does. Its two coefficients, of the local
           steps and of the distance to the average, are one, as in its code; then one vector per edge suffices.
        2. Local steps are gradient steps by default; the reference takes Adam (``direction``). The first round has one
           step, see above.
    Reference: J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy and C. Nies, "NoLoCo: No-all-reduce low communication
        training method for large models", 2025, arXiv:2506.10911 (as its published code has it).

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.every(5, dg.graphs.example5()))
        >>> trace = dg.simulate(dg.NoLoCo(step_size=0.02, local_steps=5), problem, network, steps=2000)
        >>> bool(abs(trace.final_x - problem.solve().x).max() < 0.3)
        True
    """

    step_size: StepSize
    local_steps: Count = 1
    outer_step: Positive = 0.7
    momentum: Fraction = 0.5
    mixing: MixingChoice = "sinkhorn"
    direction: CheckedDirection = field(default_factory=plain)

    needs = frozenset({"doubly"})
    converges: ClassVar = "biased"
    reference: ClassVar = "kolehmainen2025noloco"
    query = state_x
    __post_init__ = checks.fields

    def estimate(self, state: NoLoCoState) -> Array:
        """Return the slow estimates, which the last round ended with."""
        return state.z

    def init(self, x0: Array, net: Net) -> NoLoCoState:
        """Start at x0, at rest, before a round of one step."""
        memory = self.direction.init(x0, parameter_shapes(x0, net))
        return NoLoCoState(x=x0, z=x0, m=zeros_like(x0), t=0 * ones_column(x0), memory=memory)

    def step(self, state: NoLoCoState, grad: Array, net: Net) -> NoLoCoState:
        """Take a local step, and at the end of a round the outer one."""
        direction, memory = self.direction.update(grad, state.memory, state.x, parameter_shapes(state.x, net))
        x = state.x - self.step_size * direction
        m = self.momentum * state.m + self.outer_step * (net.mix(x) - state.z)  # (1)
        z = state.z + m  # (2)
        ends = state.t == 0
        return NoLoCoState(
            x=where(ends, z, x),
            z=where(ends, z, state.z),
            m=where(ends, m, state.m),
            t=(state.t + 1) % self.local_steps,
            memory=memory,
        )
