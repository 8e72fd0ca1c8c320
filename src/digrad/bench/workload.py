"""The workload that is timed: CGT on the paper's logistic regression, five agents, one compiled chunk."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from digrad import metrics
from digrad.algorithms import CGT
from digrad.bench.numpy_loop import Gradient, NumpyLogistic, run_cgt
from digrad.errors import DigradError
from digrad.graphs import example5
from digrad.mixing import Network
from digrad.problems import LocalLosses, Problem, logistic
from digrad.sampling import WithReplacement, normal_start
from digrad.simulation import hyper, loop
from digrad.simulation.executor import SimulatedNet, operators
from digrad.simulation.recorder import Recorder

STEP_SIZE, THRESHOLD = 0.05, 5.0  # of the paper
METHOD = CGT(step_size=STEP_SIZE, threshold=THRESHOLD)
AGREEMENT = 1e-10  # largest difference between NumPy's iterates and ours, in float64
NEVER = 1 << 40  # a record_every that no run reaches


def paper_problem(data: str) -> Problem:
    """Return the problem of the paper's Section V-A on the data set called ``data``."""
    weight, power = [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], [4.0, 5.0, 6.0, 5.0, 4.0]
    return logistic(data=data, agents=5, partition="sorted", reg_weight=weight, reg_power=power)


@dataclass(frozen=True, eq=False)
class Workload:
    """Steps of CGT on one problem, in one dtype, with samples drawn beforehand.

    Args:
        problem: Of :func:`paper_problem`.
        dtype: float32 or float64.
        steps: How many steps one call runs.
        batch_size: Samples per agent and step; None for all.
    """

    problem: Problem
    dtype: str
    steps: int
    batch_size: int | None

    @cached_property
    def network(self) -> Network:
        """The five-agent digraph of the demo."""
        return Network(example5())

    @cached_property
    def x0(self) -> npt.NDArray[np.floating]:
        """A standard normal start."""
        return normal_start(self.problem.n_agents, self.problem.dim, 0).astype(self.dtype)

    @cached_property
    def batches(self) -> npt.NDArray[np.int32] | None:
        """The samples of every step, ``[steps, n, batch]``."""
        if self.batch_size is None or self.problem.sizes is None:
            return None
        return WithReplacement(self.problem.sizes, self.batch_size, 0).batches(0, self.steps)

    @cached_property
    def setting(self) -> loop.Setting:
        """The compiled loop's fixed arguments."""
        method = hyper.without_schedules(METHOD, self.dtype)
        u, v = (jnp.asarray(weights, self.dtype) for weights in (self.network.u, self.network.v))
        mixing, _ = operators(self.network, METHOD.needs, self.dtype)
        limit = jnp.asarray(1e12, self.dtype)
        return loop.Setting(method, mixing, self.problem.arrays(self.dtype), u, v, limit, NEVER)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The compiled loop's samples."""
        return {"schedules": {}, **({} if self.batches is None else {"index": jnp.asarray(self.batches)})}

    @cached_property
    def start(self) -> Any:
        """The method's state before the first step."""
        net = SimulatedNet(self.setting.operators, self.problem.n_agents)
        return loop.start_state(self.setting.method, jnp.asarray(self.x0), net)

    def run(self, end: int | None = None, record_every: int = NEVER) -> tuple[Any, loop.Rows]:
        """Run digrad's compiled loop to iteration ``end``; return the state and the recorded rows."""
        setting = self.setting._replace(record_every=record_every)
        end, rows = self.steps if end is None else end, self.steps // record_every + 2
        result = loop.run_chunk(setting, self.start, 0, end, self.inputs, local=self.problem.local, rows=rows)
        state, _, _, table = jax.block_until_ready(result)
        return state, table

    def run_deferred(self, record_every: int) -> npt.NDArray[np.float64]:
        """Run with digrad's recording: averages stored in the loop, evaluated afterwards; return the losses."""
        _, table = self.run(record_every=record_every)
        recorder = Recorder(
            self.problem.local, self.setting.arrays, bytes_per_step=0, bytes_at_start=0, with_plain_mean=False
        )
        recorder.append(np.arange(0, self.steps, record_every), table)
        return np.asarray(recorder.columns["loss"], np.float64)

    def run_inside(self, record_every: int) -> npt.NDArray[np.float64]:
        """Run with loss and gradient evaluated inside the compiled loop, and nothing else; return the losses."""
        arguments = (self.setting, self.start, self.inputs)
        losses, _ = _run_inside(*arguments, self.problem.local, self.steps // record_every, record_every)
        return np.asarray(jax.block_until_ready(losses), np.float64)

    def run_numpy(self, gradient: Gradient, end: int | None = None) -> npt.NDArray[Any]:
        """Run a NumPy loop to iteration ``end``; return its x."""
        return run_cgt(
            gradient, self.x0, (self.network.R.toarray(), self.network.C.toarray()),
            step_size=STEP_SIZE, threshold=THRESHOLD,
            steps=self.steps if end is None else end, batches=self.batches,
        )  # fmt: skip

    def layouts(self) -> dict[str, Gradient]:
        """Return NumPy's gradients for this batch size, by layout."""
        reference = NumpyLogistic(self.problem.local, self.dtype)  # pyright: ignore[reportArgumentType]
        return reference.full_layouts() if self.batch_size is None else reference.minibatch_layouts()

    def check_agreement(self) -> float:
        """Return the largest difference between the iterates of NumPy's loops and of digrad's.

        Raises:
            DigradError: it exceeds :data:`AGREEMENT`, so that the times would not be of the same computation.
        """
        ends = sorted({1, min(10, self.steps), self.steps})
        ours = {end: np.asarray(self.run(end)[0].x) for end in ends}
        gaps = {
            name: max(float(np.abs(self.run_numpy(gradient, end) - ours[end]).max()) for end in ends)
            for name, gradient in self.layouts().items()
        }
        worst = max(gaps, key=lambda name: gaps[name])
        if not gaps[worst] <= AGREEMENT:
            raise DigradError(
                f"the NumPy loop `{worst}` and digrad differ by {gaps[worst]:.3g} on {self.problem.name}, which "
                f"must be at most {AGREEMENT:g}; the benchmark is void, please report it."
            )
        return gaps[worst]


@partial(jax.jit, static_argnums=(3, 4, 5))
def _run_inside(
    setting: loop.Setting, start: Any, inputs: dict[str, Any], local: LocalLosses, records: int, every: int
) -> tuple[jax.Array, jax.Array]:
    net = SimulatedNet(setting.operators, setting.u.shape[0])

    def step(k: Any, state: Any) -> Any:
        method, index = loop.at_iteration(setting.method, inputs, k)
        return loop.one_step(method, state, net, local, setting.arrays, index)[0]

    def record(state: Any, j: Any) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        point = metrics.perron_average(setting.method.estimate(state), setting.u)
        loss, gradient = local.objective(setting.arrays, point[None])
        state = lax.fori_loop(j * every, (j + 1) * every, step, state)
        return state, (loss[0], jnp.linalg.norm(gradient[0]))

    return lax.scan(record, start, jnp.arange(records))[1]
