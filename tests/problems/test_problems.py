import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import digrad as dg
from digrad.data import Dataset, Partition
from digrad.errors import ArgumentError, DataError
from property_settings import EXPLORES

pytestmark = pytest.mark.long


def random_dataset(samples, dim, *, seed, sparse=False):
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((samples, dim)) * (generator.random((samples, dim)) < 0.4)
    labels = (generator.random(samples) < 0.4).astype(float)
    labels[:2] = (0, 1)
    return Dataset("random", scipy.sparse.csr_array(features) if sparse else features, labels)


def built_in_problems():
    generator = np.random.default_rng(0)
    weights, powers = [5e-4, 1e-3, 2e-3], [4, 5, 2]
    return {
        "quadratic": dg.problems.quadratic(
            curvature=generator.random((3, 4)), linear=generator.standard_normal((3, 4))
        ),
        "quadratic+quartic": dg.problems.example_quartic(),
        "cosh": dg.problems.cosh(
            center=generator.standard_normal((3, 2)), scale=[0.5, 1.0, 2.0], sharpness=[1.0, 0.5, 2.0]
        ),
        "quartic": dg.problems.quartic(center=generator.standard_normal((3, 2)), scale=2.0),
        "logistic dense": dg.problems.logistic(
            data=random_dataset(20, 4, seed=1), agents=3, reg_weight=weights, reg_power=powers
        ),
        "logistic sparse": dg.problems.logistic(
            data=random_dataset(20, 4, seed=1, sparse=True), agents=3, reg_weight=weights, reg_power=powers
        ),
    }


@pytest.mark.parametrize("name", built_in_problems())
def test_gradient_is_the_derivative_of_the_loss(name):
    assert built_in_problems()[name].check_gradient(seed=3) < 1e-7


@pytest.mark.parametrize("name", built_in_problems())
def test_minimum_has_a_vanishing_gradient_and_no_smaller_loss_nearby(name):
    problem = built_in_problems()[name]
    minimum = problem.solve(tolerance=1e-10)
    assert np.linalg.norm(problem.gradient(minimum.x)) <= 1e-10
    for direction in np.random.default_rng(0).standard_normal((20, problem.dim)):
        assert problem.loss(minimum.x + 0.1 * direction) >= minimum.loss


def test_check_gradient_finds_a_wrong_gradient():
    @jax.custom_jvp
    def wrong(w):
        return (w**2).sum()

    wrong.defjvp(lambda primals, tangents: (wrong(*primals), 3 * (primals[0] * tangents[0]).sum()))
    problem = dg.problems.from_loss(lambda w, batch: wrong(w) + 0 * batch.mean(), [np.zeros(2)], 3)
    assert problem.check_gradient() > 0.01


def test_logistic_is_the_corrected_loss_of_the_paper():
    """-[t log s(z) + (1 - t) log(1 - s(z))] + lambda ||x||^p, summed sample by sample in plain Python."""
    dataset = random_dataset(17, 3, seed=5)
    weights, powers = np.array([1e-3, 2e-3]), np.array([4.0, 5.0])
    problem = dg.problems.logistic(
        data=dataset, agents=2, partition="iid", reg_weight=weights, reg_power=powers, seed=4
    )
    x = np.random.default_rng(0).standard_normal((2, 3))
    for agent, index in enumerate(problem.partition.indices):
        total = 0.0
        for sample in index:
            probability = 1 / (1 + np.exp(-dataset.features[sample] @ x[agent]))
            target = dataset.labels[sample]
            total -= target * np.log(probability) + (1 - target) * np.log(1 - probability)
        expected = total / len(index) + weights[agent] * np.linalg.norm(x[agent]) ** powers[agent]
        assert problem.local_losses(x)[agent] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("power", [2, 2.5, 3, 4])
def test_logistic_has_its_curvature_at_zero_too(power):
    problem = dg.problems.logistic(data="digits", agents=2, reg_weight=[0.3, 0.0], reg_power=[power, 2])
    local, x = problem.local, jnp.zeros((2, problem.dim))
    arrays = problem.arrays(np.float64)
    with jax.enable_x64():
        direction = jnp.ones((2, problem.dim))
        _, found = jax.jvp(
            lambda point: local.gradients(arrays, point, None), (x.astype(float),), (direction,)
        )
    for i, (features, size) in enumerate(zip(local.features, local.sizes, strict=True)):
        expected = 0.25 * features.T @ (features @ np.ones(problem.dim)) / size
        expected += 2 * 0.3 * (power == 2 and i == 0)
        np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-13)


