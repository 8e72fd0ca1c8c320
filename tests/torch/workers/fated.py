"""One agent of random networks that misbehave: its state and its books after the last step."""

import sys
import warnings
from typing import Any

import torch
from torch import nn

from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from digrad.torch.route import Route
from link_invariants import STEPS, drawn_or_coded


def main(out: str, n: str, *seeds: str) -> None:
    first, found = None, {}
    travelled, post = [0], Route.post

    def counted(route: Route, incoming: Any, outgoing: Any, *rest: Any) -> Any:
        travelled[0] += sum(message.nbytes for _, message in outgoing)
        return post(route, incoming, outgoing, *rest)

    Route.post = counted  # what leaves, whoever carries it
    warnings.simplefilter("ignore")
    for seed in map(int, seeds):
        setting = drawn_or_coded(seed, n=int(n))
        network = ProcessNetwork(setting.network)
        first = first or network
        agent = network.agent
        x = nn.Parameter(torch.tensor(setting.x0[agent]))
        optimizer = DecentralizedOptimizer([x], setting.method, network)
        for _ in range(STEPS):
            x.grad = torch.tensor(setting.gradient(x.detach().numpy())[agent])
            optimizer.step()
        optimizer.close()
        state = optimizer.state_dict()["state"]
        found[seed] = {**state, "bytes_sent": optimizer.bytes_sent, "travelled": travelled[0]}
        travelled[0] = 0
    assert first is not None
    torch.save(found, f"{out}/agent{first.agent}.pt")
    first.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
