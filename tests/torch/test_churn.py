"""Churn among replicas: the same runs as in the simulator."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import digrad as dg
from digrad.errors import ArgumentError, CheckpointError
from digrad.links import Crash, Join, Leave, Links
from digrad.torch import Checkpoints, Replicas
from torch_models import START, Point

METHOD = dg.CGT(step_size=0.05, threshold=2.0)

STEPS = 60


def lossy(*churn: Any) -> dg.Network:
    return dg.Network(dg.graphs.example5(), links=Links(loss=0.3, churn=churn))


CASES: dict[str, tuple[Any, Links, list[Any]]] = {
    "leave": (dg.AB(step_size=0.02), Links(loss=0.3), [Leave(1, at=20)]),
    "join": (METHOD, Links(loss=0.3, compressor=dg.compressors.bfloat16()), [Join(1, at=20)]),
    "all": (
        METHOD,
        Links(loss=0.3, delay=2, awake=0.8, seed=3),
        [Crash(1, at=10), Join(1, at=20), Leave(1, at=30), Join(1, at=40), Crash(1, at=50, repair="restart")],
    ),
}


def step(replicas: Replicas) -> None:
    for agent, model in enumerate(replicas.models):
        model.differentiate(agent)
    replicas.step()


@pytest.mark.parametrize("name", [pytest.param("leave", marks=pytest.mark.slow), "join", "all"])
def test_replicas_go_and_come_as_in_the_simulator(name: str) -> None:
    method, links, churn = CASES[name]
    network = dg.Network(dg.graphs.example5(), links=replace(links, churn=churn))
    trace = dg.simulate(method, dg.problems.example_quadratic(), network, steps=STEPS, x0=list(START))
    replicas = Replicas(Point(), method, network)
    apart = [replicas.consensus_error()]
    for _ in range(STEPS):
        step(replicas)
        apart.append(replicas.consensus_error())
    assert abs(replicas.estimate().numpy() - trace.final_x).max() <= 1e-12
    assert replicas.bytes_sent == trace.bytes_sent[-1]
    np.testing.assert_allclose(apart, trace.consensus_error, rtol=0, atol=1e-11)


def test_averages_are_those_of_the_agents_that_are_there() -> None:
    replicas = Replicas(Point(), METHOD, lossy(Leave(1, at=5), Join(1, at=8)))
    for k in range(10):
        there = [0, 2, 3, 4] if 5 <= k < 8 else [0, 1, 2, 3, 4]
        assert replicas.present == there
        torch.testing.assert_close(replicas.average(), replicas.estimate()[there].mean(0), rtol=0, atol=1e-14)
        step(replicas)


def test_a_resume_between_two_events_does_not_change_a_bit() -> None:
    network = lossy(Crash(1, at=5), Join(1, at=15))
    whole, resumed = (Replicas(Point(), METHOD, network) for _ in range(2))
    for k in range(20):
        if k == 5:
            resumed.load_state_dict(whole.state_dict())
        for replicas in (whole, resumed) if k >= 5 else (whole,):
            step(replicas)
    assert all(torch.equal(*pair) for pair in zip(whole.state_fields, resumed.state_fields, strict=True))


def test_a_checkpoint_of_another_churn_is_refused(tmp_path: Any) -> None:
    first = Replicas(Point(), METHOD, lossy(Leave(1, at=5)))
    Checkpoints(tmp_path, first).save()
    with pytest.raises(CheckpointError, match="churn"):
        Checkpoints(tmp_path, Replicas(Point(), METHOD, lossy())).resume()


def test_impossible_events_are_refused_in_the_name_of_replicas() -> None:
    with pytest.raises(ArgumentError, match=r"`churn` of Replicas: .* cannot reach"):
        Replicas(Point(), METHOD, lossy(Leave(0, at=5)))