def test_logistic_is_stable_for_huge_margins():
    problem = dg.problems.logistic(data=random_dataset(20, 4, seed=1), agents=2)
    assert np.isfinite(problem.local_losses(np.full(4, 1e5))).all()
    assert np.isfinite(problem.local_gradients(np.full(4, -1e5))).all()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_logistic_layouts_agree_on_batches_and_sums(dtype):
    dense = dg.problems.logistic(data=random_dataset(31, 6, seed=2), agents=4, reg_weight=1e-3, reg_power=4)
    sparse = dg.problems.logistic(
        data=random_dataset(31, 6, seed=2, sparse=True), agents=4, reg_weight=1e-3, reg_power=4
    )
    index = np.random.default_rng(0).integers(0, 7, (4, 5))
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 6)), dtype)
        for batch in (None, index):
            a = dense.local.gradients(dense.arrays(dtype), x, batch)
            b = sparse.local.gradients(sparse.arrays(dtype), x, batch)
            assert a.dtype == dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 if dtype == "float32" else 1e-14)


def test_logistic_keeps_index_lists_when_a_dense_copy_would_be_too_large(monkeypatch):
    dense = dg.problems.logistic(data=random_dataset(31, 6, seed=2), agents=4, reg_weight=1e-3, reg_power=4)
    monkeypatch.setattr(sys.modules["digrad.problems.logistic"], "LARGEST_DENSE_COPY", 0)
    sparse = dg.problems.logistic(
        data=random_dataset(31, 6, seed=2, sparse=True), agents=4, reg_weight=1e-3, reg_power=4
    )
    assert "columns" not in sparse.arrays("float64")
    x = np.random.default_rng(1).standard_normal(6)
    assert sparse.loss(x) == pytest.approx(dense.loss(x), rel=1e-13)
    np.testing.assert_allclose(sparse.gradient(x), dense.gradient(x), atol=1e-14)


def test_logistic_weighs_agents_equally_whatever_their_size():
    dataset = random_dataset(10, 3, seed=7)
    split = Partition(indices=(np.arange(2), np.arange(2, 10)), scheme="custom")
    problem = dg.problems.logistic(data=dataset, agents=2, partition=split)
    x = np.ones(3)
    assert problem.loss(x) == pytest.approx(problem.local_losses(x).mean(), rel=1e-14)
    listed = dg.problems.logistic(data=dataset, agents=2, partition=[np.arange(2), np.arange(2, 10)])
    assert listed.content_hash == problem.content_hash


def test_agents_weighted_by_samples_minimise_the_pooled_loss():
    dataset = random_dataset(12, 3, seed=7)
    split = Partition(indices=(np.arange(2), np.arange(2, 12)), scheme="custom")
    options = {"data": dataset, "reg_weight": 0.1}
    pooled = dg.problems.logistic(**options, agents=1, partition="iid").solve().x
    problem = dg.problems.logistic(**options, agents=2, partition=split, agent_weights="samples")
    np.testing.assert_allclose(problem.solve().x, pooled, atol=1e-9)
    network = dg.Network(dg.graphs.ring(2))
    trace = dg.simulate(dg.AB(step_size=0.2), problem, network, steps=400)
    np.testing.assert_allclose(trace.final_x, np.tile(pooled, (2, 1)), atol=1e-9)
    plain = dg.problems.logistic(**options, agents=2, partition=split)
    assert np.abs(plain.gradient(pooled)).max() > 1e-2
    assert plain.content_hash != problem.content_hash
    # On mini-batches too: the batch of all samples, in any order, is all samples.
    index = np.array([[1, 0] * 5, np.arange(10)[::-1]])
    with jax.enable_x64(True):
        x, arrays = np.ones((2, 3)), problem.arrays(np.float64)
        batch = problem.code.gradients(arrays, x, index)
        np.testing.assert_allclose(batch, problem.local_gradients(x), atol=1e-14)


