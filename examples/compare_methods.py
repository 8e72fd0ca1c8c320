"""Compare three methods on real data over a digraph: `python examples/compare_methods.py [figure.png]`."""

import sys

import digrad as dg


def main() -> None:
    network = dg.Network(dg.graphs.random_digraph(8, p=0.2, seed=1))
    problem = dg.problems.logistic(data="digits", agents=8, partition="sorted", reg_weight=2e-3, reg_power=6)
    methods = {
        "CGT": dg.CGT(step_size=0.05, threshold=5.0),
        "gradient tracking": dg.AB(step_size=0.05),
        "clipped DGD": dg.DGDClip(step_size=0.05, threshold=5.0),
    }
    traces = dg.compare(methods, problem, network, steps=1500, x0="normal", seed=0)
    for trace in traces.values():
        print(trace)
    if len(sys.argv) > 1:
        dg.plots.curves(traces).savefig(sys.argv[1])


if __name__ == "__main__":
    main()
