"""Simulated seconds: agents compute, send, and wait for the slowest packet that they need."""

import numpy as np
import pytest

import digrad as dg
from digrad.core.network_delivery import make_delivery
from digrad.core.step_times import StepTimes
from digrad.core.traffic import Charge
from digrad.errors import ArgumentError
from digrad.links import Bursts, Clock, Exponential, FixedDelay, Links, Uniform
from digrad.simulation import simulator
from link_runs import EXAMPLE, METHODS, QUADRATIC


def delivery_by(clock, **links):
    matrices = {"push": "C", "pull": "R"}
    charges = [Charge(primitive, 16, 16, starts_in_full=False) for primitive in matrices]  # of CGT
    return make_delivery(dg.Network(EXAMPLE, links=Links(clock=clock, **links)), charges, matrices)


def seconds(clock, steps=10, **links):
    return StepTimes(delivery_by(clock, **links)).before(np.arange(steps + 1))


def test_equal_agents_take_computing_and_sending_at_every_step():
    clock = Clock(compute=0.5, latency=0.25, bandwidth=64.0)  # CGT sends 4 numbers of 8 bytes
    trace = dg.simulate(METHODS["CGT"], QUADRATIC, dg.Network(EXAMPLE, links=Links(clock=clock)), steps=10)
    np.testing.assert_allclose(trace.seconds_simulated, (0.5 + 0.25 + 0.5) * np.arange(11))
    assert trace.facts["slowest"]["edges"][0][2] == pytest.approx(0.75)


def test_a_straggler_slows_all_down_in_the_end():
    clock = Clock(compute=[1.0, 1.0, 1.0, 1.0, 5.0])
    np.testing.assert_allclose(np.diff(seconds(clock, steps=50))[-10:], 5.0)


def test_a_slow_edge_slows_its_circle_down():
    latency = np.zeros(7)
    latency[0] = 3.0  # 4 -> 0, on a circle of three edges, 0 -> 1 -> 4 -> 0, and on one of four
    times = seconds(Clock(latency=latency), steps=60)
    np.testing.assert_allclose((times[-1] - times[-13]) / 12, 1.0)


def test_nobody_waits_for_a_lost_packet():
    clock = Clock(compute=1.0, latency=1.0)
    assert seconds(clock, steps=100, loss=0.7)[-1] < seconds(clock, steps=100)[-1]


@pytest.mark.parametrize("times", [Exponential(mean=1.0), Uniform(0.5, 1.5)], ids=repr)
def test_drawn_times_do_not_depend_on_chunks(times):
    clock = Clock(compute=times, latency=times)
    whole, pieces = seconds(clock, steps=40), StepTimes(delivery_by(clock))
    found = [pieces.before(np.arange(first, min(first + 7, 41))) for first in range(0, 41, 7)]
    np.testing.assert_array_equal(np.concatenate(found), whole)
    assert (np.diff(whole) > 0).all()


DEADLINES = {
    "straggler": Clock(compute=[1.0, 1.0, 1.0, 1.0, 5.0], latency=0.1, deadline=1.5),
    "slow edge": Clock(compute=1.0, latency=[3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], deadline=1.5),
    "narrow edge": Clock(bandwidth=[10.0, 1e3, 1e3, 1e3, 1e3, 1e3, 1e3], deadline=1.5),  # 32 bytes
    "drawn": Clock(compute=Exponential(0.5), latency=Exponential(0.5), deadline=1.5),
}


def test_an_agent_that_computes_beyond_the_deadline_acts_when_it_is_done():
    awake = delivery_by(DEADLINES["straggler"]).awake(0, 12)
    assert awake[:, :4].all()
    assert np.flatnonzero(awake[:, 4]).tolist() == [3, 7, 11]  # 5 seconds are three steps and half a second


@pytest.mark.parametrize(("name", "late"), [("slow edge", 2), ("narrow edge", 2)])
def test_a_packet_under_way_beyond_the_deadline_is_late_by_so_many_steps(name, late):
    ages = delivery_by(DEADLINES[name]).ages(0, 10)
    assert (ages[:, 1:] == 0).all()
    assert ages[:, 0].tolist() == [-1] * late + [late] * (10 - late)


def test_a_packet_that_just_makes_it_is_in_time():
    assert (delivery_by(Clock(compute=0.5, latency=1.0, deadline=1.5)).ages(0, 5) == 0).all()


@pytest.mark.parametrize("links", [{}, {"loss": Bursts(0.3, 5)}, {"awake": 0.5}], ids=str)
def test_delivery_by_the_clock_do_not_depend_on_who_asks_for_what_first(links):
    whole, pieces = (delivery_by(DEADLINES["drawn"], **links) for _ in range(2))
    ages, awake = whole.ages(0, 700), whole.awake(0, 700)
    for first, length in [(0, 300), (0, 100), (300, 400), (100, 300), (250, 7)]:
        np.testing.assert_array_equal(pieces.ages(first, length), ages[first : first + length])
        np.testing.assert_array_equal(pieces.awake(first, length), awake[first : first + length])