def test_agent_weights_of_an_own_loss_count_by_their_ratios():
    data = [np.zeros(3), np.ones(1), np.full(2, 4.0)]

    def loss(w, batch):
        return ((w - batch) ** 2).mean()

    def minimum(weights):
        return dg.problems.from_loss(loss, data, 1, agent_weights=weights).solve().x

    np.testing.assert_allclose(minimum([0, 30, 10]), [1.75], atol=1e-12)
    np.testing.assert_allclose(minimum("samples"), [1.5], atol=1e-12)
    np.testing.assert_array_equal(minimum([2, 2, 2]), minimum(None))


def test_errors_of_mini_batches_have_mean_zero_and_shrink_with_the_batch():
    problem = dg.problems.logistic(data=random_dataset(30, 3, seed=7), agents=2, reg_weight=0.1)
    x = np.ones((2, 3))
    single = problem.gradient_errors(x, draws=4000, seed=1)
    assert single.shape == (4000, 2, 3)
    assert np.abs(single.mean(axis=0)).max() < 0.05 * single.std()
    larger = problem.gradient_errors(x, draws=4000, batch_size=16, seed=1)
    assert larger.std() == pytest.approx(single.std() / 4, rel=0.05)
    with pytest.raises(ArgumentError, match="no samples to draw from"):
        dg.problems.example_quadratic().gradient_errors(np.ones(2))


def test_a_partition_of_other_data_is_refused():
    split = Partition(indices=(np.arange(2), np.arange(2, 10)), scheme="custom")
    with pytest.raises(DataError, match="divides 10 samples, but the data set has 12"):
        dg.problems.logistic(data=random_dataset(12, 3, seed=0), agents=2, partition=split)


def test_any_two_labels_are_mapped_to_zero_and_one():
    plain = random_dataset(12, 3, seed=0)
    renamed = Dataset("renamed", plain.features, np.where(plain.labels > 0, 7.0, -3.0))
    x = np.ones(3)
    first = dg.problems.logistic(data=plain, agents=2).loss(x)
    assert dg.problems.logistic(data=renamed, agents=2).loss(x) == first


@example([3, 1, 5, 3], 0)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 100))
@settings(max_examples=20 if EXPLORES else 1, deadline=None)  # each compiles
def test_from_loss_equals_the_hand_written_problem_for_unequal_sizes(sizes, seed):
    generator = np.random.default_rng(seed)
    data = [(generator.standard_normal((m, 2)), generator.standard_normal(m)) for m in sizes]

    def loss(params, batch):
        features, targets = batch
        return ((features @ params["w"] - targets) ** 2).mean() + params["b"] ** 2

    problem = dg.problems.from_loss(loss, data, {"w": np.zeros(2), "b": np.ones(())})
    x = generator.standard_normal(
        (len(sizes), 3)
    )  # leaves are raveled in the order of their names: b, then w
    expected = [
        ((features @ row[1:] - targets) ** 2).mean() + row[0] ** 2
        for (features, targets), row in zip(data, x, strict=True)
    ]
    np.testing.assert_allclose(problem.local_losses(x), expected, rtol=1e-12)
    assert problem.check_gradient(seed=seed) < 1e-7
    assert problem.unravel(x[0])["w"].tolist() == x[0, 1:].tolist()
    assert problem.start.tolist() == [1.0, 0.0, 0.0]


def test_solve_says_when_there_is_no_minimum(monkeypatch):
    monkeypatch.setattr(sys.modules["digrad.problems.exact_minimum"], "EVALUATIONS", 100)
    problem = dg.problems.from_loss(lambda w, batch: w.sum() + batch.mean(), [np.zeros(1)], 1)
    with pytest.raises(
        ArgumentError, match=r"no minimum of <lambda> was found .* best gradient norm reached is 1;"
    ):
        problem.solve()


def of_parameters(loss, params):
    return dg.problems.from_loss(lambda w, batch: loss(w) + 0 * batch.mean(), [np.zeros(1)], params, name="f")


