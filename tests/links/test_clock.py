"""Simulated seconds: agents compute, send, and wait for the slowest packet that they need."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Clock, Exponential, Links, Uniform
from link_runs import EXAMPLE, METHODS, QUADRATIC


def seconds(clock, steps=10, graph=EXAMPLE, **links):
    network = dg.Network(graph, links=Links(clock=clock, **links))
    return dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=steps).seconds_simulated


def test_equal_agents_take_computing_and_sending_at_every_step():
    clock = Clock(compute=0.5, latency=0.25, bandwidth=64.0)  # CGT sends 4 numbers of 8 bytes
    np.testing.assert_allclose(seconds(clock), (0.5 + 0.25 + 0.5) * np.arange(11))


def test_a_straggler_slows_all_down_in_the_end():
    clock = Clock(compute=[1.0, 1.0, 1.0, 1.0, 5.0])
    np.testing.assert_allclose(np.diff(seconds(clock, steps=50))[-10:], 5.0)


def test_a_slow_arc_slows_its_circle_down():
    latency = np.zeros(7)
    latency[0] = 3.0  # 4 -> 0, on a circle of three arcs, 0 -> 1 -> 4 -> 0, and on one of four
    times = seconds(Clock(latency=latency), steps=60)
    np.testing.assert_allclose((times[-1] - times[-13]) / 12, 1.0)


def test_nobody_waits_for_a_lost_packet():
    clock = Clock(compute=1.0, latency=1.0)
    assert seconds(clock, steps=100, loss=0.7)[-1] < seconds(clock, steps=100)[-1]


@pytest.mark.parametrize("times", [Exponential(mean=1.0), Uniform(0.5, 1.5)], ids=repr)
def test_drawn_times_do_not_depend_on_chunks(times):
    network = dg.Network(EXAMPLE, links=Links(clock=Clock(compute=times, latency=times)))
    runs = [
        dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=40, chunk=chunk, record_every=3)
        for chunk in (7, None)
    ]
    np.testing.assert_array_equal(runs[0].seconds_simulated, runs[1].seconds_simulated)
    assert (np.diff(runs[0].seconds_simulated) > 0).all()


def test_a_run_without_a_clock_says_what_to_do():
    trace = dg.simulate(METHODS["CGT"], QUADRATIC, dg.Network(EXAMPLE), steps=2)
    with pytest.raises(ArgumentError, match="give the network Links"):
        _ = trace.seconds_simulated


def test_times_must_fit_the_network():
    with pytest.raises(ArgumentError, match="`compute` of Clock has 2 values, but there are 5"):
        seconds(Clock(compute=[1.0, 2.0]))
    with pytest.raises(ArgumentError, match="`bandwidth` of Clock must be at least 0"):
        Clock(bandwidth=0.0)
