"""Fine-tune a language model with LoRA on four agents, each with the source code of a package that nobody else has.

    python examples/torch_lora_model.py base.pt
    digrad launch --agents 4 examples/torch_lora.py base.pt

Agents average with a neighbour at every fifth step; the other methods are DiLoCo, and DDP, which averages
all gradients at every step. Prints the loss on code that no agent has seen, and the bytes of whatever uses loopback.
"""

import argparse
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_lora_model import Model, add_lora, source_code, windows

import digrad as dg
from digrad.torch import DecentralizedOptimizer, ProcessNetwork

PACKAGES = ("asyncio", "email", "multiprocessing", "unittest")
SHORT = dg.Links(compressor=dg.compressors.quantize(4))


def bytes_on_loopback() -> int:
    return int(Path("/proc/net/dev").read_text().split("lo:")[1].split()[8])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("--method", choices=("Gossip", "DiLoCo", "DDP"), default="Gossip")
    parser.add_argument("--steps", type=int, default=801)
    parser.add_argument("--lr", type=float, default=24e-3)
    options = parser.parse_args()

    adam = partial(torch.optim.Adam, lr=options.lr)
    local = dg.directions.from_torch(adam)
    method = dg.DiLoCo(1.0, local_steps=5, outer_step=1.0, momentum=0.0, direction=local)  # plain averages
    recipe = dg.Network(dg.graphs.every(5, dg.graphs.ring(4)), links=SHORT)  # of one-way links
    if options.method == "DiLoCo":
        method = dg.DiLoCo(1.0, local_steps=50, direction=local)
        recipe = dg.Network(dg.graphs.every(50, dg.graphs.complete(4)))
    network = ProcessNetwork(recipe, direct=False)  # over TCP, where bytes can be counted
    texts = [source_code(package).tensor_split(10) for package in PACKAGES]
    own = torch.cat(texts[network.agent][:8])
    rest = [torch.cat([windows(tenths[i], 48, 0) for tenths in texts]) for i in (8, 9)]

    torch.manual_seed(0)  # everybody starts at the same point
    model: Any = Model()
    model.load_state_dict(torch.load(options.base))
    add_lora(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    dist.barrier()
    before, is_ddp = bytes_on_loopback(), options.method == "DDP"
    called = DistributedDataParallel(model, init_sync=False) if is_ddp else model
    optimizer: Any = adam(trained) if is_ddp else DecentralizedOptimizer(trained, method, network)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=options.steps)
    for k in range(options.steps):
        optimizer.zero_grad()
        called(windows(own, 8, 4 * k + network.agent)).backward()
        optimizer.step()
        schedule.step()
    with nullcontext() if is_ddp else optimizer.averaged_parameters(), torch.no_grad():
        dist.barrier()
        sent = bytes_on_loopback() - before
        chosen, loss = (model(unseen).item() for unseen in rest)
    if network.agent == 0:
        print(f"{options.method}: loss per letter {loss:.4f} ({chosen:.4f}), {sent / 1e6:.2f} MB on loopback")
    if not is_ddp:
        optimizer.close()
    network.close()


if __name__ == "__main__":
    main()
