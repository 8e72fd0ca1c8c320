"""One agent of a quadratic that does not wait for late neighbours; some of them are slow, or stop for a while."""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from digrad import AB, CGT, Network, PushDIGing
from digrad.graphs import every, example5, ring
from digrad.links import Links, compressors
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
from torch_processes import stop_for

CURVATURE = torch.tensor([[1.0 + i, 5.0 - i] for i in range(5)], dtype=torch.float64)
LINEAR = torch.tensor([[1.0, 0], [0, 2], [-3, 1], [4, 4], [3, -2]], dtype=torch.float64)
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


def main(out: str, settings: str) -> None:
    folder, plan = Path(out), json.loads(settings)
    n = plan.get("n", 5)
    graph = example5() if n == 5 else ring(n)
    links = Links(compressor=compressors.quantize(plan["bits"])) if "bits" in plan else None
    network = ProcessNetwork(
        Network(every(plan.get("every", 1), graph), links=links),
        **{name: plan[name] for name in ("deadline", "max_lag", "timeout") if name in plan},
    )
    solution = LINEAR[:n].sum(0) / CURVATURE[:n].sum(0)

    def distance(x: torch.Tensor) -> float:
        return float((x.detach() - solution).norm())

    model = Point()
    optimizer = DecentralizedOptimizer(model.parameters(), METHODS[plan.get("method", "CGT")], network)
    checkpoints = Checkpoints(folder / "steps", optimizer)
    resumed = checkpoints.resume()
    began, reached, ahead = time.monotonic(), None, None
    while optimizer.k < plan["steps"]:
        optimizer.zero_grad()
        model(network.agent).backward()
        time.sleep(
            plan.get("compute", 0.0) * (plan.get("factor", 1) if network.agent == plan.get("slow") else 1)
        )
        optimizer.step()
        if optimizer.k % 10 == 0:  # agents may be 20 steps ahead of one that is stopped
            (folder / f"reached-{network.agent}-{optimizer.k}").touch()
        if optimizer.k == plan.get("stop_at") and network.agent == 2 and resumed is None:
            stop_for(plan["seconds"])
            ahead = max(int(path.name.split("-")[2]) for path in folder.glob("reached-*"))
        if optimizer.k % plan.get("save", 10**9) == 0:
            checkpoints.save()
        if reached is None and distance(model.x) < plan.get("accuracy", 1e-3):
            reached = time.monotonic() - began
    net = optimizer._engine
    facts = {
        "agent": network.agent,
        "resumed": resumed,
        "own": distance(model.x),
        "late": getattr(net, "late", 0),
        "reached": reached,
        "ahead": ahead,
        "seconds": time.monotonic() - began,
        "bytes": optimizer.bytes_sent,
    }
    optimizer.close()
    facts["error"] = distance(optimizer.average())
    (folder / f"agent-{network.agent}.json").write_text(json.dumps(facts))
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
