import dataclasses
import json
import re

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.errors import ArgumentError
from digrad.links import Links, rounded
from digrad.network import Network, NetworkSequence, row_stochastic
from digrad.theory import Certificate, Smoothness, certify, check_run, closed_form, network_norms, run
from digrad.theory.chains import paper, repaired, sharp
from digrad.theory.chains.closure import Evaluation, close, largest_step
from digrad.theory.chains.setting import make_setting

CHANGES = "the network changes with time, but the proof has one u and one v"
LOSSY = "packets may be lost or late, so that the figures of the perfect network are indicative, not a certificate"
ALTERED = "its links alter messages, but in the proof they arrive as sent"
OUTSIDE = [
    (Network(graphs.split(graphs.example5(), 3)), CHANGES),
    (Network(graphs.every(1, graphs.example5())), CHANGES),
    (NetworkSequence([Network(graphs.example5()), Network(graphs.ring(5))]), CHANGES),
    (Network(graphs.example5(), links=rounded("bfloat16")), ALTERED),
    (Network(graphs.example5(), links=Links(loss=0.1)), LOSSY),
]


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(graphs.example5())


@pytest.fixture(scope="module")
def cosh() -> problems.Problem:
    rng = np.random.default_rng(0)
    return problems.cosh(center=0.5 * rng.normal(size=(5, 3)), scale=rng.uniform(0.5, 2, 5))


@pytest.fixture(scope="module")
def demo() -> problems.Problem:
    return problems.logistic(
        data="digits", agents=5, reg_weight=[5e-4, 1e-3, 2e-3, 1e-3, 1e-3], reg_power=[4, 5, 6, 5, 4]
    )


def test_sharp_step_of_the_demo_problem_is_at_least_five_times_the_repaired_one(demo, network):
    certificate = certify(demo, network, 5.0)
    steps = certificate.alpha_max
    assert certificate.verdict == "holds"
    assert steps["sharp"] >= 5 * steps["repaired"]
    assert 1e-5 < steps["sharp"] < 1e-3  # the specification reports 8.2e-5 on its data
    assert 1e-6 < steps["repaired"] < 1e-4
    assert certificate.step_size == steps["sharp"]


def test_promised_iterations_are_enough_on_a_certified_run(cosh, network):
    x0 = np.full(3, 0.5)
    certificate = certify(cosh, network, 5.0, x0)
    path = run(cosh, network, step_size=certificate.step_size, threshold=5.0, x0=x0, steps=90_000)
    grad_norm = np.linalg.norm(path.grad_F, axis=1)
    promised = [(eps, certificate.iterations(eps)) for eps in (0.48, 0.44, 0.4)]
    for eps, count in promised:
        assert grad_norm[0] > 3 * eps  # the start does not keep the promise by itself
        assert count <= path.steps
        assert int(np.argmax(grad_norm <= eps)) < count
        assert grad_norm[: int(count)].min() <= eps
    assert grad_norm.min() < 1e-6


def test_step_is_judged_against_the_largest_certified_one(cosh, network):
    largest = certify(cosh, network, 5.0).alpha_max["sharp"]
    assert certify(cosh, network, 5.0, step_size=0.99 * largest).verdict == "holds"
    refused = certify(cosh, network, 5.0, step_size=1.01 * largest)
    assert refused.verdict == "fails"
    assert any(reason.startswith("sharp: feedback") for reason in refused.reasons)
    assert refused.iterations(0.1) is None


def test_step_far_too_large_fails_with_its_reasons(cosh, network):
    certificate = certify(cosh, network, 5.0, step_size=100.0)
    assert certificate.verdict == "fails"
    assert len(certificate.reasons) == 2
    assert "sharp" in str(certificate)


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


def test_iterations_grow_as_the_theorem_says(cosh, network):
    certificate = certify(cosh, network, 5.0)
    assert np.isclose(certificate.iterations(1e-3) / certificate.iterations(1e-2), 100, rtol=1e-3)
    small = certify(cosh, network, 1e-4)
    assert np.isclose(small.iterations(1e-2) / small.iterations(1e-1), 10, rtol=1e-3)  # clipping dominates
    assert certificate.iterations(0.1, chain="repaired") is not None


def test_single_agent_is_certified_with_the_step_of_clipped_descent():
    problem = problems.cosh(center=[[0.0]])
    certificate = certify(problem, Network(graphs.ring(1)), 1.0, [2.0])
    assert certificate.verdict == "holds"
    assert 0.01 < certificate.alpha_max["sharp"] < 1


