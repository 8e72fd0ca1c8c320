"""What every method promises to every engine, checked for each row of the table of cases."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import digrad.algorithms
from digrad.algorithms import BIBTEX, CGT, FROST, METHODS, chebyshev_momentum, scaled_thresholds
from digrad.engine.verbs import required
from digrad.errors import ArgumentError
from digrad.types import Method
from method_cases import AGENTS, CASES, LABELS, Case
from method_problems import random_problem
from numpy_net import NumPyNet, dated, depth, network, run, weights

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


def _frozen(x: np.ndarray) -> np.ndarray:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def test_every_public_method_has_a_row() -> None:
    assert {type(case.method) for case in CASES} == set(METHODS.values())


def test_every_method_is_exported_under_its_name() -> None:
    for name, method in METHODS.items():
        assert name in digrad.algorithms.__all__
        assert getattr(digrad.algorithms, name) is method
        assert getattr(digrad, name) is method
    assert {name for name, method in METHODS.items() if method.__name__ != name} == {"CDSGD"}


@every_case
def test_method_satisfies_the_protocol(case: Case) -> None:
    assert isinstance(case.method, Method)
    assert case.method.converges in {"exact", "biased", "drifting", "neighbourhood"}


@every_case
def test_state_keeps_its_type_and_shapes(case: Case) -> None:
    states = run(case.method, network(GRAPH), PROBLEM.gradient, START, 3)
    for state in states:
        assert type(state).__name__ == type(case.method).__name__ + "State"
        assert type(state) is type(states[0])
        assert [field.shape for field in state] == [field.shape for field in states[0]]
        assert all(len(field) == AGENTS for field in state)
        assert case.method.estimate(state).shape == case.method.query(state).shape == START.shape


@every_case
def test_float32_is_kept(case: Case) -> None:
    method = case.method
    if isinstance(getattr(method, "threshold", None), np.ndarray):
        method = dataclasses.replace(method, threshold=method.threshold.astype(np.float32))
    gradient = dataclasses.replace(PROBLEM, a=np.float32(PROBLEM.a), b=np.float32(PROBLEM.b)).gradient
    state = run(method, network(GRAPH), gradient, np.float32(START), 2)[-1]
    assert {field.dtype for field in state} == {np.dtype(np.float32)}
    assert method.estimate(state).dtype == method.query(state).dtype == np.float32


@every_case
def test_inputs_are_left_unchanged(case: Case) -> None:
    method, net = case.method, network(GRAPH)
    state = method.init(_frozen(START), net)
    for _ in range(2):
        state = type(state)(*(_frozen(field) for field in state))
        before = [field.copy() for field in state]
        after = method.step(state, _frozen(PROBLEM.gradient(method.query(state))), net)
        assert all(np.array_equal(*pair) for pair in zip(before, state, strict=True))
        state = after


@every_case
def test_step_is_deterministic(case: Case) -> None:
    first, second = (run(case.method, network(GRAPH), PROBLEM.gradient, START, 5)[-1] for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


@every_case
def test_needs_are_declared_and_suffice(case: Case) -> None:
    assert required(case.method) == case.needs
    net = network(GRAPH).bound(case.method).restricted(case.method.needs)
    run(case.method, net, PROBLEM.gradient, START, 2)
    assert {verb for verb, _ in net.calls} == {NumPyNet.verbs[need] for need in case.method.needs}


@every_case
def test_measured_traffic_equals_declared_and_documented(case: Case) -> None:
    method, net = case.method, network(GRAPH)
    state = method.init(START, net)
    net.calls.clear()
    method.step(state, PROBLEM.gradient(method.query(state)), net)
    expected = tuple(AGENTS if figure == "n" else figure for figure in case.traffic)
    assert net.traffic(DIMENSION) == expected
    assert method.traffic == case.traffic == _documented_traffic(method)


def _documented_traffic(method: Any) -> tuple[int, int | str]:
    text = " ".join(type(method).__doc__.split("Communication: ")[1].split("Converges:")[0].split())
    if text.startswith("one all-reduce"):
        return (0, 0)
    found = re.match(r"(\d*)(K?)d(?: \+ (1|n))? numbers per edge and step", text)
    assert found, text
    vectors = int(found[1] or 1) * (method.gossip_rounds if found[2] else 1)
    return vectors, {None: 0, "1": 1, "n": "n"}[found[3]]


@every_case
def test_measured_dependent_rounds_equal_declared_and_documented(case: Case) -> None:
    method, net = case.method, network(GRAPH)
    state = run(method, net, PROBLEM.gradient, START, 2)[-1]
    fresh = type(state)(*(dated(field, 0) for field in state))
    after = method.step(fresh, dated(PROBLEM.gradient(method.query(state)), 0), net)
    assert depth(after) == method.rounds == case.rounds
    text = type(method).__doc__.split("Communication: ")[1].split("Converges:")[0]
    found = re.search(r"(\d*)(K?) dependent rounds?", text)
    documented = int(found[1] or 1) * (method.gossip_rounds if found[2] else 1) if found else 1
    assert documented == case.rounds


@every_case
def test_early_messages_are_exactly_the_state_fields_that_are_sent_as_they_are(case: Case) -> None:
    method, net = case.method, network(GRAPH)
    state = run(method, net, PROBLEM.gradient, START, 2)[-1]
    names = {id(field): name for name, field in state._asdict().items()}
    net.calls.clear()
    method.step(state, PROBLEM.gradient(method.query(state)), net)
    sent = [
        (verb, names[id(part)]) for verb, payload in net.calls for part in payload if _known(payload, names)
    ]
    assert sorted(method.early) == sorted(sent)


def _known(payload: tuple[Any, ...], names: dict[int, str]) -> bool:
    return all(id(part) in names for part in payload)


@pytest.mark.parametrize("case", COMPILED, ids=[case.label for case in COMPILED])
def test_compiled_step_with_traced_hyper_parameters_agrees(case: Case) -> None:
    method = case.method
    expected = method.estimate(run(method, network(GRAPH), PROBLEM.gradient, START, 2)[-1])
    names = [field.name for field in dataclasses.fields(method) if _is_leaf(getattr(method, field.name))]
    with jax.enable_x64(True):
        R, C, W = (jnp.asarray(M) for M in weights(GRAPH))
        a, b = jnp.asarray(PROBLEM.a), jnp.asarray(PROBLEM.b)

        def two_steps(values: list[Any], x0: Any) -> Any:
            traced = dataclasses.replace(method, **dict(zip(names, values, strict=True)))
            net = NumPyNet(AGENTS, R=R, C=C, W=W)
            return traced.estimate(run(traced, net, lambda x: a * x - b, x0, 2)[-1])

        values = [jnp.asarray(getattr(method, name)) for name in names]
        result = np.asarray(jax.jit(two_steps)(values, jnp.asarray(START)))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


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
    text = method.__doc__
    assert text is not None
    positions = [text.find(f"\n    {section}:") for section in ("Args", *SECTIONS[1:], "Example")]
    assert -1 not in positions, dict(zip((*SECTIONS, "Example"), positions, strict=True))
    assert positions == sorted(positions)
    assert ".. math::" in text
    assert ">>> import digrad as dg" in text


@every_class
def test_equation_numbers_of_the_docstring_are_repeated_in_the_code(method: Any) -> None:
    code = Path(method.step.__code__.co_filename).read_text().replace(method.__doc__, "")
    numbers = set(re.findall(r"\\qquad \((\d)\)", method.__doc__))
    assert numbers
    assert {number for number in numbers if not re.search(rf"# .*\({number}\)", code)} == set()


@every_class
def test_every_hyper_parameter_is_documented(method: Any) -> None:
    arguments = method.__doc__.split("Args:")[1].split("Communication:")[0]
    for field in dataclasses.fields(method):
        assert re.search(rf"^        {field.name}: ", arguments, re.MULTILINE), field.name


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


def test_frost_refuses_more_agents_than_it_can_carry() -> None:
    net = NumPyNet(1)
    net.one_hot = np.broadcast_to(0.0, (1001, 1001))
    with pytest.raises(ArgumentError, match=r"at most 1000 agents.*but got 1001"):
        FROST(0.1).init(np.zeros((1001, 1)), net)


def test_cgt_refuses_thresholds_of_the_wrong_shape() -> None:
    with pytest.raises(ArgumentError, match=r"column \[5, 1\].*shape \[5\]"):
        CGT(0.1, np.ones(5)).init(START, network(GRAPH))
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
