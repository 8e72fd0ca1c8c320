import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from digrad.arrays import (
    cast_like,
    clip_factors,
    clip_rows,
    maximum,
    normalize_rows,
    ones_column,
    row_norm,
    soft_clip_factors,
    zeros_like,
)

stacks = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, max_side=5),
    elements=st.floats(-1e6, 1e6, allow_subnormal=False),
)


def lengths(x: np.ndarray) -> np.ndarray:
    # Unlike np.linalg.norm, hypot does not lose tiny entries by squaring them.
    return np.array([math.hypot(*row) for row in x])


X = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])


@settings(max_examples=50, deadline=None)
@given(x=stacks)
def test_row_norm_is_the_euclidean_norm(x: np.ndarray) -> None:
    np.testing.assert_allclose(row_norm(x)[:, 0], lengths(x), rtol=1e-14, atol=1e-300)


def test_row_norm_of_huge_and_tiny_rows_neither_overflows_nor_vanishes() -> None:
    x = np.array([[3e300, 4e300], [3e-300, 4e-300]])
    np.testing.assert_allclose(row_norm(x), [[5e300], [5e-300]], rtol=1e-15)


@settings(max_examples=50, deadline=None)
@given(x=stacks, threshold=st.floats(1e-3, 1e3))
def test_clipped_rows_are_parallel_and_at_most_as_long_as_the_threshold(
    x: np.ndarray, threshold: float
) -> None:
    clipped = clip_rows(x, threshold)
    norms = lengths(x)
    np.testing.assert_allclose(lengths(clipped), np.minimum(norms, threshold), rtol=1e-12)
    np.testing.assert_array_equal(clipped[norms < threshold], x[norms < threshold])


def test_clip_with_infinite_threshold_changes_nothing() -> None:
    np.testing.assert_array_equal(clip_rows(X, math.inf), X)
    np.testing.assert_array_equal(soft_clip_factors(X, math.inf), np.ones((3, 1)))


def test_clip_accepts_one_threshold_per_row() -> None:
    thresholds = np.array([[1.0], [0.1], [1.0]])
    np.testing.assert_allclose(clip_rows(X, thresholds), [[0.6, 0.8], [0.06, 0.08], [0, 0]])


@settings(max_examples=50, deadline=None)
@given(x=stacks, threshold=st.floats(1e-3, 1e3))
def test_soft_factor_is_between_half_of_the_hard_factor_and_it(x: np.ndarray, threshold: float) -> None:
    soft, hard = soft_clip_factors(x, threshold), clip_factors(x, threshold)
    assert (soft <= hard).all()
    assert (soft >= hard / 2 * (1 - 1e-12)).all()


@settings(max_examples=50, deadline=None)
@given(x=stacks)
def test_normalized_rows_have_norm_one_or_are_zero(x: np.ndarray) -> None:
    norms = lengths(normalize_rows(x))
    expected = (abs(x).max(axis=1) > 0).astype(float)
    np.testing.assert_allclose(norms, expected, atol=1e-12)


def test_maximum_takes_an_array_or_a_number() -> None:
    np.testing.assert_array_equal(maximum(X, 1.0), np.maximum(X, 1.0))
    np.testing.assert_array_equal(maximum(X, X[::-1]), np.maximum(X, X[::-1]))


FUNCTIONS = {
    "zeros_like": zeros_like,
    "ones_column": ones_column,
    "maximum": lambda x: maximum(x, 0.5),
    "row_norm": row_norm,
    "clip_rows": lambda x: clip_rows(x, 1.0),
    "clip_factors": lambda x: clip_factors(x, 1.0),
    "soft_clip_factors": lambda x: soft_clip_factors(x, 1.0),
    "normalize_rows": normalize_rows,
    "cast_like": lambda x: cast_like(x, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_jax_gives_the_same_in_float32(name: str) -> None:
    function = FUNCTIONS[name]
    x = X.astype(np.float32)
    expected, actual = function(x), jax.jit(function)(jnp.asarray(x))
    assert expected.dtype == actual.dtype == np.float32
    assert expected.shape == actual.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_cast_like_takes_the_dtype_of_the_other() -> None:
    assert cast_like(np.eye(2), X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("namespace", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("size", [1e-30, 1e15, 1e30, 3e38])
@pytest.mark.parametrize("threshold", [1e-3, 5.0, 1e30])
def test_rows_near_the_largest_float32_keep_their_direction(namespace, size, threshold):
    directions = np.random.default_rng(0).uniform(0.5, 1.0, (3, 400))
    rows = (size * directions).astype(np.float32)
    if namespace == "torch":
        x = pytest.importorskip("torch").tensor(rows)
    else:
        x = jnp.asarray(rows) if namespace == "jax" else rows
    exact = rows.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    clipped = jax.jit(clip_rows)(x, threshold) if namespace == "jax" else clip_rows(x, threshold)
    np.testing.assert_allclose(np.asarray(clipped), exact * np.minimum(1, threshold / norms), rtol=2e-6)
    unit = jax.jit(normalize_rows)(x) if namespace == "jax" else normalize_rows(x)
    np.testing.assert_allclose(np.asarray(unit), exact / norms, rtol=2e-6)
