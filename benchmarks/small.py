"""Small problems: CGT on the paper's logistic regression against a careful NumPy loop, and what memory it takes.

``python -m benchmarks.small CASE DATA REPEATS`` measures one case in this process and prints its rows as JSON. Samples
are drawn beforehand for both sides, labels are folded into them, and both sides give the same numbers.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
import scipy.sparse

import digrad as dg
from benchmarks.measure import NEVER, Loop, interleave, peak_memory, timed
from benchmarks.report import BenchRow
from digrad.data import Dataset
from digrad.errors import DigradError
from digrad.sampling import WithReplacement, normal_start
from digrad.simulation.record import evaluate_many, first_rows

STEP_SIZE, THRESHOLD = 0.05, 5.0  # of the paper
BATCH, RECORD_EVERY = 32, 10
AGREEMENT = 1e-10  # largest difference between NumPy's iterates and ours, in float64
LOSSY = {  # what happens to packets, and what it may cost
    "30 % loss": (dg.Links(loss=0.3), 2.5),
    "delays of 0 to 5": (dg.Links(delay=5), None),
    "agents awake at 80 % of the steps": (dg.Links(awake=0.8), None),
}


def paper_problem(data: str) -> Any:
    """Return the problem of the paper's Section V-A on the data set called ``data``."""
    weight, power = [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], [4.0, 5.0, 6.0, 5.0, 4.0]
    return dg.problems.logistic(data=data, agents=5, partition="sorted", reg_weight=weight, reg_power=power)


def many_agents_problem() -> Any:
    """Return logistic regression of 500 agents on dense random samples, as many and as long as those of a9a."""
    generator, shape = np.random.default_rng(0), (32_561, 123)
    samples = Dataset(
        "random samples", generator.standard_normal(shape), generator.choice([-1.0, 1.0], shape[0])
    )
    return dg.problems.logistic(data=samples, agents=500, partition="iid", reg_weight=1e-3, reg_power=4.0)


