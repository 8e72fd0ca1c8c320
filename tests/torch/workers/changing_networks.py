"""One agent on networks that change with the iteration: its state and what it has sent, after every run."""

import sys

import torch
from safetensors.torch import save_file

from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from torch_models import CHANGING_STEPS, Point, changing_cases


def main(out: str) -> None:
    results, first = {}, None
    for case in changing_cases():
        if case.network.is_unreliable:
            continue
        network = ProcessNetwork(case.network)
        first = first or network
        model = Point()
        optimizer = DecentralizedOptimizer(model.parameters(), case.method, network)
        for _ in range(CHANGING_STEPS):
            model.differentiate(network.agent)
            optimizer.step()
        optimizer.close()
        results[f"{case.label}/x"] = optimizer.estimate()[0].clone()
        results[f"{case.label}/bytes"] = torch.tensor(optimizer.bytes_sent)
        results[f"{case.label}/average"] = optimizer.average()
    assert first is not None
    save_file(results, f"{out}/agent{first.agent}.safetensors")
    first.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
