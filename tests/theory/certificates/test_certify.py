import json
import re

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.errors import ArgumentError
from digrad.links import Links, compressors
from digrad.network import Network, row_stochastic
from digrad.schedules import Inverse
from digrad.theory import (
    Certificate,
    Smoothness,
    certify,
    certify_state,
    check_run,
    closed_form,
    network_norms,
    run,
    verify_proof,
)
from digrad.theory.certificates.frequency_responses import Matrices
from digrad.theory.certificates.tap_search import TapSearch

CHANGES = "the network changes with time"
LOSSY = "packets may be lost or late, so that the figures of the perfect network are indicative, not a certificate"
ALTERED = "its links alter messages, but in the proof they arrive as sent"
OUTSIDE = [
    (Network(graphs.random_edges(graphs.example5(), 0.5)), CHANGES),
    (Network(graphs.example5(), links=Links(compressor=compressors.bfloat16())), ALTERED),
    (Network(graphs.example5(), links=Links(loss=0.1)), LOSSY),
]


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(graphs.example5())


@pytest.fixture(scope="module")
def cosh() -> problems.Problem:
    rng = np.random.default_rng(0)
    return problems.cosh(center=rng.normal(size=(5, 3)), scale=rng.uniform(0.5, 2, 5))


@pytest.fixture(scope="module")
def certified_cosh(cosh, network) -> Certificate:
    return certify(cosh, network, 5.0)


@pytest.fixture(scope="module")
def certified_quadratic(network) -> Certificate:
    return certify(problems.example_quadratic(), network, 5.0)


@pytest.fixture(scope="module")
def digits() -> problems.Problem:
    return problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)


def separable(n: int) -> problems.Problem:
    rng = np.random.default_rng(2)
    curvature = np.exp(rng.uniform(np.log(0.1), np.log(10), (n, 4)))
    return problems.quadratic(curvature=curvature, linear=2 * rng.normal(size=(n, 4)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quadratic", 0.099),
        ("quartic", 0.034),
        pytest.param("ring", 0.0022, marks=pytest.mark.slow),
        ("cosh", 0.041),
        pytest.param("exponential", 0.049, marks=pytest.mark.slow),
    ],
)
def test_certified_steps_are_those_of_the_specification(
    name, expected, network, certified_cosh, certified_quadratic
):
    """Section 5 of the specification, column J = 4; its figures have two digits."""
    ask = {
        "quadratic": lambda: certified_quadratic,
        "quartic": lambda: certify(problems.example_quartic(), network, 5.0),
        "cosh": lambda: certified_cosh,
        "ring": lambda: certify(separable(10), Network(graphs.ring(10)), 5.0),
        "exponential": lambda: certify(separable(16), Network(graphs.exponential(16)), 5.0),
    }[name]
    assert ask().alpha_max == pytest.approx(expected, rel=0.03)


def test_step_is_judged_against_the_largest_certified_one(network, certified_quadratic):
    problem, largest = problems.example_quadratic(), certified_quadratic.alpha_max
    assert certify(problem, network, 5.0, step_size=0.98 * largest).verdict == "holds"
    refused = certify(problem, network, 5.0, step_size=1.05 * largest)
    assert (refused.verdict, refused.proof) == ("fails", None)
    assert "largest certified step" in refused.reasons[0]
    assert refused.iterations(0.1) is None
    assert (
        refused.headline
        == f"not certified: alpha = {1.05 * largest:.4g}, c0 = 5; that does not mean that it fails"
    )
    assert certify(problem, network, 5.0, step_size=100.0).verdict == "fails"


def test_promised_iterations_are_enough_on_a_certified_run(cosh, network):
    certificate = certify(cosh, network, 5.0, np.full(3, 0.5), step_size=0.01)
    path = run(cosh, network, step_size=0.01, threshold=5.0, x0=np.full(3, 0.5), steps=3000)
    g = np.linalg.norm(path.grad_F, axis=1)
    eps = next(eps for eps in np.geomspace(1.0, 0.01, 40) if certificate.iterations(eps) > 500)
    assert g[0] > eps
    assert g[: int(certificate.iterations(eps))].min() <= eps
    assert (path.loss <= certificate.proof.level).all()
    assert certificate.iterations(1e-200) == np.inf
    assert certificate.iterations(1e6) == 1