class Workload:
    """Steps of CGT on one problem, in one dtype, with samples drawn beforehand."""

    def __init__(self, problem: Any, dtype: str, steps: int, batch_size: int | None) -> None:
        self.problem, self.dtype, self.steps, self.batch_size = problem, dtype, steps, batch_size
        n = problem.n_agents
        self.network = dg.Network(dg.graphs.example5() if n == 5 else dg.graphs.k_out(n, 3, seed=0))
        self.x0 = normal_start(n, problem.dim, 0).astype(dtype)
        sampler = None if batch_size is None else WithReplacement(problem.sizes, batch_size, 0)
        self.batches = sampler and sampler.batches(0, steps)
        method = dg.CGT(step_size=STEP_SIZE, threshold=THRESHOLD)
        simulator = dg.Simulator(method, problem, self.network, batch_size=batch_size, dtype=dtype)
        self.compiled = Loop(simulator, self.x0, steps)

    def run(self) -> Any:
        """Run digrad's loop in one call; return x."""
        return self.compiled.run(self.steps).method_state.x

    def record(self) -> Any:
        """Run with averages stored in the loop and evaluated afterwards; return the losses."""
        _, buffer = self.compiled.record(self.steps, RECORD_EVERY)
        points = first_rows(buffer, -(-self.steps // RECORD_EVERY)).point
        with jax.enable_x64(True):
            return evaluate_many(self.problem.code, self.compiled.simulator.params[0].arrays, points)[0]

    @cached_property
    def rows(self) -> tuple[Any, Any]:
        """Samples ``[n, m, d]`` with their labels folded in, and their weights ``[n, m]``."""
        local = self.problem.local
        n, m, d = local.n_agents, max(local.sizes), local.dim
        rows, weights = np.zeros((n, m, d), self.dtype), np.zeros((n, m), self.dtype)
        for i, (block, target) in enumerate(zip(local.features, local.targets, strict=True)):
            dense = block.toarray() if scipy.sparse.issparse(block) else block
            rows[i, : len(target)] = (2 * target - 1)[:, None] * dense
            weights[i, : len(target)] = 1 / len(target)
        return rows, weights

    def layouts(self) -> dict[str, Callable[[Any, int], Any]]:
        """Return NumPy's gradients at x in step k, by layout: which is fastest depends on the machine."""
        rows, weights = self.rows
        n, m, d = rows.shape
        if self.batches is not None:
            batches = self.batches
            flat, first, scale = rows.reshape(n * m, d), np.arange(n)[:, None] * m, 1 / batches.shape[2]
            taken = np.empty((n * batches.shape[2], d), self.dtype)

            def sampled(x: Any, k: int) -> Any:
                np.take(flat, (batches[k] + first).reshape(-1), axis=0, out=taken, mode="clip")
                batch = taken.reshape(n, -1, d)
                residual = _residual(np.matmul(batch, x[:, :, None])[:, :, 0], scale)
                return np.matmul(residual[:, None], batch)[:, 0]

            return {"taken": sampled}
        columns = np.ascontiguousarray(rows.transpose(0, 2, 1))

        def by_rows(x: Any, k: int) -> Any:
            residual = _residual(np.matmul(rows, x[:, :, None])[:, :, 0], weights)
            return np.matmul(residual[:, None], rows)[:, 0]

        def by_columns(x: Any, k: int) -> Any:
            residual = _residual(np.matmul(x[:, None], columns)[:, 0], weights)
            return np.matmul(columns, residual[:, :, None])[:, :, 0]

        return {"rows": by_rows, "columns": by_columns}

    def run_numpy(self, gradient: Callable[[Any, int], Any]) -> Any:
        """Run the same steps in NumPy; return x."""
        local = self.problem.local
        R, C = (matrix.toarray().astype(self.dtype) for matrix in (self.network.R, self.network.C))
        slope = (local.reg_weight * local.reg_power).astype(self.dtype)
        power = (local.reg_power / 2 - 1).astype(self.dtype)
        x, y, g = self.x0, np.zeros_like(self.x0), np.zeros_like(self.x0)
        for k in range(self.steps):
            grad = gradient(x, k)
            grad += (slope * np.einsum("nd,nd->n", x, x) ** power)[:, None] * x
            y = C @ y
            y += grad
            y -= g
            norm = np.sqrt(np.einsum("nd,nd->n", y, y))
            x = R @ x
            x -= (STEP_SIZE / np.maximum(norm / THRESHOLD, 1))[:, None] * y
            g = grad
        return x

    def check(self) -> None:
        """Raise DigradError unless NumPy's loops end where digrad does."""
        ours = np.asarray(self.run())
        for name, gradient in self.layouts().items():
            gap = float(np.abs(self.run_numpy(gradient) - ours).max())
            if not gap <= AGREEMENT:
                raise DigradError(
                    f"the NumPy loop `{name}` and digrad differ by {gap:.3g}: nothing to compare."
                )


def _residual(margin: Any, weight: Any) -> Any:
    """Return -weight/(1 + exp(margin)), overwriting ``margin``."""
    np.exp(margin, out=margin)
    margin += 1
    np.divide(-weight, margin, out=margin)
    return margin


def _steps(
    problem: Any, name: str, steps: int, batch_size: int | None, targets: dict[str, float], repeats: int
) -> list[BenchRow]:
    rows = []
    with jax.enable_x64(True):
        Workload(problem, "float64", min(steps, 20), batch_size).check()
        for dtype, target in targets.items():
            work = Workload(problem, dtype, steps, batch_size)
            layouts = {layout: partial(work.run_numpy, grad) for layout, grad in work.layouts().items()}
            times = interleave({"digrad": work.run, **layouts}, repeats=repeats)
            best = min(layouts, key=lambda layout: times[layout].cpu)
            scale = 1e6 / steps
            rows.append(
                BenchRow(
                    f"step, {name}, {dtype}", times["digrad"].cpu * scale, "us", target, times[best].cpu * scale,
                    at_least=True, ours_wall=times["digrad"].wall * scale, reference_wall=times[best].wall * scale,
                    note=f"NumPy: {best}",
                )
            )  # fmt: skip
    return rows


def minibatch(data: str, repeats: int) -> list[BenchRow]:
    """Time a mini-batch step against NumPy's."""
    targets = {"float32": 4.0, "float64": 4.0}
    return _steps(paper_problem(data), f"batch {BATCH}", 2000, BATCH, targets, repeats)


def full_batch(data: str, repeats: int) -> list[BenchRow]:
    """Time a full-batch step against the faster of NumPy's two layouts."""
    return _steps(paper_problem(data), "full batch", 10, None, {"float32": 1 / 1.3, "float64": 1.7}, repeats)


def many_agents(data: str, repeats: int) -> list[BenchRow]:
    """Time a mini-batch step of 500 agents on random dense samples against NumPy with dense mixing."""
    targets = {"float32": 2.0, "float64": 2.0}
    return _steps(many_agents_problem(), f"500 agents, batch {BATCH}", 50, BATCH, targets, repeats)


def recording(data: str, repeats: int) -> list[BenchRow]:
    """Time a recorded run against one without metrics."""
    rows = []
    with jax.enable_x64(True):
        for dtype in ("float32", "float64"):
            work = Workload(paper_problem(data), dtype, 1000, BATCH)
            times = interleave({"recorded": work.record, "steps": work.run}, repeats=repeats)
            rows.append(
                BenchRow(
                    f"1000 steps, metrics every {RECORD_EVERY}, {dtype}", times["recorded"].cpu * 1e3, "ms",
                    reference=times["steps"].cpu * 1e3, note="reference: the steps alone",
                )
            )  # fmt: skip
    return rows


def memory(data: str, repeats: int) -> list[BenchRow]:
    """Measure the peak memory of one recorded run in this process, which must be fresh."""
    dg.simulate(
        dg.CGT(STEP_SIZE, THRESHOLD), paper_problem(data), dg.Network(dg.graphs.example5()),
        steps=1000, batch_size=BATCH, record_every=RECORD_EVERY, x0="normal",
    )  # fmt: skip
    return [BenchRow("peak memory, 1000 steps", peak_memory() / 1e9, "GB", 1.0)]


def whole_run(data: str, repeats: int) -> list[BenchRow]:
    """Time 1000 iterations of 100 000 agents, which must converge, network and compilation included."""
    n, d = 100_000, 10
    generator = np.random.default_rng(0)
    curvature, linear = generator.uniform(1, 2, (n, d)), generator.standard_normal((n, d))

    def run() -> None:
        problem = dg.problems.quadratic(curvature=curvature, linear=linear)
        network, options = (
            dg.Network(dg.graphs.k_out(n, 3, seed=0)),
            {"record_every": 100, "dtype": "float32"},
        )
        trace = dg.simulate(dg.CGT(0.2, THRESHOLD), problem, network, steps=1000, x0="normal", **options)
        if trace.verdict != "converged":
            raise DigradError(f"1000 iterations of {n} agents must converge, but ended as {trace.verdict!r}.")

    spent = timed(run)
    name = f"1000 iterations of {n} agents, dimension {d}, float32"
    return [BenchRow(name, spent.cpu, "s", ours_wall=spent.wall, note="CPU time, once, all included")]


def lossy(data: str, repeats: int) -> list[BenchRow]:
    """Time a step on networks that lose or delay packets, what is drawn on the host included."""
    n, d, steps = 1000, 64, 100
    problem = dg.problems.quadratic(curvature=np.ones((n, d)), linear=np.ones((n, d)))
    graph, x0 = dg.graphs.k_out(n, 3, seed=0), normal_start(n, d, 0).astype("float32")
    with jax.enable_x64(True):
        runs = {}
        for name, links in {"perfect": None, **{name: links for name, (links, _) in LOSSY.items()}}.items():
            network = dg.Network(graph, links=links)
            simulator = dg.Simulator(
                dg.CGT(0.2, THRESHOLD), problem, network, dtype="float32", record_every=NEVER
            )
            start = simulator.init(x0)
            runs[name] = partial(simulator.run, start._replace(k=start.k + 1, reached=start.k + 1), steps)
        times = interleave(runs, repeats=repeats)
    return [
        BenchRow(
            f"step, {n} agents, dimension {d}, {name}", times[name].cpu * 1e6 / steps, "us", target,
            times["perfect"].cpu * 1e6 / steps, note="reference: the same where all packets arrive",
        )
        for name, (_, target) in LOSSY.items()
    ]  # fmt: skip


CASES = {
    case.__name__: case for case in (minibatch, many_agents, recording, full_batch, memory, whole_run, lossy)
}

if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in CASES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))]))
