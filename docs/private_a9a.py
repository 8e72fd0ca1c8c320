"""Measure what differential privacy costs: private logistic regression on a9a at three epsilons.

    python docs/private_a9a.py

Five agents on the example digraph, AB with step size 0.5, 400 steps, samples drawn with rate 0.02 and clipped to 1,
delta = 1e-5, seeds 0 to 4. Prints the rows of results/heavy_tails/README.md, section on privacy: accuracy of the mean
of the agents on a fifth of the samples that no agent has (split by seed 0).
"""

from typing import Any

import numpy as np

import digrad as dg

STEPS, SEEDS, RATE, DELTA = 400, 5, 0.02, 1e-5


def main() -> None:
    """Print one row per noise multiplier, and one without privacy."""
    train, rest = dg.data.load("a9a").split(0.2, seed=0)
    problem = dg.problems.logistic(data=train, agents=5, partition="stratified", reg_weight=1e-4)
    network, method = dg.Network(dg.graphs.example5()), dg.AB(step_size=0.5)
    targets = dg.data.binary_labels(rest)
    for multiplier in (8.0, 3.0, 1.0, 0.0, None):
        private = None if multiplier is None else dg.privacy.Private(1.0, multiplier, RATE)
        options: Any = {"batch_size": 104} if private is None else {"sampling": private}
        ends = [
            dg.simulate(
                method, problem, network, steps=STEPS, seed=seed, record_every=STEPS, **options
            ).final_x
            for seed in range(SEEDS)
        ]
        accuracies = [100 * np.mean((rest.features @ x.mean(axis=0) > 0) == (targets > 0)) for x in ends]
        epsilon = np.inf if not multiplier else float(private.epsilon(STEPS, DELTA))  # pyright: ignore[reportOptionalMemberAccess]
        spread = f"{np.mean(accuracies):.1f} ({min(accuracies):.1f} to {max(accuracies):.1f})"
        clipped = "not clipped" if private is None else "1"
        print(f"| {clipped} | {multiplier or 0:g} | {epsilon:.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
