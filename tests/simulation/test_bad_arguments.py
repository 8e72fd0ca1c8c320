"""Bad arguments are refused in one line, before anything is computed."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError

NETWORK, METHOD = dg.Network(dg.graphs.ring(2)), dg.CGT(step_size=0.05, threshold=5.0)
DATA = [np.ones(3), np.ones(2)]
PROBLEM = dg.problems.from_loss(lambda w, batch: ((w - batch) ** 2).mean(), DATA, 1)


def simulate(method=METHOD, **options):
    return dg.simulate(method, PROBLEM, NETWORK, **{"steps": 3, **options})


def compare(**options):
    return dg.compare([METHOD], PROBLEM, NETWORK, **{"steps": 3, **options})


def polyak(momentum):
    return dg.CDSGDPolyak(step_size=0.1, momentum=momentum)


REFUSED = {
    "unknown option": (
        lambda: simulate(record_evry=3),
        "no option `record_evry`.*Did you mean `record_every`",
    ),
    "no steps": (lambda: dg.simulate(METHOD, PROBLEM, NETWORK), "`steps` of simulate is required"),
    "unknown option of a sweep": (
        lambda: dg.sweep(METHOD, PROBLEM, NETWORK, grid={"threshold": [1.0]}, step=3),
        "sweep has no option `step`.*Did you mean `steps`",
    ),
    "unknown option of a simulator": (
        lambda: dg.Simulator(METHOD, PROBLEM, NETWORK, steps=3),
        "no option `steps`",
    ),
    "record": (lambda: simulate(record="paths"), "`record` of simulate must be a Record"),
    "name": (
        lambda: dg.Simulator(METHOD, PROBLEM, NETWORK, name=3),
        "`name` of Simulator must be a non-empty string",
    ),
    "callback": (lambda: simulate(callback=3), "`callback` of simulate must be a function"),
    "callback of compare": (lambda: compare(callback=3), "`callback` of compare must be a function"),
    "checkpoint of compare": (
        lambda: compare(checkpoint="x"),
        "`checkpoint` of compare must be a Checkpoint",
    ),
    "checkpoint": (lambda: dg.Checkpoint(3), "`path` of Checkpoint must be the path of a file"),
    "steps": (lambda: simulate(steps=1e20), "`steps` of simulate must be at most 1000000000000"),
    "rows": (lambda: simulate(steps=10**9), "`record_every` of simulate must be at least 10"),
    "batch": (lambda: simulate(batch_size=10**9), "no agent has more than 3 samples"),
    "schedule": (
        lambda: simulate(dg.CGT(step_size=lambda k, j: 0.1, threshold=5.0)),
        "must be a function of the iteration k alone",
    ),
    "momentum array": (lambda: polyak(np.array([[1.5], [0.5]])), "at least 0 and below 1 in every entry"),
    "momentum schedule": (
        lambda: simulate(polyak(lambda k: 0.5 + k)),
        r"`momentum` of CDSGDPolyak is a schedule, and at k = 1: .* below 1, but got 1\.5",
    ),
    "no methods": (lambda: dg.compare([], PROBLEM, NETWORK, steps=3), "not empty, but got"),
    "data": (
        lambda: dg.problems.from_loss(lambda w, b: w.sum(), None, 1),
        "one batch per agent, but got NoneType",
    ),
    "params": (lambda: dg.problems.from_loss(lambda w, b: w.sum(), DATA, "a"), "`params` of from_loss"),
    "int": (lambda: dg.problems.from_loss(lambda w, b: 3, DATA, 1), "a real number with a gradient"),
    "complex": (lambda: dg.problems.from_loss(lambda w, b: w[0] * 1j, DATA, 1), "returns complex128"),
    "other arrays": (
        lambda: dg.problems.from_loss(lambda w, b: w.detach(), DATA, 1),
        "must be a JAX function",
    ),
}


OWNERS = {
    "simulate": lambda **parts: dg.simulate(METHOD, **parts, steps=3),
    "compare": lambda **parts: dg.compare([METHOD], **parts, steps=3),
    "sweep": lambda **parts: dg.sweep(METHOD, **parts, grid={"threshold": [1.0]}, steps=3),
    "tune": lambda **parts: dg.tune(METHOD, **parts, steps=3),
    "Simulator": lambda **parts: dg.Simulator(METHOD, **parts),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("problem", "digits", "must be a digrad Problem"),
        ("network", dg.graphs.ring(2), "must be a digrad Network, but got Digraph; wrap a graph"),
        ("network", dg.Network(dg.graphs.ring(3)), "has 3 agents, but `problem` has 2"),
    ],
)
def test_refused_parts_are_reported_with_the_function_that_was_called(owner, name, value, said):
    parts = {"problem": PROBLEM, "network": NETWORK, name: value}
    with pytest.raises(ArgumentError, match=f"`{name}` of {owner} {said}"):
        OWNERS[owner](**parts)


def test_seeds_of_a_search_are_refused_under_its_name():
    with pytest.raises(ArgumentError, match="`seeds` of tune must be"):
        dg.tune(METHOD, PROBLEM, NETWORK, steps=3, seeds=0)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_argument_is_refused_in_one_line(name):
    call, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_momentum_schedule_may_be_zero():
    assert simulate(polyak(lambda k: 0.0)).steps == 3