def test_step_that_is_certified_by_the_proof_of_a_larger_one_needs_more_iterations(
    network, monkeypatch, certified_quadratic
):
    problem, largest = problems.example_quadratic(), certified_quadratic
    monkeypatch.setattr("digrad.theory.certificates.certify.close", lambda *asked: None)
    smaller = certify(problem, network, 5.0, step_size=largest.step_size / 10)
    assert smaller.verdict == "holds"
    assert smaller.proof.step_size == largest.step_size
    assert smaller.iterations(0.01) > 2 * largest.iterations(0.01)


def test_agents_without_curvature_of_their_own_are_certified(network):
    curvature, linear = np.zeros((5, 1)), np.zeros((5, 1))
    curvature[4] = 1.0
    problem = problems.quadratic(curvature=curvature, linear=linear)
    assert certify(problem, network, 5.0, [1.0]).alpha_max > 0.25


def test_single_agent_is_certified_with_the_step_of_clipped_descent():
    certificate = certify(problems.cosh(center=[[0.0]]), Network(graphs.ring(1)), 1.0, [2.0])
    assert certificate.alpha_max == pytest.approx(2 / np.cosh(2.0), rel=0.05)
    assert certificate.iterations(0.1) > 1


def test_infinite_threshold_is_covered_for_built_in_losses(cosh, network, certified_cosh):
    quadratic = certify(problems.example_quadratic(), network, np.inf)
    assert quadratic.alpha_max == pytest.approx(0.099, rel=0.03)
    assert quadratic.to_dict()["threshold"] is None
    found = certify(cosh, network, np.inf)
    assert found.verdict == "holds"
    assert found.alpha_max < certified_cosh.alpha_max
    given = certify(cosh, network, np.inf, smoothness=closed_form(cosh))
    assert given.verdict == "not covered"
    assert "infinite threshold" in given.reasons[0]


def test_start_at_a_common_minimum_is_certified(network):
    certificate = certify(problems.cosh(center=np.zeros((5, 2))), network, 1.0, np.zeros(2))
    assert certificate.verdict == "holds"
    assert certificate.iterations(1e-3) < 10


def test_schedules_and_values_per_agent_are_covered(network):
    problem = problems.example_quadratic()
    plain = certify(problem, network, 5.0, step_size=0.03)
    assert plain.verdict == "holds"
    falling = certify(problem, network, 5.0, step_size=Inverse(scale=0.3, offset=10), steps=100)
    assert (falling.verdict, falling.step_size) == ("holds", pytest.approx(0.03))
    assert falling.iterations(0.1) is None  # a schedule may fade before it arrives
    assert certify(problem, network, 5.0, step_size=lambda k: 0.3, steps=5).verdict == "fails"
    agents = certify(
        problem,
        network,
        np.array([[5.0], [1.0], [1.0], [1.0], [1.0]]),
        step_size=[0.03, 0.02, 0.03, 0.01, 0.03],
    )
    assert agents.verdict == "holds"
    assert agents.iterations(0.1) > 1
    with pytest.raises(ArgumentError, match="one entry per agent"):
        certify(problem, network, np.ones(3))


def test_explained_certificate_says_what_costs_the_difference(network, digits):
    found = certify(digits, network, 5.0, explain=True)
    assert found.alpha_max == pytest.approx(0.122, rel=0.03)  # section 5 of the specification
    assert found.stable == pytest.approx(0.573, rel=0.03)
    assert np.prod(list(found.costs.values())) == pytest.approx(found.stable / found.alpha_max)
    assert found.thresholds[1.0] > found.alpha_max > found.thresholds[25.0]  # a tighter clip allows more
    assert found.printed < found.alpha_max / 100
    for word in ("certified", "largest stable step", "region", "class", "other thresholds", "as printed"):
        assert word in str(found)


