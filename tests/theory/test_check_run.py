import itertools
from dataclasses import replace

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.errors import ArgumentError
from digrad.mixing import Network, row_stochastic
from digrad.problems import Problem
from digrad.theory import RunCheck, certify, check_run, closed_form

PAPER_REG = {"reg_weight": [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], "reg_power": [4, 5, 6, 5, 4]}


def make_problems() -> dict[str, Problem]:
    rng = np.random.default_rng(3)
    center, scale = rng.normal(size=(5, 3)), rng.uniform(0.5, 2, 5)
    return {
        "logistic": problems.logistic(data="breast_cancer", agents=5, **PAPER_REG),
        "cosh": problems.cosh(center=center, scale=scale),
        "quartic": problems.quartic(center=center, scale=0.1 * scale),
        "quadratic": problems.example_quadratic(),
    }


def make_networks() -> dict[str, Network]:
    chain = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    return {
        "ring": Network(graphs.ring(5)),
        "random": Network(graphs.random_digraph(5, 0.3, seed=1)),
        "tree R": Network(graphs.example5(), R=row_stochastic(chain)),
    }


PROBLEMS, NETWORKS = make_problems(), make_networks()
STEPS, STARTS, CLIPS = ("certified", 0.05), ("identical", "different"), ("clipped", "unclipped")
# Problems by networks by steps; starts and thresholds take turns so that every pair of settings occurs.
CASES = [
    (problem, network, step, STARTS[(p + n) % 2], CLIPS[(p // 2 + n + s) % 2])
    for (p, problem), (n, network), (s, step) in itertools.product(
        enumerate(PROBLEMS), enumerate(NETWORKS), enumerate(STEPS)
    )
]


def run_case(problem_name: str, network_name: str, step: str | float, start: str, clip: str) -> RunCheck:
    problem, network = PROBLEMS[problem_name], NETWORKS[network_name]
    rng = np.random.default_rng(7)
    shape = (5, problem.dim) if start == "different" else (problem.dim,)
    x0 = rng.standard_normal(shape) * (0.3 if problem.dim > 10 else 3.0 if clip == "clipped" else 0.5)
    threshold = 100.0 if clip == "unclipped" else 0.05 if problem.dim > 10 else 1.0
    if step == "certified":
        certificate = certify(problem, network, threshold, x0)
        report = certificate.chains["repaired"]
        # A step below both limits makes the claims of both chains applicable.
        step_size, constants = 0.999 * float(certificate.alpha_max["repaired"]), report.setting.smoothness
        return check_run(
            problem, network, step_size=step_size, threshold=threshold, x0=x0, steps=200, constants=constants
        )
    return check_run(problem, network, step_size=float(step), threshold=threshold, x0=x0, steps=200)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(part) for part in case))
def test_no_applicable_row_of_the_valid_chains_is_violated(case):
    check = run_case(*case)
    assert check.failures == (), str(check)
    assert check.verdict == "PASS"
    clips = bool((check.measured.states.steps < check.step_size).any())
    assert clips == (case[4] == "clipped")
    applicable = [row for row in check.rows if row.chain != "paper" and row.status == "PASS"]
    assert len(applicable) >= 14
    if case[2] == "certified":
        assert check.certified["repaired"]
        claims = ("gradient bound", "potential", "sum of abar", "sum of X", "sum of Y", "smallest gradient")
        assert all(check.row(claim, "repaired").status == "PASS" for claim in claims)
        assert all(
            check.row(name, "repaired").status == "PASS" for name in ("x-recursion", "y-recursion", "descent")
        )


def test_at_least_twenty_runs_are_checked_with_every_pair_of_settings():
    assert len(set(CASES)) >= 20
    levels = [list(PROBLEMS), list(NETWORKS), STEPS, STARTS, CLIPS]
    for (i, first), (j, second) in itertools.combinations(enumerate(levels), 2):
        assert {(case[i], case[j]) for case in CASES} == set(itertools.product(first, second))


def test_sharp_claims_pass_at_the_largest_certified_step():
    problem, network = PROBLEMS["cosh"], NETWORKS["random"]
    certificate = certify(problem, network, 1.0, [1.0, -2.0, 0.5])
    report = certificate.chains["sharp"]
    check = check_run(
        problem,
        network,
        step_size=report.step_size_max,
        threshold=1.0,
        x0=[1.0, -2.0, 0.5],
        steps=2000,
        constants=report.setting.smoothness,
    )
    assert check.certified == {"sharp": True, "repaired": False, "paper": False}
    claims = (
        "gradient bound",
        "potential",
        "sum of abar",
        "sum of X",
        "sum of Y",
        "smallest gradient",
        "descent",
    )
    assert [check.row(claim, "sharp").status for claim in claims] == ["PASS"] * 7


def test_uncertified_step_makes_global_claims_inapplicable_not_failed():
    check = check_run(PROBLEMS["cosh"], NETWORKS["ring"], step_size=0.5, threshold=1.0, steps=50)
    row = check.row("gradient bound", "sharp")
    assert (row.status, row.terms.precondition) == ("INAPPLICABLE", "not met")
    assert check.verdict == "PASS"


def test_estimated_constants_certify_no_row():
    problem, network, x0 = PROBLEMS["cosh"], NETWORKS["ring"], np.ones(3)
    report = certify(problem, network, 1.0, x0).chains["repaired"]
    options = {"step_size": 0.9 * report.step_size_max, "threshold": 1.0, "x0": x0, "steps": 20}
    proven = report.setting.smoothness
    assert check_run(problem, network, constants=proven, **options).certified["repaired"]
    estimated = replace(proven, source="empirical")
    check = check_run(problem, network, constants=estimated, **options)
    assert not any(check.certified.values())
    claims = ("gradient bound", "potential", "sum of abar", "sum of X", "sum of Y", "smallest gradient")
    rows = [check.row(claim, chain) for claim in claims for chain in ("sharp", "repaired", "paper")]
    for row in (*rows, check.posterior):
        assert (row.status, row.terms.precondition) == ("INAPPLICABLE", "not met")
        assert "constants are estimates" in row.terms.needs
    assert {row.terms.grad_bound for row in check.rows if row.status != "INAPPLICABLE"} == {
        "n.a.",
        "measured",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": list(NETWORKS.values())}, "must be one Network"),
        ({"threshold": np.ones((5, 1))}, "`threshold` of theory.run must be one constant number"),
        ({"step_size": lambda k: 0.1}, "`step_size` of theory.run must be one constant number"),
    ],
)
def test_what_changes_with_time_or_agent_is_refused(change, message):
    options = {"network": NETWORKS["ring"], "step_size": 0.1, "threshold": 1.0, "steps": 3, **change}
    with pytest.raises(ArgumentError, match=message):
        check_run(PROBLEMS["cosh"], **options)


