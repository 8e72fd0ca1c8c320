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


def named_in_an_import(x):
    from imported_by_a_test import factor

    return factor * x


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
imported_module = types.ModuleType("imported_by_a_test")
imported_module.factor = 3.0
sys.modules["imported_by_a_test"] = imported_module
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
    "import": (named_in_an_import, lambda patch, value: patch.setattr(imported_module, "factor", value)),
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


def test_fingerprint_reads_an_iterator_without_moving_it():
    numbers = itertools.count(3)
    assert fingerprint(numbers) == fingerprint(itertools.count(3)) != fingerprint(itertools.count(4))
    assert next(numbers) == 3


@pytest.mark.parametrize("lookup", [lambda x: eval("FACTOR") * x, lambda x: globals()["FACTOR"] * x])
def test_fingerprint_refuses_a_function_that_looks_names_up_while_it_runs(lookup):
    with pytest.raises(ArgumentError, match=r"calls (eval|globals)\(\), .* write the names out"):
        fingerprint(lookup)


def test_fingerprint_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "not_loaded_yet.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    def late(x):
        import not_loaded_yet

        return not_loaded_yet.factor * x

    with pytest.raises(ArgumentError, match=r"imports not_loaded_yet .* import it at the top"):
        fingerprint(late)


@pytest.mark.parametrize("hidden", [(k for k in range(3)), threading.Lock()], ids=["generator", "lock"])
def test_fingerprint_refuses_what_it_cannot_read(hidden):
    with pytest.raises(ArgumentError, match="whose content cannot be compared between processes"):
        fingerprint(lambda x: hidden)


def test_libraries_that_a_function_may_import_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "installed_by_a_test.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("digrad._internal.fingerprints._INSTALLED", (f"{tmp_path}/",))

    def with_alternatives(x):
        import this  # prints a poem

        import installed_by_a_test

        return installed_by_a_test.scale * this.c * x

    assert fingerprint(with_alternatives) == fingerprint(with_alternatives)
    assert not {"this", "installed_by_a_test"} & set(sys.modules)