@pytest.mark.parametrize(
    ("loss", "params", "least"),
    [
        (lambda w: ((w**2 - 1) ** 2).sum(), 1, 0.0),
        (lambda w: jnp.cos(w).sum(), 1, -1.0),
        (lambda w: w[0] ** 2 - w[1] ** 2 + w[1] ** 4, 2, -0.25),
        (lambda w: ((w**2 - 1) ** 2).sum(), 2100, 0.0),  # beyond dense Hessians
        # One slightly negative curvature, -1e-3, among 2100 of 1e-9 to 1.
        (
            lambda w: (np.geomspace(1e-9, 1, 2100) * w**2).sum() / 2 - w[0] ** 2 / 2000 + w[0] ** 4 / 4,
            2100,
            -2.5e-7,
        ),
        (lambda w: (w[0] + w[1] - 1) ** 2, 2, 0.0),
        (lambda w: (w**4).sum(), np.ones(2), 0.0),
    ],
    ids=["maximum", "cosine", "saddle", "large", "large saddle", "flat", "quartic"],
)
def test_solve_goes_on_from_maxima_and_saddles_and_accepts_flat_minima(loss, params, least):
    minimum = of_parameters(loss, params).solve()
    assert minimum.loss == pytest.approx(least, abs=1e-10)
    assert minimum.grad_norm <= 1e-10


@pytest.mark.parametrize(
    ("loss", "params", "reason"),
    [
        (lambda w: jnp.log1p(jnp.exp(-w)).sum(), 1, "still falls at |x| = 7"),
        (lambda w: w[0] ** 2 + jnp.exp(-w[1]), 2, "towards its infimum at infinity"),
        (lambda w: 1 / (1 + (w**2).sum()), np.array([0.5]), "towards its infimum at infinity"),
        (lambda w: -(w**4).sum(), 1, "the loss is -inf"),
        (lambda w: jnp.sqrt(w - 1).sum(), 1, "the loss is nan"),
    ],
    ids=["exponential", "one-direction", "rational", "unbounded", "nan"],
)
def test_solve_names_the_reason_why_there_is_no_minimum(loss, params, reason):
    with pytest.raises(ArgumentError, match="no minimum of f was found from its start: ") as error:
        of_parameters(loss, params).solve()
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("unit", [1e-20, 1.0, 1e20])
def test_check_gradient_is_relative_in_every_unit(unit):
    @jax.custom_jvp
    def wrong(w):
        return unit * (w**2).sum()

    wrong.defjvp(lambda primals, tangents: (wrong(*primals), 3 * unit * (primals[0] * tangents[0]).sum()))
    assert of_parameters(wrong, 3).check_gradient() > 0.1
    assert of_parameters(lambda w: unit * (w**2).sum(), 3).check_gradient() < 1e-8


def test_a_coefficient_of_zero_stays_zero_where_its_power_overflows():
    quadratic = dg.problems.example_quadratic()
    assert quadratic.loss(np.full(2, 1e78)) == pytest.approx(3e156)
    assert quadratic.loss(np.array([1e200, -1e200])) == np.inf
    assert np.isfinite(quadratic.gradient(np.full(2, 1e200))).all()
    mixed = dg.problems.quadratic(curvature=[[0.0], [1.0]], linear=[[1.0], [1.0]], quartic=[0.0, 1.0])
    assert mixed.local_losses([1e200]).tolist() == [-1e200, np.inf]
    logistic = dg.problems.logistic(
        data=random_dataset(20, 4, seed=1), agents=2, reg_weight=[0, 1], reg_power=4
    )
    assert np.isfinite(logistic.local_losses(np.full(4, 1e100))).tolist() == [True, False]
    assert not np.isnan(logistic.local_gradients([1e200, 0.0, 0.0, 0.0])).any()
    quartic = dg.problems.quartic(center=[[0.0, 1.0]])
    assert quartic.gradient([1e200, 1.0]).tolist() == [np.inf, 0.0]


