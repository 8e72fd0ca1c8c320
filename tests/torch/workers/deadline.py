"""One agent of a quadratic that does not wait for late neighbours; some of them are slow, or stop for a while."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from digrad import AB, CGT, PushDIGing
from digrad.graphs import every, example5
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork

CURVATURE = torch.tensor([[1.0 + i, 5.0 - i] for i in range(5)], dtype=torch.float64)
LINEAR = torch.tensor([[1.0, 0], [0, 2], [-3, 1], [4, 4], [3, -2]], dtype=torch.float64)
SOLUTION = LINEAR.sum(0) / CURVATURE.sum(0)
METHODS = {
    "CGT": CGT(step_size=0.05, threshold=2.0),
    "AB": AB(step_size=0.05),
    "PushDIGing": PushDIGing(step_size=0.05),
}


class Point(nn.Module):
    """The quadratic of one agent."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([10.0, -10.0], dtype=torch.float64))

    def forward(self, agent: int) -> torch.Tensor:
        return (CURVATURE[agent] * self.x**2).sum() / 2 - LINEAR[agent] @ self.x


def stop_for(seconds: float) -> None:
    """Stop this process, and let another one wake it up."""
    code = f"import os, signal, time; time.sleep({seconds}); os.kill({os.getpid()}, signal.SIGCONT)"
    with subprocess.Popen([sys.executable, "-c", code]):
        os.kill(os.getpid(), signal.SIGSTOP)


def distance(model: Point) -> float:
    return float((model.x.detach() - SOLUTION).norm())


def main(out: str, settings: str) -> None:
    folder, plan = Path(out), json.loads(settings)
    graph = every(plan["every"], example5()) if "every" in plan else example5()
    network = ProcessNetwork(graph, **{name: plan.get(name) for name in ("deadline", "max_lag", "timeout")})
    model = Point()
    optimizer = DecentralizedOptimizer(model.parameters(), METHODS[plan.get("method", "CGT")], network)
    checkpoints = Checkpoints(folder / "steps", optimizer)
    resumed = checkpoints.resume()
    began, reached = time.monotonic(), None
    while optimizer.k < plan["steps"]:
        optimizer.zero_grad()
        model(network.agent).backward()
        time.sleep(
            plan.get("compute", 0.0) * (plan.get("factor", 1) if network.agent == plan.get("slow") else 1)
        )
        optimizer.step()
        if optimizer.k % 50 == 0:
            (folder / f"reached-{network.agent}-{optimizer.k}").touch()
        if optimizer.k == plan.get("stop_at") and network.agent == 2 and resumed is None:
            stop_for(plan["seconds"])
        if optimizer.k % plan.get("save", 10**9) == 0:
            checkpoints.save()
            if optimizer.k == plan.get("end_at") and resumed is None:
                os._exit(0)
        if reached is None and distance(model) < plan.get("accuracy", 1e-3):
            reached = time.monotonic() - began
    net = optimizer._net
    facts = {
        "agent": network.agent,
        "resumed": resumed,
        "own": distance(model),
        "late": getattr(net, "late", 0),
        "awaited": getattr(net, "awaited", 0),
        "reached": reached,
        "seconds": time.monotonic() - began,
        "bytes": optimizer.bytes_sent,
    }
    optimizer.close()
    facts["error"] = float((optimizer.average() - SOLUTION).norm())
    (folder / f"agent-{network.agent}.json").write_text(json.dumps(facts))
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
