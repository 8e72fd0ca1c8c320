"""Privacy in torch: the numbers of the simulator, and noise that nobody can repeat without the seed."""

import numpy as np
import pytest
import torch

import digrad as dg
from digrad.errors import ArgumentError
from digrad.privacy import Private
from digrad.torch import PrivateShard, Replicas

PRIVATE = Private(clip=0.5, noise_multiplier=0.7, rate=0.2, delta=1e-3)


def margin_loss(outputs, signs):
    return torch.nn.functional.softplus(-outputs[:, 0] * signs).mean()


@pytest.mark.parametrize("votes", [None, np.array([1.0, 2.0, 3.0, 4.0, 5.0])])
def test_private_training_is_that_of_the_simulator(votes):
    rng, seed, steps = np.random.default_rng(0), 3, 12
    data = dg.Dataset("small", 2 * rng.standard_normal((70, 3)), np.arange(70) % 2)
    parts = dg.data.partition(data.labels, agents=5, scheme="iid", seed=0)
    problem = dg.problems.logistic(data=data, agents=5, partition=parts, reg_weight=0.05, agent_weights=votes)
    network, method = dg.Network(dg.graphs.example5()), dg.CGT(step_size=0.3, threshold=1.0)
    options = {"steps": steps, "seed": seed, "record_every": steps, "x0": np.zeros((5, 3))}
    found = dg.simulate(method, problem, network, sampling=PRIVATE, **options)

    model = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    replicas = Replicas(model, method, network)
    inputs, signs = torch.tensor(data.features), torch.tensor(2.0 * dg.data.binary_labels(data) - 1)
    weights = np.ones(5) if votes is None else 5 * votes / votes.sum()
    shards = [
        PrivateShard(parts.indices, agent=i, private=PRIVATE, seed=seed, weight=weights[i]) for i in range(5)
    ]
    for k in range(steps):
        replicas.zero_grad()
        for shard, own, weight in zip(shards, replicas.models, weights, strict=True):
            shard.backward(k, own, margin_loss, inputs, signs)
            (weight * 0.05 * next(own.parameters()).square().sum()).backward()
        replicas.step()
        replicas.log(epsilon=PRIVATE.epsilon(replicas.k))
    np.testing.assert_allclose(replicas.estimate(), found.final_x, rtol=0, atol=1e-12)


def test_an_empty_sample_is_noise_and_no_two_agents_share_it_without_a_seed():
    model, private = torch.nn.Linear(3, 1), Private(clip=2.0, noise_multiplier=5.0, rate=1e-9)
    drawn = []
    for _ in range(2):
        model.zero_grad()
        shard = PrivateShard([np.arange(4)] * 2, agent=1, private=private)
        assert len(shard.batch(0)) == 0
        shard.backward(0, model, margin_loss, torch.ones(4, 3), torch.ones(4))
        drawn.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) * (4 * 1e-9) / 10
        )
    assert 0.01 < drawn[0].abs().max() < 10
    assert not torch.isclose(drawn[0], drawn[1]).any()


def test_what_private_shards_refuse_is_one_line():
    own = [np.arange(4), np.arange(0)]
    with pytest.raises(ArgumentError, match="`agent` of PrivateShard must be 0 to 1, but got 2"):
        PrivateShard(own, agent=2, private=PRIVATE)
    with pytest.raises(ArgumentError, match="give agent 1 no samples"):
        PrivateShard(own, agent=1, private=PRIVATE)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ArgumentError, match="BatchNorm, which mixes samples"):
        PrivateShard(own, agent=0, private=PRIVATE).backward(
            0, model, margin_loss, torch.ones(4, 3), torch.ones(4)
        )