@pytest.mark.parametrize("segment", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))])
def test_lists_of_sparse_samples_give_what_columns_give(monkeypatch, segment):
    monkeypatch.setattr(sys.modules["digrad.problems.logistic"], "ENTRY_BYTES", 0)
    monkeypatch.setattr(sys.modules["digrad.problems.logistic"], "COLUMN_SEGMENT", segment)
    problem = dg.problems.logistic(data=random_dataset(31, 6, seed=2, sparse=True), agents=4, reg_weight=1e-3)
    arrays = problem.arrays("float64")
    columns = problem.code.batched_arrays(arrays)
    assert "lists" in arrays
    assert "lists" not in columns
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6)))
        for compute in (problem.local.losses, problem.local.gradients):
            np.testing.assert_allclose(compute(arrays, x, None), compute(columns, x, None), atol=1e-14)


def test_lists_serve_samples_in_double_precision_whose_entries_are_few():
    features = scipy.sparse.random_array((40, 200), density=0.02, random_state=0, format="csr")
    labels = np.tile([-1.0, 1.0], 20)
    problem = dg.problems.logistic(data=Dataset("few", features, labels), agents=2)
    dense = dg.problems.logistic(data=random_dataset(40, 200, seed=0, sparse=True), agents=2)
    assert "lists" in problem.arrays("float64")
    assert "lists" not in dense.arrays("float64")


def test_large_sparse_problems_have_local_losses_and_gradients(monkeypatch):
    monkeypatch.setattr(sys.modules["digrad.problems.logistic"], "LARGEST_DENSE_COPY", 0)
    settings = {"agents": 4, "reg_weight": 1e-3, "reg_power": 4}
    sparse = dg.problems.logistic(data=random_dataset(31, 6, seed=2, sparse=True), **settings)
    dense = dg.problems.logistic(data=random_dataset(31, 6, seed=2), **settings)
    x = np.random.default_rng(1).standard_normal((4, 6))
    assert sparse.check_gradient() < 1e-7
    np.testing.assert_allclose(sparse.local_losses(x), dense.local_losses(x), rtol=1e-13)
    np.testing.assert_allclose(sparse.local_gradients(x), dense.local_gradients(x), atol=1e-14)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_are_not_finite_are_named_by_agent_and_row(value):
    data = [(np.ones((4, 2)), np.ones(4)) for _ in range(3)]
    data[2][0][1, 0] = value

    def loss(w, batch):
        return ((batch[0] @ w - batch[1]) ** 2).mean()

    with pytest.raises(DataError, match="row 1 of agent 2 is not"):
        dg.problems.from_loss(loss, data, 2)
    for sparse in (False, True):
        dataset = random_dataset(20, 4, seed=1, sparse=sparse)
        written = dataset.features.data if sparse else dataset.features[7:]
        written.flat[0] = value
        with pytest.raises(DataError, match=r"of agent . .row . of random. is not; replace missing values"):
            dg.problems.logistic(data=dataset, agents=3)


def test_a_loss_may_expect_missing_values():
    data = [np.array([1.0, np.nan]), np.array([3.0])]
    problem = dg.problems.from_loss(lambda w, b: ((w - jnp.where(jnp.isnan(b), w, b)) ** 2).sum(), data, 1)
    assert problem.solve().x == pytest.approx([2.0])


def test_many_sizes_are_padded_without_changing_losses_or_gradients():
    generator = np.random.default_rng(0)
    sizes = [3, 50, 7, 9, 11, 2]
    data = [(generator.standard_normal((m, 4)), generator.standard_normal(m)) for m in sizes]

    def loss(w, batch):
        norms = jnp.sqrt((batch[0] ** 2).sum(axis=1))  # not differentiable at padding with zeros
        return ((batch[0] @ w / norms - batch[1]) ** 2).mean() + 1e-3 * (w**2).sum()

    problem = dg.problems.from_loss(loss, data, 4)
    assert len(problem.local.groups) < 4
    x = generator.standard_normal((6, 4))
    losses, gradients = [], []
    for (features, targets), row in zip(data, x, strict=True):
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        losses.append(((unit @ row - targets) ** 2).mean() + 1e-3 * row @ row)
        gradients.append(2 * unit.T @ (unit @ row - targets) / len(targets) + 2e-3 * row)
    np.testing.assert_allclose(problem.local_losses(x), losses, rtol=1e-12)
    np.testing.assert_allclose(problem.local_gradients(x), gradients, rtol=0, atol=1e-12)


def squares(w, batch):
    return ((batch[0] @ w - batch[1]) ** 2).mean()


