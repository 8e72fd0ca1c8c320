"""Invariants of every unreliable network, at every step, in every engine.

Settings are drawn from a number; an engine takes one and returns the moments after each of its steps. The seventh, that
compressors contract, is in tests/links/test_compressors.py; the third, that delivery is a function of (seed, k),
is in tests/links/test_delivery_schedule.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import digrad as dg
from digrad.core.net import bindings
from digrad.core.network_delivery import make_delivery
from digrad.core.traffic import charges_of
from digrad.links import Bursts, Clock, DeliverySchedule, FixedDelay, Links, Uniform
from link_transcription import PlainNet, run

STEPS = 12
METHODS = {
    "CGT": dg.CGT(step_size=0.05, threshold=2.0),
    "AB": dg.AB(step_size=0.05),
    "PushPull": dg.PushPull(step_size=0.05),
    "PushDIGing": dg.PushDIGing(step_size=0.01),
}
LATE = Clock(compute=Uniform(0.0, 1.5), latency=Uniform(0.0, 2.0), bandwidth=100.0, deadline=1.0)


class Setting(NamedTuple):
    """A method on a network, with quadratics whose curvature is diagonal."""

    method: Any
    network: dg.Network
    curvature: np.ndarray  # [n, d]
    linear: np.ndarray
    x0: np.ndarray

    def with_links(self, links: Links | None) -> "Setting":
        """Return the same with other links."""
        return self._replace(network=dg.Network(self.network.graph, links=links))

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Return the gradients of all agents."""
        return self.curvature * x - self.linear

    def delivery(self) -> DeliverySchedule:
        """Return what becomes of packets."""
        compressor = self.network.links.compressor if isinstance(self.network.links, Links) else None
        _, charges = charges_of(self.method, compressor, self.x0, np.eye(len(self.x0)))
        return make_delivery(self.network, charges=charges, matrices=bindings(self.method))


class Moment(NamedTuple):
    """Position of a run after a step."""

    state: Any
    undelivered: list[np.ndarray]  # [A, width] for each array that is pushed


Engine = Callable[[Setting, int], list[Moment]]


def drawn(seed: int, method: str | None = None, *, n: int | None = None) -> Setting:
    """Return a random digraph, constant or periodic, with random links, dimension and losses."""
    rng = np.random.default_rng([seed, 12])

    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    graph: Any = dg.graphs.random_digraph(n or int(rng.integers(2, 7)), 0.3, seed=seed)
    graph = dg.graphs.split(graph, 2) if rng.random() < 0.4 else graph
    clock, delay = (LATE, 0) if rng.random() < 0.3 else (None, one_of(0, 2, FixedDelay(1)))
    is_late = bool(clock or delay)
    links = Links(
        loss=one_of(0.0, 0.4, Bursts(0.3, 3)),
        delay=delay,
        awake=one_of(1.0, 0.6),
        clock=clock,
        push="sum" if is_late else one_of("sum", "sum", "keep"),
        pull=one_of("self", "last", "renormalise"),
        seed=int(rng.integers(2**63)),
    )
    shape = (graph.n, int(rng.integers(1, 5)))
    name = method or one_of(*METHODS)
    return Setting(
        METHODS[name],
        dg.Network(graph, links=links),
        1 + rng.random(shape),
        rng.standard_normal(shape),
        rng.standard_normal(shape),
    )


def check_mass(engine: Engine, setting: Setting) -> None:
    """1: trackers and their undelivered mass sum to the gradients, weights to n, and x moves by the steps taken."""
    delivery = setting.delivery()
    taken_part, n = delivery.awake(0, STEPS), setting.network.n
    mass = setting.x0.sum(0)
    for (state, undelivered), awake in zip(engine(setting, STEPS), taken_part, strict=True):
        under_way = [part.sum(0) for part in undelivered] or [0.0] * 3
        error = abs(state.y.sum(0) + under_way[0] - state.g.sum(0)).max()
        assert error <= 1e-12 * (1 + abs(state.g).sum())
        if hasattr(state, "w"):
            mass = mass - setting.method.step_size * (state.y * awake[:, None]).sum(0)
            assert abs(state.w.sum() + under_way[2] - n).max() <= 1e-12 * n
            assert abs(state.x.sum(0) + under_way[1] - mass).max() <= 1e-12 * (1 + abs(state.x).sum() + n)


def check_agreement(engine: Engine, setting: Setting) -> None:
    """2: agents at one point, with nothing to track, stay there."""
    at = np.tile(setting.x0[:1], (setting.network.n, 1))
    still = setting._replace(linear=setting.curvature * at, x0=at)
    for state, undelivered in engine(still, STEPS):
        np.testing.assert_allclose(setting.method.estimate(state), at, rtol=1e-13, atol=1e-13)
        assert all(abs(part).max(initial=0) <= 1e-12 for part in undelivered[:1])


