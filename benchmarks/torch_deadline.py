"""Benefit of a deadline when one of five agents is three times as slow as the others.

``deadline_row`` starts five processes of this module twice, with a deadline and without, and compares how long all of
them take to come near the minimum of the example quadratic. Computing is sleeping here, so that it costs no core.
"""

import json
import sys
import time

from benchmarks.processes import run_processes
from benchmarks.report import BenchRow
from digrad import CGT
from digrad.errors import DigradError
from digrad.graphs import example5

COMPUTE = 0.03  # seconds that a gradient takes
SLOW, FACTOR = 1, 3.0  # the agent that is slower, and how much
NEAR = 1e-3  # distance to the minimum
STEPS = 250  # enough to come there


def deadline_row() -> BenchRow:
    """Return the time to a given accuracy with a deadline against that without."""
    command = [sys.executable, "-m", "benchmarks.torch_deadline"]
    with_deadline, without = (max(run_processes([*command, mode], 5)) for mode in (str(COMPUTE), "none"))
    return BenchRow(
        "time to a distance of 1e-3 with a deadline, one agent slowed down 3 times",
        with_deadline,
        "s",
        1.8,
        without,
        at_least=True,
        note="against the synchronous run; CGT on the example quadratic, slowest of five processes",
    )


def _work(mode: str) -> float:
    """Return the seconds until this process is near the minimum for good."""
    import torch

    from digrad.torch import DecentralizedOptimizer, ProcessNetwork

    curvature = torch.tensor([[1.0 + i, 5.0 - i] for i in range(5)], dtype=torch.float64)
    linear = torch.tensor([[1.0, 0], [0, 2], [-3, 1], [4, 4], [3, -2]], dtype=torch.float64)
    minimum = linear.sum(0) / curvature.sum(0)
    network = ProcessNetwork(example5(), deadline=None if mode == "none" else float(mode))
    x = torch.nn.Parameter(torch.tensor([10.0, -10.0], dtype=torch.float64))
    optimizer = DecentralizedOptimizer([x], CGT(step_size=0.05, threshold=2.0), network)
    began = last_far = time.monotonic()
    while optimizer.k < STEPS:
        optimizer.zero_grad()
        ((curvature[network.agent] * x**2).sum() / 2 - linear[network.agent] @ x).backward()
        time.sleep(COMPUTE * (FACTOR if network.agent == SLOW else 1.0))
        optimizer.step()
        if float((x.detach() - minimum).norm()) > NEAR:
            last_far = time.monotonic()
    if float((x.detach() - minimum).norm()) > NEAR:
        raise DigradError(
            f"agent {network.agent} is not near the minimum after {STEPS} steps: nothing to compare"
        )
    optimizer.close()
    network.close()
    return last_far - began


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1])))
