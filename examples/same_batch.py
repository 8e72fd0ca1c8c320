"""Experiment: which old gradient must a tracker subtract? Run `python examples/same_batch.py [figure.png]`.

With mini-batches a tracker adds the gradient of the new batch and subtracts a gradient at the old point. It
looks natural to take both on the new batch, because the noise then cancels. But then the noise of the very
first batch is never removed, and the agents agree on a wrong point. Subtracting the gradient
that was *stored* keeps the sum of the trackers equal to the sum of the latest gradients, and the agents hover
around the minimum. The methods of digrad do the latter; the former is written out below.
"""

import sys
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np

import digrad as dg

STEP_SIZE, NOISE, STEPS = 0.05, 0.5, 20_000
CURVATURE = np.array([[1.0 + i, 5.0 - i] for i in range(5)])
LINEAR = np.array([(1, 0), (0, 2), (-3, 1), (4, 4), (3, -2)], dtype=float)
MINIMUM = LINEAR.sum(axis=0) / CURVATURE.sum(axis=0)


def gradient(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the gradients of five quadratics, with the noise of one batch."""
    return CURVATURE * x - LINEAR + noise


def track(subtracted: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the agents' average after every step; ``subtracted(x, g, batch)`` is the old gradient."""
    network = dg.Network(dg.graphs.example5())
    R, C = network.R.toarray(), network.C.toarray()
    rng = np.random.default_rng(0)
    x = np.tile([10.0, -10.0], (5, 1))
    g = y = gradient(x, rng.normal(0, NOISE, x.shape))
    averages = []
    for _ in range(STEPS):
        new = R @ x - STEP_SIZE * y
        batch = rng.normal(0, NOISE, x.shape)
        fresh = gradient(new, batch)
        y = C @ y + fresh - subtracted(x, g, batch)
        x, g = new, fresh
        averages.append(x.mean(axis=0))
    return np.array(averages)


def main() -> None:
    same = track(lambda x, stored, batch: gradient(x, batch))
    stored = track(lambda x, stored, batch: stored)
    first = np.random.default_rng(0).normal(0, NOISE, CURVATURE.shape)
    predicted = MINIMUM - first.mean(axis=0) / CURVATURE.mean(axis=0)
    print(f"minimum of the average loss                   {MINIMUM.round(6)}")
    print(f"gradient of the new batch subtracted: limit   {same[-1].round(6)}")
    print(f"  predicted from the noise of the first batch {predicted.round(6)}")
    print(f"stored gradient subtracted: average over time {stored[STEPS // 2 :].mean(axis=0).round(6)}")
    if len(sys.argv) > 1:
        figure, axes = plt.subplots(figsize=(3.5, 2.6), layout="constrained")
        for label, path in (("gradient on the new batch", same), ("stored gradient", stored)):
            running = np.cumsum(path, axis=0) / np.arange(1, STEPS + 1)[:, None]
            axes.loglog(np.linalg.norm(running - MINIMUM, axis=1), label=label)
        axes.set(xlabel="iteration", ylabel="error of the time average", ylim=(1e-4, 20))
        axes.legend(loc="lower left", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
