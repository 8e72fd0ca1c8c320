"""Delivery of packets: a function of (seed, iteration), to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad.core.network_delivery import make_delivery
from digrad.core.traffic import PacketTraffic
from digrad.graphs import complete, example5, ring, split
from digrad.links import Bursts, DeliverySchedule, FixedDelay, Links
from digrad.links.delivery_schedule import newest
from digrad.network import Network
from digrad.sampling import DELAY, LOSS, uniforms

EDGES = example5().edge_array


def test_uniform_numbers_are_those_of_the_specification():
    expected = [
        0.4291563450602872, 0.6443840681728986, 0.4839306937685306, 0.43459881495776,
        0.35475937245233646, 0.07065887146233196, 0.07642737694476676,
    ]  # fmt: skip
    np.testing.assert_array_equal(uniforms(0, LOSS, 0, 1, 7)[0], expected)
    assert uniforms(0, LOSS, 5, 1, 7)[0, 0] == 0.00012665583751658716


@pytest.mark.parametrize(("loss", "lost"), [(0.3, 2091), (Bursts(0.3, 5), 2088)])
def test_the_number_of_lost_packets_is_that_of_the_specification(loss, lost):
    assert (DeliverySchedule(Links(loss=loss), EDGES, 5).ages(0, 1000) < 0).sum() == lost


def test_delays_are_those_of_the_specification():
    assert np.floor(6 * uniforms(0, DELAY, 0, 1, 7)[0]).tolist() == [3, 3, 1, 0, 1, 3, 1]
    ages = DeliverySchedule(Links(delay=5), EDGES, 5).ages(0, 6)
    arrivals = {(a, int(k)) for k, a in zip(*np.nonzero(ages >= 0), strict=True) if ages[k, a] == k}
    assert {(3, 0), (2, 1), (4, 1), (6, 1)} >= {one for one in arrivals if one[1] <= 1}
    assert (3, 0) in arrivals


def test_a_packet_that_was_overtaken_is_ignored():
    sent, delay = np.array([1, 1, 1, 0, 1], bool)[:, None], np.array([2, 0, 1, 0, 0])[:, None]
    assert newest(sent, delay, 2).ravel().tolist() == [-1, 0, -1, 1, 0]


@settings(max_examples=20, deadline=None)
@given(
    loss=st.sampled_from([0.0, 0.4, Bursts(0.3, 4)]),
    delay=st.sampled_from([0, 3, FixedDelay(2)]),
    awake=st.sampled_from([1.0, 0.5]),
    seed=st.integers(0, 2**63 - 1),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_delivery_does_not_depend_on_how_a_run_is_cut(loss, delay, awake, seed, cuts):
    links = Links(loss=loss, delay=delay, awake=awake, push="keep" if delay == 0 else "sum", seed=seed)
    network = Network(split(example5(), 2), links=links)
    whole, pieces = make_delivery(network).ages(0, sum(cuts)), make_delivery(network)
    first = np.cumsum([0, *cuts[:-1]]).tolist()
    np.testing.assert_array_equal(
        np.vstack([pieces.ages(k, length) for k, length in zip(first, cuts, strict=True)]), whole
    )
    np.testing.assert_array_equal(pieces.ages(first[-1], cuts[-1]), whole[first[-1] :])


def test_both_directions_lose_and_delay_together_when_links_are_two_way():
    graph = complete(4)
    ages = DeliverySchedule(Links(loss=0.5, two_way=True), graph.edge_array, 4).ages(0, 50)
    number = {(s, r): a for a, (s, r) in enumerate(graph.edge_array.tolist())}
    for (s, r), a in number.items():
        np.testing.assert_array_equal(ages[:, a], ages[:, number[r, s]])
    assert 0 < (ages < 0).mean() < 1


def test_an_absent_edge_and_a_sleeping_sender_send_nothing():
    network = Network(split(ring(4), 2), links=Links(awake=0.5))
    delivery = make_delivery(network)
    sent, awake = delivery.sent(0, 40), delivery.awake(0, 40)
    there = np.arange(4) % 2 == (np.arange(40) % 2)[:, None]
    np.testing.assert_array_equal(sent, there & awake[:, ring(4).edge_array[:, 0]])
    np.testing.assert_array_equal(delivery.ages(0, 40) >= 0, sent)


@pytest.mark.parametrize(
    "links", [Links(delay=3), Links(delay=FixedDelay(2)), Links(delay=3, loss=0.3, awake=0.8)], ids=repr
)
def test_every_packet_arrives_in_time_late_or_overtaken_or_is_lost(links):
    delivery, steps = DeliverySchedule(links, EDGES, 5), 60
    traffic = PacketTraffic(0, delivery)
    lost = uniforms(0, LOSS, 0, steps, 7) < links.mean_loss
    delay = (
        np.full((steps, 7), 2)
        if isinstance(links.delay, FixedDelay)
        else (uniforms(0, DELAY, 0, steps, 7) * 4).astype(int)
    )
    sent = delivery.sent(0, steps)
    for k in (0, 1, 2, 3, 17, 18, steps):  # each goes on from the one before
        arrived = missing = overtaken = 0
        for s in range(k):
            for a in range(7):
                missing += sent[s, a] and lost[s, a]
                if sent[s, a] and not lost[s, a] and s + delay[s, a] < k:
                    arrived += 1
                    overtaken += any(
                        sent[t, a] and not lost[t, a] and t + delay[t, a] <= s + delay[s, a]
                        for t in range(s + 1, k)
                    )
        shares = traffic.columns([k])
        assert shares["delivered"][0] == pytest.approx(
            arrived / (arrived + missing) if arrived + missing else 1.0
        )
        assert shares["overtaken"][0] == pytest.approx(overtaken / max(arrived, 1))
    if not links.mean_loss:
        assert shares["delivered"][0] == 1
