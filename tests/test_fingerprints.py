import functools
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from digrad.fingerprints import fingerprint

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
