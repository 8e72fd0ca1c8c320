"""The search for a value, and its rule: what is stable, whatever constant the loss has; and how well it finds edges."""

import dataclasses
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import digrad as dg
from digrad.data import load
from digrad.errors import ArgumentError
from digrad.sweeps import best_value, largest_stable
from digrad.sweeps.largest_stable import Ending, is_stable, remains

SETTLED = frozenset(["grad_norm", "consensus_error"])


def counted(function):
    calls = []
    return calls, lambda value: calls.append(value) or function(value)


def within_a_tenth(function, **options):
    """Search with the rule that a score is at most 0.1 above the best so far."""
    scores = {}

    def measure(value):
        scores[value] = function(value)
        return scores[value]

    return largest_stable(
        measure, is_stable=lambda value: scores[value] <= min(scores.values()) + 0.1, **options
    )


def test_the_edge_is_bracketed_and_bisected_to_the_precision_asked():
    calls, measure = counted(lambda size: 1.0 if size < 0.37 else math.inf)
    found = largest_stable(measure, start=0.01, precision=1.05, budget=30)
    assert found.is_bounded
    assert 0.37 / 1.05 <= found.value < 0.37
    assert [trial.value for trial in found.trials] == sorted(calls)


def test_a_start_that_is_too_large_is_searched_downwards():
    found = largest_stable(lambda size: 1.0 if size < 0.01 else math.nan, start=1.0, budget=20, precision=1.2)
    assert 0.01 / 1.2 <= found.value < 0.01


def test_without_bisection_values_lie_on_the_grid_of_the_factor():
    """The protocol of the CIFAR baselines: a loss per step size, neighbours a factor of two apart."""
    losses = {0.25: 0.9, 0.5: 0.5, 1.0: 0.52, 2.0: 3.0}
    found = within_a_tenth(losses.__getitem__, start=0.5)
    assert (found.value, found.is_bounded) == (1.0, True)
    assert [trial.value for trial in found.trials] == [0.25, 0.5, 1.0, 2.0]


def test_a_search_goes_down_until_the_smallest_is_not_the_best():
    calls, measure = counted(lambda size: abs(math.log2(size) + 5) + 1)  # best at 2**-5
    assert within_a_tenth(measure, start=1.0).value == 2**-5
    assert min(calls) == 2**-6


def test_a_search_goes_on_above_its_start_after_it_went_below():
    """Only what is below shows that the start is no worse than others."""
    tried = set()
    found = largest_stable(
        lambda size: tried.add(size) or 1 / size, start=1.0, is_stable=lambda size: min(tried) < size < 8
    )
    assert (found.value, found.is_bounded) == (4.0, True)


def test_a_search_that_meets_no_edge_says_so():
    found = largest_stable(lambda size: 1 / size, start=1.0, budget=4)
    assert (found.value, found.is_bounded, len(found.trials)) == (8.0, False, 4)


def test_a_search_whose_smallest_value_is_still_the_best_is_not_bounded():
    """A smaller one may be so much better that the value found is not stable."""
    found = within_a_tenth(lambda size: 1.2 ** math.log2(size), start=1.0, budget=4)
    assert (found.value, found.is_bounded) == (0.25, False)
    assert [trial.value for trial in found.trials] == [0.25, 0.5, 1.0, 2.0]


def test_nothing_stable_gives_no_value():
    found = largest_stable(lambda size: math.inf, start=1.0, budget=4)
    assert (found.value, found.is_bounded, len(found.trials)) == (None, False, 4)


def test_rounding_errors_do_not_send_a_search_down():
    calls, measure = counted(lambda size: 1 + 1e-16 * size if size < 2 else math.inf)
    assert largest_stable(measure, start=0.5).value == 1.0
    assert min(calls) == 0.5


def test_the_lowest_score_is_found_between_worse_ones():
    calls, measure = counted(lambda size: abs(math.log(size / 0.033)))
    found = best_value(measure, start=1.0, precision=1.1, budget=40)
    assert found.is_bounded
    assert 0.033 / 1.1 <= found.value <= 0.033 * 1.1
    assert len(calls) == len(set(calls)) < 20