def test_radius_too_large_for_the_smoothness_lemmas_makes_rows_inapplicable():
    x0 = np.diag([2e4, -2e4, 2e4, 0.0, 0.0])[:, :3]
    check = check_run(PROBLEMS["quartic"], NETWORKS["ring"], step_size=1e-3, threshold=1.0, x0=x0, steps=5)
    names = ("x-recursion, system", "y-recursion, system", "gradient difference")
    assert {check.row(name, "sharp").status for name in names} == {"INAPPLICABLE"}
    assert check.row("descent", "repaired").status == "INAPPLICABLE"
    assert check.verdict == "PASS"


def test_wrong_constants_are_exposed():
    problem = PROBLEMS["cosh"]
    wrong = replace(closed_form(problem), L0=closed_form(problem).L0 * 0.1, L1=np.zeros(5))
    check = check_run(
        problem,
        NETWORKS["ring"],
        step_size=0.01,
        threshold=1.0,
        x0=np.eye(5, 3) * 2,
        steps=20,
        constants=wrong,
    )
    assert check.verdict == "FAIL"
    assert any(row.name.startswith("pre4") for row in check.failures)


def test_a_posteriori_bound_is_within_three_times_the_measured_sum_from_zero():
    problem = problems.logistic(data="digits", agents=5, partition="iid", **PAPER_REG)
    network = Network(graphs.example5())
    check = check_run(problem, network, step_size=0.03, threshold=5.0, x0=np.zeros(problem.dim), steps=1000)
    ratio = check.posterior.rhs[-1] / check.posterior.lhs[-1]
    assert check.posterior.status == "PASS"
    assert 1 <= ratio <= 3


@pytest.mark.a9a
def test_a_posteriori_certificate_holds_on_a9a_at_a_practical_step(a9a_folder):
    problem = problems.logistic(data="a9a", agents=5, partition="iid", **PAPER_REG)
    check = check_run(problem, Network(graphs.example5()), step_size=0.03, threshold=5.0, steps=150)
    assert check.posterior.status == "PASS"
    assert check.posterior.rhs[-1] <= 3 * check.posterior.lhs[-1]
    assert check.verdict == "PASS"


def test_check_speaks_as_table_dictionary_and_text():
    check = check_run(PROBLEMS["quadratic"], NETWORKS["ring"], step_size=0.05, threshold=2.0, steps=30)
    assert len(check.table()) == len(check.rows) == len(check.to_dict()["rows"])
    assert check.to_dict()["verdict"] == "PASS"
    assert str(check).count("\n") == len(check.rows)
    with pytest.raises(ArgumentError, match="of RunCheck"):
        check.row("nonsense", "sharp")


def test_run_that_overflows_is_one_clear_error():
    with pytest.raises(ArgumentError, match="leaves double precision at k = "):
        check_run(PROBLEMS["quartic"], NETWORKS["ring"], step_size=1e6, threshold=1e60, steps=50)


def test_single_agent_has_only_its_own_descent_to_prove():
    problem = problems.cosh(center=[[0.5, -0.5]])
    check = check_run(
        problem, Network(graphs.ring(1)), step_size=0.02, threshold=1.0, x0=[2.0, 1.0], steps=100
    )
    assert check.verdict == "PASS"
    assert check.certified["sharp"]
    assert check.row("sum of X^2", "sharp").lhs.max() == 0
