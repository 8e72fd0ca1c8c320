"""Communication graphs: digraphs, their generators, properties and files. No weights.

Edges are written ``(sender, receiver)``; self loops are implicit.
"""

from digrad.graphs.digraph import Digraph, from_adjacency, from_edges, from_networkx
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
from digrad.graphs.graph_files import read, write
from digrad.graphs.properties import (
    degree_imbalance,
    diameter,
    is_strongly_connected,
    roots,
    sinks,
    strong_components,
    unreachable_pair,
)
from digrad.graphs.sequences import (
    GraphSequence,
    every,
    one_peer_exponential,
    random_edges,
    sequence,
    split,
)
from digrad.graphs.trees import SpanningTrees, spanning_trees

__all__ = [
    "GENERATORS",
    "Digraph",
    "GraphSequence",
    "SpanningTrees",
    "complete",
    "de_bruijn",
    "degree_imbalance",
    "diameter",
    "every",
    "example5",
    "exponential",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "grid",
    "is_strongly_connected",
    "k_out",
    "one_peer_exponential",
    "out_star",
    "random_digraph",
    "random_edges",
    "read",
    "ring",
    "roots",
    "sequence",
    "sinks",
    "spanning_trees",
    "split",
    "star",
    "strong_components",
    "torus",
    "triangle",
    "unreachable_pair",
    "write",
]
