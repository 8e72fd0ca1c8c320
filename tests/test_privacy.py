"""Privacy at the source: its equation, where clipping samples ends, Poisson samples, and the accountant."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.noise import Gaussian, draws
from digrad.privacy import Private
from digrad.sampling import PRIVACY, PoissonSamples
from method_problems import Q5_GRAPH, Q5_SAMPLES, Q5_START, sample_loss

NETWORK = dg.Network(Q5_GRAPH)
A, B = Q5_SAMPLES


@pytest.fixture(scope="module")
def problem():
    return dg.problems.from_loss(sample_loss, list(zip(A, B, strict=True)), 2)


def test_gradients_are_clipped_by_sample_summed_and_noisy(problem):
    private, steps = Private(clip=3.0, noise_multiplier=0.7, rate=0.5), 25
    found = dg.simulate(
        dg.AB(0.05), problem, NETWORK, steps=steps, x0=Q5_START, seed=4, sampling=private, record_every=10
    )
    R, C = NETWORK.R.matrix.toarray(), NETWORK.C.matrix.toarray()
    samples = PoissonSamples((4,) * 5, 0.5, 4).batches(0, steps)
    noise = draws(Gaussian(1.0), 4, 0, steps, 5, 2, stream=PRIVACY)
    x, y, g = Q5_START.copy(), np.zeros((5, 2)), np.zeros((5, 2))
    for k in range(steps):
        new = np.zeros((5, 2))
        for i in range(5):
            own = [A[i, j] * x[i] - B[i, j] for j in samples[k, i] if j >= 0]
            clipped = [v * min(1, 3 / np.linalg.norm(v)) for v in own]
            new[i] = (sum(clipped, np.zeros(2)) + 3 * 0.7 * noise[k, i]) / (0.5 * 4)
        y, g = C @ y + new - g, new
        x = R @ x - 0.05 * y
    np.testing.assert_allclose(found.final_x, x, rtol=0, atol=1e-12)
    assert found.facts["sampling"] == repr(private)


@pytest.mark.parametrize(
    ("clip", "limit"),
    [
        (1.0, (0.357170, 0.288788)),
        (2.0, (0.330706, 0.294711)),
        (50.0, (1 / 3, 1 / 3)),
    ],
)
def test_clipping_of_samples_ends_where_the_specification_says(clip, limit, problem):
    private = Private(clip=clip, noise_multiplier=0.0, rate=1.0)
    end = dg.simulate(dg.AB(0.05), problem, NETWORK, steps=3000, sampling=private, record_every=1000).final_x
    np.testing.assert_allclose(end, np.tile(limit, (5, 1)), atol=6e-7)


def test_regularisers_are_not_clipped():
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=0.5)
    x = np.full((5, 64), 2.0)
    options = {"steps": 1, "x0": x, "sampling": Private(clip=1e-9, noise_multiplier=0.0, rate=1.0)}
    step = dg.simulate(dg.DGD(1.0), problem, dg.Network(dg.graphs.complete(5)), **options).final_x
    np.testing.assert_allclose(step, x - 2 * 0.5 * x, atol=1e-8)


def test_weights_of_agents_are_no_part_of_what_is_clipped():
    data = [np.full((9, 1), -1.0), np.full((1, 1), 1.0)]
    problem = dg.problems.from_loss(lambda w, b: ((w - b) ** 2).mean() / 2, data, 1, agent_weights="samples")
    private, network = Private(clip=0.1, noise_multiplier=0.0, rate=1.0), dg.Network(dg.graphs.ring(2))
    end = dg.simulate(dg.AB(0.1), problem, network, steps=2000, sampling=private, record_every=1000).final_x
    np.testing.assert_allclose(end, -1 + 0.1 / 9, atol=1e-9)  # 0.9 (x + 1) = 0.1 * 0.1


def test_poisson_samples_are_drawn_independently_with_their_rate():
    sampler = PoissonSamples((200, 50), 0.1, 3)
    drawn = sampler.batches(0, 400)
    counts = (drawn >= 0).sum(axis=2)
    assert counts.mean(axis=0) == pytest.approx([20, 5], rel=0.05)
    assert counts.var(axis=0) == pytest.approx([18, 4.5], rel=0.25)  # not a fixed size: m q (1 - q)
    assert drawn[:, 0].max() == 199
    assert drawn[:, 1].max() == 49
    for row in drawn[:20].reshape(-1, drawn.shape[2]):
        assert len(set(row[row >= 0])) == (row >= 0).sum()
    np.testing.assert_array_equal(sampler.batches(7, 5), drawn[7:12])


# (rate, noise multiplier, steps, delta), and epsilon by RdpAccountant of dp-accounting 0.6.0 with its default orders.
WHOLE_ORDERS = {  # the best order is a whole number, or nothing is sampled
    (150 / 60000, 1.3, 6000, 1e-5): 0.7242234026106222,
    (100 / 100000, 1.0, 30000, 1e-7): 1.4154988495445144,
    (32 / 2000, 2.0, 2000, 1e-5): 1.6519041454633308,
    (1.0, 20.0, 1000, 1e-5): 8.079406222420491,
    (0.02, 8.0, 400, 1e-5): 0.18377614566495468,
    (0.02, 3.0, 400, 1e-5): 0.5477413674989724,
}
OTHER_ORDERS = {  # it is 4.9 and 6.1
    (32 / 2000, 1.0, 2000, 1e-5): 4.793997730227745,
    (0.02, 1.0, 400, 1e-5): 2.8656449930236705,
}


@pytest.mark.parametrize("case", WHOLE_ORDERS)
def test_epsilon_is_that_of_dp_accounting(case):
    rate, noise_multiplier, steps, delta = case
    found = Private(clip=1.0, noise_multiplier=noise_multiplier, rate=rate).epsilon(steps, delta)
    assert found == pytest.approx(WHOLE_ORDERS[case], abs=1e-12)


@pytest.mark.parametrize("case", OTHER_ORDERS)
def test_epsilon_is_never_less_than_that_of_dp_accounting(case):
    rate, noise_multiplier, steps, delta = case
    found = Private(clip=1.0, noise_multiplier=noise_multiplier, rate=rate).epsilon(steps, delta)
    assert OTHER_ORDERS[case] <= found <= 1.002 * OTHER_ORDERS[case]


@pytest.mark.parametrize("case", WHOLE_ORDERS)
def test_noise_of_an_epsilon_is_the_noise_that_spends_it(case):
    rate, noise_multiplier, steps, delta = case
    wanted = WHOLE_ORDERS[case]
    found = Private.with_epsilon(wanted, steps=steps, clip=2.0, rate=rate, delta=delta)
    assert found.noise_multiplier == pytest.approx(noise_multiplier, rel=1e-9)
    assert wanted * (1 - 1e-9) < found.epsilon(steps) <= wanted
    assert (found.clip, found.rate, found.delta) == (2.0, rate, delta)


def test_epsilon_is_a_column_of_the_run(problem):
    private = Private(clip=3.0, noise_multiplier=2.0, rate=0.5, delta=1e-3)
    trace = dg.simulate(dg.AB(0.05), problem, NETWORK, steps=20, sampling=private, record_every=10)
    spent = trace.columns["epsilon"]
    np.testing.assert_array_equal(spent, private.epsilon([0, 10, 20], delta=1e-3))
    assert spent[0] == 0 < spent[1] < spent[2]
    assert private.epsilon(3, delta=1e-9) > private.epsilon(3)
    assert np.isinf(Private(clip=1.0, noise_multiplier=0.0, rate=0.5).epsilon(3, 1e-5))


def test_what_privacy_refuses_is_one_line(problem):
    private = Private(clip=1.0, noise_multiplier=1.0, rate=0.5)
    cases = [
        (lambda: private.epsilon(10), "`delta` of Private must be between 0 and 1, but got None"),
        (lambda: Private(clip=1.0, noise_multiplier=1.0, rate=0.5, delta=2.0), "`delta` of Private"),
        (lambda: Private(clip=0.0, noise_multiplier=1.0, rate=0.5), "`clip` of Private"),
        (lambda: Private(clip=1.0, noise_multiplier=-1.0, rate=0.5), "`noise_multiplier` of Private"),
        (lambda: Private(clip=1.0, noise_multiplier=1.0, rate=1.5), "`rate` of Private must be at most 1"),
        (lambda: private.epsilon(10, 0.0), "`delta` of Private"),
        (lambda: _with_epsilon(1e-4), "`epsilon` of Private.with_epsilon must be at least 0.0084"),
        (lambda: _with_epsilon(-1.0), "`epsilon` of Private.with_epsilon"),
        (lambda: _with_epsilon(1.0, steps=0), "`steps` of Private.with_epsilon"),
        (lambda: _run(problem, sampling=private, batch_size=2), "`batch_size` must be left out"),
        (lambda: _run(dg.problems.example_quadratic(), sampling=private), "no samples to draw from"),
        (lambda: _run(problem, sampling="poisson"), "`sampling` of simulate must be one of"),
    ]
    for call, line in cases:
        with pytest.raises(ArgumentError, match=line) as refused:
            call()
        assert "\n" not in str(refused.value)


def _with_epsilon(epsilon, steps=100):
    return Private.with_epsilon(epsilon, steps=steps, clip=1.0, rate=0.1, delta=1e-5)


def _run(problem, **options):
    return dg.simulate(dg.AB(0.05), problem, NETWORK, steps=2, **options)