LOSSY = {"loss": 0.3, "awake": 0.8}
GATE = (("slow edge", {}), ("narrow edge", {}), ("drawn", LOSSY))  # two loops are compiled


@pytest.mark.parametrize(
    ("name", "links"),
    [
        pytest.param(name, links, marks=[] if (name, links) in GATE else [pytest.mark.slow])
        for name in DEADLINES
        for links in ({}, LOSSY)
    ],
    ids=str,
)
def test_what_misses_the_deadline_costs_no_exactness(name, links):
    network = dg.Network(EXAMPLE, links=Links(clock=DEADLINES[name], **links))
    trace = dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=1500, record_every=100, x0=[10, -10])
    assert abs(trace.final_x - 1 / 3).max() < 1e-8
    assert trace.columns["mass_error"].max() < 1e-11


def test_a_step_ends_when_all_has_come_and_at_the_deadline_otherwise():
    in_time, late = (Clock(compute=1.0, latency=0.25, deadline=deadline) for deadline in (2.0, 1.1))
    np.testing.assert_allclose(seconds(in_time), 1.25 * np.arange(11))
    np.testing.assert_allclose(seconds(late), 1.1 * np.arange(11))


def test_a_lost_packet_is_waited_for_until_the_deadline():
    clock = Clock(compute=1.0, latency=0.25, deadline=2.0)
    is_whole = delivery_by(clock, loss=0.1).ages(0, 10).min(axis=1) == 0
    assert 0 < is_whole.sum() < 10
    np.testing.assert_allclose(np.diff(seconds(clock, loss=0.1)), np.where(is_whole, 1.25, 2.0))


def test_a_deadline_ends_the_wait_for_a_straggler():
    without = Clock(compute=[1.0, 1.0, 1.0, 1.0, 5.0], latency=0.1)
    assert seconds(DEADLINES["straggler"], steps=50)[-1] < seconds(without, steps=50)[-1] / 3


def test_the_slowest_are_named():
    slowest = StepTimes(delivery_by(DEADLINES["straggler"])).slowest(40)
    agent, computing, waiting = slowest["agents"][0]
    assert agent == 4
    assert computing == pytest.approx(1.25)
    assert computing + waiting == pytest.approx(slowest["seconds"] / 40)
    assert StepTimes(delivery_by(DEADLINES["slow edge"])).slowest(40)["edges"][0] == [4, 0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({"two_way": True}, "leave out `two_way`"),
        ({"push": "keep"}, "packets may be late"),
    ],
)
def test_what_a_deadline_excludes_is_refused(links, words):
    with pytest.raises(ArgumentError, match=words):
        Links(clock=Clock(deadline=1.0), **links)


@pytest.mark.parametrize("clock", [Clock(latency=1.0), Clock(deadline=1.0)], ids=repr)
@pytest.mark.parametrize("delay", [2, FixedDelay(2)], ids=repr)
def test_steps_and_seconds_do_not_both_say_when_packets_arrive(clock, delay):
    with pytest.raises(ArgumentError, match=r"`delay` of Links says in steps.*leave out `delay`"):
        Links(clock=clock, delay=delay)


COMPRESSED = {"compressor": dg.compressors.bfloat16()}  # of two numbers: 4 bytes, in full 16


def traffic_on(network):
    """Return what CGT sends, and when: a simulator knows it before the first step."""
    return dg.Simulator(METHODS["CGT"], QUADRATIC, network).traffic


@pytest.mark.parametrize("links", [{}, {"loss": 0.4}, {"loss": 0.4, "awake": 0.7}], ids=str)
def test_a_packet_takes_the_seconds_of_the_bytes_that_are_counted(links):
    network = dg.Network(EXAMPLE, links=Links(clock=Clock(bandwidth=8.0), **COMPRESSED, **links))
    traffic, delivery = traffic_on(network), make_delivery(network)
    counted, times = traffic.before(np.arange(13)), traffic.columns(np.arange(13))["seconds_simulated"]
    sent, ages = delivery.sent(0, 12), delivery.ages(0, 12)
    missed, is_new, ends = np.ones(7), np.ones(7, bool), np.zeros(5)
    for k in range(12):
        size = np.minimum(4 * missed, 16) + np.where(is_new, 16, np.minimum(4 * missed, 16))
        assert counted[k + 1] - counted[k] == size[sent[k]].sum()
        begins = ends.copy()
        for (sender, receiver), age, takes in zip(EXAMPLE.edge_array, ages[k], size / 8, strict=True):
            if age == 0:
                ends[receiver] = max(ends[receiver], begins[sender] + takes)
        assert times[k + 1] == pytest.approx(ends.max())
        missed, is_new = np.where(ages[k] >= 0, 1, missed + sent[k]), is_new & (ages[k] < 0)


