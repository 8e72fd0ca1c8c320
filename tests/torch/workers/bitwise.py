"""One agent training an MLP and a CNN for a few steps; its state goes to a file."""

import os
import sys
import time

import torch
from safetensors.torch import save_file

from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from digrad.torch.transport import shared_memory
from torch_models import (
    BITWISE_METHODS,
    BITWISE_STEPS,
    bitwise_network,
    bitwise_settings,
    network_loss,
    network_model,
)


def forbidden(*_: object) -> None:
    raise PermissionError("not in this sandbox")


def main(out: str, size: str, way: str) -> None:
    settings, results = bitwise_settings(size), {}
    describe, agent = shared_memory._describe_self, int(os.environ["RANK"])
    if way == "mixed" and agent == 4:  # as if it lived on another host
        shared_memory._describe_self = lambda listener: {**describe(listener), "host": "elsewhere"}
    if way == "mixed" and agent == 2:  # as if it lived in a sandbox
        shared_memory._describe_self = forbidden
    deadline = 60.0 if size == "deadline" else None  # nothing is late
    networks = {
        messages: ProcessNetwork(bitwise_network(messages), direct=way != "zeromq", deadline=deadline)
        for messages in dict.fromkeys(messages for *_, messages in settings)
    }
    network = networks[None]
    for row, (label, name, dtype, messages) in enumerate(settings):
        model = network_model(name, dtype)
        optimizer = DecentralizedOptimizer(
            model.parameters(), BITWISE_METHODS[label], networks[messages], weight_decay=1e-3
        )
        for k in range(BITWISE_STEPS[size]):
            optimizer.zero_grad()
            network_loss(model, network.agent, k, dtype).backward()
            if deadline and k % 5 == network.agent:  # neighbours that do not hear this agent get ahead of it
                time.sleep(0.05)
            optimizer.step()
        fields = optimizer.state_fields._asdict().items()
        results |= {f"{row}/{key}": values.clone() for key, values in fields}
        optimizer.close()  # with a deadline, after some more mixing
        results |= {f"{row}/buffer/{key}": v for key, v in model.named_buffers()}
    results["writers"] = torch.tensor(sorted(network.shares_memory_with - {agent}), dtype=torch.int64)
    save_file(
        {key: value.clone() for key, value in results.items()}, f"{out}/agent{network.agent}.safetensors"
    )
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
