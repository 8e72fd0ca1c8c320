"""Effect of lost packets on mini-batches and on a neural network: `python examples/torch_lossy_training.py`."""

import warnings

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import digrad as dg
from digrad.torch import Replicas, Shard

POLICIES = {"exact": ("sum", "self"), "read as zero": ("drop", "drop"), "push dropped": ("drop", "self")}
METHOD = dg.CGT(step_size=0.05, threshold=5.0)
GRAPH, LOSSES = dg.graphs.example5(), (0.0, 0.1, 0.3, 0.7)


def network(loss: float, policy: str) -> dg.Network:
    push, pull = POLICIES[policy]
    return dg.Network(GRAPH, links=dg.Links(loss=loss, push=push, pull=pull))


def logistic(steps: int = 4000, batch_size: int = 32) -> None:
    """Print how far above its minimum the loss on a9a ends, the mean over the last tenth of the steps."""
    problem = dg.problems.logistic(data="a9a", agents=5, partition="sorted", reg_weight=1e-3, reg_power=4.0)
    least = problem.solve().loss
    for policy in POLICIES:
        for loss in LOSSES:
            trace = dg.simulate(
                METHOD, problem, network(loss, policy), steps=steps, batch_size=batch_size, record_every=20
            )
            gap = np.mean(trace.loss[-steps // 200 :]) - least
            print(f"a9a, {policy}, {loss:.0%} lost: {trace.verdict}, {gap:.2e} above the minimum", flush=True)


def neural_network(steps: int = 300) -> None:
    """Print the accuracy of the average network of ``torch_digits_mlp.py``: two classes for each agent."""
    digits = dg.data.digits(classes=10)
    images, labels = torch.tensor(digits.features, dtype=torch.float32), torch.tensor(digits.labels).long()
    parts = dg.data.partition(digits.labels, agents=GRAPH.n, scheme="sorted", seed=0)
    shards = [Shard(parts.indices, agent=agent, batch_size=32) for agent in range(GRAPH.n)]
    for policy in POLICIES:
        for loss in LOSSES:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
            method = dg.CGT(step_size=0.1, threshold=2.0)
            replicas = Replicas(model, method, network(loss, policy), weight_decay=1e-4)
            for k in range(steps):
                replicas.zero_grad()
                for shard, one in zip(shards, replicas.models, strict=True):
                    batch = shard.batch(k)
                    cross_entropy(one(images[batch]), labels[batch]).backward()
                replicas.step()
            error = replicas.consensus_error()
            with replicas.averaged_parameters(), torch.no_grad():
                accuracy = (replicas.models[0](images).argmax(1) == labels).float().mean()
            print(
                f"digits, {policy}, {loss:.0%} lost: accuracy {accuracy:.3f}, consensus error {error:.2g}",
                flush=True,
            )


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*forget what is lost")  # which is what this shows
    logistic()
    neural_network()
