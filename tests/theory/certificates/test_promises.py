"""Certificates of random problems, data types, networks and thresholds, held against runs of 2000 steps."""

import math

import numpy as np
import pytest
import scipy.sparse

from digrad import graphs, problems
from digrad.data import Dataset
from digrad.network import Network
from digrad.problems import Problem
from digrad.theory import certify, check_run, run, verify_proof

STEPS = 2000
DTYPES = (
    np.bool_,
    *(np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64),
)
SPARSE = {"csr": scipy.sparse.csr_array, "csc": scipy.sparse.csc_array, "coo": scipy.sparse.coo_array}
ACCURACIES = np.geomspace(1e-6, 1e3, 40)


def random_features(rng: np.random.Generator, dtype: type, samples: int, dim: int) -> np.ndarray:
    """Return features of a data type, up to the size at which products of its own would wrap or overflow."""
    kept = rng.random((samples, dim)) < rng.uniform(0.2, 1)
    if np.dtype(dtype).kind == "f":
        return (kept * rng.normal(size=(samples, dim)) * 10.0 ** rng.uniform(-3, 2.5)).astype(dtype)
    top = min(int(np.iinfo(dtype).max), 300) if dtype is not np.bool_ else 1
    low = -top if np.dtype(dtype).kind == "i" else 0
    return (kept * rng.integers(low, top, (samples, dim), endpoint=True)).astype(dtype)


def random_logistic(rng: np.random.Generator, dtype: type, n: int) -> Problem:
    samples, dim = int(rng.integers(4 * n, 30 * n)), int(rng.integers(1, 30))
    features = random_features(rng, dtype, samples, dim)
    layout = rng.choice(["dense", "dense", *SPARSE])
    if layout != "dense" and dtype is not np.float16:  # which SciPy has no sparse matrices of
        features = SPARSE[layout](features)
    labels = np.arange(samples) % 2
    return problems.logistic(
        data=Dataset("random", features, rng.permutation(labels)),
        agents=n,
        partition=str(rng.choice(["iid", "sorted"])),
        reg_weight=10.0 ** rng.uniform(-4, -1, n),
        reg_power=rng.choice([2.0, 3.0, 4.0, 6.0], n),
        seed=int(rng.integers(1000)),
    )


def random_problem(rng: np.random.Generator, dtype: type, n: int) -> Problem:
    kind = rng.choice(["logistic"] * 6 + ["cosh", "quartic", "quadratic", "polynomial"])
    if kind == "logistic":
        return random_logistic(rng, dtype, n)
    dim = int(rng.integers(1, 6))
    center = np.clip(random_features(rng, dtype, n, dim), 0 if dtype is np.bool_ else -3, 3)
    scale = 10.0 ** rng.uniform(-2, 1, n)
    if kind == "cosh":
        return problems.cosh(center=center, scale=scale, sharpness=rng.uniform(0.3, 1.5))
    if kind == "quartic":
        return problems.quartic(center=center, scale=scale)
    curvature = random_features(rng, dtype, n, dim).astype(np.float64) ** 2 + 0.1
    return problems.quadratic(
        curvature=curvature, linear=center, quartic=scale if kind == "polynomial" else 0.0
    )


def random_network(rng: np.random.Generator) -> Network:
    n, seed = int(rng.integers(1, 8)), int(rng.integers(1000))
    kind = rng.choice(["ring", "exponential", "random"])
    if kind == "random":
        return Network(graphs.random_digraph(n, p=0.4, seed=seed))
    return Network(graphs.ring(n) if kind == "ring" else graphs.exponential(n))


def check_promises(seed: int, steps: int = STEPS, step_size: float | None = None) -> str:
    """Certify a random problem, run it near the largest certified step, and hold every promise against the run.

    Args:
        seed: What is drawn.
        steps: Of the run.
        step_size: By default 97 % of the largest certified one, which takes as long to find as all the rest.
    """
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    network = random_network(rng)
    problem = random_problem(rng, dtype, network.n)
    threshold = float(10.0 ** rng.uniform(-2, 3))
    x0 = rng.normal(size=problem.dim) * rng.choice([0.0, 0.3, 2.0])
    text = (
        f"{seed}: {problem.name}, {np.dtype(dtype)}, n = {network.n}, d = {problem.dim}, c0 = {threshold:.3g}"
    )
    if step_size is None:
        step_size = 0.97 * certify(problem, network, threshold, x0).alpha_max
    certificate = certify(problem, network, threshold, x0, step_size=step_size)
    assert certificate.verdict == "holds", text
    assert all(verify_proof(problem, network, certificate.to_dict()["proof"], threshold, x0).values()), text
    check = check_run(problem, network, step_size=step_size, threshold=threshold, x0=x0, steps=steps)
    assert (check.verdict, check.proven_from) == ("PASS", 0), f"{text}\n{check}"
    path = run(problem, network, step_size=step_size, threshold=threshold, x0=x0, steps=steps)
    g = np.linalg.norm(path.grad_F, axis=1)
    for eps in ACCURACIES:
        count = certificate.iterations(eps)
        if count is not None and count <= steps:
            assert g[: math.ceil(count)].min() <= eps, f"{text}, eps = {eps}"
    if hasattr(problem.local, "features"):
        check_against_plain_numpy(problem, path.average[int(g.argmax())], float(g.max()), text)
    return f"{text}: alpha = {step_size:.3g}, largest g = {g.max():.3g}, last g = {g[-1]:.3g}"


def check_against_plain_numpy(problem: Problem, x: np.ndarray, measured: float, text: str) -> None:
    """The gradient that the run saw is that of the data, computed sample by sample in double precision."""
    gradient = np.zeros_like(x)
    for i, (block, target) in enumerate(zip(problem.local.features, problem.local.targets, strict=True)):
        H = np.asarray(block.todense() if scipy.sparse.issparse(block) else block)
        probability = 0.5 * (1 + np.tanh(H @ x / 2))
        weight, power = problem.local.reg_weight[i], problem.local.reg_power[i]
        size = float(np.linalg.norm(x))
        gradient += H.T @ (probability - target) / len(H)
        gradient += weight * power * (size ** (power - 2) if size or power == 2 else 0.0) * x
    assert np.linalg.norm(gradient / problem.n_agents) == pytest.approx(measured, rel=1e-6, abs=1e-9), text


def test_no_promise_of_a_certificate_is_broken():
    assert check_promises(9, steps=300, step_size=0.685)


@pytest.mark.slow
@pytest.mark.parametrize("decade", range(20))
def test_no_promise_of_two_hundred_certificates_is_broken(decade):
    for seed in range(10 * decade, 10 * decade + 10):
        print(check_promises(seed))