def test_plain_smoothness_allows_an_infinite_threshold(network):
    certificate = certify(problems.example_quadratic(), network, np.inf)
    assert certificate.verdict == "holds"
    assert certificate.to_dict()["threshold"] is None
    finite = certify(problems.example_quadratic(), network, 5.0)
    assert np.isclose(certificate.alpha_max["sharp"], finite.alpha_max["sharp"])


def test_infinite_threshold_is_not_covered_when_l1_is_positive(cosh, network):
    certificate = certify(cosh, network, np.inf)
    assert certificate.verdict == "not covered"
    assert "infinite threshold" in certificate.reasons[0]


def test_start_at_a_common_minimum_is_certified(network):
    problem = problems.cosh(center=np.zeros((5, 2)))
    certificate = certify(problem, network, 1.0, np.zeros(2))
    assert certificate.verdict == "holds"
    assert certificate.start["D0"] < 1e-11  # the lower bound is rounded down
    assert certificate.chains["sharp"].at_step.grad_bound < 1e-5
    exact = Smoothness(L0=np.ones(5), L1=np.ones(5), ell=1.0, b=0.0, lower_bound=2.0)
    nothing = certify(problem, network, 1.0, np.zeros(2), constants=exact)
    assert nothing.verdict == "holds"
    assert nothing.start["D0"] == 0
    assert nothing.iterations(1e-3) == 1  # the start is the iterate that is meant


def test_tree_with_zeros_in_u_is_certified(cosh):
    chain = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    tree = Network(graphs.example5(), R=row_stochastic(chain))
    certificate = certify(cosh, tree, 5.0)
    assert certificate.verdict == "holds"
    assert certificate.network["u"] == [5, 0, 0, 0, 0]


def assert_nothing_is_certified(certificate: Certificate) -> None:
    for row, stored in zip(certificate.table(), certificate.to_dict()["chains"].values(), strict=True):
        assert row["certified"] is stored["certified"] is False
        assert row["why_not"].startswith("indicative, not a certificate")
        assert stored["why_not"] == row["why_not"]
        assert set(stored["K"].values()) == {row["K(0.1)"]} == {None}
        assert certificate.iterations(0.1, chain=row["chain"]) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_size": 32}, "mini-batches of 32"),
        ({"constants": "empirical"}, "estimates along a run"),
    ],
)
def test_mini_batches_and_estimates_are_indicative_only(cosh, network, options, reason):
    certificate = certify(cosh, network, 5.0, step_size=1e-6, **options)
    assert certificate.verdict == "not covered"
    assert certificate.label == "indicative, not a certificate"
    assert reason in certificate.reasons[0]
    assert certificate.alpha_max["sharp"] > 0
    assert "indicative, not a certificate" in str(certificate)
    assert_nothing_is_certified(certificate)


@pytest.mark.parametrize(("outside", "reason"), OUTSIDE)
def test_networks_outside_the_theory_are_not_covered(cosh, outside, reason):
    certificate = certify(cosh, outside, 5.0, step_size=1e-6)
    assert (certificate.verdict, certificate.label, certificate.chains) == ("not covered", "", {})
    assert certificate.reasons == (reason,)
    assert certificate.iterations(0.1) is None
    assert "not covered: CGT with alpha = 1e-06" in str(certificate)


@pytest.mark.parametrize(("outside", "reason"), OUTSIDE)
def test_nothing_else_of_the_theory_answers_for_such_networks(cosh, outside, reason):
    options = {"step_size": 0.01, "threshold": 5.0, "steps": 3}
    for owner, ask in {
        "theory.run": lambda: run(cosh, outside, **options),
        "check_run": lambda: check_run(cosh, outside, **options),
        "network_norms": lambda: network_norms(outside),
    }.items():
        with pytest.raises(ArgumentError, match=f"`network` of {owner} is not covered: {re.escape(reason)}"):
            ask()


def test_schedules_are_not_covered(cosh, network):
    assert certify(cosh, network, lambda k: 1.0).verdict == "not covered"
    assert certify(cosh, network, 1.0, step_size=lambda k: 0.1).verdict == "not covered"


def test_thresholds_and_steps_of_each_agent_are_not_covered(cosh, network):
    for options in ({"threshold": np.ones((5, 1))}, {"threshold": 1.0, "step_size": np.full((5, 1), 0.1)}):
        certificate = certify(cosh, network, **options)
        assert certificate.verdict == "not covered"
        assert "for each agent" in certificate.reasons[0]


