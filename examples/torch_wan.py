"""Five agents on slow links train one MLP: ten local steps, messages of four bits, and nobody waits for the late.

    digrad launch --agents 5 examples/torch_wan.py
    digrad launch --agents 5 examples/torch_wan.py --synchronous

The second one communicates at every step, in full, and waits for everybody. Each agent sees two of the ten digits only.
"""

import argparse

import torch
from torch import nn

import digrad as dg
from digrad.links import Links, compressors
from digrad.torch import DecentralizedOptimizer, ProcessNetwork, Shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--synchronous", action="store_true")
    options = parser.parse_args()

    graph = dg.graphs.example5()
    if options.synchronous:
        network = ProcessNetwork(graph)
    else:
        recipe = dg.Network(dg.graphs.every(10, graph), links=Links(compressor=compressors.quantize(4)))
        network = ProcessNetwork(recipe, deadline=1.0)
    digits = dg.data.digits(classes=10)
    images = torch.tensor(digits.features, dtype=torch.float32)
    labels = torch.tensor(digits.labels, dtype=torch.long)
    parts = dg.data.partition(digits.labels, agents=network.n, scheme="sorted", seed=0)
    shard = Shard(parts.indices, agent=network.agent, batch_size=32)

    torch.manual_seed(0)  # everybody starts at the same point
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = DecentralizedOptimizer(model.parameters(), dg.CGT(step_size=0.02, threshold=2.0), network)
    for k in range(options.steps):
        batch = shard.batch(k)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    sent = optimizer.bytes_sent
    optimizer.close()

    with optimizer.averaged_parameters(), torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    if network.agent == 0:
        print(f"accuracy of the average {accuracy:.3f}, {sent / 1e6:.2f} MB sent by agent 0")
    network.close()


if __name__ == "__main__":
    main()
