"""The worked example of CONTRIBUTING.md is run as it stands: one file and one row make a method."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

import digrad as dg
from digrad.simulation import simulate
from digrad.testing import check_method
from method_cases import Case
from methods import test_contract as contract

ROOT = Path(__file__).parent.parent


def block(title):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"<!-- worked example: {title} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found, f"CONTRIBUTING.md has no block '{title}'"
    return found[1]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    path = tmp_path_factory.mktemp("example") / "lazy_dgd.py"
    path.write_text(block("file"))
    spec = importlib.util.spec_from_file_location("lazy_dgd", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_file_and_one_row_pass_the_whole_contract(example):
    case = eval(block("row"), {"Case": Case, "LazyDGD": example.LazyDGD, "frozenset": frozenset})
    contract.test_facts_are_those_of_its_row(case)
    contract.test_compiled_step_with_traced_hyper_parameters_agrees(case)
    check_method(case.method)
    for check in (
        contract.test_docstring_follows_the_template,
        contract.test_equation_numbers_of_the_docstring_are_repeated_in_the_code,
        contract.test_every_hyper_parameter_is_documented,
    ):
        check(example.LazyDGD)
    assert example.LazyDGD.__name__ not in dg.METHODS


def test_every_place_that_the_guide_names_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `((?:src|tests|docs)/[\w/.]+)` \| (?:`(\w+)`)?", text, re.MULTILINE)
    assert len(rows) >= 9
    for path, name in rows:
        assert name in (ROOT / path).read_text(), f"{path} has no {name}"


def test_its_doctest_runs(example):
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    tests = finder.find(example.LazyDGD, "LazyDGD", globs=vars(example))
    results = [runner.run(test) for test in tests if test.examples]
    assert len(results) == 1
    assert results[0].failed == 0


def test_it_runs_in_the_simulator_like_any_other(example):
    network = dg.Network(dg.graphs.example5())
    trace = simulate(example.LazyDGD(step_size=0.01), dg.problems.example_quadratic(), network, steps=1500)
    error = abs(trace.final_x.mean(axis=0) - dg.problems.example_quadratic().solve().x).max()
    assert 1e-4 < error < 0.05


def test_it_runs_unchanged_on_a_network_that_changes_with_time(example):
    problem = dg.problems.example_quadratic()
    method = example.LazyDGD(step_size=0.01)
    for graph in (dg.graphs.every(2, dg.graphs.example5()), dg.graphs.one_peer_exponential(5)):
        trace = simulate(method, problem, dg.Network(graph), steps=1500)
        error = abs(trace.final_x.mean(axis=0) - problem.solve().x).max()
        assert 1e-4 < error < 0.1