# Section 4 of the specification.
@pytest.mark.parametrize(
    ("step_size", "expected"), [(0.089, 32), pytest.param(0.047, 8, marks=pytest.mark.slow)]
)
def test_run_is_proven_from_a_state_on_with_steps_that_no_start_allows(step_size, expected, network):
    problem = problems.example_quartic()
    check = check_run(problem, network, step_size=step_size, threshold=5.0, steps=100)
    assert check.verdict == "PASS"
    assert 0 < check.proven_from <= expected
    path = run(problem, network, step_size=step_size, threshold=5.0, steps=check.proven_from)
    assert certify_state(problem, network, path.x[-1], path.y[-1], step_size, 5.0).verdict == "holds"
    assert certify_state(problem, network, path.x[0], path.y[0], step_size, 5.0).verdict == "fails"


@pytest.mark.slow
def test_run_on_digits_is_proven_from_a_state_on(network, digits):
    for step_size, expected in ((0.192, 333), (0.308, 367), (0.365, 655)):
        check = check_run(digits, network, step_size=step_size, threshold=5.0, steps=1500)
        assert check.verdict == "PASS"
        assert check.proven_from <= expected


def test_trackers_that_do_not_sum_to_the_gradients_are_refused(cosh, network):
    x = np.ones((5, 3))
    with pytest.raises(ArgumentError, match="must sum to the gradients"):
        certify_state(cosh, network, x, np.ones((5, 3)), 0.01, 1.0)
    for asked in ((lambda k: 0.01, 1.0), (0.01, lambda k: 1.0 + k)):
        with pytest.raises(ArgumentError, match="must be a number"):
            certify_state(cosh, network, x, cosh.local_gradients(x), *asked)


def test_certificate_is_verified_without_the_search_and_forgeries_are_not(cosh, network):
    stored = json.loads(json.dumps(certify(cosh, network, 5.0, step_size=0.03).to_dict()["proof"]))
    claims = verify_proof(cosh, network, stored, 5.0, step_size=0.03)
    assert all(claims.values())
    forgeries = {
        "Psi < 0": {"step_size": 2 * stored["step_size"]},
        "V_0 is at most the potential": {"V0": stored["V0"] * 0.99},
        "L bounds the curvature of the region": {"L": [0.9 * L for L in stored["L"]]},
        "F is at least its lower bound": {"lower_bound": stored["lower_bound"] + 1.0},
        "agents stay within their widths": {"width": [0.0] * 5},
        "taps are admissible": {"eps": 0.0},
    }
    for claim, change in forgeries.items():
        assert not verify_proof(cosh, network, stored | change, 5.0)[claim]
    assert not verify_proof(cosh, network, stored | {"eps": 1.5}, 5.0)["taps are admissible"]
    with pytest.raises(ArgumentError, match="must be the proof of a certificate"):
        verify_proof(cosh, network, {}, 5.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"batch_size": 32}, "mini-batches of 32"), ({"smoothness": "empirical"}, "estimates along a run")],
)
def test_mini_batches_and_estimates_are_indicative_only(options, reason):
    problem, network = problems.cosh(center=[[0.0], [0.5]]), Network(graphs.ring(2))
    certificate = certify(problem, network, 5.0, step_size=1e-4, **options)
    assert (certificate.verdict, certificate.label) == ("not covered", "indicative, not a certificate")
    assert reason in certificate.reasons[0]
    assert certificate.alpha_max > 0
    assert certificate.iterations(0.1) is None
    assert "indicative, not a certificate" in str(certificate)


