"""One agent, or all of them as replicas, on links that have a state: stores checkpoints, and is killed if told to."""

import os
import signal
import sys
from pathlib import Path

import torch

from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork, Replicas
from torch_models import RESTARTED, Point

STEPS, EVERY, KILLED_AT = 30, 4, 18


def main(out: str, engine: str, phase: str) -> None:
    folder = Path(out)
    method, linked = RESTARTED[engine]
    if engine == "replicas":
        network, optimizer = None, Replicas(Point(), method, linked)
        models = dict(enumerate(optimizer.models))
    else:
        network, model = ProcessNetwork(linked, timeout=60), Point()
        optimizer = DecentralizedOptimizer(model.parameters(), method, network)
        models = {network.agent: model}
    me = min(models)
    checkpoints = Checkpoints(folder / engine, optimizer)
    resumed = checkpoints.resume()
    assert (resumed is None) == (phase == "killed")
    while optimizer.k < STEPS:
        if phase == "killed" and optimizer.k == KILLED_AT and me == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        for agent, model in models.items():
            model.differentiate(agent)
        optimizer.step()
        if optimizer.k % EVERY == 0:
            checkpoints.save()
    torch.save([value.clone() for value in optimizer.state_fields], folder / f"{engine}{me}.pt")
    if network is not None:
        optimizer.close()
        network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
