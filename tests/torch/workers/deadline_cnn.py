"""One agent that trains a small CNN on the digits with a deadline, and may stop for a while."""

import json
import sys
from pathlib import Path

import torch
from torch import nn

import digrad as dg
from digrad.torch import DecentralizedOptimizer, ProcessNetwork, Shard
from torch_processes import stop_for


def main(out: str, settings: str) -> None:
    plan = json.loads(settings)
    network = ProcessNetwork(dg.graphs.ring(3), deadline=0.2)
    digits = dg.data.digits(classes=10)
    images = torch.tensor(digits.features, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(digits.labels, dtype=torch.long)
    parts = dg.data.partition(digits.labels, agents=network.n, scheme="sorted", seed=0)
    shard = Shard(parts.indices, agent=network.agent, batch_size=32)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = DecentralizedOptimizer(model.parameters(), dg.CGT(step_size=0.1, threshold=2.0), network)
    for k in range(plan["steps"]):
        if k == plan.get("stop_at") and network.agent == 2:
            stop_for(plan["seconds"])
        batch = shard.batch(k)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    optimizer.close()
    with optimizer.averaged_parameters(), torch.no_grad():
        accuracy = float((model(images).argmax(1) == labels).float().mean())
    facts = {"accuracy": accuracy, "late": optimizer._engine.late}
    (Path(out) / f"agent-{network.agent}.json").write_text(json.dumps(facts))
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
