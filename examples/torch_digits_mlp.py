"""Five agents train one MLP on the handwritten digits, each seeing two of the ten classes only.

    digrad launch --agents 5 examples/torch_digits_mlp.py

or, without restarts, ``torchrun --nproc-per-node 5 examples/torch_digits_mlp.py``. Takes well under a minute.
"""

import argparse

import torch
from torch import nn

import digrad as dg
from digrad.torch import DecentralizedOptimizer, ProcessNetwork, Shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    network = ProcessNetwork(dg.graphs.example5())  # a digraph with 7 edges
    digits = dg.data.digits(classes=10)
    images = torch.tensor(digits.features, dtype=torch.float32)
    labels = torch.tensor(digits.labels, dtype=torch.long)
    parts = dg.data.partition(digits.labels, agents=network.n, scheme="sorted", seed=0)
    shard = Shard(parts.indices, agent=network.agent, batch_size=32)

    torch.manual_seed(0)  # everybody starts at the same point
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = DecentralizedOptimizer(
        model.parameters(), dg.CGT(step_size=0.1, threshold=2.0), network, weight_decay=1e-4
    )
    for k in range(steps):
        batch = shard.batch(k)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    optimizer.close()

    error = optimizer.consensus_error()
    with optimizer.averaged_parameters(), torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    if network.agent == 0:
        print(f"accuracy of the average {accuracy:.3f}, consensus error {error:.2g}, ", end="")
        print(f"{optimizer.bytes_sent / 1e6:.1f} MB sent by agent 0")
    network.close()


if __name__ == "__main__":
    main()
