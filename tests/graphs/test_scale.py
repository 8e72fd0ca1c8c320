import subprocess
import sys
import time

from digrad.graphs import from_edges, is_strongly_connected, k_out


def test_two_million_edges_are_built_and_checked_in_seconds():
    start = time.perf_counter()
    graph = k_out(100_000, 20, seed=0)
    assert from_edges(100_000, graph.edge_array[::-1]) == graph
    assert is_strongly_connected(graph)
    assert time.perf_counter() - start < 5  # about one second on an idle core


def test_importing_graphs_loads_neither_scipy_nor_networkx_nor_jax():
    code = "import sys, digrad.graphs; print([m for m in ('scipy', 'networkx', 'jax') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