def test_start_where_f_overflows_is_refused_not_certified(network):
    with pytest.raises(ArgumentError, match="F is inf"):
        certify(problems.example_quadratic(), network, 5.0, np.full(2, 1e160))
    with pytest.raises(ArgumentError, match="are finite"):
        certify(problems.cosh(center=np.zeros((5, 2))), network, 5.0, np.full(2, 600.0))


def test_loss_that_is_not_a_number_is_refused_not_certified():
    given = Smoothness(L0=[2.0, 2.0], L1=[0.0, 0.0], ell=1.0, b=1.0, lower_bound=0.0)
    data = [np.zeros((3, 1)), np.ones((2, 1))]
    problem = problems.from_loss(lambda w, batch: ((1 + w) ** 0.5 * batch).mean(), data, 1)
    with pytest.raises(ArgumentError, match="F is nan"):
        certify(problem, Network(graphs.ring(2)), 1.0, np.full(1, -2.0), constants=given)


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


def test_accuracy_beyond_doubles_takes_infinitely_many_iterations(cosh, network):
    certificate = certify(cosh, network, 5.0)
    assert certificate.iterations(1e-200) == np.inf
    assert certificate.iterations(1e6) == 1
    assert certificate.iterations(1e-200, chain="repaired") == np.inf


def test_paper_chain_uses_the_constants_of_lemma_3_in_its_gradient_bound(cosh, network):
    constants = closed_form(cosh)
    setting = make_setting(cosh, network_norms(network), constants, 5.0, np.ones((5, 3)))
    L0, L1 = np.mean(constants.L0 + constants.b * constants.L1), constants.ell * np.mean(constants.L1)
    assert np.isclose(paper.gradient_bound(setting, 0.7), 1.4 * L1 + np.sqrt((1.4 * L1) ** 2 + 1.4 * L0))
    assert paper.gradient_bound(setting, 0.7) > repaired.gradient_bound(setting, 0.7)


def test_users_loss_is_not_covered_without_constants_and_certified_with_them():
    problem = problems.from_loss(
        lambda w, batch: ((w - batch) ** 2).mean(), [np.zeros((3, 1)), np.ones((2, 1))], 1
    )
    network = Network(graphs.ring(2))
    assert certify(problem, network, 1.0).verdict == "not covered"
    given = Smoothness(L0=[2.0, 2.0], L1=[0.0, 0.0], ell=1.0, b=1.0, lower_bound=0.0)
    assert certify(problem, network, 1.0, constants=given).verdict == "holds"
    estimated = certify(problem, network, 1.0, constants="empirical")
    assert (estimated.verdict, estimated.label) == ("not covered", "indicative, not a certificate")


def test_uncertified_step_reports_no_gradient_bound_but_that_of_the_largest_step(cosh, network):
    certificate = certify(cosh, network, 5.0, step_size=0.05)
    for name in ("sharp", "repaired"):
        stored = certificate.to_dict()["chains"][name]
        assert (stored["step_size"], stored["certified"], stored["conditions_hold"]) == (0.05, False, False)
        assert stored["G"] is None
        assert stored["constants"] == {}
        assert set(stored["K"].values()) == {None}
        largest = certificate.chains[name].largest
        assert stored["at_alpha_max"]["G"] == largest.grad_bound
        expected = certificate.chains[name].iterations_at_max(0.1)
        assert stored["at_alpha_max"]["K"]["0.1"] == expected > 0
        (row,) = [row for row in certificate.table() if row["chain"] == name]
        assert (row["G"], row["K(0.1)"]) == (largest.grad_bound, expected)
    assert f"G = {certificate.chains['sharp'].at_step.grad_bound:.4g}" not in str(certificate)


def test_step_asked_for_and_largest_step_have_their_own_figures(cosh, network):
    largest = certify(cosh, network, 5.0)
    report = largest.chains["sharp"]
    assert report.iterations(0.1) == report.iterations_at_max(0.1) == largest.iterations(0.1)
    smaller = certify(cosh, network, 5.0, step_size=largest.alpha_max["sharp"] / 100)
    asked = smaller.chains["sharp"]
    assert asked.iterations_at_max(0.1) == report.iterations(0.1)
    assert smaller.iterations(0.1) == asked.iterations(0.1) > 10 * report.iterations(0.1)
    stored = asked.to_dict()
    assert (stored["step_size"], stored["alpha_max"]) == (smaller.step_size, report.step_size_max)
    assert stored["G"] < stored["at_alpha_max"]["G"]
    assert f"sharp: at alpha = {smaller.step_size:.4g}, G = {stored['G']:.4g}, K(0.1) = " in str(smaller)
    assert f"alpha_max = {report.step_size_max:.4g}, there G = " in str(smaller)


