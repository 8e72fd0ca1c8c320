"""One agent that uses everything a torch optimizer is expected to support; asserts as it goes."""

import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from digrad import AB, CGT, SGP
from digrad.graphs import from_edges, split
from digrad.links import Links, compressors
from digrad.network import Network
from digrad.schedules import InverseSqrt
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
from digrad.torch.engines.synchronous import PacketRound
from digrad.torch.transport.torch_distributed import DeviceRound

GRAPH = from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)])
METHOD = CGT(step_size=0.05, threshold=1.0)


def total(value: torch.Tensor) -> torch.Tensor:
    result = value.clone()
    dist.all_reduce(result)
    return result


def overflow(network: ProcessNetwork) -> None:
    """A gradient overflow on one agent skips its news, not the exchange."""
    model = nn.Linear(4, 2)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for k in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(3, 4)).float().square().mean()
        if k in (2, 4) and network.agent == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state = optimizer.state_fields
        assert all(torch.isfinite(field).all() for field in state)
        assert torch.allclose(total(state.y), total(state.g), atol=1e-5)
    assert optimizer.k == 6
    optimizer.close()


def averages(network: ProcessNetwork) -> None:
    """The averaged parameters are the average asked for, and training goes on as if nothing had happened."""
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.fill_(float(network.agent))
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    u = torch.tensor(network.network.u)
    for average, expected in (("plain", 1.0), ("weighted", float((u * torch.arange(3)).sum() / 3))):
        with optimizer.averaged_parameters(average):
            assert torch.allclose(model.weight, torch.full_like(model.weight, expected), atol=1e-14)
    assert (model.weight == network.agent).all()
    bias = float(model.bias)
    estimates = optimizer.estimate().new_zeros(3, 4)
    estimates[network.agent] = optimizer.estimate()[0]
    estimates = total(estimates)
    distances = estimates - (u[:, None] * estimates).sum(0) / 3
    assert abs(optimizer.consensus_error("weighted") - float(distances.square().sum() / 3) ** 0.5) < 1e-12
    assert float(model.bias) == bias
    optimizer.close()


def half_messages(network: ProcessNetwork, short: ProcessNetwork) -> None:
    """Sums are conserved although every message is rounded to bfloat16, which halves all but the first estimate."""
    torch.manual_seed(network.agent)
    model = nn.Linear(50, 4)
    full = DecentralizedOptimizer(nn.Linear(50, 4).parameters(), METHOD, network)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, short)
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.randn(8, 50)).square().mean().backward()
        optimizer.step()
    full.close()
    y, g = total(optimizer.state_fields.y), total(optimizer.state_fields.g)
    assert float((y - g).abs().max()) < 1e-5 * max(1.0, float(g.abs().max()))
    assert 102 * optimizer.bytes_sent <= 52 * 51 * full.bytes_sent
    optimizer.close()
    push_sum = DecentralizedOptimizer(nn.Linear(50, 4).parameters(), SGP(step_size=0.01), short)
    for _ in range(10):
        push_sum.step()
    assert abs(float(total(push_sum.state_fields.w)) - 3) < 1e-5
    push_sum.close()


def resume_half_messages(network: ProcessNetwork, folder: str) -> None:
    """A resumed run goes on bit by bit from what its messages refer to."""
    ends = []
    for method in (METHOD, SGP(step_size=0.01)):
        for attempt in ("save", "resume"):
            torch.manual_seed(network.agent)
            model = nn.Linear(50, 4)
            optimizer = DecentralizedOptimizer(model.parameters(), method, network)
            checkpoints = Checkpoints(f"{folder}/{type(method).__name__}", optimizer)
            assert checkpoints.resume() == (None if attempt == "save" else 4)
            while optimizer.k < 8:
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * optimizer.k + network.agent)
                (model(torch.randn(8, 50, generator=generator)) - 1).square().mean().backward()
                optimizer.step()
                if attempt == "save" and optimizer.k == 4:
                    checkpoints.save()
            optimizer.close()
            ends.append([value.clone() for value in optimizer.state_fields])
        assert all(torch.equal(one, other) for one, other in zip(*ends[-2:], strict=True))


