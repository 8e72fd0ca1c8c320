"""Runs on networks that misbehave, with the distance of the worst agent from the minimum at every iteration."""

import jax
import numpy as np

import digrad as dg
from digrad.links import fates
from digrad.simulation.prepare import prepare

EXAMPLE = dg.graphs.example5()
QUADRATIC = dg.problems.example_quadratic()
METHODS = {
    "CGT": dg.CGT(step_size=0.05, threshold=2.0),
    "AB": dg.AB(step_size=0.05),
    "PushPull": dg.PushPull(step_size=0.05),
    "PushDIGing": dg.PushDIGing(step_size=0.05),
}


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
    with jax.enable_x64(True):
        run = prepare(method, problem, network, start, name="run", keep=_estimates)
        carry, found = run.start, []
        while (k := int(carry.k)) < steps and bool(carry.alive):
            carry, rows = run.call(carry, min(steps, run.last_end(k, 1)), record_every=1)
            found.append(np.asarray(rows.kept)[: int(carry.k) - k])
    return np.linalg.norm(np.concatenate(found) - minimum, axis=-1).max(axis=1)


def lose(monkeypatch, is_lost):
    """Let ``is_lost`` of iterations ``[length, 1]`` and arcs ``[A, 2]`` decide which packets arrive."""

    def table(self, first, length):
        found = is_lost(np.arange(first, first + length)[:, None], self.arcs)
        return np.broadcast_to(found, (length, len(self.arcs)))

    monkeypatch.setattr(fates.Fates, "lost", table)


def settles_at(errors, tolerance=1e-8):
    """Return the first k from which the error stays within the tolerance; infinity if there is none."""
    outside = np.flatnonzero(~(errors <= tolerance))
    after = outside[-1] + 1 if len(outside) else 0
    return after if after < len(errors) else np.inf


def _estimates(method, before, after, grad, arrays):
    return method.estimate(before)