def test_a_packet_in_full_misses_a_deadline_that_short_ones_keep():
    clock = Clock(bandwidth=8.0, deadline=1.5)
    traffic, ks = traffic_on(dg.Network(EXAMPLE, links=Links(clock=clock, **COMPRESSED))), np.arange(7)
    # 20 bytes, then 24 because nothing has been received yet, both late by a step; the third overtakes the second.
    np.testing.assert_array_equal(np.diff(traffic.before(ks)) / 7, [20, 24, 8, 8, 8, 8])
    np.testing.assert_allclose(
        np.diff(traffic.columns(ks)["seconds_simulated"]), [1.5, 1.5, 1.0, 1.0, 1.0, 1.0]
    )
    shares = traffic.columns(ks)
    assert shares["delivered"].tolist() == [1.0] * 7
    np.testing.assert_allclose(shares["overtaken"], [0, 0, 0, 1 / 3, 1 / 4, 1 / 5, 1 / 6])


@pytest.mark.parametrize("links", [{}, {"loss": 0.3, "awake": 0.8}], ids=str)
def test_sizes_and_delivery_that_depend_on_each_other_do_not_depend_on_who_asks_first(links):
    clock = Clock(latency=Uniform(0.0, 1.0), bandwidth=8.0, deadline=1.5)
    matrices = {"push": "C", "pull": "R"}
    charges = [Charge("push", 4, 16, starts_in_full=False), Charge("pull", 4, 16, starts_in_full=True)]
    network = dg.Network(EXAMPLE, links=Links(clock=clock, **COMPRESSED, **links))
    whole, pieces = (make_delivery(network, charges, matrices) for _ in range(2))
    ages, sizes = whole.ages(0, 700), whole.sizes(0, 700)
    assert set(np.unique(ages)) >= {-1, 0, 1, 2}
    for first, length in [(0, 300), (0, 100), (300, 400), (100, 300), (250, 7)]:
        np.testing.assert_array_equal(pieces.ages(first, length), ages[first : first + length])
        np.testing.assert_array_equal(pieces.sizes(first, length), sizes[first : first + length])
    sent, missed, is_new = whole.sent(0, 700), np.ones(7), np.ones(7, bool)
    for k in range(700):  # what a receiver says that knows the ages only
        size = np.minimum(4 * missed, 16) + np.where(is_new, 16, np.minimum(4 * missed, 16))
        np.testing.assert_array_equal(sizes[k], size)
        missed, is_new = np.where(ages[k] >= 0, 1, missed + sent[k]), is_new & (ages[k] < 0)


def test_a_deadline_that_makes_packets_too_late_to_remember_is_refused():
    with pytest.raises(ArgumentError, match="late by 199 steps, but at most 126"):
        seconds(Clock(latency=20.0, deadline=0.1))


def test_methods_that_no_late_packet_may_reach_are_refused():
    network = dg.Network(dg.graphs.ring(5), links=Links(clock=Clock(deadline=1.0)))
    with pytest.raises(ArgumentError, match="late packets break"):
        dg.simulate(dg.DSGT(step_size=0.05), QUADRATIC, network, steps=1)


def test_a_run_without_a_clock_says_what_to_do():
    trace = dg.simulate(METHODS["CGT"], QUADRATIC, dg.Network(EXAMPLE), steps=2)
    with pytest.raises(ArgumentError, match="give the network Links"):
        _ = trace.seconds_simulated


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Clock(compute="fast"), "`compute` of Clock must be at least 0 and finite"),
        (lambda: Clock(compute=[1.0, [2.0]]), "`compute` of Clock must be at least 0 and finite"),
        (lambda: Clock(compute=np.inf), "`compute` of Clock must be at least 0 and finite"),
        (lambda: Clock(latency=[]), "`latency` of Clock must be at least 0 and finite"),
        (lambda: Clock(bandwidth=Exponential(1.0)), "`bandwidth` of Clock must be positive"),
        (lambda: Clock(bandwidth=0.0), "`bandwidth` of Clock must be positive"),
        (lambda: Clock(deadline=np.array([1.0, 2.0])), "`deadline` of Clock must be a number"),
        (lambda: Exponential(1.0, shift=-3.0), "`shift` of Exponential must be at least 0"),
        (lambda: Uniform(0.0, np.inf), "`high` of Uniform must be at least 0 and finite"),
        (lambda: Uniform("a", "b"), "`low` of Uniform must be a number"),
    ],
)
def test_seconds_that_no_clock_shows_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (Clock(compute=[1.0, 2.0]), "`compute` of Clock has 2 values, but the network has 5 agents"),
        (Clock(latency=[0.1] * 5), "`latency` of Clock has 5 values, but the network has 7 edges"),
        (Clock(bandwidth=[1.0]), "`bandwidth` of Clock has 1 values, but the network has 7 edges"),
    ],
    ids=["compute", "latency", "bandwidth"],
)
def test_seconds_are_those_of_agents_and_edges_before_the_first_step(clock, words, monkeypatch):
    monkeypatch.setattr(simulator, "advance_of", None)  # no step can be taken
    with pytest.raises(ArgumentError, match=words):
        dg.simulate(METHODS["CGT"], QUADRATIC, dg.Network(EXAMPLE, links=Links(clock=clock)), steps=1)
