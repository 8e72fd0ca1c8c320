"""Measure the recommended threshold: python docs/thresholds.py

Prints the table of guides/step_size.md: how far CGT ends from the minimum with multiples of the recommended
threshold, each with the best of nine step sizes.
"""

import jax
import jax.numpy as jnp
import numpy as np

import digrad as dg
from digrad.sampling import normal_start

MULTIPLES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
STEP_SIZES = np.geomspace(1e-3, 3.0, 9)
STEPS = 400


def cases() -> dict[str, tuple[dg.Problem, np.ndarray]]:
    """Return problems and starts, by name."""
    quartic = dg.problems.example_quartic()
    regulariser = {"reg_weight": [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], "reg_power": [4, 5, 6, 5, 4]}
    found = {f"quartic, from {far}": (quartic, np.full((5, 2), float(far))) for far in (10, 100)}
    found["quadratic, from 10"] = (dg.problems.example_quadratic(), np.full((5, 2), 10.0))
    for data in ("digits", "breast_cancer"):
        problem = dg.problems.logistic(data=data, agents=5, partition="sorted", **regulariser)
        found[f"{data}, normal"] = (problem, normal_start(5, problem.dim, 0))
    steep = dg.problems.from_loss(log_cosh_and_fourth_power, regression(), 3)
    found["own steep loss, 10 x normal"] = (steep, 10 * normal_start(5, 3, 0))
    return found


def regression() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return 20 random samples for each of five agents."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((20, 3)), rng.standard_normal(20)) for _ in range(5)]


def log_cosh_and_fourth_power(w: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return a loss whose gradient grows with the cube of the residual."""
    features, targets = batch
    residual = features @ w - targets
    return (jnp.logaddexp(residual, -residual) + 0.1 * residual**4).mean()


def main() -> None:
    """Print one row per problem."""
    network = dg.Network(dg.graphs.example5())
    print(
        "| problem and start | c0 | " + " | ".join(f"{multiple:g} c0" for multiple in MULTIPLES) + " | AB |"
    )
    print("|---" * (len(MULTIPLES) + 3) + "|")
    for name, (problem, x0) in cases().items():
        threshold = dg.recommend_threshold(problem, x0=x0).threshold
        grid = {"step_size": STEP_SIZES, "threshold": [multiple * threshold for multiple in MULTIPLES]}
        table = dg.sweep(
            [dg.CGT, dg.AB], problem, network, steps=STEPS, x0=x0, record_every=100, grid=grid
        ).table
        gaps = (table["final_loss"] - problem.solve().loss).where(table["verdict"] != "diverged", np.inf)
        best = (
            gaps.groupby([table["method"], table["threshold"].fillna(np.inf)], sort=True)
            .min()
            .clip(lower=1e-15)
        )
        cells = [f"{gap:.1e}" for gap in (*best["CGT"], *best["AB"])]
        print(f"| {name} | {threshold:.3g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
