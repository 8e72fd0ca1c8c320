"""Links as a value: checked at construction, readable in every process."""

import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Bursts, FixedDelay, Links


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"loss": 1.0}, "`loss` of Links must be at least 0 and below 1"),
        ({"delay": 127}, "`delay` of Links must be at most 126"),
        ({"awake": [1.0, 0.0]}, "`awake` of Links must be positive"),
        ({"awake": 1.5}, "`awake` of Links must be a probability"),
        ({"coder": "bfloat16"}, "`coder` of Links must be one of digrad.coders"),
        ({"noise": -1.0}, "`noise` of Links must be at least 0"),
        ({"push": "forget"}, "`push` of Links must be one of"),
        ({"pull": "zero"}, "`pull` of Links must be one of"),
        ({"seed": -1}, "`seed` of Links"),
        ({"push": "keep", "delay": 1}, "packets may be late"),
        ({"two_way": 1}, "`two_way` of Links must be True or False"),
    ],
)
def test_impossible_links_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        Links(**arguments)


def test_bursts_that_no_chain_has_are_refused():
    with pytest.raises(ArgumentError, match="`length` of Bursts must be at least 10 steps"):
        Bursts(loss=0.9, length=5)


def test_wake_rates_must_be_those_of_the_agents():
    with pytest.raises(ArgumentError, match="has 2 rates, but the network has 5 agents"):
        dg.Network(dg.graphs.example5(), links=Links(awake=[1.0, 0.5]))


def test_links_read_as_what_differs_from_the_default():
    links = Links(loss=Bursts(0.3, 5), delay=FixedDelay(2), coder=dg.coders.top_k(3), seed=4)
    assert repr(links) == (
        "Links(loss=Bursts(loss=0.3, length=5), delay=FixedDelay(steps=2), coder=TopK(k=3), seed=4)"
    )


def test_another_seed_is_another_network():
    hashes = {dg.Network(dg.graphs.example5(), links=Links(loss=0.3, seed=s)).content_hash for s in (0, 1)}
    assert len(hashes) == 2
