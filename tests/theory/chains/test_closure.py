import dataclasses

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.network import Network, row_stochastic
from digrad.theory import Smoothness, closed_form, network_norms
from digrad.theory.chains import paper, repaired, sharp
from digrad.theory.chains.closure import Evaluation, close, largest_step
from digrad.theory.chains.setting import make_setting


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(graphs.example5())


@pytest.fixture(scope="module")
def cosh() -> problems.Problem:
    rng = np.random.default_rng(0)
    return problems.cosh(center=0.5 * rng.normal(size=(5, 3)), scale=rng.uniform(0.5, 2, 5))


def test_every_smaller_step_is_certified_too(cosh, network):
    setting = make_setting(cosh, network_norms(network), closed_form(cosh), 5.0, np.ones((5, 3)))
    for chain in (sharp, repaired, paper):
        largest = largest_step(chain, setting).step_size
        assert all(close(chain, setting, largest * part).certified for part in (1.0, 0.9, 0.1, 1e-3, 1e-9))
        assert not close(chain, setting, largest * 1.001).certified


def test_largest_step_is_found_where_the_map_of_the_gradient_bound_touches_the_diagonal():
    """Plain iteration needs 40 000 steps there, and then finds 1.3490366e-6 (sharp) and 9.5666494e-8 (repaired)."""
    rng = np.random.default_rng(0)
    problem = problems.cosh(center=rng.normal(size=(5, 3)), scale=rng.uniform(0.5, 2, 5))
    tree = row_stochastic(graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)]))
    x0 = 0.1 * np.random.default_rng(1).normal(size=(5, 3))
    norms = network_norms(Network(graphs.example5(), R=tree))
    setting = make_setting(problem, norms, closed_form(problem), 1.0, x0)
    for chain, expected in ((sharp, 1.3490365547544575e-06), (repaired, 9.566649420266616e-08)):
        found = largest_step(chain, setting)
        assert found.step_size == pytest.approx(expected, rel=1e-6)
        refused = close(chain, setting, found.step_size * (1 + 3e-6))
        assert not refused.certified
        for grad_bound in np.linspace(0.8, 1.2, 2001) * found.grad_bound:  # no G whatsoever serves it
            budget = chain.evaluate(setting, refused.step_size, grad_bound).budget
            assert chain.gradient_bound(setting, budget) > grad_bound
        assert close(chain, setting, found.step_size * 0.9985).certified


def test_iteration_that_does_not_settle_says_so_and_claims_nothing_else(cosh, network, monkeypatch):
    setting = make_setting(cosh, network_norms(network), closed_form(cosh), 5.0, np.ones((5, 3)))
    step_size = 0.9 * largest_step(sharp, setting).step_size
    monkeypatch.setattr("digrad.theory.chains.closure.ITERATIONS", 1)
    closed = close(sharp, setting, step_size)
    assert not closed.certified
    assert closed.failed.startswith("the iteration for G did not settle")


def test_secant_beyond_a_failing_condition_is_taken_back(cosh, network):
    """T is concave, then constant: secants overshoot, and a condition fails just above the fixed point 4."""

    class Bent:
        name = "bent"

        @staticmethod
        def evaluate(setting, step_size, grad_bound):
            return Evaluation({}, {"limit": grad_bound / 4.5}, budget=grad_bound, total=1.0)

        @staticmethod
        def gradient_bound(setting, gap):
            return min(1 + 0.95 * gap, 3.6 + 0.1 * gap) if gap else 1.0

    setting = dataclasses.replace(
        make_setting(cosh, network_norms(network), closed_form(cosh), 5.0, np.ones((5, 3))), D0=0.0
    )
    closed = close(Bent, setting, 1.0)
    assert closed.certified
    assert closed.grad_bound == pytest.approx(4.0, rel=1e-6)


def test_gradient_bound_is_a_fixed_point_from_above(cosh, network):
    setting = make_setting(cosh, network_norms(network), closed_form(cosh), 5.0, np.ones((5, 3)))
    for chain in (sharp, repaired):
        closed = close(chain, setting, 0.5 * largest_step(chain, setting).step_size)
        image = chain.gradient_bound(setting, closed.evaluation.budget)
        assert image <= closed.grad_bound <= image * (1 + 1e-6)


def test_bounds_that_overflow_certify_nothing(cosh, network):
    setting = make_setting(cosh, network_norms(network), closed_form(cosh), 5.0, np.ones((5, 3)))
    huge = dataclasses.replace(setting, X0=1e200, Y0=1e300)
    flat = dataclasses.replace(
        huge, smoothness=Smoothness(L0=np.ones(5), L1=np.zeros(5), ell=1.0, b=0.0, lower_bound=0.0)
    )
    for chain in (sharp, repaired, paper):
        for start, step_size in ((huge, 1e-9), (flat, 1e-9), (setting, 1e150)):
            assert not close(chain, start, step_size).certified
        assert not np.isfinite(chain.evaluate(flat, 1e-9, 1.0).total)


def test_paper_chain_uses_the_constants_of_lemma_3_in_its_gradient_bound(cosh, network):
    constants = closed_form(cosh)
    setting = make_setting(cosh, network_norms(network), constants, 5.0, np.ones((5, 3)))
    L0, L1 = np.mean(constants.L0 + constants.b * constants.L1), constants.ell * np.mean(constants.L1)
    assert np.isclose(paper.gradient_bound(setting, 0.7), 1.4 * L1 + np.sqrt((1.4 * L1) ** 2 + 1.4 * L0))
    assert paper.gradient_bound(setting, 0.7) > repaired.gradient_bound(setting, 0.7)
