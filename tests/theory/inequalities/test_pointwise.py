import numpy as np
import pytest

from digrad import graphs
from digrad.network import Network
from digrad.theory.chains import repaired, sharp
from digrad.theory.inequalities import pointwise
from digrad.theory.inequalities.pointwise import States

COUNT = 100_000
HOLD = (
    pointwise.clipping_difference,
    pointwise.step_difference,
    pointwise.step_length,
    pointwise.step_length_printed,
    pointwise.inner_product,
    pointwise.quadratic_term,
    pointwise.descent_core,
)


def random_states(seed: int, network: Network) -> States:
    """Lengths over many orders of magnitude; trackers anywhere, along the ideal v_i grad F, or close to it.

    Of two thirds of the states the trackers are v_i grad F up to a deviation of 1e-4 to 1 of it. Where that is
    small the bounds of the descent are negative, so that F must fall.
    """
    rng = np.random.default_rng(seed)
    n, d = network.n, 3
    grad = rng.standard_normal((COUNT, d)) * np.exp(rng.uniform(-6, 6, (COUNT, 1)))
    noise = rng.standard_normal((COUNT, n, d)) * np.exp(rng.uniform(-6, 6, (COUNT, 1, 1)))
    ideal = network.v[:, None] * grad[:, None]
    along = ideal * rng.uniform(-0.5, 1.5, (COUNT, n, 1)) + noise * 1e-2
    deviation = rng.standard_normal((COUNT, n, d)) * 10 ** rng.uniform(-4, 0, (COUNT, 1, 1))
    close = ideal + np.linalg.norm(ideal, axis=-1, keepdims=True) * deviation
    kind = rng.integers(0, 6, (COUNT, 1, 1))
    y = np.select([kind == 0, kind == 1], [noise, along], close)
    return States(network.u, network.v, y, grad, 0.05, 1.0)


@pytest.fixture(scope="module", params=["example5", "tree"])
def states(request) -> States:
    if request.param == "example5":
        return random_states(0, Network(graphs.example5()))
    from digrad.network import row_stochastic

    chain = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    return random_states(1, Network(graphs.example5(), R=row_stochastic(chain)))


@pytest.mark.parametrize("inequality", HOLD, ids=lambda function: function.__name__)
def test_inequality_holds_on_a_hundred_thousand_random_states(inequality, states):
    lhs, rhs = inequality(states)
    assert lhs.shape[0] == COUNT
    assert not (lhs > rhs + 1e-9 * np.abs(rhs) + 1e-13).any()


@pytest.mark.parametrize("inequality", [pointwise.inner_product, pointwise.descent_core])
def test_bound_of_the_descent_is_negative_for_many_of_the_states(inequality, states):
    lhs, rhs = inequality(states)
    must_fall = rhs < 0
    assert 0.35 < np.mean(must_fall) < 0.65
    assert 1 <= (lhs[must_fall] / rhs[must_fall]).min() < 2  # both are negative, and a factor of two apart


def test_both_sides_of_the_descent_and_of_the_quadratic_term_are_those_of_the_page(states):
    """Sections 4.4 and 5, one state at a time."""
    u, v, alpha, c0, n = states.u, states.v, states.step_size, states.threshold, 5
    uv, top, size = sum(u * v), max(v), sum(v**2) ** 0.5
    noise, worst = max(u * (4 / v + 1 / (2 * top))) / n, max(u / v**2)
    descent, quadratic = pointwise.descent_core(states), pointwise.quadratic_term(states)
    for k in range(300):
        y, grad = states.y[k], states.grad[k]
        g = np.linalg.norm(grad)
        w2 = sum(np.linalg.norm(y[i] - v[i] * grad) ** 2 for i in range(n))
        steps = [alpha * min(1, c0 / np.linalg.norm(y[i])) for i in range(n)]
        m = np.array([sum(u[i] * steps[i] * y[i, j] for i in range(n)) / n for j in range(3)])
        abar, abar_paper = (alpha * min(1, c0 / (scale * g)) for scale in (top, size))
        rise, length = -grad @ m, m @ m
        bound = -uv / (2 * n) * abar * g**2 + alpha * noise * w2
        size_of_bound = (
            uv / (2 * n) * abar * g**2 + alpha * noise * w2
        )  # its two terms nearly cancel at times
        assert descent[0][k] == pytest.approx(rise + length / (8 * alpha * top), rel=1e-9)
        assert descent[1][k] == pytest.approx(bound, rel=1e-12, abs=1e-12 * size_of_bound)
        assert quadratic[0][k] == pytest.approx(length / 2, rel=1e-9)
        assert quadratic[1][k] == pytest.approx(
            1.5 * size**2 * abar_paper**2 * g**2 + 3 * size**2 / n * worst * abar_paper**2 * w2, rel=1e-12
        )


def test_reference_steps_are_ordered_on_random_states(states):
    for scale in (float(states.v.max()), float(np.linalg.norm(states.v))):
        reference = states.reference(scale)[:, None]
        assert (reference <= states.references * (1 + 1e-12)).all()
        assert (states.references <= scale / states.v * reference * (1 + 1e-12)).all()


def test_step_length_lemma_is_a_third_of_its_printed_bound(states):
    lhs, rhs = pointwise.step_length_printed(states)
    assert (lhs / rhs).max() < 0.34  # the specification reports 1/3: valid as printed


def test_weights_of_the_trackers_error_are_those_of_the_page():
    u, v, n = [0.5, 0.0, 2.5], [0.6, 0.9, 1.5], 3
    assert sharp.noise_weight(np.array(u), np.array(v)) == pytest.approx(
        max(u[i] * (4 / v[i] + 1 / (2 * 1.5)) for i in range(n)) / n
    )
    size, worst = sum(x**2 for x in v) ** 0.5, max(u[i] / v[i] ** 2 for i in range(n))
    inner, quadratic = repaired.gamma_weights(np.array(u), np.array(v))
    for L, alpha in ((0.0, 1.0), (2.0, 0.3)):
        expected = worst * size / n * (2 + 3 * L * size * alpha)
        assert inner + quadratic * L * alpha == pytest.approx(expected)


def test_clipping_an_empty_tracker_changes_nothing():
    empty = States(np.ones(2), np.ones(2), np.zeros((2, 3)), np.zeros(3), 0.1, 1.0)
    for inequality in HOLD:
        lhs, rhs = inequality(empty)
        assert np.all(lhs == 0)
        assert np.all(rhs == 0)
