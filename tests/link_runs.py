"""Runs on networks that misbehave, with the distance of the worst agent from the minimum at every iteration."""

from functools import cache
from unittest import mock

import numpy as np

import digrad as dg
from digrad.core import validation
from digrad.links import delivery_schedule

EXAMPLE = dg.graphs.example5()
QUADRATIC = dg.problems.example_quadratic()
METHODS = {
    "CGT": dg.CGT(step_size=0.05, threshold=2.0),
    "AB": dg.AB(step_size=0.05),
    "PushPull": dg.PushPull(step_size=0.05),
    "PushDIGing": dg.PushDIGing(step_size=0.05),
}


def _twenty():
    rng = np.random.default_rng(20)
    factors = rng.standard_normal((20, 10, 10))
    curvature = factors @ factors.transpose(0, 2, 1) / 10 + np.eye(10) / 2
    return dg.graphs.random_digraph(20, 0.1, seed=0), curvature, 3 * rng.standard_normal((20, 10))


TWENTY = _twenty()  # a graph, curvatures [20, 10, 10] and linear terms [20, 10]


@cache
def random_20():
    """Return the graph of twenty quadratics, and the options of :func:`distances` for them."""
    graph, curvature, linear = TWENTY
    batches = list(zip(curvature[:, None], linear[:, None], strict=True))
    minimum = np.linalg.solve(curvature.sum(axis=0), linear.sum(axis=0))
    problem = dg.problems.from_loss(_quadratic, batches, 10)
    return graph, {"problem": problem, "x0": np.full(10, 5.0), "minimum": minimum}


def _quadratic(x, batch):
    curvature, linear = batch
    return (0.5 * (curvature @ x) @ x - linear @ x).mean()


def distances(
    method,
    links=None,
    graph=EXAMPLE,
    *,
    steps,
    problem=QUADRATIC,
    x0=(10.0, -10.0),
    minimum=1 / 3,
    network=None,
):
    """Return max_i ||x_i - x*|| at k = 0, ..., ``steps`` - 1; shorter if the run diverges."""
    network = network or dg.Network(graph, links=links)
    start = np.broadcast_to(np.asarray(x0, float), (network.n, problem.dim)).copy()
    with mock.patch.object(validation, "check_links"):  # which warns of, or refuses, what is to be seen
        simulator = dg.Simulator(method, problem, network, keep=_estimates)
    _, rows = simulator.run(simulator.init(start), steps)
    return np.linalg.norm(rows["x"] - minimum, axis=-1).max(axis=1)


def lose(monkeypatch, is_lost):
    """Let ``is_lost`` of iterations ``[length, 1]`` and edges ``[A, 2]`` decide which packets arrive."""

    def table(self, first, length):
        found = is_lost(np.arange(first, first + length)[:, None], self.edges)
        return np.broadcast_to(found, (length, len(self.edges)))

    monkeypatch.setattr(delivery_schedule.DeliverySchedule, "lost", table)


def settles_at(errors, tolerance=1e-8):
    """Return the first k from which the error stays within the tolerance; infinity if there is none."""
    outside = np.flatnonzero(~(errors <= tolerance))
    after = outside[-1] + 1 if len(outside) else 0
    return after if after < len(errors) else np.inf


def _estimates(method, before, after, grad):
    return {"x": method.estimate(before)}