def check_links_that_do_nothing(engine: Engine, setting: Setting) -> None:
    """4: without loss, lateness and sleep the network is the one without links."""
    links = setting.network.links
    assert isinstance(links, Links)
    idle = Links(push=links.push, pull=links.pull)
    pair = [engine(setting.with_links(one), STEPS)[-1].state.x for one in (idle, None)]
    np.testing.assert_allclose(*pair, rtol=1e-13, atol=1e-13)


def check_equations(engine: Engine, setting: Setting) -> None:
    """3 and 5: what a receiver computes that gets raw packets, in any order and some of them again, newest wins."""
    links = setting.network.links
    assert isinstance(links, Links)
    setting = setting.with_links(replace(links, push="sum", pull="self"))
    delivery = setting.delivery()
    R, C = (np.stack([getattr(setting.network.at(k), m).toarray() for k in range(STEPS)]) for m in "RC")
    net = PlainNet(delivery.edges, R, C, raw_arrivals(delivery), delivery.awake(0, STEPS))
    states = run(setting.method, setting.gradient, setting.x0, net, STEPS)
    for moment, expected in zip(engine(setting, STEPS), states[1:], strict=True):
        for ours, theirs in zip(moment.state, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def raw_arrivals(delivery: Any) -> np.ndarray:
    """Return the ages of the packets that receivers use which know of nothing but what they got before."""
    rng = np.random.default_rng(0)
    arrives = delivery.sent(0, STEPS) & ~delivery.lost(0, STEPS)
    late, ages = delivery._delays(0, STEPS), np.full(arrives.shape, -1)
    for edge in range(arrives.shape[1]):
        events = [
            (int(s + late[s, edge] + again), int(s))
            for s in np.flatnonzero(arrives[:, edge])
            for again in (0, *rng.integers(0, 4, rng.integers(3)))
        ]
        newest = -1
        for k, s in sorted(events):
            if k < STEPS and s > newest:
                newest, ages[k, edge] = s, k - s
    return ages


class MatrixNet:
    """Mixing with explicit matrices of each step, ``[steps, n, n]``."""

    def __init__(self, R: np.ndarray, C: np.ndarray) -> None:
        self.R, self.C, self.k, self.awake = R, C, 0, np.ones(R.shape[:2], bool)

    def begin(self, k: int) -> None:
        self.k = k

    def push(self, x: Any) -> Any:
        return tuple(self.C[self.k] @ one for one in x) if isinstance(x, tuple) else self.C[self.k] @ x

    def pull(self, x: Any) -> Any:
        return tuple(self.R[self.k] @ one for one in x) if isinstance(x, tuple) else self.R[self.k] @ x


def check_matrices(engine: Engine, setting: Setting) -> None:
    """6: kept shares and own values are matrices with the weights of lost packets on their diagonals."""
    links = setting.network.links
    assert isinstance(links, Links)
    loss = links.loss or 0.3
    setting = setting.with_links(Links(loss=loss, push="keep", pull="self", seed=links.seed))
    delivery = make_delivery(setting.network)
    assert delivery is not None
    R, C = (np.stack([getattr(setting.network.at(k), m).toarray() for k in range(STEPS)]) for m in "RC")
    for k, a in np.argwhere(delivery.ages(0, STEPS) < 0):
        j, i = delivery.edges[a]
        R[k, i, i] += R[k, i, j]
        C[k, j, j] += C[k, i, j]
        R[k, i, j] = C[k, i, j] = 0.0
    states = run(setting.method, setting.gradient, setting.x0, MatrixNet(R, C), STEPS)
    for moment, expected in zip(engine(setting, STEPS), states[1:], strict=True):
        for ours, theirs in zip(moment.state, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)


def check_convergence(engine: Engine, setting: Setting, steps: int = 400) -> None:
    """8: the error, the trackers and undelivered mass vanish together: none of them says too early that it is over."""
    setting = setting._replace(method=replace(setting.method, step_size=0.1))
    minimum = setting.linear.sum(0) / setting.curvature.sum(0)
    for state, undelivered in engine(setting, steps)[100:]:
        error = abs(state.x - minimum).max()
        moving = max(abs(part).max(initial=0) for part in (state.y, state.x - state.x.mean(0), *undelivered))
        assert error <= 100 * moving + 1e-13
        assert moving <= 100 * error + 1e-13
    assert error < 1e-3


AT_EVERY_STEP = {
    "mass": check_mass,
    "agreement": check_agreement,
    "equations": check_equations,
    "links_that_do_nothing": check_links_that_do_nothing,
    "matrices": check_matrices,
}