def schedules(network: ProcessNetwork) -> None:
    """A schedule of the method sets ``lr``, and a resumed optimizer goes on with it."""
    method = AB(step_size=InverseSqrt(scale=0.1))
    model = nn.Linear(2, 1)
    optimizer = DecentralizedOptimizer(model.parameters(), method, network)
    for k in range(4):
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == InverseSqrt(scale=0.1)(k)
    stored = optimizer.state_dict()
    optimizer.close()
    again = DecentralizedOptimizer(nn.Linear(2, 1).parameters(), method, network)
    again.load_state_dict(stored)
    again.step()
    assert (again.k, again.param_groups[0]["lr"]) == (5, InverseSqrt(scale=0.1)(4))
    again.close()


def restart_with_another_graph(network: ProcessNetwork, folder: str) -> None:
    """A tracking restart keeps the estimates and the invariant when the graph has changed."""
    model = nn.Linear(6, 2).double()
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 6).double()).square().mean() * (network.agent + 1)).backward()
        optimizer.step()
    x = optimizer.estimate().clone()
    Checkpoints(folder, optimizer).save()
    optimizer.close()
    other = ProcessNetwork(from_edges(3, [(0, 1), (1, 2), (2, 0)]), timeout=20)
    model = nn.Linear(6, 2).double()
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, other)
    assert Checkpoints(folder, optimizer).resume("tracking restart") == 3
    assert torch.equal(optimizer.estimate(), x)
    optimizer.zero_grad()
    model(torch.ones(1, 6).double()).square().mean().backward()
    optimizer.step()
    assert torch.allclose(total(optimizer.state_fields.y), total(optimizer.state_fields.g), atol=1e-12)
    optimizer.close()


def batched(network: ProcessNetwork) -> None:
    """Messages over torch.distributed, as tensors on GPUs need it, give the same numbers."""
    results = []
    for at_once in (False, True):
        torch.manual_seed(network.agent)
        model = nn.Linear(7, 3)
        optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
        optimizer.close()
        optimizer._engine._round = DeviceRound if at_once else PacketRound
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 7)).square().mean().backward()
            optimizer.step()
        optimizer.close()
        results.append(torch.cat([optimizer.estimate()[0], torch.tensor([float(optimizer.bytes_sent)])]))
    assert torch.equal(*results)


def large_messages(network: ProcessNetwork, folder: str) -> None:
    """Messages read from the neighbours' memory arrive where they belong."""
    torch.manual_seed(network.agent)
    model = nn.Linear(1000, 700)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    start = optimizer.estimate().clone()
    optimizer.step()
    optimizer.close()
    save_file({"start": start, "end": optimizer.estimate().contiguous()}, f"{folder}/large{network.agent}.st")


def large_changing_network(network: ProcessNetwork, folder: str) -> None:
    """Short and full messages of a network that changes are read from the neighbours' memory alike."""
    torch.manual_seed(network.agent)
    optimizer = DecentralizedOptimizer(nn.Linear(1000, 700).parameters(), METHOD, network)
    for _ in range(4):
        optimizer.step()
    optimizer.close()
    save_file({"end": optimizer.estimate().contiguous()}, f"{folder}/changing{network.agent}.st")


if __name__ == "__main__":
    processes = ProcessNetwork(GRAPH, timeout=30)
    overflow(processes)
    averages(processes)
    halves = ProcessNetwork(Network(GRAPH, links=Links(compressor=compressors.bfloat16())), timeout=30)
    half_messages(processes, halves)
    resume_half_messages(halves, f"{sys.argv[1]}/half")
    changing = ProcessNetwork(
        Network(split(GRAPH, 2), links=Links(compressor=compressors.bfloat16())), timeout=30
    )
    resume_half_messages(changing, f"{sys.argv[1]}/changing")
    schedules(processes)
    restart_with_another_graph(processes, sys.argv[1])
    batched(processes)
    large_messages(processes, sys.argv[1])
    large_changing_network(changing, sys.argv[1])
    processes.close()
