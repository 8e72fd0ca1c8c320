"""Forty agents of a small network on one machine: how long they take to start, a step, and how much memory they need.

``many_rows`` starts that many processes of this module. There are more of them than cores, so that a step costs at
least the computing of all of them, one behind the other.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import run_processes
from benchmarks.report import BenchRow
from digrad import CGT
from digrad.graphs import exponential

AGENTS = 40
STEPS = 50


def many_rows(agents: int = AGENTS) -> list[BenchRow]:
    """Return what many agents cost: figures without a promise."""
    command = [sys.executable, "-m", "benchmarks.torch_many", str(agents), str(time.time())]
    found = run_processes(command, agents)
    note = f"exponential graph, {found[0]['numbers']} parameters, batches of 32"
    ready = max(one["ready"] for one in found)
    step = statistics.median(one["step"] for one in found)
    memory = statistics.median(one["memory"] for one in found)
    return [
        BenchRow(f"start of {agents} agents", ready, "s", note=f"until the first step is done; {note}"),
        BenchRow(f"a step of {agents} agents", 1e3 * step, "ms", note=f"median of {STEPS}; {note}"),
        BenchRow(
            f"memory of one of {agents} agents",
            memory,
            "MB",
            note="its own and its share of what several use; the median agent",
        ),
    ]


def _work(agents: int, started: float) -> dict[str, Any]:
    """Return what one process sees."""
    import torch

    from digrad.torch import DecentralizedOptimizer, ProcessNetwork

    torch.manual_seed(0)
    network = ProcessNetwork(exponential(agents))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = DecentralizedOptimizer(model.parameters(), CGT(step_size=0.05, threshold=1.0), network)
    torch.manual_seed(network.agent)
    batch, labels = torch.randn(32, 64), torch.randint(10, (32,))
    seconds: list[float] = []
    ready = 0.0
    for _ in range(STEPS + 1):
        began = time.monotonic()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
        seconds.append(time.monotonic() - began)
        ready = ready or time.time() - started
    memory = _proportional_memory()
    optimizer.close()
    network.close()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return {"ready": ready, "step": statistics.median(seconds[1:]), "memory": memory, "numbers": numbers}


def _proportional_memory() -> float:
    """Return the megabytes of this process, of shared pages its share."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1]) / 1e3
    return float("nan")


if __name__ == "__main__":
    print(json.dumps(_work(int(sys.argv[1]), float(sys.argv[2]))))