@pytest.mark.parametrize(("outside", "reason"), OUTSIDE)
def test_networks_outside_the_theory_are_not_covered(cosh, outside, reason):
    certificate = certify(cosh, outside, 5.0, step_size=1e-6)
    assert (certificate.verdict, certificate.reasons) == ("not covered", (reason,))
    assert certificate.iterations(0.1) is None
    assert "not covered: alpha = 1e-06" in str(certificate)
    options = {"step_size": 0.01, "threshold": 5.0, "steps": 3}
    for owner, ask in {
        "theory.run": lambda: run(cosh, outside, **options),
        "check_run": lambda: check_run(cosh, outside, **options),
        "network_norms": lambda: network_norms(outside),
    }.items():
        with pytest.raises(ArgumentError, match=f"`network` of {owner} is not covered: {re.escape(reason)}"):
            ask()


@pytest.mark.parametrize(
    ("problem", "network"),
    [
        pytest.param(
            problems.example_quartic(),
            Network(graphs.split(graphs.example5(), 2)),
            marks=pytest.mark.slow,
        ),
        (
            problems.example_quadratic(),
            Network([Network(graphs.example5()), Network(graphs.ring(5))]),
        ),
    ],
)
def test_periodic_networks_are_certified_and_verified(problem, network):
    certificate = certify(problem, network, 5.0)
    assert certificate.verdict == "holds"
    assert 1e-3 < certificate.alpha_max < certify(problem, Network(network.union), 5.0).alpha_max
    assert certificate.iterations(0.1) > 1
    stored = json.loads(json.dumps(certificate.to_dict()["proof"]))
    assert all(verify_proof(problem, network, stored, 5.0).values())
    larger = stored | {"step_size": 2 * stored["step_size"]}
    assert not verify_proof(problem, network, larger, 5.0)["Psi < 0"]
    with pytest.raises(ArgumentError, match="changes with time"):
        check_run(problem, network, step_size=0.01, threshold=5.0, steps=3)


@pytest.mark.parametrize(
    ("graph", "count", "expected"),
    [
        (graphs.example5(), 2, 0.086),
        pytest.param(graphs.example5(), 3, 0.056, marks=pytest.mark.slow),
        pytest.param(graphs.exponential(8), 3, 0.106, marks=pytest.mark.slow),
    ],
)
def test_storage_of_periodic_networks_is_that_of_the_specification(graph, count, expected):
    """Section 8, T: alpha L for J = 1."""
    phases = Matrices.of(Network(graphs.split(graph, count)))
    found = TapSearch(phases, 1, convex=True).best(np.ones(phases[0].n))
    assert found.step_size == pytest.approx(expected, rel=0.05)


def test_roots_only_and_very_many_agents_are_not_covered_in_one_line(cosh):
    chain = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    tree = Network(graphs.example5(), R=row_stochastic(chain))
    assert "not strongly connected" in certify(cosh, tree, 5.0).reasons[0]
    many = certify(
        problems.quadratic(curvature=np.ones((300, 1)), linear=np.ones((300, 1))),
        Network(graphs.ring(300)),
        1.0,
    )
    assert "at most 200 agents" in many.reasons[0]


def test_users_loss_is_certified_with_constants_and_twice_as_far_if_convex():
    data = [np.zeros((3, 1)), np.ones((2, 1))]
    problem = problems.from_loss(lambda w, batch: ((w - batch) ** 2).mean(), data, 1)
    network = Network(graphs.ring(2))
    assert certify(problem, network, 1.0).verdict == "not covered"
    nonconvex = certify(problem, network, 1.0, smoothness=2.0)
    assert certify(problem, network, 1.0, smoothness=[2.0, 2.0]).alpha_max == nonconvex.alpha_max
    convex = certify(problem, network, np.inf, smoothness=Smoothness(L0=[2.0, 2.0], convex=True))
    assert nonconvex.verdict == convex.verdict == "holds"
    assert convex.alpha_max > 1.5 * nonconvex.alpha_max
    with pytest.raises(ArgumentError, match="where that norm is 2;"):
        certify(problem, network, 1.0, smoothness=[2.0, 1.9])