def regression(sizes):
    generator = np.random.default_rng(3)
    data = [(generator.standard_normal((m, 3)), generator.standard_normal(m)) for m in sizes]
    return dg.problems.from_loss(squares, data, 3)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_runs_on_padded_samples_are_those_on_samples_of_each_size(dtype, monkeypatch):
    sizes = (3, 20, 7, 9, 11, 2)

    def run():
        network, method = dg.Network(dg.graphs.ring(6)), dg.CGT(step_size=0.05, threshold=2.0)
        problem = regression(sizes)
        return problem.local.groups, dg.simulate(method, problem, network, steps=30, dtype=dtype)

    groups, padded = run()
    monkeypatch.setattr(sys.modules["digrad.problems.from_loss"], "DISTINCT_SIZES", 6)
    reference_groups, reference = run()
    assert len(groups) < len(reference_groups) == 6
    rtol = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(padded.final_x, reference.final_x, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(padded.loss, reference.loss, rtol=rtol)
    np.testing.assert_allclose(padded.grad_norm, reference.grad_norm, rtol=0, atol=rtol * padded.grad_norm[0])


def test_samples_of_equal_sizes_are_stacked_as_they_are():
    problem = regression([8] * 6)
    assert problem.local.groups == (tuple(range(6)),)
    (stacked,) = problem.arrays(np.float64)["groups"]
    for leaf, blocks in zip(stacked, zip(*problem.local.data, strict=True), strict=True):
        assert np.asarray(leaf).tobytes() == np.stack(blocks).tobytes()


@pytest.mark.parametrize(("agent", "row"), [(0, 2), (2, 150), (4, 0)])
def test_a_loss_that_leaves_out_a_single_sample_is_never_padded(agent, row):
    data = [np.arange(1.0, m + 1) for m in (3, 6, 200, 8, 9)]
    data[agent][row] = -1.0  # without a label

    def loss(w, batch):
        known = batch > 0
        return jnp.where(known, (w - batch) ** 2, 0.0).sum() / known.sum()

    problem = dg.problems.from_loss(loss, data, 1)
    expected = [((2.0 - block[block > 0]) ** 2).mean() for block in data]
    np.testing.assert_allclose(problem.local_losses([2.0]), expected, rtol=1e-12)


def test_a_loss_that_is_no_mean_of_its_samples_is_never_padded():
    data = [np.arange(m, dtype=float) for m in range(2, 7)]
    problem = dg.problems.from_loss(lambda w, batch: (w * batch.std()).sum() ** 2, data, 1)
    assert len(problem.local.groups) == 5
    np.testing.assert_allclose(problem.local_losses([2.0]), [(2 * block.std()) ** 2 for block in data])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dg.problems.quadratic(curvature=[[1.0]], linear=[[1.0, 2.0]]), "must both have shape"),
        (lambda: dg.problems.quadratic(curvature=[[0.0]], linear=[[1.0]]), "no minimum"),
        (lambda: dg.problems.quadratic(curvature=[[1.0]], linear=[[1.0]], quartic=-1.0), "`quartic`"),
        (lambda: dg.problems.cosh(center=[[1.0]], scale=-1.0), "`scale` of cosh"),
        (lambda: dg.problems.cosh(center=[[1.0]], sharpness=[1.0, 2.0]), "1 agents"),
        (lambda: dg.problems.quartic(center=[1.0, 2.0]), "`center` of quartic"),
        (lambda: dg.problems.logistic(data="digits", agents=5, reg_power=1.0), "at least 2"),
        (lambda: dg.problems.logistic(data="digits", agents=5, reg_weight=[1, 2]), "5 agents"),
        (lambda: dg.problems.logistic(data="digits", agents=0), "`agents` of logistic"),
        (lambda: dg.problems.from_loss(lambda w, b: w, [np.zeros(1)], 2), "must return a scalar"),
        (lambda: dg.problems.from_loss(lambda w, b: w.sum(), [], 2), "it is empty"),
        (
            lambda: dg.problems.from_loss(lambda w, b: w.sum(), [(np.zeros(2), np.zeros(3))], 2),
            "first axes are",
        ),
        (lambda: dg.problems.from_loss("loss", [np.zeros(1)], 2), "must be a function"),
        (
            lambda: dg.problems.from_loss(lambda w, b: np.asarray(w).sum(), [np.zeros(1)], 2),
            "must be a JAX function",
        ),
        (lambda: dg.problems.from_loss(lambda w, b: w.sum(), [np.zeros(1)], None), "`params` of from_loss"),
        (lambda: dg.problems.from_loss(lambda w, b: w.sum(), [np.zeros(1)], 0), "`params` of from_loss"),
        (
            lambda: dg.problems.from_loss(lambda w, b: w.sum(), [np.zeros((1, 2)), np.zeros((1, 3))], 2),
            "same form",
        ),
        (lambda: dg.problems.logistic(data=np.zeros((3, 2)), agents=2), "`data` of logistic"),
        (lambda: dg.problems.logistic(data="digits", agents=5, agent_weights=[1, 2]), "5 agents"),
        (lambda: dg.problems.logistic(data="digits", agents=2, agent_weights="sample"), "`agent_weights`"),
        (lambda: dg.problems.logistic(data="digits", agents=2, agent_weights=[1, -1]), "nonnegative"),
        (lambda: dg.problems.logistic(data="digits", agents=2, reg_weight="a"), "array of numbers"),
        (lambda: dg.problems.quadratic(curvature=[[1.0], [1.0, 2.0]], linear=[[1.0]]), "array of numbers"),
        (lambda: dg.problems.example_quadratic().loss([1.0]), "must have shape"),
        (lambda: dg.problems.example_quadratic().local_losses([1.0]), "must have shape"),
    ],
)
def test_bad_input_gets_one_clear_line(call, message):
    with pytest.raises(ArgumentError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_large_mini_batch_is_taken_by_some_agents_at_a_time_to_the_same_bits(monkeypatch):
    generator = np.random.default_rng(0)
    local = dg.problems.logistic(data=random_dataset(300, 20, seed=3), agents=60, partition="iid").local
    x, index = generator.standard_normal((60, 20)), generator.integers(0, 5, (60, 8), np.int32)
    module = importlib.import_module("digrad.problems.logistic")
    found = {}
    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, local.arrays(np.float64))
        for agents in (1, 7, 60):  # of which 7 leaves a rest
            monkeypatch.setattr(module, "LARGEST_BATCH", 0 if agents < 60 else 1 << 20)
            monkeypatch.setattr(module, "BLOCK", agents * 8 * 20 * 8)
            gradients = jax.jit(lambda x: local.gradients(arrays, x, jnp.asarray(index)))
            assert ("scan" in str(jax.make_jaxpr(gradients)(x))) == (agents < 60)
            found[agents] = np.asarray(gradients(x))
    np.testing.assert_array_equal(found[1], found[60])
    np.testing.assert_array_equal(found[7], found[60])


