"""Invariance of runs: a constant added to the losses, the numbers that agents are called by."""

import dataclasses
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import bits
import digrad as dg
from digrad.links import Clock, FixedDelay, Links, compressors
from method_cases import CASES
from property_settings import EXPLORES, examples

GATE = ("CGT-agents", "SGP", "GTNSGDm", "FROST")
METHODS = {case.label: case.method for case in CASES if EXPLORES or case.label in GATE}
STEPS = 40
ROUNDING = 1e-8  # sums in another order, after 40 steps; Sinkhorn's weights are good to 1e-12

# What is drawn at random is drawn by the numbers of edges and agents, so these links draw nothing.
LINKS = {
    "none": None,
    "late": dg.Links(delay=FixedDelay(1)),
    "quantized": dg.Links(compressor=dg.compressors.quantize(6)),
    "rounded": Links(compressor=compressors.bfloat16()),
    "timed": dg.Links(clock=Clock(compute=[1.0, 2.0, 3.0, 4.0, 5.0], latency=0.5)),
}


def huber(x: Any, batch: Any) -> Any:
    """Return a mean of pseudo-Huber losses, plus the mean of a column of constants."""
    features, target, constant = batch
    return (jnp.sqrt(1 + (features @ x - target) ** 2) - 1).mean() + constant.mean()


@cache
def shifted(constant: float) -> dg.Problem:
    """Return a regression whose losses have a constant added; it is data, so that all share compiled code."""
    generator = np.random.default_rng(2)
    blocks = []
    for agent in range(5):
        features = generator.standard_normal((4, 2))
        target = features @ np.array([1.0, -2.0]) + agent
        blocks.append((features, target, np.full(4, constant)))
    return dg.problems.from_loss(huber, blocks, 2)


@examples(gate=2, explored=40)
@given(
    constant=st.sampled_from((-1.0, 10.0, 100.0, 1e4)),
    label=st.sampled_from(("CGT", "SGP")),
    batch_size=st.sampled_from((None, 2)),
    seed=st.integers(0, 3),
)
def test_a_constant_added_to_the_losses_changes_the_loss_only(
    constant: float, label: str, batch_size: int | None, seed: int
) -> None:
    method = {case.label: case.method for case in CASES}[label]
    options = {"steps": STEPS, "x0": "normal", "batch_size": batch_size, "seed": seed, "tolerance": 1e-2}
    plain, found = (dg.simulate(method, shifted(added), bits.NETWORK, **options) for added in (0.0, constant))
    np.testing.assert_array_equal(found.final_x, plain.final_x)
    assert (found.verdict, found.steps) == (plain.verdict, plain.steps)
    for name, column in plain.columns.items():
        if name.startswith("loss"):
            np.testing.assert_allclose(found.columns[name], column + constant, rtol=1e-12, atol=1e-12)
        else:
            np.testing.assert_array_equal(found.columns[name], column, err_msg=name)


@examples(gate=2, explored=40)
@given(
    label=st.sampled_from(sorted(METHODS)),
    kind=st.sampled_from(("fixed", "weights", "sequence")),
    links=st.sampled_from(sorted(LINKS)),
    order=st.permutations((3, 0, 4, 1, 2)),
)
def test_agents_with_other_numbers_give_the_same_run(
    label: str, kind: str, links: str, order: list[int]
) -> None:
    plain, found = (run_relabelled(METHODS[label], kind, links, places) for places in (list(range(5)), order))
    if plain is None or found is None:
        assert plain is found  # refused under any names
        return
    assert (found.verdict, found.steps) == (plain.verdict, plain.steps)
    np.testing.assert_allclose(found.final_x, plain.final_x[order], rtol=ROUNDING, atol=ROUNDING)
    for name, column in plain.columns.items():
        size = float(np.max(abs(column), where=np.isfinite(column), initial=1.0))
        np.testing.assert_allclose(
            found.columns[name], column, rtol=ROUNDING, atol=ROUNDING * size, err_msg=name
        )


def run_relabelled(method: Any, kind: str, links: str, order: list[int]) -> dg.Trace | None:
    """Run with agent ``order[i]`` called i; return None if that is refused."""
    generator = np.random.default_rng(3)
    curvature, linear = generator.uniform(0.5, 2.0, (5, 2)), generator.standard_normal((5, 2))
    x0 = 3 * generator.standard_normal((5, 2))
    problem = dg.problems.quadratic(curvature=curvature[order], linear=linear[order])
    for field in ("threshold", "step_size"):
        if np.ndim(value := getattr(method, field, 0.0)):
            method = dataclasses.replace(method, **{field: np.asarray(value)[order]})
    try:
        network = relabelled_network(kind, relabelled_links(LINKS[links], order), order)
        return dg.simulate(method, problem, network, steps=STEPS, x0=x0[order])
    except dg.DigradError:
        return None


def relabelled_links(links: Any, order: list[int]) -> Any:
    if not isinstance(links, dg.Links) or links.clock is None:
        return links
    seconds: Any = links.clock.compute
    clock = dataclasses.replace(links.clock, compute=[seconds[agent] for agent in order])
    return dataclasses.replace(links, clock=clock)


def relabelled_network(kind: str, links: Any, order: list[int]) -> Any:
    graphs = [relabelled_graph(graph, order) for graph in (bits.EXAMPLE, dg.graphs.star(5))]
    if kind == "fixed":
        return dg.Network(graphs[0], links=links)
    if kind == "sequence":
        return dg.Network(dg.graphs.sequence(graphs), links=links)
    generator = np.random.default_rng(4)
    weights = np.where(dg.Network(bits.EXAMPLE).R.toarray() > 0, generator.uniform(0.2, 1.0, (5, 5)), 0.0)
    row, column = weights / weights.sum(axis=1, keepdims=True), weights / weights.sum(axis=0)
    both = np.ix_(order, order)
    return dg.Network(graphs[0], R=row[both], C=column[both], links=links)


def relabelled_graph(graph: Any, order: list[int]) -> Any:
    name_of = {agent: name for name, agent in enumerate(order)}
    edges = [(name_of[sender], name_of[receiver]) for sender, receiver in graph.edges]
    return dg.graphs.from_edges(graph.n, edges)


def test_a_constant_added_to_the_losses_changes_no_step_size_and_no_minimum() -> None:
    begin = dg.CGT(step_size=0.5, threshold=1.0)
    tunings = [
        dg.tune(begin, shifted(constant), bits.NETWORK, steps=100, budget=8).value
        for constant in (0.0, 100.0)
    ]
    assert tunings[0] is not None
    assert tunings[1] == tunings[0]
    minima = [dg.minimize(shifted(constant), [3.0, 3.0], bits.NETWORK) for constant in (0.0, 1000.0)]
    assert all(found.success for found in minima)
    np.testing.assert_array_equal(minima[1].x, minima[0].x)
