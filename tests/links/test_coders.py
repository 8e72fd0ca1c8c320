"""Coders: contractions that keep zero, and their bytes."""

import jax.numpy as jnp
import numpy as np
import pytest

from digrad import coders

CODERS = [coders.top_k(2), coders.sign(), coders.quantize(2), coders.quantize(4), coders.bfloat16]


@pytest.mark.parametrize("coder", [*CODERS, coders.random_k(2)], ids=repr)
def test_zero_is_coded_as_zero(coder):
    chosen = np.ones((3, 5), bool)
    np.testing.assert_array_equal(coder.code(jnp.zeros((3, 5)), chosen), 0.0)


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_a_coder_brings_every_vector_nearer_to_zero(coder):
    values = np.random.default_rng(0).standard_normal((200, 5))
    rest = np.linalg.norm(values - np.asarray(coder.code(jnp.asarray(values))), axis=1) / np.linalg.norm(
        values, axis=1
    )
    assert rest.max() < 0.999


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
        (coders.bfloat16, 128),
    ],
)
def test_bytes_of_sixty_four_numbers(coder, size):
    assert coder.wire_bytes(64, 8) == size
