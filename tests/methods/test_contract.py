"""Contract of every method with every engine, checked for each row of the table of cases."""

import dataclasses
import functools
import inspect
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import digrad.methods
from digrad.core.net import required
from digrad.core.traffic import measure_communication
from digrad.errors import ArgumentError
from digrad.methods import BIBTEX, CGT, FROST, METHODS, chebyshev_momentum, scaled_thresholds
from digrad.testing.check_method import CONTRACT, case_of, check_method
from digrad.testing.numpy_net import NumPyNet, network, run, weights
from digrad.types import Method
from method_cases import AGENTS, CASES, LABELS, Case, of_each_kind
from method_problems import random_problem

every_case = pytest.mark.parametrize("case", CASES, ids=LABELS)
every_method = pytest.mark.parametrize(
    "name", [method.__name__ for method in dict.fromkeys(METHODS.values())]
)
every_class = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
COMPILED = [case for case in CASES if not case.label.endswith("-row")]  # R for W compiles to the same
CLIPPED = [case for case in CASES if hasattr(case.method, "diagnostics")]
GRAPH, PROBLEM, START = random_problem(AGENTS, 3, seed=7)
DIMENSION = START.shape[1]
SECTIONS = ("Args", "Communication", "Converges", "Invariant", "Also known as", "Deviations", "Reference")


def test_every_public_method_has_a_row() -> None:
    assert {type(case.method) for case in CASES} == set(METHODS.values())


def test_every_method_is_exported_under_its_name() -> None:
    for name, method in METHODS.items():
        assert getattr(digrad.methods, name) is method
        assert getattr(digrad, name) is method
    assert {name for name, method in METHODS.items() if method.__name__ != name} == {"CDSGD"}


ENGINES = {
    "gives the same numbers in the compiled simulator",
    "gives the same numbers in torch",
}  # tested elsewhere
PROMISES = [promise for promise in CONTRACT if promise not in ENGINES]


@pytest.mark.parametrize("promise", PROMISES)
@every_case
def test_method_keeps_every_promise_of_the_contract(case: Case, promise: str) -> None:
    CONTRACT[promise](case_of(case.method))


@every_case
def test_facts_are_those_of_its_row(case: Case) -> None:
    method = case.method
    assert isinstance(method, Method)
    assert required(method) == case.needs
    vectors, numbers = case.traffic
    sent = measure_communication(method, AGENTS)
    assert (sent.vectors, sent.numbers) == (vectors, AGENTS if numbers == "n" else numbers)
    assert (sent.rounds, sent.all_reduces) == (case.rounds, "mean" in case.needs)
    assert method.converges in {"exact", "biased", "drifting", "neighbourhood"}
    state = method.init(START, network(GRAPH).bound(method))
    assert type(state).__name__ == type(method).__name__ + "State"


def two_steps(method: Any, transform: Any) -> Any:
    """Return what a JAX transformation makes of two steps with all hyper-parameters as arguments."""
    names = [field.name for field in dataclasses.fields(method) if _is_leaf(getattr(method, field.name))]
    with jax.enable_x64(True):
        R, C, W = (jnp.asarray(M) for M in weights(GRAPH))
        a, b = jnp.asarray(PROBLEM.a), jnp.asarray(PROBLEM.b)

        def steps(values: list[Any], x0: Any) -> Any:
            traced = dataclasses.replace(method, **dict(zip(names, values, strict=True)))
            net = NumPyNet(AGENTS, R=R, C=C, W=W)
            return traced.estimate(run(traced, net, lambda x: a * x - b, x0, 2)[-1])

        values = [jnp.asarray(getattr(method, name)) for name in names]
        return transform(steps)(values, jnp.asarray(START))


@pytest.mark.parametrize("case", COMPILED, ids=[case.label for case in COMPILED])
def test_hyper_parameters_can_be_traced(case: Case) -> None:
    found = two_steps(case.method, lambda steps: functools.partial(jax.eval_shape, steps))
    assert (found.shape, found.dtype) == (START.shape, START.dtype)


@pytest.mark.parametrize("case", of_each_kind(COMPILED))
def test_compiled_step_with_traced_hyper_parameters_agrees(case: Case) -> None:
    expected = case.method.estimate(run(case.method, network(GRAPH), PROBLEM.gradient, START, 2)[-1])
    np.testing.assert_allclose(two_steps(case.method, jax.jit), expected, rtol=0, atol=1e-12)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, float | np.ndarray)


@pytest.mark.parametrize("case", CLIPPED, ids=[case.label for case in CLIPPED])
def test_diagnostics_report_one_positive_ratio_per_agent(case: Case) -> None:
    method, net = case.method, network(GRAPH)
    state = run(method, net, PROBLEM.gradient, START, 1)[-1]
    ratios = method.diagnostics(state, PROBLEM.gradient(START), net)["clip_ratio"]
    assert ratios.shape == (AGENTS, 1)
    assert (ratios > 0).all()


