import dataclasses

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.network import Network
from digrad.theory import Smoothness, closed_form, network_norms
from digrad.theory.paper import printed_bound
from digrad.theory.paper.printed_bound import Setting, close, largest_printed_step, largest_step, make_setting

NETWORK = Network(graphs.example5())
COSH = problems.cosh(center=0.5 * np.random.default_rng(0).normal(size=(5, 3)), scale=np.linspace(0.5, 2, 5))


@pytest.fixture(scope="module")
def setting() -> Setting:
    return make_setting(COSH, network_norms(NETWORK), closed_form(COSH), 5.0, np.ones((5, 3)))


def test_every_smaller_step_is_allowed_too(setting):
    largest = largest_step(setting)
    assert largest is not None
    assert all(close(setting, largest.step_size * part).holds for part in (1.0, 0.9, 1e-3, 1e-9))
    assert not close(setting, largest.step_size * 1.02).holds


def test_gradient_bound_is_a_fixed_point_from_above(setting):
    closed = close(setting, 0.5 * largest_step(setting).step_size)
    image = printed_bound.gradient_bound(setting, closed.constants["V0"])
    assert image <= closed.grad_bound <= image * (1 + 1e-6)


def test_bounds_that_overflow_allow_nothing(setting):
    huge = dataclasses.replace(setting, X0=1e200, Y0=1e300)
    flat = dataclasses.replace(huge, smoothness=Smoothness(L0=np.ones(5)))
    for start, step_size in ((huge, 1e-9), (flat, 1e-9), (setting, 1e150)):
        assert not close(start, step_size).holds


def test_gradient_bound_uses_the_constants_of_lemma_3(setting):
    smooth = setting.smoothness
    L0, L1 = np.mean(smooth.L0 + smooth.b * smooth.L1), smooth.ell * np.mean(smooth.L1)
    expected = 1.4 * L1 + np.sqrt((1.4 * L1) ** 2 + 1.4 * L0)
    assert np.isclose(printed_bound.gradient_bound(setting, 0.7), expected)


def test_free_parameter_is_the_one_that_allows_the_largest_step():
    problem, x0 = problems.example_quartic(), np.zeros((5, 2))
    setting, best = largest_printed_step(problem, network_norms(NETWORK), 5.0, x0)
    fixed = make_setting(problem, setting.norms, closed_form(problem, L1=30.0), 5.0, x0)
    assert best.step_size > largest_step(fixed).step_size
