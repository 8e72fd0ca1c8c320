"""One agent of a run that is preempted at step 5, and goes on later: the end must be that of an undisturbed run.

The loop bodies differ in their order; random numbers, statistics of BatchNorm and a scheduler change with every batch.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from digrad import CGT
from digrad.graphs import ring
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
from digrad.torch.launch import preemption

STEPS, ASKED = 20, 5
ORDERS = ("clears first", "clears last", "steps first", "looks")


def train(network: ProcessNetwork, order: str, folder: Path, *, asks: bool) -> list[Any] | None:
    """Return everything that there is after the last step; None if the run has ended before."""
    folder.mkdir(exist_ok=True)
    preemption.asked.clear()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = DecentralizedOptimizer(model.parameters(), CGT(step_size=0.05, threshold=1.0), network)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    checkpoints = Checkpoints(folder, optimizer, model=model, others={"scheduler": scheduler})
    resumed = checkpoints.resume()
    assert (resumed is None) == (asks or order == "whole")
    network.exchange({}, "start")  # all can end
    while optimizer.k < STEPS:
        if order == "clears first":
            optimizer.zero_grad()
        model(torch.rand(5, 4)).sub(network.agent).square().mean().backward()
        optimizer.step()
        if order == "steps first":
            scheduler.step()
        if order != "clears first":
            optimizer.zero_grad()
        if order != "steps first":
            scheduler.step()
        if optimizer.k == ASKED + network.agent and asks:
            os.kill(os.getpid(), preemption.SAVE)  # as launch does, to all agents
        if order == "looks" and optimizer.preempted:
            checkpoints.save()
            return None
    optimizer.close()
    return [*optimizer.state_fields, *model.buffers(), scheduler.get_last_lr()[0], optimizer.bytes_sent]


def main(out: str) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    network, folder = ProcessNetwork(ring(2), timeout=60), Path(out)
    whole, found = train(network, "whole", folder / "whole", asks=False), {}
    assert whole is not None
    for order in ORDERS:
        try:
            ended = train(network, order, folder / order, asks=True) is None
        except SystemExit as error:
            ended = error.code == 0
        again = train(network, order, folder / order, asks=False) if ended else None
        found[order] = again is not None and [
            bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b)))
            for a, b in zip(again, whole, strict=True)
        ]
    (folder / f"agent-{network.agent}.json").write_text(json.dumps(found))
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
