import dataclasses
import gc
import math
import weakref
from fractions import Fraction

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs, problems
from digrad.data import Dataset
from digrad.errors import ArgumentError, DataError
from digrad.network import Network
from digrad.problems import Problem
from digrad.theory import Smoothness, certify, closed_form, network_norms
from digrad.theory.constants.closed_form import L1_GRID, candidates
from digrad.theory.paper.printed_bound import largest_printed_step

pytestmark = pytest.mark.long


def hessian_norms(problem: Problem, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact Hessian norms of the agents [K, n] and of F [K], from dense Hessians."""
    with jax.enable_x64(True):
        arrays, n, d = problem.arrays(np.float64), problem.n_agents, problem.dim

        def gradients(point):
            return problem.local.gradients(arrays, jax.numpy.broadcast_to(point, (n, d)), None)

        hessians = np.asarray(jax.vmap(jax.jacfwd(gradients))(points))  # [K, n, d, d]
    return np.linalg.norm(hessians, 2, axis=(2, 3)), np.linalg.norm(hessians.mean(axis=1), 2, axis=(1, 2))


def make(kind: str, seed: int, n: int = 4, d: int = 3) -> Problem:
    rng = np.random.default_rng(seed)
    center, scale = rng.normal(size=(n, d)), rng.uniform(0.5, 2, n)
    if kind == "cosh":
        return problems.cosh(center=center, scale=scale, sharpness=rng.uniform(0.5, 1.5))
    if kind == "cosh of unequal sharpness":
        return problems.cosh(center=center, scale=scale, sharpness=rng.uniform(0.5, 1.5, n))
    if kind == "quartic":
        return problems.quartic(center=center, scale=scale)
    return problems.quadratic(
        curvature=rng.uniform(0, 2, (n, d)), linear=center, quartic=scale if kind == "polynomial" else 0.0
    )


KINDS = ("cosh", "cosh of unequal sharpness", "quartic", "quadratic", "polynomial")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 10_000), radius=st.sampled_from([0.5, 2.0, 6.0]), L1=st.sampled_from([0.2, 1.0, 4.0])
)
def test_closed_forms_bound_curvature_and_dissimilarity_everywhere(kind, seed, radius, L1):
    problem = make(kind, seed)
    constants = closed_form(problem, L1=L1)
    points = np.random.default_rng(seed).normal(size=(40, problem.dim)) * radius
    check_bounds(problem, constants, points)


def check_bounds(problem: Problem, constants: Smoothness, points: np.ndarray) -> None:
    local, average = hessian_norms(problem, points)
    grads = np.array([problem.local_gradients(point) for point in points])
    grad_F = grads.mean(axis=1)
    g_i, g = np.linalg.norm(grads, axis=-1), np.linalg.norm(grad_F, axis=-1)
    slack = 1 + 1e-9
    assert (local <= (constants.L0 + constants.L1 * g_i) * slack).all()
    assert (average <= (constants.L0_F + constants.L1_F * g) * slack).all()
    distance = np.linalg.norm(grads - grad_F[:, None], axis=-1).max(axis=-1)
    assert (distance <= ((constants.ell - 1) * g + constants.b) * slack + 1e-12).all()
    assert constants.lower_bound <= min(problem.local_losses(point).mean() for point in points)
    assert constants.lower_bound <= problem.solve(tolerance=1e-6).loss
    assert problem.solve(tolerance=1e-6).loss - constants.lower_bound < 1e-6


def test_closed_form_of_logistic_regression_holds_on_real_data():
    problem = problems.logistic(
        data="digits", agents=5, reg_weight=[5e-4, 1e-3, 2e-3, 1e-3, 1e-3], reg_power=[4, 5, 6, 5, 4]
    )
    rng = np.random.default_rng(0)
    points = rng.normal(size=(5, problem.dim)) * np.geomspace(0.01, 3, 5)[:, None]
    check_bounds(problem, closed_form(problem, L1=0.7), points)


@pytest.mark.slow
@pytest.mark.a9a
def test_closed_form_of_logistic_regression_holds_on_a9a(a9a_folder):
    problem = problems.logistic(
        data="a9a", agents=5, partition="iid", reg_weight=1e-3, reg_power=[4, 5, 6, 5, 4]
    )
    rng = np.random.default_rng(0)
    points = rng.normal(size=(2, problem.dim)) * np.array([[0.03], [1.0]])
    check_bounds(problem, closed_form(problem, L1=0.9), points)


def test_constants_of_logistic_regression_are_the_formulas_of_the_page():
    n, L1, weights, powers = 3, 0.7, [5e-4, 1e-3, 2e-3], [4, 5, 6]
    problem = problems.logistic(data="digits", agents=n, reg_weight=weights, reg_power=powers)
    found = closed_form(problem, L1=L1)
    grams, steep = [], []
    for block in problem.local.features:
        H = np.asarray(block.todense() if scipy.sparse.issparse(block) else block, np.float64)
        grams.append(sum(np.outer(h, h) for h in H) / len(H))
        mean_length = sum(float(np.sqrt(h @ h)) for h in H) / len(H)
        steep.append(min(mean_length, np.linalg.norm(grams[-1], 2) ** 0.5))
    gram_F = sum(grams) / n
    steep_F = min(sum(steep) / n, np.linalg.norm(gram_F, 2) ** 0.5)
    assert found.ell == n
    bound = (n - 1) * steep_F + max(each + steep_F for each in steep)
    assert bound <= found.b <= bound * (1 + 1e-10)  # rounded outwards
    for i in range(n):
        pull = weights[i] * powers[i] * ((powers[i] - 2) / L1) ** (powers[i] - 2)
        level = np.linalg.norm(grams[i], 2) / 4 + pull + L1 * steep[i]
        assert level <= found.L0[i] <= level * (1 + 1e-10)
        assert found.L1[i] == L1
    r = np.linspace(
        0, 20, 200_001
    )  # the averaged radial profile, whose largest value closed_form bounds from above
    profile = sum(
        w * p * ((p - 1) * r ** (p - 2) - L1 * r ** (p - 1)) for w, p in zip(weights, powers, strict=True)
    )
    level_F = np.linalg.norm(gram_F, 2) / 4 + max(profile) / n + L1 * steep_F
    assert level_F * (1 - 1e-12) <= found.L0_F <= level_F * (1 + 1e-3)


INTEGERS = (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def logistic_of(features, **options) -> Problem:
    dataset = Dataset("made up", features, np.arange(features.shape[0]) % 2)
    return problems.logistic(data=dataset, agents=3, partition="iid", reg_weight=1e-3, reg_power=4, **options)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        *((dtype, np.asarray) for dtype in (np.bool_, np.int8, np.uint64, np.float16, np.float32)),
        *((dtype, scipy.sparse.csr_array) for dtype in (np.bool_, np.int8, np.uint64)),
        *(
            pytest.param(dtype, layout, marks=pytest.mark.slow)
            for dtype in (*INTEGERS[2:-1], np.float16, np.float32)
            for layout in (np.asarray, scipy.sparse.csr_array)
            if layout is scipy.sparse.csr_array or dtype in INTEGERS
        ),
    ],
)
def test_constants_depend_on_the_values_of_data_but_not_on_their_type(dtype, layout):
    if dtype is np.float16 and layout is not np.asarray:
        pytest.skip("SciPy has no sparse matrices of half precision")
    features = (100 * (np.random.default_rng(0).random((60, 8)) < 0.6)).astype(dtype)
    narrow, wide = logistic_of(layout(features)), logistic_of(layout(features.astype(np.float64)))
    assert narrow.local.fingerprint() == wide.local.fingerprint()
    found, expected = closed_form(narrow, L1=0.5).to_dict(), closed_form(wide, L1=0.5).to_dict()
    assert found == expected


def test_certificate_of_bytes_bounds_the_measured_gradient():
    rng = np.random.default_rng(0)
    features = (16 * (rng.random((60, 40)) < 0.6)).astype(np.uint8)  # 16 * 16 wraps to 0
    problem, network = logistic_of(features), Network(graphs.ring(3))
    setting, largest_step = largest_printed_step(problem, network_norms(network), 500.0, np.zeros((3, 40)))
    assert largest_step.grad_bound >= np.linalg.norm(problem.gradient(np.zeros(40)))
    largest = max(
        np.linalg.norm(block.astype(float), 2) ** 2 / len(block) for block in problem.local.features
    )
    assert setting.smoothness.L0.max() >= largest / 4


def test_constants_of_single_precision_data_are_not_below_those_of_exact_sums():
    features = np.random.default_rng(1).normal(size=(3000, 2)).astype(np.float32)
    dataset = Dataset("made up", features, np.arange(3000) % 2)
    problem = problems.logistic(data=dataset, agents=10, partition="iid")
    smooth = closed_form(problem)  # without a regulariser L0 is a quarter of the largest eigenvalue
    for i, block in enumerate(problem.local.features):
        x, y = ([Fraction(value) for value in column] for column in block.T.tolist())
        a, b, d = (sum(p * q for p, q in zip(*pair, strict=True)) for pair in ((x, x), (x, y), (y, y)))
        root = Fraction(math.isqrt(int(((a - d) ** 2 + 4 * b * b) * 10**40)), 10**20)
        largest = (a + d + root) / 2 / len(block)
        assert largest <= 4 * Fraction(float(smooth.L0[i])) <= largest * (1 + Fraction(1, 10**10))


def test_features_beyond_double_precision_are_one_clear_error():
    features = np.array([[1.0], [2.0]], np.longdouble) * np.longdouble(10) ** 400
    with pytest.raises(DataError, match="within double precision"):
        problems.logistic(data=Dataset("huge", features, np.array([0, 1])), agents=1)


@pytest.mark.parametrize("layout", [np.asarray, scipy.sparse.csr_array], ids=["dense", "csr"])
def test_constants_of_many_features_need_no_large_matrix(layout, monkeypatch):
    decompose = np.linalg.eigvalsh

    def small_only(matrix):
        assert len(matrix) <= 1000, "a dense decomposition of the size of the problem"
        return decompose(matrix)

    monkeypatch.setattr(np.linalg, "eigvalsh", small_only)
    rng = np.random.default_rng(2)
    features = rng.normal(size=(90, 3000)) * (rng.random((90, 3000)) < 0.1)
    smooth = closed_form(logistic_of(layout(features)), L1=0.5)
    assert np.isfinite(smooth.L0).all()


@pytest.mark.parametrize("kind", ["quartic", "polynomial"])
def test_constants_in_many_dimensions_are_those_of_few(kind):
    few, dim = make(kind, 3, n=4, d=3), 3000
    many = make(kind, 3, n=4, d=3)
    center = np.zeros((4, dim))
    center[:, ::1000] = few.local.center if kind == "quartic" else few.local.linear
    if kind == "quartic":
        many = problems.quartic(center=center, scale=few.local.scale[:, 0])
    else:
        curvature = np.tile(few.local.curvature, 1000)
        linear = np.tile(few.local.linear, 1000)
        many = problems.quadratic(curvature=curvature, linear=linear, quartic=few.local.quartic[:, 0])
    found, expected = closed_form(many, L1=0.7), closed_form(few, L1=0.7)
    np.testing.assert_allclose(found.L0, expected.L0, rtol=1e-9)
    assert expected.L0_F <= found.L0_F * (1 + 1e-9)
    assert found.ell == pytest.approx(expected.ell, rel=1e-9)


def in_other_units(kind: str, unit: float) -> Problem:
    """Return F(x/unit), with x measured in other units: L1 changes by 1/unit, the losses do not."""
    rng = np.random.default_rng(5)
    center, scale = rng.normal(size=(3, 2)), rng.uniform(0.5, 2, 3)
    if kind == "quartic":
        return problems.quartic(center=unit * center, scale=scale / unit**4)
    curvature = rng.uniform(0.1, 2, (3, 2))
    return problems.quadratic(curvature=curvature / unit**2, linear=center / unit, quartic=scale / unit**4)


@pytest.mark.parametrize("kind", [pytest.param("quartic", marks=pytest.mark.slow), "polynomial"])
def test_certified_step_does_not_depend_on_the_unit_of_x(kind):
    network = Network(graphs.ring(3))
    usual = certify(in_other_units(kind, 1.0), network, 1.0, np.ones(2)).alpha_max
    for unit in (1e-6, 1e6):
        other = certify(in_other_units(kind, unit), network, 1.0 / unit, unit * np.ones(2)).alpha_max
        assert other == pytest.approx(unit**2 * usual, rel=0.02)


def test_quartic_regulariser_has_the_printed_trade_off():
    problem = problems.logistic(data="digits", agents=1, reg_weight=2e-3, reg_power=6)
    base = closed_form(problems.logistic(data="digits", agents=1, reg_weight=0.0), L1=0.5)
    steep = (closed_form(problem, L1=0.5).L0[0] - base.L0[0] - 2e-3 * 6 * (4 / 0.5) ** 4) / 0.5
    assert 0 < steep < 10  # what remains is L1 times the bound of the data's gradient


@pytest.mark.parametrize("kind", ["quartic", "polynomial"])
def test_candidates_cover_the_grid_of_the_free_parameter(kind):
    assert {float(each.L1[0]) for each in candidates(make(kind, 0))} == set(L1_GRID)


def test_quadratics_are_ordinarily_smooth():
    constants = closed_form(problems.example_quadratic())
    assert constants.L0.tolist() == [5, 4, 3, 4, 5]
    assert constants.L1.tolist() == [0] * 5
    assert 3 <= constants.L0_F <= 3 * (1 + 1e-11)
    assert constants.L1_F == 0
    assert np.isclose(constants.ell, 1 + 2 / 3)
    assert np.isclose(constants.b, 4.268749, atol=1e-6)  # the largest local gradient at the minimum


def test_single_agent_is_similar_to_itself():
    for problem in (make("cosh", 0, n=1), make("quartic", 0, n=1), make("polynomial", 0, n=1)):
        constants = closed_form(problem)
        assert np.isclose(constants.ell, 1, atol=1e-9)
        assert constants.b < 1e-9


def test_users_loss_has_no_closed_form():
    problem = problems.from_loss(lambda w, batch: ((w - batch) ** 2).mean(), [np.zeros(3), np.ones(2)], 1)
    with pytest.raises(ArgumentError, match="no closed-form"):
        closed_form(problem)


def test_constants_of_f_default_to_the_lemma_of_the_paper():
    constants = Smoothness(L0=np.array([1.0, 2.0]), L1=np.array([0.5, 1.5]), ell=3.0, b=2.0, lower_bound=0.0)
    assert constants.L0_F == 1.5 + 2.0
    assert constants.L1_F == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"L0": [-1.0, 1.0]}, "L0"),
        ({"ell": 0.5}, "ell"),
        ({"L1": [1.0]}, "one entry per agent"),
        ({"b": np.nan}, "b"),
        ({"L0_F": np.nan, "L1_F": 0.0}, "L0_F"),
        ({"L0_F": 1.0}, "`L1_F` of Smoothness is missing, but `L0_F` is given"),
        ({"L1_F": 1.0}, "`L0_F` of Smoothness is missing, but `L1_F` is given"),
        ({"L0_F": 1.0, "L1_F": -2.0}, "`L1_F` of Smoothness must be finite and at least 0"),
        ({"source": "guessed"}, "source"),
    ],
)
def test_impossible_constants_are_refused(change, message):
    given_constants = {"L0": [1.0, 1.0], "L1": [0.0, 0.0], "ell": 1.0, "b": 0.0, "lower_bound": 0.0}
    with pytest.raises(ArgumentError, match=message):
        Smoothness(**{**given_constants, **change})


@pytest.mark.parametrize("change", [{"excess": 0.0}, {"L1": 0.0}, {"L1": np.inf}])
def test_free_parameters_must_be_positive(change):
    with pytest.raises(ArgumentError, match=f"`{next(iter(change))}` of closed_form must be positive"):
        closed_form(make("quartic", 0), **change)


def test_constants_survive_a_round_trip_through_their_dictionary():
    constants = closed_form(make("cosh", 3))
    again = Smoothness(**constants.to_dict())
    assert all(
        np.array_equal(getattr(constants, f.name), getattr(again, f.name))
        for f in dataclasses.fields(constants)
    )


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_centers_beyond_double_precision_are_refused_in_one_line(size):
    for problem in (
        problems.quartic(center=[[size], [-size]]),
        problems.quartic(center=[[size, 0.0], [-size, 1.0], [0.0, size]]),
        problems.quadratic(curvature=np.ones((2, 1)), linear=[[size], [-size]], quartic=1.0),
    ):
        with pytest.raises(ArgumentError) as refused:
            closed_form(problem)
        assert "\n" not in str(refused.value)


def test_closed_forms_free_the_data():
    dataset = Dataset("random", np.random.default_rng(0).standard_normal((6, 2)), np.arange(6) % 2)
    problem = problems.logistic(data=dataset, agents=2)
    data = weakref.ref(problem.local)
    closed_form(problem)
    del problem
    gc.collect()
    assert data() is None
