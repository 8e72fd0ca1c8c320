import numpy as np
import pytest
import scipy.sparse

from digrad.theory.constants import gram_bounds
from digrad.theory.constants.gram_bounds import gram_bound, row_lengths


def blocks_of(kind: str, seed: int) -> list:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 60)), 40) for _ in range(3)]
    if kind == "normal":
        return [rng.normal(size=shape) for shape in shapes]
    if kind == "positive":
        return [rng.random(shape) for shape in shapes]
    if kind == "sparse":
        return [scipy.sparse.random_array(shape, density=0.1, rng=rng, format="csr") for shape in shapes]
    return [np.outer(rng.normal(size=m), rng.normal(size=d)) for m, d in shapes]


def exact(blocks: list) -> float:
    dense = [block.toarray() if scipy.sparse.issparse(block) else block for block in blocks]
    return float(np.linalg.norm(np.mean([H.T @ H / len(H) for H in dense], axis=0), 2))


@pytest.mark.parametrize("kind", ["normal", "positive", "sparse", "of rank one"])
@pytest.mark.parametrize("seed", range(20))
def test_bound_of_large_matrices_is_above_the_largest_eigenvalue_and_close(kind, seed, monkeypatch):
    blocks = blocks_of(kind, seed)
    small = gram_bound(blocks)
    monkeypatch.setattr(gram_bounds, "DENSE_SIDE", 0)
    large, largest = gram_bound(blocks), exact(blocks)
    assert largest * (1 - 1e-14) <= small <= largest * (1 + 1e-10)
    assert (
        largest * (1 - 1e-14) <= large <= largest * (1.02 if kind in ("positive", "sparse") else 20)
    )  # signs alternate


def test_bound_of_large_matrices_is_above_the_largest_eigenvalue_when_columns_are_empty_or_apart(monkeypatch):
    monkeypatch.setattr(gram_bounds, "DENSE_SIDE", 0)
    values = np.append(np.ones(498), [1.001, 0.0])
    bound = gram_bound([np.diag(np.sqrt(values))])
    assert 1.001 / 500 <= bound <= 1.1 / 500


@pytest.mark.parametrize("exponent", [-1000, -600, 0, 500])
@pytest.mark.parametrize("layout", [np.asarray, scipy.sparse.csr_array])
def test_bounds_scale_exactly_and_do_not_vanish(exponent, layout):
    block = np.random.default_rng(0).normal(size=(7, 3))
    bound, lengths = gram_bound([block]), row_lengths(block)
    scaled = layout(np.ldexp(block, exponent))
    assert gram_bound([scaled]) >= np.ldexp(bound, 2 * exponent)
    assert gram_bound([scaled]) > 0
    assert row_lengths(scaled) == pytest.approx([np.ldexp(each, exponent) for each in lengths], rel=1e-15)


def test_bound_of_nothing_is_zero_and_beyond_doubles_infinite(monkeypatch):
    assert gram_bound([np.zeros((3, 2))]) == 0
    assert gram_bound([np.full((3, 2), 1e200)]) == np.inf
    monkeypatch.setattr(gram_bounds, "DENSE_SIDE", 0)
    assert gram_bound([np.zeros((3, 2))]) == 0
