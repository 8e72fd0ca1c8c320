"""Links as a value: checked at construction, readable in every process."""

import jax.numpy as jnp
import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Bursts, FixedDelay, Links, compressors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"loss": 1.0}, "`loss` of Links must be at least 0 and below 1"),
        ({"delay": 127}, "`delay` of Links must be at most 126"),
        ({"awake": [1.0, 0.0]}, "`awake` of Links must be positive"),
        ({"awake": 1.5}, "`awake` of Links must be a probability"),
        ({"compressor": "bfloat16"}, "`compressor` of Links must be one of digrad.compressors"),
        ({"compressor": compressors.bfloat16}, "call it if it is a class"),
        ({"compressor": compressors.sign}, "call it if it is a class"),
        ({"noise": -1.0}, "`noise` of Links must be at least 0"),
        ({"push": "forget"}, "`push` of Links must be one of"),
        ({"pull": "zero"}, "`pull` of Links must be one of"),
        ({"seed": -1}, "`seed` of Links"),
        ({"push": "keep", "delay": 1}, "packets may be late"),
        ({"two_way": 1}, "`two_way` of Links must be True or False"),
        ({"loss": float("nan")}, "`loss` of Links must be at least 0 and below 1"),
        ({"loss": np.array([0.1, 0.2])}, "`loss` of Links must be a number"),
        ({"loss": jnp.array(5.0)}, "`loss` of Links must be at least 0 and below 1"),
        ({"loss": Bursts}, "`loss` of Links must be a number"),
        ({"awake": np.ones((2, 2))}, "`awake` of Links must be a number"),
        ({"awake": {1.0, 0.5}}, "`awake` of Links must be a number"),  # in which order?
        ({"damping": 0.5}, "`damping` of Links is for compressed messages"),
        ({"damping": 5.0, "compressor": dg.compressors.sign()}, "`damping` of Links must be at most 1"),
        ({"noise": lambda: 0.1}, "`noise` of Links is a schedule and must be a function of the iteration"),
        ({"noise": dg.schedules.Geometric}, "`noise` of Links is a schedule"),
        ({"push": np.array(["sum", "keep"])}, "`push` of Links must be one of"),
    ],
)
def test_impossible_links_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        Links(**arguments)


@pytest.mark.parametrize(
    ("value", "words"),
    [("a", r"`noise\(3\)` of Links must be a number"), (-1.0, r"`noise\(3\)` of Links must be at least 0")],
)
def test_noise_is_refused_at_the_iteration_that_has_none(value, words):
    with pytest.raises(ArgumentError, match=words):
        Links(noise=lambda k: value).noise_at(3)


def test_compressors_made_without_their_functions_are_checked_too():
    for make in (
        lambda: dg.compressors.top_k(0),
        lambda: dg.compressors.random_k(1.5),
        lambda: dg.compressors.quantize(1),
    ):
        with pytest.raises(ArgumentError, match="must be a whole number of at least"):
            make()


def test_equal_numbers_of_other_types_are_equal_links():
    ours = Links(loss=0.5, delay=2, awake=[1, 0.5], noise=0.25, seed=3)
    theirs = Links(
        loss=np.float32(0.5), delay=2.0, awake=np.array([1, 0.5]), noise=jnp.array(0.25), seed=np.int64(3)
    )
    assert repr(ours) == repr(theirs)
    assert repr(FixedDelay(2)) == repr(FixedDelay(2.0))
    assert repr(Bursts(0.5, 5)) == repr(Bursts(np.float64(0.5), np.int64(5)))


def test_bursts_that_no_chain_has_are_refused():
    with pytest.raises(ArgumentError, match="`length` of Bursts must be at least 10 steps"):
        Bursts(loss=0.9, length=5)


def test_wake_rates_must_be_those_of_the_agents():
    with pytest.raises(ArgumentError, match="has 2 rates, but the network has 5 agents"):
        dg.Network(dg.graphs.example5(), links=Links(awake=[1.0, 0.5]))


def test_links_read_as_what_differs_from_the_default():
    links = Links(loss=Bursts(0.3, 5), delay=FixedDelay(2), compressor=dg.compressors.top_k(3), seed=4)
    assert repr(links) == (
        "Links(loss=Bursts(loss=0.3, length=5), delay=FixedDelay(steps=2), compressor=top_k(k=3), seed=4)"
    )


def test_another_seed_is_another_network():
    hashes = {dg.Network(dg.graphs.example5(), links=Links(loss=0.3, seed=s)).content_hash for s in (0, 1)}
    assert len(hashes) == 2
