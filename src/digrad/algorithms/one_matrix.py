"""The choice of the single matrix P that methods without tracking mix with.

``"sinkhorn"`` (default) is a doubly stochastic W on the arcs of the digraph, as the theory of these methods
asks for. ``"row"`` is the row-stochastic R, as many papers run them on digraphs: the method then solves the
problem weighted by the Perron vector u of R, which is a different problem unless the graph is balanced.
"""

from typing import Literal, TypeAlias

from digrad import checks
from digrad.types import Array, Net

MixingChoice: TypeAlias = Literal["sinkhorn", "row"]


def check(mixing: str, owner: str) -> None:
    """Raise unless ``mixing`` is one of the choices."""
    checks.choice(mixing, "mixing", owner, ("sinkhorn", "row"))


def needs(mixing: str) -> frozenset[str]:
    """Return what a network must offer for this choice."""
    return frozenset({"row"} if mixing == "row" else {"doubly"})


def converges(mixing: str, doubly: str) -> str:
    """Return where a method ends with this choice that ends at ``doubly`` with a doubly stochastic P.

    >>> converges("sinkhorn", "exact"), converges("row", "exact")
    ('exact', 'wrong point')
    """
    return "wrong point" if mixing == "row" else doubly


def verb(mixing: str) -> str:
    """Return the verb of the network that mixes with this choice."""
    return "pull" if mixing == "row" else "mix"


def mix(net: Net, mixing: str, x: Array) -> Array:
    """Return ``P @ x``."""
    return net.pull(x) if mixing == "row" else net.mix(x)
