"""Compressors: contractions that keep zero, and their bytes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import compressors

COMPRESSORS = [
    compressors.top_k(2),
    compressors.sign(),
    compressors.quantize(2),
    compressors.quantize(4),
    compressors.bfloat16(),
]


LIBRARIES = {"NumPy": np.asarray, "JAX": jnp.asarray}
vectors = st.tuples(st.sampled_from((5, 1, 9)), st.integers(0, 2**32 - 1), st.floats(1e-12, 1e12))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("compressor", [*COMPRESSORS, compressors.random_k(2)], ids=repr)
def test_zero_is_compressed_to_zero(compressor, library):
    for width in (1, 5):
        zero, chosen = (
            LIBRARIES[library](make((3, width))) for make in (np.zeros, lambda s: np.ones(s, bool))
        )
        np.testing.assert_array_equal(np.asarray(compressor.compress(zero, chosen)), 0.0)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@settings(max_examples=20)
@given(vectors)
def test_a_compressor_brings_every_vector_nearer_to_zero(compressor, library, drawn):
    width, seed, size = drawn
    values = size * np.random.default_rng(seed).standard_normal((4, width))
    rest = values - np.asarray(compressor.compress(LIBRARIES[library](values)))
    assert (np.linalg.norm(rest, axis=1) < 0.9999 * np.linalg.norm(values, axis=1)).all()


def test_top_k_keeps_exactly_k_of_equal_entries():
    assert np.count_nonzero(compressors.top_k(2).compress(np.ones((1, 5)))) == 2


def test_quantize_rounds_halves_to_even():
    np.testing.assert_allclose(
        compressors.quantize(3).compress(np.array([[3.0, 0.5, 1.5, -2.5]])), [[3.0, 0.0, 2.0, -2.0]]
    )


@pytest.mark.parametrize(
    ("compressor", "size"),
    [
        (compressors.top_k(4), 4 * 12),
        (compressors.random_k(4), 4 * 8),
        (compressors.sign(), 64 // 8 + 8),
        (compressors.quantize(4), 64 // 2 + 8),
        (compressors.bfloat16(), 128),
    ],
)
def test_bytes_of_sixty_four_numbers(compressor, size):
    assert compressor.wire_bytes(64, 8) == size
