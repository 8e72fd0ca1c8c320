"""The workload that is timed: CGT on the paper's logistic regression, five agents, one compiled chunk."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from benchmarks.measure import unrecorded
from benchmarks.numpy_loop import Gradient, NumpyLogistic, run_cgt
from benchmarks.torch_loop import torch_run
from digrad.data import Dataset
from digrad.errors import DigradError
from digrad.graphs import example5, k_out
from digrad.methods import CGT
from digrad.network import Network
from digrad.problems import Problem, logistic
from digrad.sampling import WithReplacement, normal_start
from digrad.simulation.loop import Inputs
from digrad.simulation.record import Recorder
from digrad.simulation.setup import Prepared, prepare

STEP_SIZE, THRESHOLD = 0.05, 5.0  # of the paper
METHOD = CGT(step_size=STEP_SIZE, threshold=THRESHOLD)
AGREEMENT = 1e-10  # largest difference between NumPy's iterates and ours, in float64
NEVER = 1 << 40  # a record_every that no run reaches


def many_agents_problem() -> Problem:
    """Return logistic regression of 500 agents on dense random samples, as many and as long as those of a9a."""
    generator = np.random.default_rng(0)
    shape = (32_561, 123)
    labels = generator.choice([-1.0, 1.0], shape[0])
    samples = Dataset("random samples", generator.standard_normal(shape), labels)
    return logistic(data=samples, agents=500, partition="iid", reg_weight=1e-3, reg_power=4.0)


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
        """The five-agent digraph of the demo, or a random one with three arcs from each agent."""
        n = self.problem.n_agents
        return Network(example5() if n == 5 else k_out(n, 3, seed=0))

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
    def prepared(self) -> Prepared:
        """The run, ready to advance all steps in one call."""
        return self._prepare(None)

    def run(self, end: int | None = None) -> Any:
        """Run digrad's compiled loop to iteration ``end``, without recording; return the state."""
        run = self.prepared
        end = self.steps if end is None else end
        return run.call(unrecorded(run.start), 1 + end, record_every=NEVER, inputs=self.inputs)[0].state

    @cached_property
    def inputs(self) -> Inputs:
        """The samples of all steps, on the device."""
        return jax.device_put(self.prepared.inputs(0, self.steps))

    def run_deferred(self, record_every: int) -> npt.NDArray[np.float64]:
        """Run with digrad's recording: averages stored in the loop, evaluated afterwards; return the losses."""
        run = self.prepared
        _, rows = run.call(run.start, self.steps, record_every=record_every, inputs=self.inputs)
        recorder = Recorder(self.problem.code, run.fixed.arrays, run.traffic)
        recorder.append(np.arange(0, self.steps, record_every), rows)
        return np.asarray(recorder.columns["loss"], np.float64)

    @cached_property
    def evaluating(self) -> Prepared:
        """The run with loss and gradient evaluated inside the loop at recorded iterations."""
        local = self.problem.local

        def evaluate(method: Any, before: Any, after: Any, grad: Any, arrays: Any) -> Any:
            point = method.estimate(before).mean(axis=0)
            loss, gradient = local.objective(arrays, point[None])
            return loss[0], jnp.linalg.norm(gradient[0])

        return self._prepare(evaluate)

    def run_inside(self, record_every: int) -> npt.NDArray[np.float64]:
        """Run with loss and gradient evaluated inside the compiled loop; return the losses."""
        run = self.evaluating
        _, rows = run.call(run.start, self.steps, record_every=record_every, inputs=self.inputs)
        return np.asarray(rows.kept[0], np.float64)[: self.steps // record_every]

    def _prepare(self, keep: Callable[..., Any] | None) -> Prepared:
        sampler = None
        if self.batch_size is not None and self.problem.sizes is not None:
            sampler = WithReplacement(self.problem.sizes, self.batch_size, 0)
        return prepare(
            METHOD,
            self.problem,
            self.network,
            self.x0,
            name="CGT",
            sampler=sampler,
            length=self.steps,
            keep=keep,
        )

    def run_numpy(self, gradient: Gradient, end: int | None = None) -> npt.NDArray[Any]:
        """Run a NumPy loop to iteration ``end``; return its x."""
        return run_cgt(
            gradient, self.x0, (self.network.R.toarray(), self.network.C.toarray()),
            step_size=STEP_SIZE, threshold=THRESHOLD,
            steps=self.steps if end is None else end, batches=self.batches,
        )  # fmt: skip

    @cached_property
    def reference(self) -> NumpyLogistic:
        """The problem as NumPy holds it."""
        return NumpyLogistic(self.problem.local, self.dtype)  # pyright: ignore[reportArgumentType]

    def layouts(self) -> dict[str, Gradient]:
        """Return NumPy's gradients for this batch size, by layout."""
        return (
            self.reference.full_layouts() if self.batch_size is None else self.reference.minibatch_layouts()
        )

    def run_products(self) -> None:
        """Do by BLAS what a step must multiply: margins and gradients of dense samples that lie there already."""
        x, numpy = self.x0, self.reference
        if self.batches is None:
            residual = np.ones((len(x), numpy.columns.shape[2], 1), self.dtype)
            for _ in range(self.steps):
                _, _ = np.matmul(x[:, None], numpy.columns), np.matmul(numpy.columns, residual)
            return
        batch = np.ascontiguousarray(numpy.rows[:, : self.batch_size])
        residual = np.ones((len(x), 1, batch.shape[1]), self.dtype)
        for _ in range(self.steps):
            _, _ = np.matmul(batch, x[:, :, None]), np.matmul(residual, batch)

    def others(self) -> dict[str, Callable[[], Any]]:
        """Return mini-batch loops of other kinds: agent after agent in NumPy, and stacked in eager torch."""
        if self.batches is None:
            return {}
        found: dict[str, Any] = {"agent loop": partial(self.run_numpy, self.reference.minibatch_loop())}
        run = torch_run(
            self.reference, self.x0, (self.network.R.toarray(), self.network.C.toarray()), self.batches,
            step_size=STEP_SIZE, threshold=THRESHOLD,
        )  # fmt: skip
        return {**found, "torch eager": run} if run else found

    def check_agreement(self) -> float:
        """Return the largest difference between the iterates of NumPy's loops and of digrad's.

        Raises:
            DigradError: it exceeds :data:`AGREEMENT`, so that the times would not be of the same computation.
        """
        ends = sorted({1, min(10, self.steps), self.steps})
        ours = {end: np.asarray(self.run(end).x) for end in ends}
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
