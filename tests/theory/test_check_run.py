from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.theory import RunDivergedError, Smoothness, certify, check_run, closed_form, network_norms
from digrad.theory.paper.printed_bound import largest_printed_step

check_paper = partial(check_run, paper=True)

RING = Network(graphs.ring(5))


def make_problems() -> dict[str, Problem]:
    rng = np.random.default_rng(3)
    center, scale = rng.normal(size=(5, 3)), rng.uniform(0.5, 2, 5)
    return {
        "cosh": problems.cosh(center=center, scale=scale),
        "quartic": problems.quartic(center=center, scale=0.1 * scale),
        "quadratic": problems.example_quadratic(),
    }


PROBLEMS = make_problems()


def test_uncertified_step_makes_global_claims_inapplicable_not_failed():
    check = check_paper(PROBLEMS["cosh"], RING, step_size=0.5, threshold=1.0, steps=50)
    row = check.row("gradient bound", "paper")
    assert row.status == "INAPPLICABLE"
    assert check.verdict == "PASS"


def test_estimated_constants_certify_no_row():
    problem, network, x0 = PROBLEMS["cosh"], RING, np.ones(3)
    setting, largest = largest_printed_step(problem, network_norms(network), 0.1, np.tile(x0, (5, 1)))
    options = {"step_size": 0.9 * largest.step_size, "threshold": 0.1, "x0": x0, "steps": 20}
    proven = setting.smoothness
    check = check_paper(problem, network, smoothness=proven, **options)
    assert check.row("gradient bound", "paper").terms.is_met
    estimated = replace(proven, source="empirical")
    check = check_paper(problem, network, smoothness=estimated, **options)
    claims = ("gradient bound", "potential", "sum of abar", "sum of X", "sum of Y", "smallest gradient")
    for row in [check.row(claim, "paper") for claim in claims]:
        assert row.status == "INAPPLICABLE"
        assert "constants are estimates" in row.terms.needs
    assert not any("certified" in row.terms.needs for row in check.rows if row.status != "INAPPLICABLE")


def test_empirical_constants_are_those_of_the_run_and_certify_no_row():
    check = check_paper(
        PROBLEMS["cosh"], RING, step_size=1e-6, threshold=1.0, steps=20, smoothness="empirical"
    )
    assert check.paper.smoothness.source == "empirical"
    assert "constants are estimates" in check.row("gradient bound", "paper").terms.needs
    users = problems.from_loss(
        lambda w, batch: ((w - batch) ** 2).mean(), [np.zeros((3, 1)), np.ones((2, 1))], 1
    )
    ring = Network(graphs.ring(2))
    with pytest.raises(ArgumentError, match='smoothness="empirical"'):
        check_paper(users, ring, step_size=0.1, threshold=1.0, steps=5)
    found = check_paper(users, ring, step_size=0.1, threshold=1.0, steps=5, smoothness="empirical")
    assert np.allclose(found.paper.smoothness.L0, 2.0)


def test_claims_of_the_paper_need_its_conditions_and_a_small_threshold():
    needs = {
        threshold: check_paper(PROBLEMS["cosh"], RING, step_size=1e-9, threshold=threshold, steps=20)
        .row("gradient bound", "paper")
        .terms
        for threshold in (0.1, 1.0)
    }
    assert needs[0.1] == ("conditions as printed", True)
    assert needs[1.0] == ("conditions as printed, c0 <= 1/sqrt(K)", False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smoothness": "guessed"}, "`smoothness` of check_run must be a bound of every Hessian norm"),
        ({"smoothness": Smoothness([1.0], [0.0], 1.0, 0.0, 0.0)}, "has 1 agents, but the problem has 5"),
        (
            {"smoothness": Smoothness([1.0] * 3, [0.0] * 3, 1.0, 0.0, 0.0)},
            "has 3 agents, but the problem has 5",
        ),
        ({"problem": None}, "`problem` of check_run must be a digrad Problem"),
        ({"x0": "corner"}, "`x0` .* 'corner'"),
    ],
)
def test_malformed_arguments_are_one_clear_error(change, message):
    options = {"problem": PROBLEMS["cosh"], "network": RING, "step_size": 0.1, "threshold": 1.0, "steps": 3}
    with pytest.raises(ArgumentError, match=message):
        check_paper(**{**options, **change})


def test_extreme_steps_and_thresholds_overflow_nowhere():
    for step_size, threshold in ((1e200, 1e-200), (1e-200, 1e200)):
        check = check_paper(PROBLEMS["cosh"], RING, step_size=step_size, threshold=threshold, steps=3)
        assert check.verdict == "PASS"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": [RING]}, "`network` of check_run must be a digrad Network, but got list"),
        ({"threshold": np.ones((5, 1))}, "`threshold` of theory.run must be a number"),
        ({"step_size": lambda k: 0.1}, "`step_size` of theory.run must be a number"),
    ],
)
def test_what_changes_with_time_or_agent_is_refused(change, message):
    options = {"network": RING, "step_size": 0.1, "threshold": 1.0, "steps": 3, **change}
    with pytest.raises(ArgumentError, match=message):
        check_paper(PROBLEMS["cosh"], **options)


def test_agents_very_far_apart_overflow_nowhere():
    x0 = np.diag([2e4, -2e4, 2e4, 0.0, 0.0])[:, :3]
    problem = PROBLEMS["quartic"]
    check = check_paper(
        problem, RING, step_size=1e-3, threshold=1.0, x0=x0, steps=5, smoothness=closed_form(problem)
    )
    assert check.verdict == "PASS"