def test_nonconvex_constants_of_a_built_in_loss_certify_less_than_its_formulas():
    cosh, network = problems.cosh(center=[[0.0], [0.5]]), Network(graphs.ring(2))
    given = certify(cosh, network, 1.0, smoothness=closed_form(cosh))
    assert given.verdict == "holds"
    assert given.alpha_max < certify(cosh, network, 1.0).alpha_max


def test_start_where_f_overflows_is_refused_not_certified(network):
    with pytest.raises(ArgumentError, match="F is inf"):
        certify(problems.example_quadratic(), network, 5.0, np.full(2, 1e160))
    with pytest.raises(ArgumentError, match="are finite"):
        certify(problems.cosh(center=np.zeros((5, 2))), network, 5.0, np.full(2, 800.0))


@pytest.mark.slow
def test_start_from_which_nothing_is_certified_says_so(cosh, network):
    far = np.diag([3.0, -3.0, 3.0, 0.0, 0.0])[
        :, :3
    ]  # agents so far apart that V_0 grows with every bound of L
    certificate = certify(cosh, network, 5.0, far)
    assert (certificate.verdict, certificate.alpha_max) == ("fails", None)
    assert "no step is certified" in certificate.reasons[0]


def test_certificate_is_json_and_readable(network):
    certificate = certify(problems.example_quadratic(), network, 5.0, step_size=0.15)
    stored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert (stored["verdict"], stored["proof"]) == ("fails", None)
    assert stored["largest"]["step_size"] == stored["alpha_max"]
    assert stored["assumptions"]
    assert any("2601.03566" in reference for reference in stored["references"])
    assert str(certificate).startswith(certificate.headline)
    assert "not certified" in certificate._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.0, "step_size": -1.0}, "step_size"),
        ({"threshold": ["a"] * 5}, "one entry per agent"),
        ({"threshold": 1.0, "step_size": lambda k: np.ones(3), "steps": 2}, "one entry per agent"),
        ({"threshold": 1.0, "step_size": lambda k: 0.01 - k, "steps": 2}, "never be negative"),
        ({"threshold": 1.0, "x0": [1.0]}, "x0"),
        ({"threshold": 1.0, "x0": "corner"}, "`x0` .* 'corner'"),
        ({"threshold": 1.0, "x0": [np.nan, 0.0, 0.0]}, "holds NaN or infinite entries"),
        ({"threshold": 1.0, "batch_size": 0}, "batch_size"),
        ({"threshold": 1.0, "problem": None}, "`problem` of certify must be a digrad Problem"),
        ({"threshold": 1.0, "network": None}, "`network` of certify must be a digrad Network"),
        ({"threshold": 1.0, "smoothness": "guessed"}, "smoothness"),
        ({"threshold": 1.0, "smoothness": Smoothness([1.0], [0.0], 1.0, 0.0, 0.0)}, "1 agents"),
        ({"threshold": 1.0, "smoothness": Smoothness([10.0] * 5, [0.0] * 5, 1.0, 0.0, 1e9)}, "lower_bound"),
        ({"threshold": 1.0, "network": Network(graphs.ring(3))}, "3 agents, but `problem` has 5"),
    ],
)
def test_malformed_arguments_are_one_clear_error(cosh, network, change, message):
    with pytest.raises(ArgumentError, match=message):
        certify(**{"problem": cosh, "network": network, **change})


@pytest.mark.slow
@pytest.mark.a9a
def test_certified_steps_of_the_papers_problem(a9a_folder, network):
    options = {"reg_weight": [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], "reg_power": [4, 5, 6, 5, 4]}
    problem = problems.logistic(data="a9a", agents=5, partition="iid", **options)
    assert certify(problem, network, 5.0).alpha_max == pytest.approx(0.0443, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seconds"), [(50, 60), (200, 300)])
def test_large_networks_are_certified(n, seconds):
    problem = problems.quadratic(
        curvature=np.ones((n, 2)), linear=np.random.default_rng(0).normal(size=(n, 2))
    )
    assert certify(problem, Network(graphs.k_out(n, 3, seed=0)), 5.0).verdict == "holds"
