"""Who hears whom: digraphs, their generators, properties and files. No weights.

Arcs are written ``(sender, receiver)``; every agent also hears itself, implicitly.
"""

from digrad.graphs.digraph import Digraph, from_adjacency, from_edges, from_networkx
from digrad.graphs.files import read, write
from digrad.graphs.generators import (
    GENERATORS,
    complete,
    de_bruijn,
    example5,
    exponential,
    grid,
    k_out,
    out_star,
    random_digraph,
    ring,
    star,
    torus,
    triangle,
)
from digrad.graphs.properties import (
    degree_imbalance,
    diameter,
    is_strongly_connected,
    roots,
    strong_components,
    unreachable_pair,
)

__all__ = [
    "GENERATORS",
    "Digraph",
    "complete",
    "de_bruijn",
    "degree_imbalance",
    "diameter",
    "example5",
    "exponential",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "grid",
    "is_strongly_connected",
    "k_out",
    "out_star",
    "random_digraph",
    "read",
    "ring",
    "roots",
    "star",
    "strong_components",
    "torus",
    "triangle",
    "unreachable_pair",
    "write",
]
