"""One agent as `digrad launch` or torchrun starts it: it trains for ever or for a while, dies, or is set up wrongly."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed

from digrad import CGT
from digrad.graphs import ring
from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from digrad.torch.launch import attempt

STEPS = 6


def main(what: str, folder: str) -> None:
    size = int(os.environ["WORLD_SIZE"])
    if what == "own group":
        torch.distributed.init_process_group("gloo")
    network = ProcessNetwork(ring(size + 1 if what == "size" else size), timeout=3 if what == "alone" else 20)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # as docs/guides/other_tools.md has it
        os.environ.pop(name)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    if what == "dtype" and network.agent == 1:
        model.double()
    optimizer = DecentralizedOptimizer(model.parameters(), CGT(step_size=0.05, threshold=1.0), network)
    while what in ("forever", "own group") or optimizer.k < STEPS:
        optimizer.zero_grad()
        model(torch.full((2, 4), float(network.agent))).sub(1).pow(2).mean().backward()
        optimizer.step()
        if optimizer.k == 2:
            (Path(folder) / f"training-{network.agent}").touch()
        if what == "killed" and attempt() == 0 and network.agent == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "alone" and optimizer.k == 3 and network.agent == 1:
            optimizer.consensus_error()
        if what == "leaves" and optimizer.k == 3 and network.agent == 1:
            return
        if what == "crash" and network.agent == 1:
            raise ZeroDivisionError("agent 1 divides by zero.")
    optimizer.close()
    (Path(folder) / f"average-{network.agent}").write_bytes(optimizer.average().numpy().tobytes())
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
