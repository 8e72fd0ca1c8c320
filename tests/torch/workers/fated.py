"""One agent of random networks that misbehave: its state and its books after the last step."""

import sys

import torch
from torch import nn

from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from link_invariants import STEPS, drawn


def main(out: str, n: str, *seeds: str) -> None:
    first, found = None, {}
    for seed in map(int, seeds):
        setting = drawn(seed, n=int(n))
        network = ProcessNetwork(setting.network)
        first = first or network
        agent = network.agent
        x = nn.Parameter(torch.tensor(setting.x0[agent]))
        optimizer = DecentralizedOptimizer([x], setting.method, network)
        for _ in range(STEPS):
            x.grad = torch.tensor(setting.gradient(x.detach().numpy())[agent])
            optimizer.step()
        optimizer.close()
        found[seed] = optimizer.state_dict()["state"]
    assert first is not None
    torch.save(found, f"{out}/agent{first.agent}.pt")
    first.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