def summed(w, batch):
    return ((w - batch) ** 2).sum()


def half_precision(w, batch):
    return ((w.astype(jnp.bfloat16) - batch) ** 2).astype(jnp.bfloat16).mean().astype(jnp.float32)


@pytest.mark.parametrize("loss", [summed, lambda w, b: summed(w, b) / 4, lambda w, b: (w * b.std()).sum()])
def test_mini_batches_of_a_loss_that_is_no_mean_are_refused(loss):
    problem = dg.problems.from_loss(loss, [np.arange(2.0), np.arange(9.0)], 1)
    method, network = dg.CGT(step_size=0.01, threshold=1.0), dg.Network(dg.graphs.complete(2))
    with pytest.raises(ArgumentError, match="is not a mean over the samples"):
        dg.simulate(method, problem, network, steps=1, batch_size=2)
    if loss is summed:  # of all samples it is a problem as good as any: agents with more samples weigh more
        assert problem.solve().x == pytest.approx([37 / 11])


@pytest.mark.parametrize(
    "loss", [half_precision, lambda w, b: jnp.exp(1e4 * (w - b)).mean(), lambda w, b: 0 * w.sum()]
)
def test_rounding_and_overflow_are_no_reason_to_refuse_mini_batches(loss):
    data = [np.linspace(0, 1, m) for m in (2, 70)]
    assert dg.problems.from_loss(loss, data, np.array(0.5)).is_estimated_by_batches
