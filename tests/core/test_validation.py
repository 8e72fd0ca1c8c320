"""Requirements of a method on its network, checked before the first step."""

import pytest
import torch

import digrad as dg
from digrad.core.validation import check_fit
from digrad.errors import ArgumentError
from digrad.torch import Replicas

SPARSE = dg.Network(dg.graphs.every(5, dg.graphs.complete(5)))


@pytest.mark.parametrize("method", [dg.DiLoCo, dg.NoLoCo])
def test_rounds_end_when_the_network_sends(method):
    check_fit(method(0.1, local_steps=5), SPARSE, "it")
    check_fit(method(0.1, local_steps=5), dg.Network(dg.graphs.complete(5)), "it")
    for H in (1, 4, 10):  # 1 is the default
        with pytest.raises(ArgumentError, match=f"`local_steps` of it must be 5, .* but got {H}"):
            check_fit(method(0.1, local_steps=H), SPARSE, "it")


def test_rounds_are_checked_by_every_engine():
    problem, method = dg.problems.example_quadratic(), dg.DiLoCo(0.1)
    for run in (
        lambda: dg.simulate(method, problem, SPARSE, steps=2),
        lambda: Replicas(torch.nn.Linear(1, 1), method, SPARSE),
    ):
        with pytest.raises(ArgumentError, match="`local_steps` of DiLoCo must be 5"):
            run()
