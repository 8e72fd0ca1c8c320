"""The interfaces that methods, engines and problems share.

Conventions, stated once: row i of a stacked array is agent i; ``matrix[i, j]`` is the weight that receiver i
gives to sender j; edges are written ``(sender, receiver)``; mixing is ``matrix @ x``.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

from digrad import checks

#: A NumPy, JAX or torch array: methods use operators only.
Array: TypeAlias = Any
#: A NamedTuple of stacked arrays, one type per method.
State: TypeAlias = Any
#: A hyper-parameter as a function of the iteration k = 0, 1, ...
Schedule: TypeAlias = Callable[[int], float]
#: A hyper-parameter; an array ``[n, 1]`` gives each agent its own.
Hyper: TypeAlias = float | Array | Schedule
#: A step size, positive and finite; this and those below are checked by ``checks.fields``.
StepSize: TypeAlias = Annotated[Hyper, checks.positive]
#: A threshold for norms, positive and perhaps infinite.
Threshold: TypeAlias = Annotated[Hyper, partial(checks.positive, allow_inf=True)]
#: A momentum or another weight in [0, 1).
Fraction: TypeAlias = Annotated[float, checks.fraction]
#: Another positive hyper-parameter.
Positive: TypeAlias = Annotated[float, checks.positive]
#: A threshold that is one number, no schedule and no column, as are those below.
OneThreshold: TypeAlias = Annotated[
    float, partial(checks.one_number, partial(checks.positive, allow_inf=True))
]
#: One number in [0, 1).
OneFraction: TypeAlias = Annotated[float, partial(checks.one_number, checks.fraction)]
#: One positive, finite number.
OnePositive: TypeAlias = Annotated[float, partial(checks.one_number, checks.positive)]
#: One finite number of at least 0.
NotNegative: TypeAlias = Annotated[float, partial(checks.one_number, checks.not_negative)]
#: A whole number of at least 1.
Count: TypeAlias = Annotated[int, checks.count]
#: The seed of a random source.
Seed: TypeAlias = Annotated[int, partial(checks.count, minimum=0)]
#: The single matrix P that a method mixes with by ``net.mix``. ``"sinkhorn"`` is a doubly stochastic W on the edges of
#: the digraph, as the theory of these methods asks for; ``"row"`` is the row-stochastic R, as many papers run them on
#: digraphs; the method then solves the problem weighted by the Perron vector u of R, which is a different problem
#: unless the graph is balanced.
MixingChoice: TypeAlias = Literal["sinkhorn", "row"]
#: The shapes of the parameters that a row of x holds one after another.
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
#: The plain mean of the agents, or the average that the dynamics of a method conserve.
Average: TypeAlias = Literal["plain", "weighted"]


class Net(Protocol):
    """Interface that an engine passes to a method: the only way for agents to communicate.

    Each primitive takes one stacked array ``[rows, ...]``, or a tuple of them that travels in the same round.
    ``shapes`` are those of the parameters in a row, for methods that treat matrices as matrices; None for one vector.
    """

    shapes: Shapes | None

    @property
    def one_hot(self) -> Array:
        """``[rows here, n]``: which agents these rows are."""
        ...

    def pull(self, x: Array) -> Array:
        """``R @ x`` with R row-stochastic: the receiver chooses the weights."""
        ...

    def push(self, x: Array) -> Array:
        """``C @ x`` with C column-stochastic: the sender chooses the weights, the sum is conserved."""
        ...

    def mix(self, x: Array) -> Array:
        """``W @ x`` with W doubly stochastic."""
        ...

    def mean(self, x: Array) -> Array:
        """The true average of all agents in every row: an all-reduce, not a neighbour exchange."""
        ...


@runtime_checkable
class Method(Protocol):
    """A decentralized method: hyper-parameters as fields, mathematics as pure functions of stacked states.

    ``needs`` names the weights it mixes with (``row``, ``column``, ``doubly``, ``mean``). Optional facts:
    ``average_weights(state)`` (``[n, 1]``, sum n: how much each estimate counts in the average that the method
    conserves, where that is not the Perron vector of its mixing),
    ``connectivity`` (``"common root"`` if an agent that reaches all others along R and that all others reach along C
    suffices, ``"strong"`` if all weights must connect the agents strongly; by default column-stochastic ones must),
    ``learns`` (what it finds out about its weights, which therefore must not change),
    ``max_agents`` (more are refused, because what each carries grows with their number), and
    ``diagnostics(state, grad, net)``, per-agent figures ``{"clip_ratio": [n, 1]}`` of the step that led to
    ``state``: the norm of what it clips, relative to the threshold.
    """

    @property
    def needs(self) -> frozenset[str]:
        """The weights it mixes with; most methods have a constant of their class."""
        ...

    def init(self, x0: Array, net: Net) -> State:
        """Return the state before the first step; needs no gradient."""
        ...

    def estimate(self, state: State) -> Array:
        """Return each agent's current answer, ``[n, d]``."""
        ...

    def query(self, state: State) -> Array:
        """Return where the next gradient is wanted, ``[n, d]``."""
        ...

    def step(self, state: State, grad: Array, net: Net) -> State:
        """Return the next state; ``grad`` ``[n, d]`` was evaluated at ``query(state)``."""
        ...
