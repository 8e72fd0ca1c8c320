import numpy as np
import pytest

from digrad import graphs
from digrad.mixing import Network
from digrad.theory import pointwise, repaired, sharp
from digrad.theory.pointwise import States

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
    """Lengths over many orders of magnitude; half of the trackers are near the ideal v_i grad F."""
    rng = np.random.default_rng(seed)
    n, d = network.n, 3
    grad = rng.standard_normal((COUNT, d)) * np.exp(rng.uniform(-6, 6, (COUNT, 1)))
    noise = rng.standard_normal((COUNT, n, d)) * np.exp(rng.uniform(-6, 6, (COUNT, 1, 1)))
    ideal = network.v[:, None] * grad[:, None] * rng.uniform(-0.5, 1.5, (COUNT, n, 1))
    near = rng.uniform(size=(COUNT, 1, 1)) < 0.5
    return States(network.u, network.v, np.where(near, ideal + noise * 1e-2, noise), grad, 0.05, 1.0)


@pytest.fixture(scope="module", params=["example5", "tree"])
def states(request) -> States:
    if request.param == "example5":
        return random_states(0, Network(graphs.example5()))
    from digrad.mixing import row_stochastic

    chain = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    return random_states(1, Network(graphs.example5(), R=row_stochastic(chain)))


@pytest.mark.parametrize("inequality", HOLD, ids=lambda function: function.__name__)
def test_inequality_holds_on_a_hundred_thousand_random_states(inequality, states):
    lhs, rhs = inequality(states)
    assert lhs.shape[0] == COUNT
    assert not (lhs > rhs + 1e-9 * np.abs(rhs) + 1e-13).any()


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
