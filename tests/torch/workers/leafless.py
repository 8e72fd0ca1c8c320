"""One agent of a graph on which some have no in-neighbours: it goes on from its own state halfway, compressed."""

import sys

import torch

from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from torch_models import LEAFLESS, LEAFLESS_STEPS, Point


def main(folder: str) -> None:
    method, lossy = LEAFLESS
    network = ProcessNetwork(lossy)
    model = Point()
    optimizer = DecentralizedOptimizer(model.parameters(), method, network)
    for k in range(LEAFLESS_STEPS):
        if k == LEAFLESS_STEPS // 2:
            optimizer.load_state_dict(optimizer.state_dict())
        model.differentiate(network.agent)
        optimizer.step()
    torch.save(optimizer.estimate().clone(), f"{folder}/agent{network.agent}.pt")
    optimizer.close()
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
