"""Messages in a shorter format, in the simulator."""

import numpy as np
import pytest

import digrad as dg
from digrad.links import Links, compressors

EXAMPLE = dg.graphs.example5()
QUADRATIC = dg.problems.example_quadratic()
ATOL = {"bfloat16": 1e-13, "float16": 1e-5, "float32": 1e-13}  # float16 has no numbers below 6e-8


@pytest.mark.parametrize(
    ("dtype", "step_size"), [("bfloat16", 0.05), ("float16", 0.05), ("float32", 0.05), ("bfloat16", 0.01)]
)
def test_rounded_messages_leave_no_bias(dtype, step_size):
    network = dg.Network(EXAMPLE, links=Links(compressor=getattr(compressors, dtype)()))
    for method in (dg.CGT(step_size=step_size, threshold=2.0), dg.AB(step_size=step_size)):
        steps = int(50 / step_size)
        trace = dg.simulate(method, QUADRATIC, network, steps=steps, x0=[10.0, -10.0], record_every=steps)
        np.testing.assert_allclose(trace.final_x, 1 / 3, rtol=0, atol=ATOL[dtype])


def bytes_sent(method, problem, network, steps):
    """Return what each step sends: a simulator knows it before the first one."""
    return np.diff(dg.Simulator(method, problem, network).traffic.before(np.arange(steps + 1))).tolist()


def test_traffic_is_that_of_the_short_format_after_a_first_message_in_full():
    network = dg.Network(EXAMPLE, links=Links(compressor=compressors.bfloat16()))
    sent = bytes_sent(dg.CGT(step_size=0.05, threshold=2.0), QUADRATIC, network, 4)
    assert sent == [7 * (2 * 8 + 2 * 2), *[7 * (2 * 2 + 2 * 2)] * 3]


def test_a_receiver_that_missed_a_message_gets_the_next_in_full():
    changing = dg.Network(dg.graphs.split(EXAMPLE, 2), links=Links(compressor=compressors.bfloat16()))
    received, sent = set(), []
    for k in range(6):
        now = set(changing.at(k).union.edges)
        sent.append(sum(4 if edge in received else 16 for edge in now))
        senders = {sender for sender, _ in now}
        received = {edge for edge in received if edge[0] not in senders} | now
    assert bytes_sent(dg.DGD(step_size=0.05, mixing="row"), QUADRATIC, changing, 6) == sent


@pytest.mark.parametrize("chunk", [1, 1000])
def test_own_weights_in_turn_are_charged_alike_whatever_the_chunk(chunk, chunks_of):
    chunks_of(chunk)
    there, back = dg.graphs.from_edges(3, [(0, 1), (1, 2)]), dg.graphs.from_edges(3, [(2, 0)])
    members = [dg.Network(graph, partial=True) for graph in (there, back)]
    changing = dg.Network(members, links=Links(compressor=compressors.bfloat16()))
    problem = dg.problems.quadratic(curvature=[[1.0, 2.0]] * 3, linear=[[1.0, 1.0]] * 3)
    method = dg.DGD(step_size=0.1, mixing="row")
    trace = dg.simulate(method, problem, changing, steps=5)
    assert np.diff(trace.bytes_sent).tolist() == [2 * 16, 16, 2 * 4, 4, 2 * 4]


def test_chunks_do_not_change_a_bit(chunks_of):
    network = dg.Network(EXAMPLE, links=Links(compressor=compressors.bfloat16()))
    method = dg.PushDIGing(step_size=0.05)
    whole = dg.simulate(method, QUADRATIC, network, steps=40)
    chunks_of(1)
    np.testing.assert_array_equal(dg.simulate(method, QUADRATIC, network, steps=40).final_x, whole.final_x)


def test_resume_keeps_the_references(tmp_path):
    network = dg.Network(EXAMPLE, links=Links(compressor=compressors.bfloat16()))
    options = {"x0": [10.0, -10.0]}
    method = dg.CGT(step_size=0.05, threshold=2.0)
    whole = dg.simulate(method, QUADRATIC, network, steps=40, **options)
    file = tmp_path / "run.npz"
    dg.simulate(method, QUADRATIC, network, steps=20, checkpoint=dg.Checkpoint(file, every=20), **options)
    again = dg.Checkpoint(file, every=20, resume=True)
    resumed = dg.simulate(method, QUADRATIC, network, steps=40, checkpoint=again, **options)
    np.testing.assert_array_equal(resumed.final_x, whole.final_x)
    np.testing.assert_array_equal(resumed.bytes_sent, whole.bytes_sent)


def test_push_sum_pairs_stay_exact():
    network = dg.Network(EXAMPLE, links=Links(compressor=compressors.bfloat16()))
    trace = dg.simulate(dg.PushDIGing(step_size=0.05), QUADRATIC, network, steps=600, record_every=600)
    np.testing.assert_allclose(trace.final_x, 1 / 3, rtol=0, atol=1e-12)
