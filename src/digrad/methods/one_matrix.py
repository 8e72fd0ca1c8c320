"""The choice of the single matrix P that methods with one matrix mix with: they call ``net.mix``, the engine binds it.

``"sinkhorn"`` (default) is a doubly stochastic W on the edges of the digraph, as the theory of these methods
asks for. ``"row"`` is the row-stochastic R, as many papers run them on digraphs: the method then solves the
problem weighted by the Perron vector u of R, which is a different problem unless the graph is balanced.
"""

from typing import Literal, TypeAlias, get_args

MixingChoice: TypeAlias = Literal["sinkhorn", "row"]
MIXINGS: tuple[str, ...] = get_args(MixingChoice)
