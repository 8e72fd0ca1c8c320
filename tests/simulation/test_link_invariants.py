"""The invariants of networks that misbehave, in the simulator."""

import jax
import numpy as np
import pytest

import digrad as dg
from link_invariants import AT_EVERY_STEP, STEPS, Moment, check_convergence, drawn

pytestmark = pytest.mark.filterwarnings("ignore:.*divides by a weight")


def seeds(gate, among):
    """Return one seed for the gate, because each compiles, and the others for `make slow`."""
    return [pytest.param(seed, marks=[] if seed == gate else [pytest.mark.slow]) for seed in among]


SEEDS = seeds(0, range(20))  # loss, sleep and a deadline; torch/test_unreliable.py tries many in the gate


def simulated(setting, steps):
    problem = dg.problems.quadratic(curvature=setting.curvature, linear=setting.linear)
    simulator, found = dg.Simulator(setting.method, problem, setting.network), []
    state = simulator.init(setting.x0)
    for _ in range(steps):
        state, _ = simulator.run(state, 1)
        with jax.enable_x64(True):
            left = [link.undelivered for link in state.links or () if link.pushed is not None]
        found.append(
            Moment(jax.tree.map(np.asarray, state.method_state), [np.asarray(part) for part in left])
        )
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("check", AT_EVERY_STEP.values(), ids=AT_EVERY_STEP)
def test_invariants_hold_at_every_step(check, seed):
    check(simulated, drawn(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_cut_after_every_step_has_the_same_bits(seed):
    setting = drawn(seed)
    problem = dg.problems.quadratic(curvature=setting.curvature, linear=setting.linear)
    simulator = dg.Simulator(setting.method, problem, setting.network)
    whole, _ = simulator.run(simulator.init(setting.x0), STEPS)
    for one, other in zip(whole.method_state, simulated(setting, STEPS)[-1].state, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", seeds(5, range(1, 8)))
def test_what_is_undelivered_vanishes_with_the_trackers_and_the_error(seed):
    check_convergence(simulated, drawn(seed, ["CGT", "AB", "PushPull"][seed % 3]))