def test_wrong_constants_are_exposed():
    problem = PROBLEMS["cosh"]
    wrong = replace(closed_form(problem), L0=closed_form(problem).L0 * 0.1, L1=np.zeros(5))
    check = check_paper(
        problem,
        RING,
        step_size=0.01,
        threshold=1.0,
        x0=np.eye(5, 3) * 2,
        steps=20,
        smoothness=wrong,
    )
    assert check.verdict == "FAIL"
    assert any(row.name.startswith("pre4") for row in check.failures)


def quadratic_in_units(x_unit: float, loss_unit: float) -> tuple[Problem, dict[str, float]]:
    """Return a quadratic with x and F measured in other units, and a step and a threshold in the same."""
    rng = np.random.default_rng(4)
    curvature, linear = rng.uniform(0.5, 2, (5, 2)), rng.normal(size=(5, 2))
    problem = problems.quadratic(
        curvature=curvature * loss_unit / x_unit**2, linear=linear * loss_unit / x_unit
    )
    return problem, {"step_size": 0.02 * x_unit**2 / loss_unit, "threshold": 1.0 * loss_unit / x_unit}


@pytest.mark.parametrize(("x_unit", "loss_unit"), [(1.0, 1.0), (1.0, 1e-20), (1e-12, 1e-12), (1e9, 1e12)])
def test_rows_expose_wrong_constants_in_every_unit(x_unit, loss_unit):
    problem, options = quadratic_in_units(x_unit, loss_unit)
    right = closed_form(problem)
    options |= {"x0": np.eye(5, 2) * 2 * x_unit, "steps": 20}
    assert check_paper(problem, RING, smoothness=right, **options).verdict == "PASS"
    check = check_paper(
        problem, RING, smoothness=replace(right, L0=right.L0 * 0.1, b=0.1 * right.b), **options
    )
    failed = " ".join(row.name for row in check.failures)
    assert "pre4" in failed
    assert "dissimilarity" in failed


@pytest.mark.parametrize("loss_unit", [1.0, 1e-20])
def test_run_below_the_lower_bound_fails_and_is_not_certified(loss_unit):
    problem, options = quadratic_in_units(1.0, loss_unit)
    right = closed_form(problem)
    start = float(problem.loss(np.zeros(2)))
    wrong = replace(right, lower_bound=(right.lower_bound + start) / 2)
    options["steps"] = 300
    check = check_paper(problem, RING, smoothness=wrong, **options)
    row = check.row("lower bound", "certificate")
    assert (check.verdict, row.status) == ("FAIL", "FAIL")
    assert row.violations == int(np.sum(check.paper.path.loss < wrong.lower_bound))
    assert check.row("gradient bound", "paper").status == "INAPPLICABLE"
    assert "the run refutes the constants" in check.row("gradient bound", "paper").terms.needs
    fine = check_paper(problem, RING, smoothness=right, **options)
    assert (fine.verdict, fine.row("lower bound", "certificate").status) == ("PASS", "PASS")


def test_estimated_lower_bound_is_no_promise():
    check = check_paper(
        PROBLEMS["cosh"], RING, step_size=0.1, threshold=1.0, steps=20, smoothness="empirical"
    )
    assert check.row("lower bound", "certificate").status == "INAPPLICABLE"


def test_check_speaks_as_table_dictionary_and_text():
    check = check_paper(PROBLEMS["quadratic"], RING, step_size=0.05, threshold=2.0, steps=30)
    assert len(check.table()) == len(check.rows) == len(check.to_dict()["rows"])
    assert check.to_dict()["verdict"] == "PASS"
    assert str(check).count("\n") == 2 + len(
        check.rows
    )  # a headline, what is proven, and the names of columns
    with pytest.raises(ArgumentError, match="of RunCheck"):
        check.row("nonsense", "paper")


def test_run_that_overflows_is_one_clear_error():
    with pytest.raises(RunDivergedError, match="the run diverges at k = ") as caught:
        check_paper(PROBLEMS["quartic"], RING, step_size=1e6, threshold=1e60, steps=50)
    assert str(caught.value).count(f"k = {caught.value.k};") == 1


def test_single_agent_has_only_its_own_descent_to_prove():
    problem = problems.cosh(center=[[0.5, -0.5]])
    check = check_paper(
        problem, Network(graphs.ring(1)), step_size=0.02, threshold=1.0, x0=[2.0, 1.0], steps=100
    )
    assert check.verdict == "PASS"
    assert check.row("sum of X^2", "paper").lhs.max() == 0


def test_check_takes_over_what_a_certificate_has_computed(monkeypatch):
    problem, options = problems.example_quadratic(), {"step_size": 0.05, "threshold": 5.0}
    network = Network(graphs.example5())
    alone = check_run(problem, network, **options, steps=50, paper=True)
    certificate = certify(problem, network, **options, explain=True)
    for name in ("Losses.of", "Matrices.of", "network_norms", "perron_error", "TapSearch"):
        monkeypatch.setattr(f"digrad.theory.certificates.instance.{name}", forbidden)
    check = check_run(problem, network, **options, steps=50, paper=True, certificate=certificate)
    assert (check.verdict, check.proven_from) == (alone.verdict, alone.proven_from) == ("PASS", 0)
    assert [row.status for row in check.rows] == [row.status for row in alone.rows]
    assert check.paper.setting is certificate.setting


def test_certificate_of_another_run_is_refused():
    problem, network = problems.example_quadratic(), Network(graphs.example5())
    certificate = certify(problem, network, threshold=5.0)
    for change in ({"threshold": 4.0}, {"x0": [1.0, 1.0]}, {"network": Network(graphs.example5())}):
        asked = {"network": network, "threshold": 5.0, "step_size": 0.05, "steps": 3, **change}
        with pytest.raises(
            ArgumentError, match="`certificate` of check_run must be that of the same problem"
        ):
            check_run(problem, **asked, certificate=certificate)


def forbidden(*asked, **options):
    raise AssertionError("computed again")
