"""Agents that are groups of two processes: each agent averages its gradients with DDP."""

import sys
import warnings

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from digrad import CGT
from digrad.graphs import from_edges
from digrad.torch import DecentralizedOptimizer, ProcessNetwork


def main(out: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("agents", "dp"))
    network = ProcessNetwork(from_edges(2, [(0, 1), (1, 0)]), group=mesh.get_group("agents"), timeout=30)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = DecentralizedOptimizer(model.parameters(), CGT(step_size=0.1, threshold=0.5), network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    half = mesh.get_local_rank("dp")
    for k in range(5):
        optimizer.zero_grad()
        data = torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * network.agent + k)).double()
        parallel(data[4 * half : 4 * half + 4]).square().mean().backward()
        optimizer.step()
    optimizer.close()
    save_file({"x": optimizer.estimate().contiguous()}, f"{out}/{network.agent}-{half}.safetensors")
    network.close()
    dist.barrier()  # the store ends with its process, of which only half of the others are neighbours


if __name__ == "__main__":
    main(sys.argv[1])
