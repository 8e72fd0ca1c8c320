"""Fewer messages with a network that changes with time: `python examples/changing_network.py [figure.png]`.

On the static exponential graph each of 16 agents sends to four others per step. Sending to one of them at a time
needs more steps but fewer bytes.
"""

import sys

import numpy as np

import digrad as dg


def bytes_to(trace: dg.Trace, grad_norm: float) -> float:
    """Return what all agents had sent when the gradient first was that small."""
    return float(trace.bytes_sent[np.argmax(trace.grad_norm <= grad_norm)])


def main() -> None:
    rng = np.random.default_rng(0)
    problem = dg.problems.quadratic(
        curvature=rng.uniform(1, 4, (16, 10)), linear=rng.standard_normal((16, 10))
    )
    method = dg.CGT(step_size=0.02, threshold=5.0)
    graphs = {
        "all four peers at every step": dg.graphs.exponential(16),
        "one peer per step": dg.graphs.one_peer_exponential(16),
    }
    traces = {
        name: dg.simulate(method, problem, dg.Network(graph), steps=2000) for name, graph in graphs.items()
    }
    sent = {name: bytes_to(trace, 1e-6) for name, trace in traces.items()}
    for name, trace in traces.items():
        print(f"{name}: {trace.verdict}, {sent[name] / 1e6:.2f} MB to a gradient of 1e-6")
    print(f"share of the bytes: {sent['one peer per step'] / sent['all four peers at every step']:.2f}")
    if len(sys.argv) > 1:
        dg.plots.curves(traces, "grad_norm", x="bytes_sent").savefig(sys.argv[1])


if __name__ == "__main__":
    main()
