import functools
import itertools
import subprocess
import sys
import threading
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import digrad as dg
from digrad._internal.fingerprints import fingerprint
from digrad.errors import ArgumentError

FACTOR = 3.0


class Callable:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x


def scaled(factor):
    def inner(x, *, shift=0.0):
        return (lambda y: factor * y)(x) + shift + FACTOR

    return inner


def made(factor):
    return {
        "closure": scaled(factor),
        "jit": jax.jit(scaled(factor)),
        "partial": functools.partial(lambda a, x: a * x, factor),
        "object": Callable(factor),
        "array": (lambda array: lambda x: array @ x)(np.full(3, factor)),
    }


def test_equal_functions_have_equal_fingerprints_and_others_do_not():
    one, same, other = made(1.0), made(1.0), made(2.0)
    for name in one:
        assert fingerprint(one[name]) == fingerprint(same[name]), name
        assert fingerprint(one[name]) != fingerprint(other[name]), name


def test_fingerprints_are_the_same_in_another_process():
    folder = str(Path(__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {folder!r})\n"
        "from test_fingerprints import made, fingerprint\n"
        "print(' '.join(fingerprint(f) for f in made(1.0).values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [fingerprint(function) for function in made(1.0).values()]


SETTINGS = {"factor": 3.0}


class Config:
    factor = 3.0


def named_in_a_dictionary(x):
    return SETTINGS["factor"] * x


def named_in_a_class(x):
    return Config.factor * x


def named_in_an_inner_function(x):
    def inner(y):
        return FACTOR * y

    return inner(x)


def named_in_a_module(x):
    return test_module.factor * x


def named_as_an_attribute(x):
    return named_as_an_attribute.factor * x


class Meta(type):
    factor = 3.0


class Made(metaclass=Meta):
    pass


def named_in_a_metaclass(x):
    return Made.factor * x


test_module = types.ModuleType("test_module")
test_module.factor = 3.0
named_as_an_attribute.factor = 3.0
wrapping = functools.update_wrapper(Callable(1.0), scaled(3.0))

HELD = {
    "dictionary": (named_in_a_dictionary, lambda patch, value: patch.setitem(SETTINGS, "factor", value)),
    "class": (named_in_a_class, lambda patch, value: patch.setattr(Config, "factor", value)),
    "inner function": (
        named_in_an_inner_function,
        lambda patch, value: patch.setitem(globals(), "FACTOR", value),
    ),
    "module": (named_in_a_module, lambda patch, value: patch.setattr(test_module, "factor", value)),
    "attribute": (
        named_as_an_attribute,
        lambda patch, value: patch.setattr(named_as_an_attribute, "factor", value),
    ),
    "metaclass": (named_in_a_metaclass, lambda patch, value: patch.setattr(Meta, "factor", value)),
    "wrapped function": (
        wrapping,
        lambda patch, value: patch.setattr(wrapping, "__wrapped__", scaled(value)),
    ),
    "method": (
        Callable(1.0),
        lambda patch, value: patch.setattr(Callable, "__call__", lambda self, x: self.factor * x + value),
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_fingerprint_sees_what_a_function_names_elsewhere(name, monkeypatch):
    function, change = HELD[name]
    before = fingerprint(function)
    change(monkeypatch, 4.0)
    assert fingerprint(function) != before
    monkeypatch.undo()
    assert fingerprint(function) == before


def test_fingerprint_sees_the_rule_of_a_custom_derivative_and_the_array_of_a_bound_method():
    def with_rule(factor):
        function = jax.custom_jvp(lambda x: x)
        function.defjvp(lambda primals, tangents: (primals[0], factor * tangents[0]))
        return function

    assert fingerprint(with_rule(1.0)) == fingerprint(with_rule(1.0)) != fingerprint(with_rule(2.0))
    assert fingerprint(np.ones(2).dot) == fingerprint(np.ones(2).dot) != fingerprint(np.zeros(2).dot)


def test_fingerprint_of_something_recursive_ends():
    itself = [1.0]
    itself.append(itself)
    assert fingerprint(itself) == fingerprint(itself)


def test_fingerprint_does_not_see_what_an_object_computed_from_itself():
    class Data:
        def __init__(self, values):
            self.values = values

        @functools.cached_property
        def total(self):
            return sum(self.values)

    one, other = Data([1.0, 2.0]), Data([1.0, 3.0])
    before = fingerprint(one)
    assert one.total == 3.0
    assert fingerprint(one) == before != fingerprint(other)


def test_fingerprint_does_not_see_which_steps_of_a_changing_network_were_asked_for():
    def held(network):
        return fingerprint(lambda: network)

    network, other = (dg.Network(dg.graphs.one_peer_exponential(n)) for n in (4, 8))
    before = held(network)
    network.at(1)
    assert held(network) == before != held(other)


def test_fingerprint_sees_the_start_of_a_problem():
    def held(start):
        problem = dg.problems.from_loss(lambda w, batch: (w**2).sum(), [np.ones((1, 2))], start)
        return fingerprint(lambda: problem)

    assert held(np.zeros(2)) == held(np.zeros(2)) != held(np.ones(2))


def test_fingerprint_sees_how_many_arguments_are_packed():
    assert fingerprint(lambda batch: batch) != fingerprint(lambda *batch: batch)


def test_fingerprint_sees_which_statements_an_exception_ends():
    def inside(x):
        try:
            y = scaled(x)
            z = y + 1
        except ValueError:
            z = 0
        return z

    def outside(x):
        try:
            y = scaled(x)
        except ValueError:
            z = 0
        else:
            z = y + 1
        return z

    assert fingerprint(inside) != fingerprint(outside)


def test_fingerprint_of_a_set_does_not_depend_on_its_order():
    names = [f"name {k}" for k in range(20)]
    assert fingerprint({*names}) == fingerprint({*reversed(names)}) != fingerprint({*names[1:]})


def late(x):
    import imported_by_nobody

    return imported_by_nobody.factor * x


REFUSED = {
    "eval": lambda x: eval("FACTOR") * x,
    "globals": lambda x: globals()["FACTOR"] * x,
    "imported_by_nobody": late,
    "generator": (lambda hidden: lambda x: hidden)(k for k in range(3)),
    "count": (lambda hidden: lambda x: hidden)(itertools.count(3)),
    "lock": (lambda hidden: lambda x: hidden)(threading.Lock()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fingerprint_refuses_what_it_cannot_read_and_names_it(name):
    with pytest.raises(ArgumentError, match=rf"compared between processes \(.*{name}.*\); pass it as"):
        fingerprint(REFUSED[name])


def test_fingerprint_imports_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for file in (folder / "installed_by_a_test.py", tmp_path / "imported_by_nobody.py"):
        file.write_text("raise RuntimeError('imported')")
        monkeypatch.syspath_prepend(file.parent)

    def with_alternatives(x):
        import this  # prints a poem

        import installed_by_a_test

        return installed_by_a_test.scale * this.c * x

    assert fingerprint(with_alternatives) == fingerprint(with_alternatives)
    with pytest.raises(ArgumentError):
        fingerprint(late)
    assert not {"this", "installed_by_a_test", "imported_by_nobody"} & set(sys.modules)
