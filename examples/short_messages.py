"""Rounded messages end where full ones do: `python examples/short_messages.py [figure.png]`.

Numbers travel in bfloat16, with 8 bits of precision, and the result is still exact up to rounding: what was rounded
off is sent later.
"""

import sys

import numpy as np

import digrad as dg


def main() -> None:
    graph = dg.graphs.random_digraph(8, p=0.2, seed=1)
    problem = dg.problems.logistic(data="digits", agents=8, partition="sorted", reg_weight=0.1)
    minimum = problem.solve()
    method = dg.CGT(step_size=0.2, threshold=5.0)
    traces = {}
    for links in (None, dg.Links(compressor=dg.compressors.bfloat16())):
        network = dg.Network(graph, links=links)
        trace = dg.simulate(method, problem, network, steps=2000, record_every=100)
        error = np.abs(trace.final_x - minimum.x).max()
        print(f"{links or 'full messages'}: {trace.bytes_sent[-1] / 1e6:.0f} MB, largest error {error:.0e}")
        traces["bfloat16" if links else "full messages"] = trace
    if len(sys.argv) > 1:
        dg.plots.curves(traces, "grad_norm", x="bytes_sent").savefig(sys.argv[1])


if __name__ == "__main__":
    main()
