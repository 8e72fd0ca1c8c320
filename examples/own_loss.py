"""Your own JAX loss with a pytree of parameters, over a directed ring: `python examples/own_loss.py [figure.png]`."""

import sys

import jax.numpy as jnp
import numpy as np

import digrad as dg


def loss(params, batch):
    features, targets = batch
    hidden = jnp.tanh(features @ params["hidden"] + params["bias"])
    return jnp.mean((hidden @ params["out"] - targets) ** 2) + 1e-3 * jnp.sum(params["out"] ** 4)


def main() -> None:
    generator = np.random.default_rng(0)
    sizes = (40, 25, 60, 40)  # agents need not have equally many samples
    features = [generator.standard_normal((m, 3)) for m in sizes]
    data = [(x, np.sin(x.sum(axis=1)) + 0.5 * agent) for agent, x in enumerate(features)]
    params = {
        "hidden": generator.standard_normal((3, 8)),
        "bias": np.zeros(8),
        "out": generator.standard_normal(8),
    }

    problem = dg.problems.from_loss(loss, data, params)
    print(f"gradient error {problem.check_gradient():.1e}")
    trace = dg.simulate(
        dg.CGT(step_size=0.05, threshold=2.0),
        problem,
        dg.Network(dg.graphs.ring(4)),
        steps=2000,
        batch_size=8,
        seed=0,
        record_every=100,
    )
    fitted = problem.unravel(trace.final_x.mean(axis=0))
    print(trace, {name: np.shape(value) for name, value in fitted.items()})
    if len(sys.argv) > 1:
        dg.plots.curves({"CGT": trace}, "loss").savefig(sys.argv[1])


if __name__ == "__main__":
    main()