def test_every_method_with_a_threshold_reports_what_it_clips() -> None:
    silent = [
        case.label
        for case in CASES
        if hasattr(case.method, "threshold") and not hasattr(case.method, "diagnostics")
    ]
    assert not silent


@every_class
def test_docstring_follows_the_template(method: type) -> None:
    text = inspect.getdoc(method)
    assert text is not None
    positions = [text.find(f"\n{section}:") for section in ("Args", *SECTIONS[1:], "Example")]
    assert -1 not in positions, dict(zip((*SECTIONS, "Example"), positions, strict=True))
    assert positions == sorted(positions)
    assert ".. math::" in text
    assert ">>> import digrad as dg" in text


@every_class
def test_equation_numbers_of_the_docstring_are_repeated_in_the_code(method: Any) -> None:
    code = re.sub(r'""".*?"""', "", Path(method.step.__code__.co_filename).read_text(), flags=re.DOTALL)
    numbers = set(re.findall(r"\\qquad \((\d)\)", method.__doc__))
    assert numbers
    assert {number for number in numbers if not re.search(rf"# .*\({number}\)", code)} == set()


@every_class
def test_every_hyper_parameter_is_documented(method: Any) -> None:
    arguments = inspect.getdoc(method).split("Args:")[1].split("Communication:")[0]
    for field in dataclasses.fields(method):
        assert re.search(rf"^    {field.name}: ", arguments, re.MULTILINE), field.name


@every_method
def test_reference_has_a_bibtex_entry(name: str) -> None:
    key = METHODS[name].reference
    assert re.match(rf"@\w+{{{key},\n  title = ", BIBTEX[key])
    assert BIBTEX[key].count("{") == BIBTEX[key].count("}")


def test_bibliography_has_no_entry_without_a_method() -> None:
    assert {method.reference for method in METHODS.values()} == set(BIBTEX)


@every_method
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "0.1"])
def test_bad_step_size_is_refused_by_name(name: str, value: Any) -> None:
    extra = {"threshold": 1.0} if "threshold" in METHODS[name].__dataclass_fields__ else {}
    with pytest.raises(ArgumentError, match=rf"`step_size` of {name} must be"):
        METHODS[name](step_size=value, **extra)


@every_method
def test_other_bad_hyper_parameters_are_refused_by_name(name: str) -> None:
    bad = {"threshold": -1.0, "momentum": 1.0, "second_momentum": -0.1, "epsilon": 0.0, "mixing": "column"}
    bad |= {"gossip_rounds": 0, "chebyshev": 1.0}
    fields = METHODS[name].__dataclass_fields__
    extra = {"threshold": 1.0} if "threshold" in fields else {}
    for argument, value in bad.items():
        if argument in fields:
            with pytest.raises(ArgumentError, match=rf"`{argument}` of {name} must be"):
                METHODS[name](**({"step_size": 0.1} | extra | {argument: value}))


def test_frost_refuses_more_agents_than_it_can_carry_before_it_carries_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jnp, "eye", lambda *_: pytest.fail("n^2 numbers are made"))
    problem = digrad.problems.quadratic(curvature=np.ones((1001, 1)), linear=np.zeros((1001, 1)))
    with pytest.raises(
        ArgumentError, match=r"`network` of FROST must have at most 1000 agents.*but got 1001"
    ):
        digrad.simulate(FROST(0.1), problem, digrad.Network(digrad.graphs.ring(1001)), steps=1)


def test_cgt_refuses_thresholds_of_the_wrong_shape() -> None:
    problem = digrad.problems.example_quadratic()
    with pytest.raises(ArgumentError, match=r"column of shape \(5, 1\).* its shape is \(5,\)"):
        digrad.simulate(CGT(0.1, np.ones(5)), problem, digrad.Network(digrad.graphs.example5()), steps=1)
    with pytest.raises(ArgumentError, match="in every entry"):
        CGT(0.1, np.array([[1.0], [0.0]]))


def test_scaled_thresholds_are_the_weighted_column() -> None:
    np.testing.assert_array_equal(scaled_thresholds(2.0, np.array([1.5, 0.5])), [[3.0], [1.0]])
    with pytest.raises(ArgumentError, match="`v` of scaled_thresholds"):
        scaled_thresholds(2.0, np.array([1.0, 0.0]))


def test_chebyshev_momentum_is_zero_for_exact_averaging_and_below_one() -> None:
    assert chebyshev_momentum(0.0) == 0.0
    assert chebyshev_momentum(0.8) == pytest.approx(0.25)
    with pytest.raises(ArgumentError, match="second_eigenvalue"):
        chebyshev_momentum(1.0)


def test_check_method_says_what_it_did_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = check_method(digrad.methods.DGD(step_size=0.05))
    left_out = [line for line in lines if line.startswith("not checked: ")]
    assert len(lines) == len(CONTRACT)
    assert "gives the same numbers in torch" not in lines
    assert [line.removeprefix("not checked: ").partition(" (")[0] for line in left_out] == [
        "conserves its invariant",  # DGD has none
        "gives the same numbers in torch",
    ]
