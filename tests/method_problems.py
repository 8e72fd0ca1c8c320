"""Problems of the method tests: Q5 and the three agents of the specification, and random quadratics."""

from dataclasses import dataclass

import numpy as np

from digrad.graphs import Digraph, example5, random_digraph, triangle


@dataclass(frozen=True)
class Quadratic:
    """f_i(x) = 1/2 x' diag(a_i) x - b_i' x, plus quartic/4 times the sum of x^4."""

    a: np.ndarray  # [n, d]
    b: np.ndarray  # [n, d]
    quartic: float = 0.0

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.a * x - self.b + self.quartic * x**3

    @property
    def minimum(self) -> np.ndarray:
        """The minimiser of the average (without quartic term)."""
        return self.weighted_minimum(np.ones(len(self.a)))

    def weighted_minimum(self, weights: np.ndarray) -> np.ndarray:
        return (weights @ self.b) / (weights @ self.a)

    def fixed_point(self, P: np.ndarray, step_size: float | np.ndarray) -> np.ndarray:
        """Return the X with X = P X - step_size (a X - b), column by column."""
        steps = np.broadcast_to(step_size, self.a.shape[1:])
        columns = [
            np.linalg.solve(np.eye(len(P)) - P + s * np.diag(a), s * b)
            for s, a, b in zip(steps, self.a.T, self.b.T, strict=True)
        ]
        return np.stack(columns, axis=1)


Q5_GRAPH: Digraph = example5()
Q5 = Quadratic(
    a=np.array([[1.0 + i, 5.0 - i] for i in range(5)]),
    b=np.array([(1, 0), (0, 2), (-3, 1), (4, 4), (3, -2)], dtype=float),
)
Q5_START = np.tile([10.0, -10.0], (5, 1))
# Q5 as means over four samples: their curvatures and linear terms, [5, 4, 2] each.
_KAPPA, _SHIFT = np.array([-0.5, -0.25, 0.25, 0.5]), 2 * np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
Q5_SAMPLES = (Q5.a[:, None] * (1 + _KAPPA)[:, None], Q5.b[:, None] + _SHIFT)
Q5_QUARTIC = Quadratic(Q5.a, Q5.b, quartic=1.0)
QUARTIC_START = np.full((5, 2), 10.0)
QUARTIC_MINIMUM = np.full(2, np.cbrt(0.5 + 1.25**0.5) - np.cbrt(1.25**0.5 - 0.5))  # x^3 + 3x = 1, by Cardano

TRIANGLE_GRAPH: Digraph = triangle()
TRIANGLE = Quadratic(a=np.ones((3, 1)), b=np.array([[0.0], [3.0], [6.0]]))
TRIANGLE_START = np.zeros((3, 1))


def random_problem(n: int, d: int, seed: int) -> tuple[Digraph, Quadratic, np.ndarray]:
    """Return a random strongly connected digraph, quadratics on it and a start."""
    rng = np.random.default_rng(seed)
    problem = Quadratic(a=rng.uniform(0.5, 2.0, (n, d)), b=rng.normal(size=(n, d)))
    return random_digraph(n, 0.3, seed=seed), problem, rng.normal(size=(n, d))


def error(x: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Return the distance of the mean estimate, and the largest deviation of any coordinate of any agent."""
    return float(np.linalg.norm(x.mean(axis=0) - target)), float(abs(x - target).max())


def sample_loss(x: np.ndarray, batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the mean of 1/2 x' diag(a) x - b' x over the samples (a, b) of a batch."""
    curvature, linear = batch
    return (0.5 * curvature @ x**2 - linear @ x).mean()