def test_of_equal_scores_the_larger_value_is_taken():
    found = best_value(lambda size: 0.0 if size <= 1 else 1.0, start=0.5, budget=3)
    assert found.value == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget": 0}, "`budget` of largest_stable must be a whole number of at least 1"),
        ({"start": 0}, "`start`"),
        ({"factor": 1.0}, "must be above 1"),
        ({"precision": 0.5}, "must be above 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, said):
    with pytest.raises(ArgumentError, match=said):
        largest_stable(lambda size: size, **{"start": 1.0, **arguments})


def ended(value, loss, *, grad_norm=0.0, consensus_error=0.0, settled=(), start=10.0):
    return Ending(
        value, start, loss, {"grad_norm": grad_norm, "consensus_error": consensus_error}, frozenset(settled)
    )


@pytest.mark.parametrize("constant", [-1e3, -1.0, 0.0, 1e3])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_loss_counts_against_the_fall_from_the_start(constant, scale):
    best, near, far = (
        ended(value, constant + scale * loss, start=constant + scale * 10.0, settled=SETTLED)
        for value, loss in ((1.0, 0.0), (2.0, 0.49), (4.0, 0.51))
    )
    assert [is_stable(each, [best, near, far]) for each in (best, near, far)] == [True, True, False]


def test_a_cycle_is_not_stable_where_a_smaller_value_settles():
    small, cycle = ended(1.0, 0.0, grad_norm=1e-6, settled=SETTLED), ended(2.0, 0.0, grad_norm=1e-2)
    assert is_stable(small, [small, cycle])
    assert not is_stable(cycle, [small, cycle])


def test_a_floor_in_proportion_to_the_value_is_stable():
    floors = [ended(value, 0.0, consensus_error=0.1 * value) for value in (1.0, 2.0, 8.0)]
    assert all(is_stable(each, floors) for each in floors)
    high = ended(16.0, 0.0, consensus_error=8.0)
    assert not is_stable(high, [*floors, high])


def test_agents_that_have_not_set_out_refute_nothing():
    slow, arrived = ended(1.0, 9.0), ended(2.0, 0.0, consensus_error=1.0)
    assert is_stable(arrived, [slow, arrived])


def test_what_diverges_is_never_stable():
    assert not is_stable(ended(1.0, math.inf), [ended(1.0, math.inf)])


def test_what_remains_is_that_of_the_last_quarter():
    k = np.arange(101)
    columns = {"k": k, "grad_norm": 0.97**k, "consensus_error": 1.0 + 0.5 * (-1.0) ** k}
    sizes = {"grad_norm": 1.0, "consensus_error": 1.0}
    found = remains(columns, sizes, 1e-16)
    assert found["late_grad_norm"] == pytest.approx(0.97**76)
    assert found["settled_grad_norm"]
    assert (found["late_consensus_error"], found["settled_consensus_error"]) == (1.5, False)
    rounding = {**columns, "consensus_error": 1e-15 * (2 + np.sin(k))}
    assert remains(rounding, sizes, 2.0**-52)["settled_consensus_error"]


# Five problems, each with a constant that its data carry, so that the code of all constants is the same.
FIVE = dg.Network(dg.graphs.example5())
RING = dg.Network(dg.graphs.ring(6))


def pseudo_huber(residual):
    return jnp.sqrt(1 + residual**2) - 1


LOSSES = {
    "pseudo-Huber": lambda x, batch: (pseudo_huber(batch[0] @ x - batch[1]) + batch[2]).mean(),
    "log-cosh": lambda x, batch: (jnp.log(jnp.cosh(batch[0] @ x - batch[1])) + batch[2]).mean(),
    "squares": lambda x, batch: ((batch[0] @ x - batch[1]) ** 2 + batch[2]).mean(),
    "quartic": lambda x, batch: (((x - batch[0]) ** 4).sum(axis=1) / 4 + batch[2]).mean(),
    "logistic": lambda x, batch: (
        (jax.nn.softplus(-batch[1] * (batch[0] @ x)) + batch[2]).mean() + 0.05 * x @ x
    ),
}
CASES = {
    "pseudo-Huber": (dg.CGT(0.02, 1.0), FIVE, 5.0),
    "log-cosh": (dg.PushDIGing(0.01), RING, 0.0),
    "squares": (dg.AB(0.001), FIVE, 0.0),
    "quartic": (dg.CGT(0.005, 20.0), FIVE, 10.0),
    "logistic": (dg.CGT(0.05, 2.0), FIVE, 1.0),
}


@cache
def batches(name):
    if name == "logistic":
        data = load("breast_cancer")
        order = np.argsort(data.labels, kind="stable")  # each agent has nearly one class
        return [(data.features[part], data.labels[part]) for part in np.array_split(order, 5)]
    rng = np.random.default_rng(0)
    truth, found = rng.normal(size=3), []
    for agent in range(6 if name == "log-cosh" else 5):
        features = rng.normal(size=(20, 3)) * np.linspace(1, 10 if name == "squares" else 3, 3)
        found.append((features, features @ truth + rng.normal(size=20) / 2 + agent))
    return found


def case(name, constant=0.0):
    method, network, x0 = CASES[name]
    data = [(features, targets, np.full(len(targets), constant)) for features, targets in batches(name)]
    dim = data[0][0].shape[1]
    return method, dg.problems.from_loss(LOSSES[name], data, np.full(dim, x0)), network


def tuned(name, constant, **options):
    method, problem, network = case(name, constant)
    return dg.tune(method, problem, network, steps=400, precision=1.05, budget=16, **options)


def true_edge(name):
    """Return the largest step size with which 10 000 steps converge, by bisection to 1 %."""
    method, problem, network = case(name)

    def converges(step_size):
        run = dg.simulate(
            dataclasses.replace(method, step_size=step_size), problem, network, steps=10_000, tolerance=1e-8,
            stop_at_tolerance=True, record_every=101,
        )  # fmt: skip
        return run.verdict == "converged"

    good = method.step_size
    while converges(2 * good):
        good *= 2
    bad = 2 * good
    while bad > 1.01 * good:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if converges(middle) else (good, middle)
    return good


def test_no_constant_in_the_loss_moves_the_edge():
    """Beyond the edge the run cycles for ever, with a loss that is hardly above the lowest."""
    found = {constant: tuned("pseudo-Huber", constant).value for constant in (-1.0, 100.0)}
    # As test_every_edge_is_found_with_any_constant measures it.
    assert found[-1.0] == pytest.approx(0.206, rel=0.1)
    assert found[100.0] == pytest.approx(found[-1.0], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_edge_is_found_with_any_constant(name):
    """Run with -rP to see the figures."""
    edge = true_edge(name)
    found = {constant: tuned(name, constant) for constant in (0.0, -1.0, 1.0, 10.0, 100.0)}
    values = {constant: each.value for constant, each in found.items()}
    print(f"{name}: edge {edge:.4g}, tuned {values}, ratio {values[0.0] / edge:.3f}")
    assert all(each.is_bounded for each in found.values())
    assert values[0.0] == pytest.approx(edge, rel=0.1)
    assert list(values.values()) == pytest.approx([values[0.0]] * len(values), rel=0.01)
