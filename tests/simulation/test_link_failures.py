"""Where exactness fails: every case that the documentation warns of, reproduced.

Runs go past the door, which refuses or warns; the test of each refusal is in test_links.py.
"""

import numpy as np
import pytest

import digrad as dg
from digrad.links import Links
from link_runs import EXAMPLE, METHODS, QUADRATIC, distances, lose, settles_at
from link_transcription import PlainNet, run

PERFECT = dg.Network(EXAMPLE)
CURVATURE, LINEAR = QUADRATIC.local.curvature, QUADRATIC.local.linear


def floor(change, method=METHODS["CGT"], steps=1500):
    """Return the error of a transcribed run, the largest of the last iterations, when ``change`` is said of x."""

    class Changed(PlainNet):
        def pull(self, x):
            said = change(self, x)
            own = np.diag(self.R[0])[:, None]
            return self.R[0] @ said + own * (x - said)

    net = Changed(EXAMPLE.arcs, PERFECT.R.toarray(), PERFECT.C.toarray(), *perfect(steps))
    states = run(method, lambda x: CURVATURE * x - LINEAR, np.tile([10.0, -10.0], (5, 1)), net, steps)
    return max(np.linalg.norm(state.x - 1 / 3, axis=1).max() for state in states[-200:])


def perfect(steps):
    return np.zeros((steps, EXAMPLE.n_arcs), np.int8), np.ones((steps, 5), bool)


def against_reference(code):
    """Return what is said of x when its change is coded as ``code`` does."""

    def change(net, x):
        net.known = x if net.k == 0 else net.known + code(x - net.known)
        return net.known

    return change


def bfloat16(x):
    return dg.coders.bfloat16.code(x)


def test_push_sum_diverges_at_a_loss_of_one_half():
    found = distances(METHODS["PushDIGing"], Links(loss=0.5), steps=3000)
    assert settles_at(found) == np.inf
    assert found[-1] > 1


def test_sgp_tends_to_the_minimum_of_the_rate_weighted_sum():
    links, graph = Links(awake=[1, 1, 0.3, 0.3, 0.2]), dg.graphs.complete(5)
    rates = np.array(links.awake)[:, None]
    weighted = (rates * LINEAR).sum(0) / (rates * CURVATURE).sum(0)
    found = distances(dg.SGP(step_size=1e-3), links, graph, steps=8000, minimum=weighted)
    assert np.median(found[-2000:]) < 0.05
    np.testing.assert_allclose(weighted, [0.313, 0.288], atol=2e-3)
    exact = distances(METHODS["CGT"], links, graph, steps=1500)
    assert exact[-1] < 1e-8


def test_coded_push_sum_does_not_settle_under_loss():
    links = Links(loss=0.1, coder=dg.coders.bfloat16)
    found = distances(METHODS["PushDIGing"], links, steps=3000)
    assert not found[-200:].max() < 1e-6


def test_row_weights_alone_do_not_settle_under_loss():
    assert settles_at(distances(dg.FROST(step_size=0.02), Links(loss=0.1), steps=3000)) == np.inf


def test_an_estimate_rounded_without_a_reference_has_a_floor():
    assert 1e-3 < floor(lambda net, x: bfloat16(x)) < 6e-3
    assert floor(against_reference(bfloat16)) < 1e-9


@pytest.mark.parametrize(
    "code",
    [lambda v: 0.1 * np.sign(v), lambda v: 0.01 * np.round(v / 0.01)],
    ids=["unscaled sign", "fixed grid"],
)
def test_coders_that_do_not_shrink_with_what_they_code_have_a_floor(code):
    assert 0.001 < floor(against_reference(code)) < 0.2


def test_random_entries_scaled_up_diverge():
    draws = np.random.default_rng(0)

    def scaled(v):
        chosen = draws.random(v.shape).argsort(axis=1) < 1
        return v.shape[1] * np.where(chosen, v, 0)

    assert not floor(against_reference(scaled)) < 1


def test_one_way_loss_biases_what_needs_doubly_stochastic_weights():
    graph = dg.graphs.from_edges(5, [arc for s, r in EXAMPLE.edges for arc in ((s, r), (r, s))])
    network = dg.Network(graph, W=dg.mixing.metropolis(graph), links=Links(loss=0.3))
    found = distances(dg.DSGT(step_size=0.05), network=network, steps=1500)
    assert not found[-1] < 0.1


def test_a_dead_arc_swallows_mass_for_ever(monkeypatch):
    lose(monkeypatch, lambda k, arcs: (k >= 50) & (arcs == (0, 2)).all(axis=1))
    assert distances(METHODS["CGT"], Links(loss=0.5), steps=3000)[-1] == pytest.approx(6.97, rel=0.01)


def test_gaps_that_grow_leave_no_rate(monkeypatch):
    lose(monkeypatch, lambda k, arcs: np.round(np.sqrt(k)) ** 2 != k)
    assert distances(METHODS["CGT"], Links(loss=0.5), steps=4001)[-1] == pytest.approx(2.4e-3, rel=0.05)


def test_constant_noise_has_a_floor_in_proportion():
    found = distances(METHODS["CGT"], Links(noise=0.01), steps=4000)
    assert np.sqrt((found[-2000:] ** 2).mean()) == pytest.approx(0.014, rel=0.5)