def test_printed_constants_never_certify(cosh, network):
    certificate = certify(cosh, network, 5.0, step_size=1e-9)
    assert certificate.verdict == "holds"
    stored = certificate.to_dict()["chains"]["paper"]
    assert (stored["certified"], stored["conditions_hold"]) == (False, True)
    assert stored["why_not"].startswith("printed constants")
    assert stored["G"] is stored["at_alpha_max"]["G"] is None
    assert set(stored["K"].values()) == set(stored["at_alpha_max"]["K"].values()) == {None}
    assert certificate.iterations(0.1, chain="paper") is None
    assert "paper     alpha_max = " in str(certificate)
    assert str(certificate).endswith("(as printed; not valid)")


def test_certificate_that_covers_nothing_promises_no_iterations(cosh, network):
    nothing = certify(cosh, network, np.inf)
    assert nothing.iterations(0.1) is nothing.iterations(0.1, chain="paper") is None
    with pytest.raises(ArgumentError, match=r"`chain` of Certificate\.iterations"):
        nothing.iterations(0.1, chain="blunt")


def test_reasons_hold_no_figures_that_are_not_numbers(cosh, network):
    for options in ({"threshold": 1.0, "step_size": 1e300}, {"threshold": 1e-200, "step_size": 1e200}):
        text = " ".join(certify(cosh, network, **options).reasons)
        assert "nan" not in text
        assert "inf" not in text


def test_certificate_is_json_and_readable(cosh, network):
    certificate = certify(cosh, network, 5.0, step_size=0.05)
    stored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert stored["verdict"] == "fails"
    assert set(stored["chains"]) == {"sharp", "repaired", "paper"}
    assert stored["assumptions"]
    assert any("2601.03566" in reference for reference in stored["references"])
    assert certificate.headline == (
        "not certified: CGT with alpha = 0.05, c0 = 5; that does not mean that it fails"
    )
    assert str(certificate).startswith(certificate.headline)
    assert [row["chain"] for row in certificate.table()] == ["sharp", "repaired", "paper"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.0, "step_size": -1.0}, "step_size"),
        ({"threshold": 1.0, "x0": [1.0]}, "x0"),
        ({"threshold": 1.0, "x0": "normal"}, r"must be an array of shape \(5, 3\) .* but got 'normal'"),
        ({"threshold": 1.0, "x0": [[1.0], [1.0, 2.0]]}, "but got \\[\\[1.0\\], \\[1.0, 2.0\\]\\]"),
        ({"threshold": 1.0, "x0": [np.nan, 0.0, 0.0]}, "holds NaN or infinite entries"),
        ({"threshold": 1.0, "batch_size": 0}, "batch_size"),
        ({"threshold": 1.0, "batch_size": -3}, "batch_size"),
        ({"threshold": 1.0, "problem": None}, "`problem` of certify must be a Problem"),
        ({"threshold": 1.0, "network": None}, "must be a Network"),
        ({"threshold": 1.0, "constants": "guessed"}, "constants"),
        ({"threshold": 1.0, "constants": Smoothness([1.0], [0.0], 1.0, 0.0, 0.0)}, "1 agents"),
        ({"threshold": 1.0, "constants": Smoothness([1.0] * 5, [0.0] * 5, 1.0, 0.0, 1e9)}, "lower_bound"),
    ],
)
def test_malformed_arguments_are_one_clear_error(cosh, network, change, message):
    with pytest.raises(ArgumentError, match=message):
        certify(**{"problem": cosh, "network": network, **change})


def test_norms_of_a_digraph_without_weights_are_refused():
    with pytest.raises(ArgumentError, match="must be a Network, but got Digraph"):
        network_norms(graphs.ring(3))


def test_network_of_another_size_is_refused(cosh):
    with pytest.raises(ArgumentError, match="3 agents, but the problem has 5"):
        certify(cosh, Network(graphs.ring(3)), 1.0)
    with pytest.raises(ArgumentError, match="must be a Network"):
        certify(cosh, "ring", 1.0)
