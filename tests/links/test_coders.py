"""Coders: contractions that keep zero, and their bytes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import coders

CODERS = [coders.top_k(2), coders.sign(), coders.quantize(2), coders.quantize(4), coders.bfloat16()]


LIBRARIES = {"NumPy": np.asarray, "JAX": jnp.asarray}
vectors = st.tuples(st.integers(1, 9), st.integers(0, 2**32 - 1), st.floats(1e-12, 1e12))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("coder", [*CODERS, coders.random_k(2)], ids=repr)
def test_zero_is_coded_as_zero(coder, library):
    for width in (1, 5):
        zero, chosen = (
            LIBRARIES[library](make((3, width))) for make in (np.zeros, lambda s: np.ones(s, bool))
        )
        np.testing.assert_array_equal(np.asarray(coder.code(zero, chosen)), 0.0)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("coder", CODERS, ids=repr)
@settings(max_examples=20)
@given(vectors)
def test_a_coder_brings_every_vector_nearer_to_zero(coder, library, drawn):
    width, seed, size = drawn
    values = size * np.random.default_rng(seed).standard_normal((4, width))
    rest = values - np.asarray(coder.code(LIBRARIES[library](values)))
    assert (np.linalg.norm(rest, axis=1) < 0.9999 * np.linalg.norm(values, axis=1)).all()


def test_top_k_keeps_exactly_k_of_equal_entries():
    assert np.count_nonzero(coders.top_k(2).code(np.ones((1, 5)))) == 2


def test_quantize_rounds_halves_to_even():
    np.testing.assert_allclose(
        coders.quantize(3).code(np.array([[3.0, 0.5, 1.5, -2.5]])), [[3.0, 0.0, 2.0, -2.0]]
    )


@pytest.mark.parametrize(
    ("coder", "size"),
    [
        (coders.top_k(4), 4 * 12),
        (coders.random_k(4), 4 * 8),
        (coders.sign(), 64 // 8 + 8),
        (coders.quantize(4), 64 // 2 + 8),
        (coders.bfloat16(), 128),
    ],
)
def test_bytes_of_sixty_four_numbers(coder, size):
    assert coder.wire_bytes(64, 8) == size
